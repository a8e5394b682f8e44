"""Starts a program as ``child`` does, watches its first step, stops it after the second, and asks for a plan then (``oomph fit``).

The command puts its own ``oomph`` package beside this one; what is known about plans is there. The answer goes to ``fit.json``, beside ``facts.json``.
"""

from __future__ import annotations

import os
import sys

from .child import Run, Stop, leave, main
from .utf8 import as_json

TYPE_CHECKING = False

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

    from torch.optim import Optimizer

    from oomph.fitting.script.script import Script
    from oomph.fitting.script.watching import Watcher

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class FitRun(Run):
    """One program, whose step is to be planned."""

    def __init__(self, task: dict[str, Any]) -> None:
        super().__init__(task)
        # None until PyTorch is here.
        self.watcher: Watcher | Any = None
        self.script: Script | None = None
        self.peak: int | None = None
        self.asking = False

    def torch_is_here(self, torch: ModuleType) -> None:
        super().torch_is_here(torch)
        from oomph.fitting.script.watching import Watcher

        self.watcher = Watcher(torch, (_HERE + os.sep,))

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.asking:
            return
        super().before_step(optimizer, args, kwargs)
        self.watcher.before_step(optimizer)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.asking:
            return
        if self.script is None:
            # Not before: a closure that the optimizer calls may have the backward pass in it.
            from oomph.fitting.script.script import Script

            self.script = Script(self.task["fit"])
            self.script.first_step(self.watcher.seen)
        counts = self.optimizers
        counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
        self.facts["steps"] = max(counts.values())
        # The optimizer's state is made at the end of the first step, so the peak may be in the second.
        if counts[id(optimizer)] == 2:
            self.stop()

    def watch_forwards(self, torch: ModuleType) -> None:
        """A program that does not train runs to its end: there may be a step yet."""

    def stop(self) -> NoReturn:
        """Nothing is written before the program's frames are gone, and with them what they hold on the card."""
        if not self.stopped:
            self.note_peak()
            self.facts["status"] = "stopped"
        self.stopped += 1
        if self.stopped > 3:
            self.write()
            leave(0)
        raise Stop()

    def note_peak(self) -> None:
        if self.torch is not None and self.torch.cuda.is_initialized():
            self.peak = self.torch.cuda.max_memory_reserved()

    def write(self) -> None:
        if self.written or self.asking:
            return
        answer: dict[str, Any] = {"why": "the script does not import PyTorch", "by_hand": "", "places": {}}
        if self.watcher is not None:
            if self.peak is None:
                self.note_peak()
            self.watcher.stop()
            answer = self.ask()
        with open(os.path.join(self.task["folder"], "fit.json"), "wb") as file:
            file.write(as_json(answer))
        super().write()

    def ask(self) -> dict[str, Any]:
        from oomph.fitting.script.script import Script

        self.asking = True
        script = self.script or Script(self.task["fit"])
        if self.script is not None:
            print("oomph: the script is stopped; plans are run on the virtual GPU", file=sys.stderr, flush=True)
        try:
            return script.answer(self.watcher.seen, self.peak or 0, self.facts["steps"], self.facts.get("error"))
        except Exception as error:
            import traceback

            traceback.print_exc()
            return {"why": f"the plan could not be made: {type(error).__name__}: {error}", "by_hand": "", "places": {}}


def start() -> NoReturn:
    main(FitRun)
