"""Letting go of what failed code held: the frames of an exception's traceback keep every local variable alive.

Frames are cleared, nothing else: the exception keeps its message and its traceback's lines, so it prints as before.
When that is done, and for which exceptions, is for the callers to say.
"""

from __future__ import annotations

import builtins
import gc
import sys
import types
from collections.abc import Iterator

# inspect.CO_GENERATOR, CO_COROUTINE and CO_ASYNC_GENERATOR; importing inspect takes longer than this whole module.
_CAN_BE_SUSPENDED = 0x20 | 0x80 | 0x200

_SUSPENDABLE = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}

# inspect.CO_OPTIMIZED: a function's frame. A module's variables are the module's, and stay.
_OPTIMIZED = 0x1

# Python 3.10 has no groups of its own; those of the package exceptiongroup are known by their attribute.
_GROUP: type | None = getattr(builtins, "BaseExceptionGroup", None)


def release(exception: BaseException | None) -> int:
    """Clears every finished frame that an exception, its causes, contexts and members hold; says how many those were.

    Frames that still run, and generators that can still go on, stay as they are. Never raises.
    """
    cleared = 0
    for error in chain(exception):
        for frame in frames(error.__traceback__):
            # clear() would end a generator that caught the exception and waits to go on.
            if frame.f_code.co_flags & _CAN_BE_SUSPENDED and _is_suspended(frame):
                continue
            try:
                frame.clear()
                if sys.version_info < (3, 13) and frame.f_code.co_flags & _OPTIMIZED:
                    # Code that printed the traceback may have read f_locals, a copy that stays on the frame until it is made anew.
                    frame.f_locals  # noqa: B018
            except RuntimeError:
                continue  # It is running.
            cleared += 1
    return cleared


def chain(exception: BaseException | None) -> Iterator[BaseException]:
    """An exception and all that hang on it (causes, contexts, members of groups), each once, cycles or not."""
    waiting: list = [exception]
    seen: set[int] = set()
    while waiting:
        error = waiting.pop()
        if not issubclass(type(error), BaseException) or id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        waiting += [error.__cause__, error.__context__, *_members(error)]


def frames(trace: types.TracebackType | None) -> Iterator[types.FrameType]:
    """The frames of a traceback, outermost first."""
    seen: set[int] = set()
    while trace is not None and id(trace) not in seen:
        seen.add(id(trace))
        yield trace.tb_frame
        trace = trace.tb_next


def _members(error: BaseException) -> tuple[object, ...]:
    if _GROUP is not None and not issubclass(type(error), _GROUP):
        return ()
    try:
        members = error.exceptions  # type: ignore[attr-defined]  # groups alone have it
    except Exception:
        return ()
    return members if type(members) is tuple else ()


def _is_suspended(frame: types.FrameType) -> bool:
    """Whether a generator's or coroutine's frame can go on."""
    if sys.version_info >= (3, 11):
        # A frame belongs to its generator until that has ended; only then the collector hears of it.
        return not gc.is_tracked(frame)
    for thing in gc.get_referrers(frame):
        for kind, name in _SUSPENDABLE.items():
            if type(thing) is kind and getattr(thing, name) is frame:
                return True
    return False
