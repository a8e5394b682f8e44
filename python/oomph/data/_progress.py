"""How far a long pass has come: one line on a terminal or in a notebook, after a second; nothing anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oomph._sizes import text

# Called with what is done ("profiling", "loading", "writing"), and how many of how many bytes or rows are behind.
Progress = Callable[[str, int, int], None]

# Work that is done sooner needs no bar.
_QUIET_SECONDS = 1.0
_BAR_WIDTH = 30


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """What to hand to the native side: the caller's function, a bar where somebody would see it, or nothing."""
    if callable(progress):
        yield progress
        return
    bar = None if progress is False else _bar()
    try:
        yield bar
    finally:
        if bar is not None:
            bar.close()


def _bar() -> _Bar | None:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and hasattr(shell, "kernel"):
        return _NotebookBar()
    return _TerminalBar() if sys.stderr is not None and sys.stderr.isatty() else None


class _Bar:
    """Counts; how it is shown is for others to say."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._visible = False

    def __call__(self, doing: str, done: int, total: int) -> None:
        seconds = time.monotonic() - self._begun
        if seconds < _QUIET_SECONDS or not total:
            return
        self._visible = True
        share = min(done / total, 1.0)
        filled = int(share * _BAR_WIDTH)
        self.show(f"{doing:>9} {'█' * filled}{'░' * (_BAR_WIDTH - filled)} {share:4.0%}  {text(done)} of {text(total)}, {seconds:.0f} s")

    def show(self, line: str) -> None:
        raise NotImplementedError

    def erase(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Leaves no trace."""
        if self._visible:
            self.erase()


class _TerminalBar(_Bar):
    def show(self, line: str) -> None:
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()

    def erase(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class _NotebookBar(_Bar):
    _display: Any = None

    def show(self, line: str) -> None:
        self._update({"text/plain": line})

    def erase(self) -> None:
        self._update({"text/plain": ""})

    def _update(self, bundle: dict[str, str]) -> None:
        from IPython.display import display

        if self._display is None:
            self._display = display(bundle, raw=True, display_id=True)
        else:
            self._display.update(bundle, raw=True)
