"""Tracebacks as they would be if oomph were not there. The recorder leaves the same frames out of stacks (``stacks.rs`` of the crate ``oomph-record``)."""

from __future__ import annotations

import os
import traceback

_HERE = os.path.dirname(os.path.abspath(__file__))
# The command that starts a prediction is given as a text.
_STARTER = "<string>"
# What PyTorch puts between an operation and a mode.
_AROUND_MODES = ("/torch/_dynamo/eval_frame.py", "/torch/_compile.py", "/torch/utils/_python_dispatch.py")


def is_own(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_HERE + os.sep)


def without_own(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Frames of a traceback, outermost first."""
    # Wrapped around an optimizer's own step: what is further in is the optimizer's.
    frames = [frame for frame in frames if not (frame.name == "stepping" and is_own(frame))]
    # Outermost is what started the program; innermost are the operation called again, the mode, and its wrapping.
    while frames and (is_own(frames[0]) or frames[0].filename == _STARTER):
        del frames[0]
    end = next((index for index, frame in enumerate(frames) if is_own(frame)), len(frames))
    if end < len(frames):
        while end and frames[end - 1].filename.endswith(_AROUND_MODES):
            end -= 1
    return frames[:end]


def formatted(error: BaseException) -> str:
    """The traceback of an error, and of those that it came of."""
    formatted = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = formatted
    while one is not None:
        one.stack = traceback.StackSummary.from_list(without_own(list(one.stack)))
        one = one.__cause__ or one.__context__
    return "".join(formatted.format())
