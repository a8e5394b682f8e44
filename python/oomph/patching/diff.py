"""A change as ``git apply`` takes it."""

from __future__ import annotations

import difflib
import re

# As git shows them.
_CONTEXT = 3


def unified(name: str, old: str, new: str) -> str:
    """The difference of two texts; ``name`` is the path from where it is to be applied."""
    out = []
    for line in difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}", n=_CONTEXT):
        out.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)
