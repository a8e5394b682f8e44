"""A fit inside a library's training loop: Trainer, Lightning and Accelerate call backward and the optimizer themselves.

The loop gives a batch and a way to run a part of it, and calls the optimizer when it wants to. What is left to the modules of each library is to
find these places, and to say how the loss is computed, so that a child process can do it too.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterable
from typing import Any

import torch

from oomph.fitting.errors import FitError
from oomph.fitting.fit import Fit
from oomph.fitting.planning.plan import Plan
from oomph.fitting.running import ranks
from oomph.fitting.running.repeating import Before, release_memory
from oomph.fitting.running.step import Through
from oomph.live.out_of_memory import is_out_of_memory


class LoopFit(Fit):
    """A fit whose batches come through ``run`` and whose optimizer is called by the loop, with ``optimizer.step()``."""

    # The loop calls the optimizer, when it wants to; and its steps may do more than compute a loss, such as to write it down.
    releases = tries = False

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_of: Any,
        example: Any,
        allow: Iterable[str] = (),
        clip_grad_norm: float | None = None,
    ) -> None:
        allow = tuple(allow)
        if "8bit-optimizer" in allow:
            raise FitError("an optimizer that is replaced would not reach the checkpoints of the loop: give the loop one with 8-bit state itself (bitsandbytes, torchao)")
        super().__init__(model, optimizer, loss_of, example, allow, clip_grad_norm)
        # Since the last update: batches whose gradients are there, and how they were run.
        self._since_update: list[tuple[Any, Through]] = []
        self._before_them: Before | None = None
        self._covered: list[Any] = []
        #: Counts beginnings: what was gathered in an earlier one is of no use.
        self.attempt = 0

    def start(self, *, budget: str | int = "auto", gpu: str | None = None, plan: Plan | dict[str, Any] | None = None, quiet: bool = False) -> None:
        """Plans and applies, as ``oomph.fit`` does."""
        if plan is not None:
            self._apply_given(plan if isinstance(plan, Plan) else Plan.from_dict(plan))
        else:
            self._plan_and_apply(budget, gpu)
        if not quiet and ranks.first():
            print("\n  ".join([f"oomph.fit: {self.plan.summary()}", *self.plan.notes]), file=sys.stderr)

    def run(self, batch: Any, through: Through, *, last: bool) -> torch.Tensor:
        """Forward and backward of a batch, in parts; its loss. ``last``: the optimizer's step comes next, and ranks bring their gradients together.

        When memory runs out, gradients of the batches before are gone with those of this one: all since the last update are run again.
        """
        if self._before_them is None:
            self._before_them = Before(self.model, self.device)
        self._verify(batch)
        self._since_update.append((batch, through))
        due = self._since_update[-1:]
        while True:
            loss, failed = None, None
            self.attempt += 1
            try:
                for one, its_way in due:
                    loss = self._run().backward(one, through=its_way)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                # The frames of what failed hold its tensors.
                traceback.clear_frames(error.__traceback__)
                failed = error.with_traceback(None)
            if not ranks.any_of(failed is not None, self.device):
                break
            del loss
            self._before_them.restore()
            self._step_down(failed)
            due = list(self._since_update)
        if last:
            self._since_update.clear()
            self._before_them = None
            ranks.average_gradients(self._run().parameters())
        return loss

    def weight_of_part(self) -> Any:
        """How much the part weighs whose loss was weighed last, in units that the parts of a batch share."""
        return self._run().weight

    def losses_add(self) -> bool:
        """Whether the losses of parts are added, and not averaged."""
        return self._weighing is not None and self._weighing.kind == "sum"

    def after_update(self) -> None:
        """To be called by the loop when the optimizer has made its step."""
        self.steps += 1
        self._watch_for_thrashing()

    def _apply(self, plan: Plan) -> None:
        if plan.autocast == "float16":
            raise FitError("float16 needs a gradient scaler, and the loop has its own: set fp16 (Trainer), precision (Lightning) or mixed_precision (Accelerate) instead of allow=")
        self._uncover()
        super()._apply(plan)
        self._cover()

    def close(self) -> None:
        self._uncover()
        super().close()

    def _cover(self) -> None:
        """The optimizer's ``step`` is that of the plan, whichever that is by then."""

        def step(closure: Any = None, **_: Any) -> Any:
            loss = None
            if closure is not None:
                # Before the step begins: forward and backward may lead to another plan.
                with torch.enable_grad():
                    loss = closure()
            self._update()
            return loss

        # What schedulers look for; the step below shows them that it was called.
        step._wrapped_by_lr_sched = step._with_counter = True  # type: ignore[attr-defined]  # a mark on the function
        self._covered = [self.optimizer.__dict__.get("step")]
        self.optimizer.step = step

    def _uncover(self) -> None:
        if not self._covered:
            return
        below = self._covered.pop()
        if below is not None:
            self.optimizer.step = below
        else:
            del self.optimizer.step

    def _update(self) -> None:
        running = self._run()
        try:
            running.scaled.step()
        except Exception as error:
            # A step that cannot be resumed would update some parameters twice.
            if not is_out_of_memory(error) or not hasattr(running.states, "in_progress"):
                raise
            traceback.clear_frames(error.__traceback__)
            failed = error.with_traceback(None)
        else:
            return
        # No activations are alive now, so what is cached can go. Parameters that were updated already are not updated again.
        release_memory(self.device)
        try:
            running.scaled.step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise FitError("the optimizer's step does not fit, though no activations are alive: name a smaller budget=, so that its state goes to the host") from failed


@contextlib.contextmanager
def replaced(thing: Any, name: str, value: Any) -> Any:
    """An attribute of an object is another one meanwhile."""
    had = name in thing.__dict__
    before = thing.__dict__.get(name)
    thing.__dict__[name] = value
    try:
        yield
    finally:
        if had:
            thing.__dict__[name] = before
        else:
            del thing.__dict__[name]


def missing(library: str, what: str) -> FitError:
    return FitError(f"{what} needs {library}\n\nhint: pip install {library}")
