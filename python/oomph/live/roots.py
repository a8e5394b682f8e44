"""Where a Python program can hold something: its variables, what IPython remembers, tracebacks, running functions.

Lists the places with their names, for a walk to start from. In a plain script there are only fewer of them.
"""

from __future__ import annotations

import re
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from .frames import chain
from .walk import Edge, local_variables

Root = tuple[str, str, Any]

VARIABLE, OUTPUT, TRACEBACK, RUNNING = "variable", "output", "traceback", "running function"

# Frames of these pass on what the user's code made.
_RUNNERS = ("IPython", "ipykernel")

# What IPython puts into the user's namespace by itself.
_IPYTHONS_OWN = re.compile(r"_|__|___|_\d+|_oh|_dh|_ih|_i+|_i\d+|In|Out|__\w+__")


def shell() -> Any | None:
    """The IPython that runs here, if one does."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return get_ipython()


def namespace(running: Any | None) -> dict[str, Any]:
    """Where the user's variables are."""
    return running.user_ns if running is not None else sys.modules["__main__"].__dict__


def variables(running: Any | None) -> Iterator[Root]:
    for name, value in list(namespace(running).items()):
        if running is None and not (name.startswith("__") and name.endswith("__")):
            yield name, VARIABLE, value
        elif running is not None and not _IPYTHONS_OWN.fullmatch(name):
            yield name, VARIABLE, value


def outputs(running: Any | None) -> Iterator[Root]:
    """What IPython remembers of displayed values."""
    if running is None:
        return
    for number, value in list(running.user_ns.get("_oh", {}).items()):
        yield f"Out[{number}]", OUTPUT, value
    for where in (running.user_ns, running.user_ns_hidden):
        for name in [name for name in where if re.fullmatch(r"_|__|___|_\d+", name)]:
            yield name, OUTPUT, where[name]
    for name in ("_", "__", "___"):
        yield name, OUTPUT, getattr(running.displayhook, name, None)
    yield "the last cell's result", OUTPUT, getattr(running.last_execution_result, "result", None)


def exceptions(running: Any | None) -> list[BaseException]:
    """The errors that Python and IPython remember."""
    found = [getattr(sys, "last_exc", None), getattr(sys, "last_value", None)]
    if running is not None:
        result = running.last_execution_result
        found += [getattr(result, "error_in_exec", None), getattr(result, "error_before_exec", None)]
        found.append(getattr(getattr(running, "InteractiveTB", None), "evalue", None))
    return [error for error in found if isinstance(error, BaseException)]


def tracebacks(running: Any | None) -> Iterator[Root]:
    for trace in remembered(running):
        for name, value in users_variables(trace.tb_frame):
            yield f"traceback of the last error: {name} in {trace.tb_frame.f_code.co_name}() line {trace.tb_lineno}", TRACEBACK, value


def remembered(running: Any | None, *more: BaseException) -> Iterator[types.TracebackType]:
    """The tracebacks of the errors that are remembered, and of ``more``, each part once."""
    seen: set[int] = set()
    traces = [error.__traceback__ for first in (*exceptions(running), *more) for error in chain(first)]
    traces += [getattr(sys, "last_traceback", None), getattr(getattr(running, "InteractiveTB", None), "tb", None)]
    for trace in traces:
        while isinstance(trace, types.TracebackType) and id(trace) not in seen:
            seen.add(id(trace))
            yield trace
            trace = trace.tb_next


def running_functions(innermost: types.FrameType) -> Iterator[Root]:
    """Local variables of the functions that run now: those that led to ``innermost``, and those of other threads."""
    # This thread's newest frame is oomph's own: to hold it would make a cycle of it.
    others: list[types.FrameType | None] = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]
    for frame in (innermost, *others):
        while frame is not None:
            for name, value in users_variables(frame):
                yield f"{name} in {frame.f_code.co_name}() line {frame.f_lineno}", RUNNING, value
            frame = frame.f_back


def users_variables(frame: types.FrameType) -> list[Edge]:
    return [] if str(frame.f_globals.get("__name__")).partition(".")[0] in _RUNNERS else local_variables(frame)
