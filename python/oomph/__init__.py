"""oomph: where did my GPU memory go, why did it run out, and what would have helped?

The package carries the command ``oomph``; ``python -m oomph`` runs it where the scripts folder is not on the path.
"""

__all__ = ["find_oomph"]

from oomph._find import find_oomph
