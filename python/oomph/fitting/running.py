"""A training step under a plan: the same code in the child that predicts and in the process that trains.

It applies what the plan says to the live model and optimizer, runs steps, and takes it all back. What to do when memory runs out is not known here.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch

from oomph.fitting.activations import offload_blocks
from oomph.fitting.batches import cuts, moved, per_sample, samples, take
from oomph.fitting.checkpoints import checkpoint_blocks
from oomph.fitting.counts import Accumulator, Counted, Weighing
from oomph.fitting.cross_entropy import defer_logits
from oomph.fitting.errors import FitError
from oomph.fitting.losses import LossOf
from oomph.fitting.optimizers import ResumableStep, StatesOnHost, fuse, to_8bit
from oomph.fitting.plan import Plan
from oomph.fitting.weights import bf16_weights

# Runs a part of a batch, backward too; see `Running.backward`.
Through = Callable[[Any, Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]


class Running:
    """A model, an optimizer and a plan that is applied to them until ``undo``."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_of: LossOf,
        plan: Plan,
        example: Any,
        weighing: Weighing | None,
        clip_grad_norm: float | None = None,
        as_is: bool = False,
        rehearse: bool = False,
    ) -> None:
        self.model, self.optimizer, self.loss_of, self.plan, self.weighing = model, optimizer, loss_of, plan, weighing
        self.clip_grad_norm = clip_grad_norm
        # The optimizer steps as it would without oomph: what the plain loop takes is asked for.
        self.as_is = as_is
        # On the virtual GPU nothing is copied to the host: it would take real memory there.
        self.rehearse = rehearse
        self.device = device_of(model)
        self.size, self.length = samples(example), per_sample(example)
        self._applied: list[Any] = []
        self.states: Any = None
        #: Of the part whose loss was weighed last, in units that the parts of a batch share.
        self.weight: Any = 1.0
        try:
            self._apply()
        except BaseException:
            self.undo()
            raise

    def _apply(self) -> None:
        plan, keep = self.plan, self._applied.append
        if plan.bf16_weights:
            keep(bf16_weights(self.model, self.optimizer))
        stepped = self.optimizer
        if plan.optimizer_8bit:
            keep(small := to_8bit(stepped))
            stepped = small.optimizer
        elif plan.fused and (fused := fuse(stepped)) is not None:
            keep(fused)
        if plan.defer_logits:
            keep(defer_logits(self.model))
        if plan.checkpoint:
            keep(checkpoint_blocks(self.model, plan.checkpoint))
        self.activations = offload_blocks(self.model, plan.offload, rehearse=self.rehearse) if plan.offload else None
        if self.activations is not None:
            keep(self.activations)
        self.stepped = stepped
        if plan.states_on_host:
            keep(states := StatesOnHost(stepped))
            self.states = states
        elif self.as_is or not steps_in_parts(stepped):
            self.states = stepped
        else:
            keep(states := ResumableStep(stepped))
            self.states = states
        self.scaler = torch.amp.GradScaler(self.device.type) if plan.autocast == "float16" else None
        self.scaled = _Scaled(stepped, self.states.step)

    def undo(self, leave_states_on_host: bool = False) -> None:
        """The model and the optimizer as they were, but for what they have learnt."""
        while self._applied:
            one = self._applied.pop()
            if leave_states_on_host and isinstance(one, StatesOnHost):
                one.undo(to_device=False)
            else:
                one.undo()

    def bytes_on_host(self) -> int:
        """Optimizer state and activations of the last step that waited in host memory."""
        return getattr(self.states, "bytes_on_host", 0) + (self.activations.bytes_offloaded if self.activations is not None else 0)

    def parts(self, batch: Any) -> list[tuple[int, int]]:
        """Where the batch is cut. The plan's size of a part holds for samples as long as the example's; longer ones come in smaller parts."""
        count = samples(batch)
        size = min(self.plan.micro or self.size, count) if self.plan.micro or self.weighing is not None else count
        if self.plan.micro and (longer := per_sample(batch)) > self.length:
            size = max(1, size * self.length // longer)
        return cuts(count, -(-count // size))

    def backward(self, batch: Any, only: int | None = None, through: Through | None = None) -> torch.Tensor:
        """Forward and backward, in parts; the gradients of the mean over the whole batch are added to those that are there.

        ``only`` is for predicting: so many parts. ``through`` runs a part for a loop that is not ours: it is given the part and what weighs its loss, calls
        backward on what that returns, and returns the loss without a graph.
        """
        parts = self.parts(batch)
        whole = len(parts) == 1
        gathered = Accumulator(self.weighing) if not whole else None  # type: ignore[arg-type]
        # The sum is divided at the end, and what was there before must not be.
        aside = self._set_aside() if gathered is not None and self.weighing.kind != "sum" else []  # type: ignore[union-attr]
        loss = None
        for start, stop in parts[:only]:
            with contextlib.ExitStack() as forward:
                counted = forward.enter_context(Counted()) if gathered is not None else None
                forward.enter_context(self._autocast())

                def weigh(loss: torch.Tensor) -> torch.Tensor:
                    forward.close()
                    if gathered is None:
                        return loss
                    scaled = gathered.scale(loss, counted, stop - start)
                    self.weight = self.weighing.weight(counted, stop - start)  # type: ignore[union-attr, arg-type]
                    return scaled

                loss = (through or self._through)(moved(batch if whole else take(batch, start, stop), self.device), weigh)
        if gathered is not None:
            loss = gathered.finish(self.model.parameters())
        for parameter, gradient in aside:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return loss  # type: ignore[return-value]

    def _through(self, part: Any, weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        loss = self.loss_of(self.model, part)
        del part
        towards = weigh(loss)
        loss = loss.detach()
        (self.scaler.scale(towards) if self.scaler is not None else towards).backward()
        return loss

    def _set_aside(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        held = [(parameter, parameter.grad) for parameter in self.model.parameters() if parameter.grad is not None]
        for parameter, _ in held:
            parameter.grad = None
        return held

    def update(self, begun: bool = False) -> None:
        """The optimizer's step, and gradients let go. Called again after an out-of-memory, it goes on where it was; ``begun`` says that another has begun it."""
        begun = begun or getattr(self.states, "in_progress", False)
        if self.scaler is not None and not begun:
            self.scaler.unscale_(self.scaled)
        if self.clip_grad_norm is not None and not begun:
            torch.nn.utils.clip_grad_norm_([p for group in self.stepped.param_groups for p in group["params"]], self.clip_grad_norm)
        if self.scaler is not None and not begun:
            self.scaler.step(self.scaled)
            self.scaler.update()
        else:
            self.states.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> Any:
        if self.plan.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.plan.autocast))


class _Scaled:
    """What a GradScaler needs of an optimizer, for a step that is not the optimizer's own."""

    def __init__(self, optimizer: torch.optim.Optimizer, step: Callable[[], Any]) -> None:
        self._optimizer, self.step = optimizer, step

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups


def steps_in_parts(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer may be called for some parameters at a time: those of PyTorch may."""
    try:
        ResumableStep(optimizer).undo()
    except FitError:
        return False
    return True


def device_of(model: torch.nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return first.device if first is not None else torch.device("cpu")


def use_expandable_segments(on: bool) -> Callable[[], None] | None:
    """Tells the allocator of the running process. What undoes it, or None where this PyTorch cannot."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or getattr(torch.cuda.memory, "_set_allocator_settings", None)
    if setter is None:
        return None
    try:
        setter(f"expandable_segments:{on}")
    except (RuntimeError, ValueError):
        return None
    return lambda: setter(f"expandable_segments:{not on}")
