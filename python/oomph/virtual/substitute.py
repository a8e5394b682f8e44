"""Gives a program another text for some of its files, as if that were in them: a change is tried without touching the folder.

Files are named by their real path, a notebook's cell by that and its number: ``train.ipynb[3]``. Scripts ask ``text_of``; modules get it where Python would read them, so that neither
the file nor its cached bytecode counts. Processes that the program spawns read the files as they are.
"""

from __future__ import annotations

import importlib.machinery
import linecache
import os

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

_texts: dict[str, str] = {}


def install(texts: dict[str, str]) -> None:
    _texts.update(texts)
    loader: Any = importlib.machinery.SourceFileLoader
    plain = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        text = text_of(path)
        return plain(self, fullname) if text is None else compile(text, path, "exec", dont_inherit=True)

    loader.get_code = get_code


def text_of(path: str, cell: int | None = None) -> str | None:
    """The other text, or ``None``. From then on tracebacks show it."""
    real = os.path.realpath(path)
    text = _texts.get(real if cell is None else f"{real}[{cell}]")
    if text is not None and cell is None:
        linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    return text
