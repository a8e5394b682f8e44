"""A training step under a plan: the same code in the child that predicts and in the process that trains.

It applies what the plan says to the live model and optimizer, runs steps, and takes it all back. What to do when memory runs out is not known here.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable
from typing import Any, cast

import torch

from oomph.fitting.errors import NotSplittable
from oomph.fitting.losses.counts import Accumulator, Counted, Weighing, batch_norms
from oomph.fitting.losses.loss_of import Loss
from oomph.fitting.planning.plan import Plan
from oomph.fitting.running.batches import cuts, moved, per_sample, samples, take
from oomph.fitting.running.sharded import agree_on_parts
from oomph.fitting.techniques.optimizers import ResumableStep, StatesOnHost, steps_in_parts
from oomph.fitting.techniques.training import TECHNIQUES
from oomph.sharding.state import device_of as sharded_device_of
from oomph.sharding.state import is_sharded, synchronize, whole_gradients

_LASTING = {technique.name for technique in TECHNIQUES if technique.lasts}

# Runs a part of a batch, backward too; see `Running.backward`.
Through = Callable[[Any, Callable[[torch.Tensor], torch.Tensor]], torch.Tensor]


class Running:
    """A model, an optimizer and a plan that is applied to them until ``undo``."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_of: Loss,
        plan: Plan,
        example: Any,
        weighing: Weighing | None,
        clip_grad_norm: float | None = None,
        as_is: bool = False,
        rehearse: bool = False,
        scaler: Any = None,
        lasting: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.optimizer, self.loss_of, self.plan, self.weighing = model, optimizer, loss_of, plan, weighing
        self.clip_grad_norm = clip_grad_norm
        # The optimizer steps as it would without oomph: what the plain loop takes is asked for.
        self.as_is = as_is
        # On the virtual GPU nothing is copied to the host: it would take real memory there.
        self.rehearse = rehearse
        self.device = device_of(model)
        #: Ranks talk within forward and backward.
        self.sharded = is_sharded(model)
        if weighing is not None:
            self.size, self.length = samples(example), per_sample(example)
        # What a plan before this one has left in place, by the plan's name for it.
        self._lasting = lasting or {}
        self._applied: list[tuple[str, Any]] = []
        self.states: Any = None
        self.scaler = self._lasting.get("scaler") or scaler
        self._unscaled = False
        #: Of the part whose loss was weighed last, in units that the parts of a batch share.
        self.weight: Any = 1.0
        try:
            self._apply()
        except BaseException:
            self.undo()
            raise

    def _apply(self) -> None:
        wanted = (technique for technique in TECHNIQUES if technique.apply is not None and getattr(self.plan, technique.name))
        for technique in sorted(wanted, key=lambda technique: technique.stage):
            self._keep(technique.name, functools.partial(cast(Any, technique.apply), self))
        self.activations = self._kept("offload")
        stepped = self.stepped
        self.states = self._kept("states_on_host") or self._kept("release")
        if self.states is None:
            self.states = stepped if self.as_is or not steps_in_parts(stepped) else self._keep("states", lambda: ResumableStep(stepped))
        if self.plan.autocast == "float16" and self.scaler is None:
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.scaled = _Scaled(stepped, self.states.step)

    def _keep(self, name: str, apply: Callable[[], Any]) -> Any:
        applied = self._lasting.pop(name, None) or apply()
        if applied is not None:
            self._applied.append((name, applied))
        if name == "optimizer_8bit":
            # So that the state_dict of the optimizer that people hold is not empty.
            self.optimizer.state = applied.optimizer.state
        return applied

    def _kept(self, name: str) -> Any:
        return next((one for known, one in self._applied if known == name), None)

    @property
    def stepped(self) -> torch.optim.Optimizer:
        """The optimizer that steps: the smaller one, where it stands in for the program's own."""
        small = self._kept("optimizer_8bit")
        return self.optimizer if small is None else cast(torch.optim.Optimizer, small.optimizer)

    def undo(self, then: Plan | None = None) -> dict[str, Any]:
        """The model and the optimizer as they were, but for what they have learnt. What the plan ``then`` does too, and what cannot be undone without losing
        something or without room for it, stays, and is returned for the one that comes next."""
        lasting: dict[str, Any] = {} if then is None or self.scaler is None else {"scaler": self.scaler}
        while self._applied:
            name, one = self._applied.pop()
            if then is not None and name in _LASTING and getattr(then, name):
                lasting[name] = one
            elif then is not None and then.states_on_host and isinstance(one, StatesOnHost):
                one.undo(to_device=False)
            else:
                one.undo()
                if name == "optimizer_8bit":
                    self.optimizer.state = collections.defaultdict(dict)
        return lasting

    def parameters(self) -> list[torch.Tensor]:
        """All that is trained: the model's, and what the optimizer has besides (those of a loss, for instance)."""
        besides = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        return list({id(parameter): parameter for parameter in (*self.model.parameters(), *besides)}.values())

    def bytes_on_host(self) -> int:
        """Optimizer state and activations of the last step that waited in host memory."""
        return getattr(self.states, "bytes_on_host", 0) + (self.activations.bytes_offloaded if self.activations is not None else 0)

    def parts(self, batch: Any) -> list[tuple[int, int]]:
        """Where the batch is cut. The plan's size of a part holds for samples as long as the example's; longer ones come in smaller parts."""
        if self.weighing is None or self.sharded and self.weighing.provisional:
            # Sharded, a rule that must be tried on each batch cannot be.
            return [(0, 1)]
        count = samples(batch)
        size = min(self.plan.micro or self.size, count)
        if self.plan.micro and (longer := per_sample(batch)) > self.length:
            size = max(1, size * self.length // longer)
        parts = -(-count // size)
        return cuts(count, agree_on_parts(parts, count, self.device) if self.sharded else parts)

    def backward(
        self, batch: Any, only: int | None = None, through: Through | None = None, release: bool = False, begun: bool = False, parts: list[tuple[int, int]] | None = None
    ) -> torch.Tensor:
        """Forward and backward, in parts; the gradients of the mean over the whole batch are added to those that are there.

        To ``release`` is to update parameters in the last backward pass already, if the plan says so: ``update`` must follow. ``only`` is for predicting: so many parts, and ``begun`` says that the gradients
        that are there are those of parts before. ``through`` runs a part for a loop that is not ours: it is given the part and what weighs its loss, calls
        backward on what that returns, and returns the loss without a graph. ``parts`` are those of `parts`, where they are known.
        """
        parts = self.parts(batch) if parts is None else parts
        release = release and self.plan.release and through is None and self.scaler is None and self.clip_grad_norm is None
        whole = len(parts) == 1
        if not whole and (names := batch_norms(self.model)):
            raise NotSplittable(f"{names[0]} takes statistics over the batch, and the batch is cut: was model.train() called after oomph.fit? Call it before")
        # There is a rule where a batch is cut.
        weighing = cast(Weighing, self.weighing)
        gathered = Accumulator(weighing) if not whole else None
        # The sum is divided at the end, and what was there before must not be.
        aside = self._set_aside() if gathered is not None and weighing.kind != "sum" and not begun else []
        release = release and not aside
        loss = None
        parts = parts[:only]
        try:
            for start, stop in parts:
                is_last = stop == parts[-1][1]
                last = release and is_last
                if self.sharded:
                    # Parts before the last add to gradients that each rank has whole: to sum them over ranks, they must have been weighed.
                    synchronize(self.model, is_last)
                with contextlib.ExitStack() as forward:
                    counted = forward.enter_context(Counted()) if gathered is not None else None
                    forward.enter_context(self.autocast())

                    def weigh(loss: torch.Tensor) -> torch.Tensor:
                        forward.close()
                        if gathered is None:
                            return loss
                        assert counted is not None
                        weighed_now = len(parts) > 1 and (last or (self.sharded and is_last))
                        scaled = gathered.scale(loss, counted, stop - start, last=self._gradients_so_far() if weighed_now else None)
                        if weighed_now:
                            gathered.refuse_uneven()
                        self.weight = weighing.weight(counted, stop - start)
                        return scaled

                    part = moved(batch if whole else take(batch, start, stop), self.device)
                    loss = through(part, weigh) if through is not None else self._through(part, weigh, last)
                    del part
            if gathered is not None:
                loss = gathered.finish(self.parameters())
        except NotSplittable:
            # Gradients of some of the parts are worth nothing.
            for parameter in self.parameters():
                parameter.grad = None
            raise
        finally:
            for parameter, gradient in aside:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        return loss

    def _through(self, part: Any, weigh: Callable[[torch.Tensor], torch.Tensor], release: bool) -> torch.Tensor:
        loss = self.loss_of(self.model, part)
        del part
        towards = weigh(loss)
        loss = loss.detach()
        with self.states.releasing() if release else contextlib.nullcontext():
            (self.scaler.scale(towards) if self.scaler is not None else towards).backward()
        return loss

    def _gradients_so_far(self) -> list[Any]:
        """Of the parts that were run, in what has a ``grad``, each once."""
        if not self.sharded:
            return self.parameters()
        # What is gathered just now is among the parameters too.
        return list({id(one.grad): one for one in (*whole_gradients(self.model), *self.parameters()) if one.grad is not None}.values())

    def _set_aside(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        held = [(parameter, parameter.grad) for parameter in self.parameters() if parameter.grad is not None]
        for parameter, _ in held:
            parameter.grad = None
        return held

    def unscale(self) -> None:
        """Gradients as they are without the scaler; once for each update."""
        if self.scaler is not None and not self._unscaled:
            self.scaler.unscale_(self.scaled)
            self._unscaled = True

    def update(self, begun: bool = False) -> None:
        """The optimizer's step; frees the gradients. Called again after an out-of-memory, it goes on where it was; ``begun`` says that another has begun it."""
        begun = begun or getattr(self.states, "in_progress", False)
        if not begun:
            self.unscale()
            if self.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_([p for group in self.stepped.param_groups for p in group["params"]], self.clip_grad_norm)
        if self.scaler is not None and not begun:
            self.scaler.step(self.scaled)
        else:
            self.states.step()
        if self.scaler is not None:
            self.scaler.update()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None
        self._unscaled = False

    def autocast(self) -> Any:
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


def device_of(model: torch.nn.Module) -> torch.device:
    """Where it runs."""
    if (where := sharded_device_of(model)) is not None:
        return where
    first = next(model.parameters(), None)
    return first.device if first is not None else torch.device("cpu")
