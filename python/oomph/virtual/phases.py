"""What a program does after its first training steps: the phases that follow are run too, shortened, within limits.

``child`` begins this once the wanted steps are done. Loops over data loaders end early, so that validation, saving and the next epoch come
soon, by the program's own code; nothing is saved, and no file of before is written over or deleted. What was reached is in ``phases``; when it is
enough, ``child`` is asked to stop the program.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import stat
import sys
import threading
import time
import weakref

from .imports import after_import
from .library_code import is_installed, is_torch

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, ModuleType
    from typing import Any, NoReturn

    from torch.nn import Module
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    from .child import Run

    # File, line and function.
    Place = tuple[str, int, str]
    Line = tuple[CodeType, int]

_HERE = os.path.dirname(os.path.abspath(__file__))
# Seconds after the wanted steps: as many times what those took, but within these.
TIMES, LEAST, MOST = 10, 3.0, 20.0
# A program that hears nothing of the limit, because it waits for something, is left after as many more.
GRACE = 3.0
# More optimizer steps, as many times the wanted ones: for loops that no data loader ends.
MORE_STEPS = 10
# Epochs without validation, after which none is waited for.
EPOCHS = 3
ORDER = ("inference", "training", "validation", "save", "second_epoch")
# Batches of a loop that show whether memory rises.
TELLING = 3


class CutShort(StopIteration):
    """The end of a loop over a data loader, where the loader has more."""


class Rising:
    """Allocated bytes at the end of each turn of a loop."""

    def __init__(self) -> None:
        self.turns = 0
        self.last: int | None = None
        self.rises: list[int] = []

    def add(self, allocated: int) -> None:
        self.turns += 1
        if self.last is not None:
            self.rises = [*self.rises, allocated - self.last][1 - TELLING :]
        self.last = allocated

    def by(self) -> int:
        """How much a turn adds, where the last ones all did; else 0."""
        if len(self.rises) < TELLING - 1 or min(self.rises) <= 0:
            return 0
        return sum(self.rises) // len(self.rises)


class Phases:
    """What comes after the wanted steps of one program."""

    def __init__(self, run: Run, torch: ModuleType) -> None:
        self.run, self.torch = run, torch
        self.until = run.task.get("until", "steps")
        self.reached: list[str] = []
        self.cut = 0
        self.began: float | None = None
        self.started = time.time()
        self.doing: str | None = None
        self.more_steps = self.epochs = self.depth = 0
        # Lines that call a model without gradients: between the last steps, the ones before, and those of the training itself.
        self.lines: set[Line] = set()
        self.lines_before: set[Line] = set()
        self.part_of_training: set[Line] = set()
        self.loader_ended = self.loader_began = False
        self.loops: weakref.WeakKeyDictionary[_BaseDataLoaderIter, Rising] = weakref.WeakKeyDictionary()
        self.loop: tuple[Rising, int | None, Place, str] | None = None
        self.steps, self.forwards = Rising(), Rising()
        self.hastened: set[str] = set()
        self.frameworks()

    # -- the beginning

    def reach(self, phase: str) -> None:
        if phase not in self.reached:
            self.reached.append(phase)

    def begin(self) -> None:
        """The wanted steps are done."""
        took = time.time() - self.started
        self.began = time.time()
        self.limit = float("inf") if self.until == "end" else min(MOST, max(LEAST, TIMES * took))
        self.cut_loaders()
        self.watch_models()
        self.watch_saves()
        sys.addaudithook(self.before_file)
        if self.until != "end":
            threading.Thread(target=self.wait, daemon=True).start()

    def wait(self) -> None:
        """A program that comes by nothing that is watched is left from outside."""
        time.sleep(self.limit + GRACE)
        if not self.run.stopped:
            self.note_limit()
            self.run.leave_it()

    def over(self) -> bool:
        return self.began is not None and time.time() - self.began > self.limit

    def stop_if_over(self) -> None:
        if self.over():
            self.note_limit()
            self.run.stop()

    def stop_because(self, why: str) -> NoReturn:
        self.run.facts["notes"].append(why)
        self.run.stop()

    # -- steps

    def after_step(self) -> bool:
        """One more step of an optimizer. Whether that is enough."""
        self.more_steps += 1
        self.doing = "training"
        self.steps.add(self.torch.cuda.memory_allocated())
        lines, before = self.lines, self.lines_before
        # What comes between every two steps is a part of them: a teacher, a target network.
        self.part_of_training |= lines & before
        if before - lines - self.part_of_training:
            self.reach("validation")
        self.lines, self.lines_before = set(), lines
        if self.loader_ended and self.loader_began or "validation" in self.reached:
            self.epochs += self.loader_ended
            self.loader_ended = self.loader_began = False
            self.reach("second_epoch")
        if self.until == "end":
            return False
        if "validation" in self.reached and "second_epoch" in self.reached:
            return True
        if self.epochs >= EPOCHS or self.more_steps >= MORE_STEPS * self.run.task["steps"]:
            self.note_limit()
            return True
        self.stop_if_over()
        return False

    def after_inference(self, place: Place) -> bool:
        """One more forward of a program that does not train. Whether that is enough."""
        self.doing = "inference"
        self.forwards.add(self.torch.cuda.memory_allocated())
        self.loop = self.loop or (self.forwards, None, place, "forward")
        if self.until == "end":
            return False
        self.stop_if_over()
        return self.forwards.turns >= MORE_STEPS * self.run.task["steps"] and not self.forwards.by()

    def finish(self) -> None:
        """The program is over, or is left: what it did last counts."""
        if self.run.facts["steps"] and self.lines - self.part_of_training:
            self.reach("validation")
        self.reached.sort(key=ORDER.index)

    # -- models

    def watch_models(self) -> None:
        """Forwards of whole models without gradients are validation. Hooks would disturb a compiled model: there, the switch to it is."""
        torch = self.torch
        if self.run.compiled:
            train = torch.nn.Module.train

            @functools.wraps(train)
            def switched(module: Module, mode: bool = True) -> Module:
                if not mode:
                    self.note_line(sys._getframe(1))
                return train(module, mode)

            torch.nn.Module.train = switched
            return
        hooks = torch.nn.modules.module
        hooks.register_module_forward_pre_hook(self.before_forward)
        hooks.register_module_forward_hook(self.after_forward, always_call=True)

    def before_forward(self, module: Module, args: tuple[Any, ...]) -> None:
        if self.depth == 0:
            self.stop_if_over()
            if not module.training or not self.torch.is_grad_enabled():
                self.note_line(sys._getframe(1))
        self.depth += 1

    def after_forward(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        self.depth = max(0, self.depth - 1)

    def note_line(self, frame: FrameType | None) -> None:
        while frame is not None and (is_torch(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_HERE)):
            frame = frame.f_back
        if frame is not None:
            line = (frame.f_code, frame.f_lineno)
            self.lines.add(line)
            if line not in self.part_of_training and line not in self.lines_before:
                self.doing = "validation"

    # -- loops over data

    def cut_loaders(self) -> None:
        """Loops over data loaders that run now end, and later ones after some batches, unless memory rises in them."""
        from torch.utils.data import dataloader

        following = dataloader._BaseDataLoaderIter.__next__

        @functools.wraps(following)
        def __next__(iterator: _BaseDataLoaderIter) -> Any:
            if self.is_enough(iterator):
                self.cut += self.remaining(iterator) != 0
                self.loader_ended = True
                raise CutShort
            try:
                return following(iterator)
            except StopIteration:
                self.loader_ended = True
                raise

        dataloader._BaseDataLoaderIter.__next__ = __next__

    def is_enough(self, iterator: _BaseDataLoaderIter) -> bool:
        """Before a batch is drawn: whether the loop has had enough of them."""
        loop = self.loops.get(iterator)
        if iterator._num_yielded == 0 or loop is None:
            if iterator._num_yielded:
                return True
            loop = self.loops[iterator] = Rising()
            self.loader_began = True
            return False
        loop.add(self.torch.cuda.memory_allocated())
        self.loop = (loop, self.remaining(iterator), self.place(), "batch")
        self.stop_if_over()
        if loop.turns < max(self.run.task["steps"], TELLING) or loop.by():
            return False
        self.loop = None
        return True

    @staticmethod
    def remaining(iterator: _BaseDataLoaderIter) -> int | None:
        with contextlib.suppress(Exception):
            return max(0, len(iterator) - iterator._num_yielded)
        return None

    @staticmethod
    def place() -> Place:
        """The line of the program that is running."""
        last = sys._getframe(1)
        frame: FrameType | None = last
        while frame is not None:
            name = frame.f_code.co_filename
            if not is_installed(name) and not is_torch(name) and not name.startswith((_HERE, "<")):
                break
            last, frame = frame, frame.f_back
        frame = frame or last
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name

    def note_limit(self) -> None:
        """The time is over. Where memory still rises, that is what may make the answer wrong."""
        loop, remaining, (file, line, function), turn = self.loop or (self.steps, None, self.place(), "step")
        by = loop.by()
        if not by:
            return
        torch = self.torch
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        batches = free // by
        turns = {"batch": "batches"}.get(turn, turn + "s")
        why = f"memory still rose by {by / 2**20:.3g} MiB a {turn} in {self.doing or 'training'} when the limit came, after {loop.turns} {turns}: "
        if remaining is not None and remaining <= batches:
            why += f"{remaining} more would fit"
        else:
            why += f"after about {batches} more it would not fit"
            why += f", and {remaining} are left" if remaining is not None else ""
        self.run.facts["growth"] = {
            "file": file,
            "line": line,
            "function": function,
            "what": "growth",
            "detail": why,
            "count": 1,
        }

    # -- files

    def watch_saves(self) -> None:
        """A save takes no memory of the card, and what it would write are not the weights: it is noted and left out."""
        torch: Any = self.torch
        save = torch.save

        @functools.wraps(save)
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            self.reach("save")
            # In memory, it may be read again. Nothing is decided by what is copied for it.
            if isinstance(f, io.BytesIO):
                reads = self.run.reads
                lines = {place: dict(entry) for place, entry in reads.lines.items()}
                try:
                    save(obj, f, *args, **kwargs)
                finally:
                    reads.lines = lines

        torch.save = torch.serialization.save = saved

    def leave_saves_out(self, module: ModuleType) -> None:
        """The same for safetensors, from the start: others import the function by its name."""
        for name in ("save_file", "save_model"):
            save = getattr(module, name, None)
            if save is None:
                continue

            @functools.wraps(save)
            def saved(*args: Any, save: Callable[..., Any] = save, **kwargs: Any) -> Any:
                if self.began is None:
                    return save(*args, **kwargs)
                self.reach("save")

            setattr(module, name, saved)

    def before_file(self, event: str, args: tuple[Any, ...]) -> None:
        """Stops the program before a file or folder of before is written over or deleted."""
        if self.run.stopped or self.run.written:
            return
        if event == "open":
            path = args[0] if isinstance(args[2], int) and args[2] & os.O_TRUNC else None
        elif event in ("os.remove", "os.rmdir", "shutil.rmtree"):
            path = args[0]
        elif event == "os.rename":
            path = args[1]
        else:
            return
        if path is None or isinstance(path, int) or threading.current_thread() is not threading.main_thread():
            return
        path = os.path.abspath(os.fsdecode(path))
        # Caches, devices and what Python compiles.
        if any(part.startswith((".", "__pycache__", "torchinductor")) for part in path.split(os.sep)) or path.startswith(("/dev/", "/proc/")):
            return
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if found.st_ctime < self.run.began and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                does = "write over" if event in ("open", "os.rename") else "delete"
                self.stop_because(f"stopped before it would {does} {path}, which was there before")

    # -- frameworks that count batches instead of waiting for the end of their loader

    def frameworks(self) -> None:
        if self.until == "steps":
            return
        after_import("safetensors.torch", self.leave_saves_out)
        after_import("transformers.trainer_callback", self.hasten_trainer)
        for name in ("lightning.pytorch", "pytorch_lightning"):
            after_import(f"{name}.loops.training_epoch_loop", self.hasten_lightning)

    def hasten(self, what: str) -> bool:
        """Whether it is time for it: once, after the wanted steps. What comes after every step counts as a part of it."""
        due = self.began is not None and what not in self.hastened
        if due:
            self.hastened.add(what)
        return due

    def hasten_trainer(self, module: ModuleType) -> None:
        """Evaluates and saves after the wanted steps, where that is asked for after some number of them."""
        flow = module.DefaultFlowCallback
        on_step_end = flow.on_step_end

        @functools.wraps(on_step_end)
        def hastened(callback: TrainerCallback, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            control = on_step_end(callback, args, state, control, **kwargs)
            strategies = getattr(args, "eval_strategy", None), getattr(args, "save_strategy", None)
            evaluates, saves = (str(getattr(strategy, "value", strategy)) == "steps" for strategy in strategies)
            if evaluates and self.hasten("evaluate"):
                control.should_evaluate = True
            if saves and self.hasten("save"):
                control.should_save = True
            return control

        flow.on_step_end = hastened

    def hasten_lightning(self, module: ModuleType) -> None:
        """Validates after the wanted steps, in an epoch that validates."""
        loop = module._TrainingEpochLoop
        should = loop._should_check_val_fx

        @functools.wraps(should)
        def hastened(epoch: Any, *args: Any, **kwargs: Any) -> bool:
            return (epoch._should_check_val_epoch() and self.hasten("evaluate")) or should(epoch, *args, **kwargs)

        loop._should_check_val_fx = hastened
