"""The traceback of an error in a ``%%oomph`` cell: as IPython shows it of the same cell without the magic, no frame of the magic's in it."""

from __future__ import annotations

from types import CodeType, TracebackType
from typing import Any


class OwnErrors:
    """Has IPython show the next error by itself; once, and no other."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._before: tuple[Any, Any] | None = None

    def expect(self, error: BaseException, run_by: CodeType) -> None:
        """``run_by`` is what ran the cell: what comes after its frame is the cell's."""
        shell = self._shell
        # Who wants to show such errors in another way goes first.
        if isinstance(error, shell.custom_exceptions):
            return

        def show(_shell: Any, kind: type[BaseException], value: BaseException, trace: TracebackType | None, tb_offset: int | None = None) -> None:
            self.forget()
            shell.showtraceback((kind, value, _without(run_by, trace) if value is error else trace), tb_offset=tb_offset)

        self.forget()
        self._before = shell.custom_exceptions, shell.CustomTB
        shell.set_custom_exc((type(error),), show)

    def forget(self) -> None:
        """The shell as it was; another magic may have dealt with the error."""
        if self._before is not None:
            (self._shell.custom_exceptions, self._shell.CustomTB), self._before = self._before, None


def _without(code: CodeType, trace: TracebackType | None) -> TracebackType | None:
    """IPython's own frame, which it knows to leave out, and what comes after that code's."""
    last, each = None, trace
    while each is not None:
        if each.tb_frame.f_code is code:
            last = each
        each = each.tb_next
    return trace if trace is None or last is None else TracebackType(last.tb_next, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
