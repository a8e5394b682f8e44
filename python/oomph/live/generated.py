"""Tells the recorder which lines of a program the code was made from that Inductor generates: a compiled model has the lines of its model then.

Boundary: Inductor keeps that for PyTorch's own recorder, in a table of its insides; where there is none, such code has the lines of its file.
"""

from __future__ import annotations

import contextlib
import re
import sys

from .imports import AfterImport

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from .native import Native

    # Line, function and file.
    Frame = tuple[int, str, str]
    # First lines of a generated file, and what each was made from: a traceback in words, or nothing.
    Made = list[tuple[Any, ...]]

_CODE_CACHE = "torch._inductor.codecache"
_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n')


class _Watched(dict):
    """Lines and what they were made from, by file; says so of each that comes in."""

    def __init__(self, recorder: Native, known: dict[str, Made]) -> None:
        super().__init__()
        self.recorder = recorder
        self.update(known)
        for file, lines in known.items():
            self.tell(file, lines)

    def __setitem__(self, file: str, lines: Made) -> None:
        super().__setitem__(file, lines)
        self.tell(file, lines)

    def tell(self, file: str, lines: Made) -> None:
        # Nothing of ours may stop a compilation.
        with contextlib.suppress(Exception):
            if lines:
                firsts, traces = lines
                self.recorder.made_from(file, [(first, frames_of(trace)) for first, trace in zip(firsts, traces)])


def frames_of(trace: str | None) -> list[Frame]:
    """Line, function and file of each frame of a traceback in words, innermost first."""
    return [(int(line), function, file) for file, line, function in reversed(_FRAME.findall(trace or ""))]


def watch(recorder: Native) -> None:
    """From now on, and what has been generated already."""

    def is_here(module: ModuleType) -> None:
        with contextlib.suppress(AttributeError):
            module.PyCodeCache.linemaps = _Watched(recorder, module.PyCodeCache.linemaps)

    module = sys.modules.get(_CODE_CACHE)
    if module is not None:
        is_here(module)
    else:
        sys.meta_path.insert(0, AfterImport(_CODE_CACHE, is_here))
