"""A cell of a notebook that is to be changed, and the notebook with it: only the lines of the cell differ."""

from __future__ import annotations

import json
import re
from typing import Any

from .source import NoPatch


class Notebook:
    """``number`` counts cells with code from 1, as lines of predictions do."""

    def __init__(self, text: str, number: int) -> None:
        self.text = text
        try:
            self.content: dict[str, Any] = json.loads(text)
            cells = [cell for cell in self.content["cells"] if cell.get("cell_type") == "code"]
            self.cell = cells[number - 1] if number >= 1 else None
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise NoPatch("the notebook cannot be read, or has no such cell") from error
        if self.cell is None:
            raise NoPatch("the notebook has no such cell")
        self.source = _source(self.cell)
        self.before = "\n".join(_plain(_source(cell)) for cell in cells[: number - 1])
        self.is_plain = _plain(self.source) == self.source

    def changed(self, source: str) -> str | None:
        """The notebook's file with another text in the cell; ``None`` if it would differ elsewhere, because it is laid out in a way of its own."""
        for indent in (1, 2, 4, None):
            for ascii_only in (False, True):
                for end in ("\n", ""):
                    if json.dumps(self.content, indent=indent, ensure_ascii=ascii_only) + end == self.text:
                        assert self.cell is not None
                        was = self.cell["source"]
                        self.cell["source"] = re.findall(r"[^\n]*\n|[^\n]+", source) if isinstance(was, list) else source
                        text = json.dumps(self.content, indent=indent, ensure_ascii=ascii_only) + end
                        self.cell["source"] = was
                        return text
        return None


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def _plain(text: str) -> str:
    """Without magics and shell commands, line by line: only Python can be parsed."""
    if text.lstrip().startswith("%%"):
        return re.sub(r"(?m)^", "# ", text)
    return re.sub(r"(?m)^([ \t]*)([%!].*)$", lambda found: f"{found[1]}pass  # {found[2]}", text)
