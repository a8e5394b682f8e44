"""One line that says how far something is: after a second, on a terminal or in a notebook; nothing anywhere else, and no trace at the end.

What the line says is the callers'.
"""

from __future__ import annotations

import sys
import time
from typing import Any

# Work that is done sooner needs no line.
_QUIET_SECONDS = 1.0


class ProgressLine:
    """Shows nothing: for output that is not a terminal. The others show what they are given."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._visible = False

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._begun

    def say(self, line: str) -> None:
        """In place of what was said before."""
        if self.seconds >= _QUIET_SECONDS:
            self._visible = True
            self.show(line)

    def close(self) -> None:
        """Leaves no trace."""
        if self._visible:
            self._visible = False
            self.show("")

    def show(self, line: str) -> None:
        pass


class _OnTerminal(ProgressLine):
    def show(self, line: str) -> None:
        sys.stderr.write(f"\r{line}\x1b[K")
        sys.stderr.flush()


class _InNotebook(ProgressLine):
    _display: Any = None

    def show(self, line: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": line}
        if self._display is None:
            self._display = display(bundle, raw=True, display_id=True)
        else:
            self._display.update(bundle, raw=True)


def on_terminal() -> ProgressLine:
    """A line on stderr, if that is a terminal."""
    return _OnTerminal() if sys.stderr is not None and sys.stderr.isatty() else ProgressLine()


def where_it_is_seen() -> ProgressLine:
    """A line in the notebook, if this is one, or on a terminal."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return _InNotebook() if shell is not None and hasattr(shell, "kernel") else on_terminal()
