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
            is_running = False
            if value is error:
                # Of a syntax error IPython shows the frames only if it came up while the cell ran: in an import, not in the cell itself.
                is_running = _runs_in(_last(run_by, trace), shell.user_ns)
                trace = _without(run_by, trace)
                if is_running and (isinstance(value, SyntaxError) or hasattr(value, "exceptions")):
                    # Of these, and of groups of errors, IPython shows the traceback that the error itself has.
                    value.__traceback__ = trace
            shell.showtraceback((kind, value, trace), tb_offset=tb_offset, running_compiled_code=is_running)

        self.forget()
        self._before = shell.custom_exceptions, shell.CustomTB
        shell.set_custom_exc((type(error),), show)

    def forget(self) -> None:
        """The shell as it was; another magic may have dealt with the error."""
        if self._before is not None:
            (self._shell.custom_exceptions, self._shell.CustomTB), self._before = self._before, None


def _without(code: CodeType, trace: TracebackType | None) -> TracebackType | None:
    """IPython's own frame, which it knows to leave out, and what comes after that code's."""
    after = _last(code, trace)
    return trace if trace is None or after is None else TracebackType(after, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def _runs_in(trace: TracebackType | None, names: dict[str, Any]) -> bool:
    while trace is not None and trace.tb_frame.f_globals is not names:
        trace = trace.tb_next
    return trace is not None


def _last(code: CodeType, trace: TracebackType | None) -> TracebackType | None:
    """What comes after that code's innermost frame."""
    after, each = None, trace
    while each is not None:
        if each.tb_frame.f_code is code:
            after = each.tb_next
        each = each.tb_next
    return after
