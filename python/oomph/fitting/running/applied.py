"""Changes to a model that can be undone: the one protocol of ``oomph.fit`` and ``oomph.fit_inference``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Self = TypeVar("Self", bound="Applied")


class Applied:
    """``close`` undoes, the last first; so does the end of a ``with`` block. ``undo`` is the same. Nothing happens the second time."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()

    def undo(self) -> None:
        self.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
