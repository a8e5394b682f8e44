"""Clears the frames of an out-of-memory as soon as it is caught.

An exception holds the frames that it came through, and they hold their tensors: a handler that wants to try again with
a smaller batch finds the memory still taken. Once the exception has reached its handler those frames are finished,
and only a debugger reads them.

From Python 3.12 on the interpreter says when an exception is handled. Before, a call is left pending in the main thread:
the interpreter makes it between two instructions, the first time in the handler.
"""

from __future__ import annotations

import ctypes
import sys
from opcode import opmap

from .frames import chain, frames, release

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import CodeType

# Calls are made before the exception has arrived, too, in the exit methods on its way: each leaves another one pending,
# until it is gone, or for some hundredths of a second.
_MOST_TRIES = 20_000


# Of those who show an exception and look into its frames for that. ``%load_ext oomph`` clears them afterwards; ``%%oomph`` runs a cell itself.
_SHELLS = ("/IPython/", "/ipykernel/", "/oomph/notebook/")

# What a handler begins with from Python 3.11 on, and what follows where it calls an exit method.
_BEGINS, _CALLS_AN_EXIT_METHOD = opmap.get("PUSH_EXC_INFO"), opmap["WITH_EXCEPT_START"]


def _is_of_a_shell(error: BaseException) -> bool:
    """Whether IPython has caught it, to show it."""
    trace = error.__traceback__
    file = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return any(shell in file for shell in _SHELLS)


def _is_passing(error: BaseException) -> bool:
    """Whether it is in an exit method on its way out of a ``with``: who gets it in the end may want to show it, and if nobody does, nobody holds it."""
    return any(0 <= frame.f_lasti and frame.f_code.co_code[frame.f_lasti] == _CALLS_AN_EXIT_METHOD for frame in frames(error.__traceback__))


class Handlers:
    """Watches for the handlers of one kind of exception."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind
        self.tries = 0
        self.seen = False
        self.tool: int | None = None
        if sys.version_info >= (3, 12):
            self.tool = self._take_tool()
        else:
            self._pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._call)

    def expect(self) -> None:
        """An exception is about to be raised in this thread."""
        if sys.version_info >= (3, 12) and self.tool is not None:
            sys.monitoring.set_events(self.tool, sys.monitoring.events.EXCEPTION_HANDLED)
        elif sys.version_info < (3, 12) and sys.gettrace() is None and sys.getprofile() is None:
            # Where every instruction is traced, 3.11 would make pending calls for ever.
            self.tries, self.seen = _MOST_TRIES, False
            ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def _take_tool(self) -> int | None:
        if sys.version_info < (3, 12):
            return None
        monitoring = sys.monitoring
        for number in (4, 3, 5):
            if monitoring.get_tool(number) is None:
                monitoring.use_tool_id(number, "oomph")
                monitoring.register_callback(number, monitoring.events.EXCEPTION_HANDLED, self._handled)
                return number
        return None

    def _handled(self, code: CodeType, offset: int, error: BaseException) -> None:
        # Told at the first instruction of what handles it: an exit method, or the end of a handler that raises it again, are none to arrive at.
        arrives = code.co_code[offset] == _BEGINS and code.co_code[offset + 2] != _CALLS_AN_EXIT_METHOD
        if arrives and not self._holds(error) and sys.version_info >= (3, 12):
            # Something else: the exception that was expected has been dealt with.
            sys.monitoring.set_events(self.tool, 0)

    def _holds(self, error: BaseException | None) -> bool:
        """Whether this is what was expected, or came of it; then its frames are cleared, once it has arrived."""
        expected = [one for one in chain(error) if isinstance(one, self.kind)] if error is not None else []
        # IPython may be handling another by now, that came while it showed this one: an import that had to be looked for.
        if not expected or any(_is_of_a_shell(one) for one in expected):
            return False
        if not any(_is_passing(one) for one in expected):
            release(error)
        return True

    def _call(self, _: int | None) -> int:
        there = self._holds(sys.exc_info()[1])
        self.tries -= 1
        if self.tries > 0 and (there or not self.seen):
            self.seen |= there
            ctypes.pythonapi.Py_AddPendingCall(self._pending, None)
        return 0
