"""The recording of a prediction: made by the recorder that ``oomph run`` puts into programs, in whole, and without oomph's own frames.

Boundary: what a prediction differs in from a run is here; what a recording is, ``recording`` and the crate ``oomph-record`` know.
"""

from __future__ import annotations

import functools
import os

from .recording import Recording, attachment

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from oomph.live.native import Native

_HERE = os.path.dirname(os.path.abspath(__file__))


class Recorded:
    """One program's. Made when PyTorch is there, and before others who hear of an optimizer's steps: they may end the program."""

    def __init__(self, torch: ModuleType, library: str, path: str, notes: list[str]) -> None:
        self.torch, self.notes = torch, notes
        # What a program finds after an out-of-memory is what it would find without oomph.
        self.attachment = attachment(torch, library, lets_go=False)
        self.recorder = self.attachment.recorder
        self.recorder.leave_out(_HERE + os.sep)
        self.recording = Recording(path, whole=True)
        # The script's own `oomph.record` is this one.
        self.attachment.current, self.attachment.is_of_run = self.recording, True
        self.recording.on_cut = lambda: notes.append("the recording became too large, or the disk is full: of what came later only the end is in it")

    def begin(self) -> None:
        """With CUDA initialised."""
        backend = self.torch.cuda.memory.get_allocator_backend()
        if backend != "native":
            self.notes.append(f"PyTorch records nothing with {backend}: only totals are known, no lines")
            return
        try:
            self.attachment.begin(self.recording)
        except Exception as error:
            # Raised in the midst of CUDA's beginning, it would be the end of CUDA.
            self.notes.append(f"nothing was recorded: {error}. Only totals are known, no lines")
            return
        tell_ranges(self.torch, self.recorder)
        if not self.recorder.knows_lines:
            self.notes.append("lines are not known: this Python is laid out in a way that oomph does not know")

    def end(self, died: bool) -> None:
        """``died``: whether an out-of-memory has ended the program."""
        self.recording.stop(died)


def tell_ranges(torch: ModuleType, recorder: Native) -> None:
    """Tells of the ranges that a program names (``torch.profiler.record_function``), as PyTorch's own recorder does, and as optimizers name what they do.
    A run does without: it would hear of every step, also of those that are only counted."""
    ranges = torch.autograd.profiler.record_function
    enter, leave = ranges.__enter__, ranges.__exit__

    def tell(name: str, ended: bool) -> None:
        # `recording` reports steps.
        if not name.startswith("Optimizer.step#"):
            recorder.range(name.encode(errors="replace"), ended)

    @functools.wraps(enter)
    def entering(self: Any) -> Any:
        tell(self.name, False)
        return enter(self)

    @functools.wraps(leave)
    def leaving(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            tell(self.name, True)

    ranges.__enter__, ranges.__exit__ = entering, leaving
