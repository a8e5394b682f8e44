"""Data that does not fit in RAM: what it takes, how small it could be with every value kept, and how to read it within a budget.

``profile`` says what is in a table or an array; ``load`` and ``shrink`` make it small; ``stream`` reads what is larger than memory, batch by batch; ``share`` lets
the workers of a DataLoader use one copy of a list. None of NumPy, pandas, polars, pyarrow, SciPy and torch is required: what is there is used.
"""

from __future__ import annotations

# Not later, as the rest: a module of this name, once it is imported, would stand here instead of its function.
from oomph.data.share import share

__all__ = ["share"]
