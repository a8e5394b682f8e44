"""Data that does not fit in RAM: what it takes, how small it could be with every value kept, and how to read it within a budget.

``profile`` says what is in a table or an array; ``load`` and ``shrink`` make it small; ``stream`` reads what is larger than memory, batch by batch; ``share`` lets
the workers of a DataLoader use one copy of a list. None of NumPy, pandas, polars, pyarrow, SciPy and torch is required: what is there is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not later, as the rest: a module of this name, once it is imported, would stand here instead of its function.
from oomph.data.share import share

if TYPE_CHECKING:
    from oomph.data._column import Column
    from oomph.data._matrix import Csr
    from oomph.data._native import DataError
    from oomph.data._profile import ColumnProfile, Profile, profile
    from oomph.data._shrink import LossyWarning, Report, Shrunk, load, shrink
    from oomph.data._stream import Stream, StreamProgress, stream
    from oomph.data._table import Table

__all__ = ["Column", "ColumnProfile", "Csr", "DataError", "LossyWarning", "Profile", "Report", "Shrunk", "Stream", "StreamProgress", "Table", "load", "profile", "share"]
__all__ += ["shrink", "stream"]

# Imported when they are first asked for: name -> module.
_LATER = {"Column": "_column", "Csr": "_matrix", "DataError": "_native", "Table": "_table"}
_LATER.update(dict.fromkeys(("ColumnProfile", "Profile", "profile"), "_profile"))
_LATER.update(dict.fromkeys(("LossyWarning", "Report", "Shrunk", "load", "shrink"), "_shrink"))
_LATER.update(dict.fromkeys(("Stream", "StreamProgress", "stream"), "_stream"))


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = globals()[name] = getattr(importlib.import_module(f"oomph.data.{_LATER[name]}"), name)
        return value
    raise AttributeError(f"module 'oomph.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
