"""Plans tried on the card itself: each runs for a few steps on the live model, is timed, and leaves everything as it was.

Parameters, optimizer state, gradients, buffers and random numbers are put back bit by bit; hooks of the optimizer are not called. What is done with the times is not known here.
"""

from __future__ import annotations

import collections
import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomph.fitting.running import ranks
from oomph.fitting.running.repeating import Before, random_numbers_kept, release_memory
from oomph.fitting.running.step import Running
from oomph.fitting.techniques.host import host_room, size_of
from oomph.live.out_of_memory import is_out_of_memory

# Steps of a plan: one to warm up, which is not counted, and these.
_STEPS = 2
# Steps that take so many seconds vary little: one is enough.
_LONG = 0.4
# What is so much slower than the best so far is not run for more. A first step loads kernels and pins host memory, and may take four times as long as those after it.
_FAR_SLOWER, _FAR_SLOWER_AT_FIRST = 2.5, 8.0


class OnTheCard:
    """Plans that run for a few steps each on the live model, within so many seconds in all. ``run`` applies a plan. Once the first was tried nothing else may be done with the model
    until ``close``, which puts everything back."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any, device: torch.device, run: Callable[[Any], Running], seconds: float) -> None:
        self._model, self._optimizer, self._batch, self._device, self._run = model, optimizer, batch, device, run
        self._left, self._spent = seconds, 0.0
        self._kept: contextlib.ExitStack | None = None
        #: Seconds of a step; None for what failed.
        self.times: dict[Any, float | None] = {}
        #: What failed otherwise than by want of memory.
        self.problems: list[str] = []
        #: There is no host memory for a copy of what steps change.
        self.no_room = False

    def time(self, plans: list[Any], hosted: int) -> None:
        """Those that were not tried so far and whose time has not run out; ``hosted`` is the most that one of them keeps in host memory. All ranks try the same plans; the
        slowest of them counts."""
        plans = [plan for plan in plans if plan not in self.times]
        if not plans or self.no_room:
            return
        if self._kept is None:
            if not room_to_try(self._model, self._optimizer, hosted):
                self.no_room = True
                return
            self._kept = contextlib.ExitStack()
            self._kept.enter_context(everything_kept(self._model, self._optimizer, self._device))
        elif hosted > host_room():
            return
        for plan in plans:
            # What the others took, this one takes as well.
            if ranks.any_of(self._left < self._spent / max(1, len(self.times)), self._device):
                break
            start = time.monotonic()
            self.times[plan] = _slowest(_time(plan, self._run, self._batch, self._device, start + self._left, self.best(), self.problems), self._device)
            self._spent += time.monotonic() - start
            self._left -= time.monotonic() - start

    def spend(self, seconds: float) -> None:
        """At most, on what is tried from now on."""
        self._left = min(self._left, seconds)

    def best(self) -> float:
        return min((taken for taken in self.times.values() if taken is not None), default=float("inf"))

    def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def _time(plan: Any, run: Callable[[Any], Running], batch: Any, device: torch.device, end: float, best: float, problems: list[str]) -> float | None:
    running = None
    try:
        running = run(plan)
        retries = _retries(device)
        taken: list[float] = []
        while len(taken) < 1 + _STEPS:
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            running.backward(batch, release=True)
            running.update()
            torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - start)
            is_far_slower = taken[-1] > (_FAR_SLOWER if len(taken) > 1 else _FAR_SLOWER_AT_FIRST) * best
            is_enough = len(taken) > 1 and (taken[-1] > _LONG or time.monotonic() > end)
            if (is_far_slower or is_enough) and not ranks.several():
                break
        # One that frees its cache to go on is about to run out.
        return min(taken[1:] or taken) if _retries(device) == retries else None
    except Exception as error:
        if not is_out_of_memory(error):
            problems.append(f"{type(error).__name__}: {error}")
        traceback.clear_frames(error.__traceback__)
        return None
    finally:
        if running is not None:
            running.forget_gradients()
            # State that is on the host would come back, to be thrown away.
            running.optimizer.state.clear()
            running.undo()
        release_memory(device)


def _retries(device: torch.device) -> int:
    return int(torch._C._cuda_memoryStats(device.index or 0)["num_alloc_retries"])


def _slowest(taken: float | None, device: torch.device) -> float | None:
    failed = ranks.any_of(taken is None, device)
    return None if failed or taken is None else ranks.worst(int(taken * 1e6), device) / 1e6


def room_to_try(model: torch.nn.Module, optimizer: torch.optim.Optimizer, hosted: int) -> bool:
    """Whether host memory has room for copies of all that steps change, beside what a plan keeps there."""
    return _bytes_to_keep(model, optimizer) + hosted <= host_room()


def _bytes_to_keep(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    return sum(map(size_of, _trained(model, optimizer))) + sum(size_of(value) for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor))


def _trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    besides = (parameter for group in optimizer.param_groups for parameter in group["params"])
    every = {id(parameter): parameter for parameter in (*model.parameters(), *besides)}
    # A frozen one that has a gradient is updated as well.
    return [parameter for parameter in every.values() if parameter.requires_grad or parameter.grad is not None]


@contextlib.contextmanager
def everything_kept(model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> Iterator[None]:
    """Whatever steps are made inside, afterwards it is as if none had been."""
    trained = _trained(model, optimizer)
    gradients = [parameter.grad for parameter in trained]
    values = [parameter.detach().to("cpu", copy=True) for parameter in trained]
    state = {parameter: _copied(of) for parameter, of in optimizer.state.items()}
    groups = [{key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    called = getattr(optimizer, "_opt_called", None)
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    before = Before(model, device)
    with random_numbers_kept(model):
        try:
            for parameter in trained:
                parameter.grad = None
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = collections.OrderedDict(), collections.OrderedDict()
            yield
        finally:
            optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
            if called is None:
                vars(optimizer).pop("_opt_called", None)
            else:
                optimizer._opt_called = called
            with torch.no_grad():
                for parameter, value, gradient in zip(trained, values, gradients):
                    parameter.copy_(value)
                    parameter.grad = gradient
            for group, was in zip(optimizer.param_groups, groups):
                for key in group.keys() - was.keys() - {"params"}:
                    del group[key]
                group.update(was)
            optimizer.state.clear()
            for parameter, of in state.items():
                optimizer.state[parameter] = {key: value.to(where) if isinstance(value, torch.Tensor) else value for key, (value, where) in of.items()}
            before.restore()


def _copied(state: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """With where each was."""
    return {key: (value.detach().to("cpu", copy=True), value.device) if isinstance(value, torch.Tensor) else (value, None) for key, value in state.items()}
