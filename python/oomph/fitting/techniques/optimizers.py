"""Optimizers that need less of the GPU: fused kernels, state in pinned host memory, 8-bit state, and steps that survive an out-of-memory.

The update itself is always the optimizer's own: its ``step`` is called for some of its parameters at a time (``_only``), and hooks,
schedulers of the learning rate and ``GradScaler`` see one step. Which of these is worth it is not decided here (``search``).
"""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from oomph._sizes import text
from oomph.fitting.errors import FitError
from oomph.fitting.techniques.host import Lanes, Slab, aligned, size_of
from oomph.fitting.techniques.technique import OPTIMIZER, STEP, Technique
from oomph.live.out_of_memory import is_out_of_memory

# State that is on its way: what crosses PCIe in about 3 ms, which hides the time that a launch takes.
_BUCKET = 32 << 20
# Of much state, more at a time, in about so many buckets: each takes the CPU a millisecond, which has the backward pass to start besides.
_LARGEST_BUCKET, _BUCKETS = 128 << 20, 48
# Parameters that are updated at a time on the device, where a copy of them is kept for the case that the update fails.
_CHUNK = 16 << 20

# False on a virtual GPU: the bytes that would come from there are worth nothing, and writing them would take real RAM.
copies_are_real = True


class Undoable:
    """What was done, with ``undo``, which may be called more than once."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo

    def undo(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None


# -- Fused kernels


def fuse(optimizer: Optimizer) -> Undoable | None:
    """Chooses kernels without temporaries: fused ones where PyTorch has them for these parameters, otherwise one parameter at a time.

    None if every group has chosen well already. Fused kernels round differently in the last bit. They know no sparse gradients: an
    optimizer that will have some is to be given to this function after its first ``backward``.
    """
    before: list[tuple[int, Any, Any]] = []
    for index, group in enumerate(optimizer.param_groups):
        if "foreach" not in group or group.get("fused") or group.get("differentiable"):
            continue
        fused = _can_be_fused(optimizer, group)
        if not fused and group["foreach"] is False:
            continue
        before.append((index, group["foreach"], group.get("fused")))
        group["foreach"] = False
        if fused:
            group["fused"] = True
            _move_steps(optimizer, group, on_device=True)
    if not before:
        return None

    def undo() -> None:
        for index, foreach, fused in before:
            group = optimizer.param_groups[index]  # Another object than before, after load_state_dict.
            if group.get("fused") and not fused and not group.get("capturable"):
                _move_steps(optimizer, group, on_device=False)
            group["foreach"] = foreach
            if "fused" in group:
                group["fused"] = fused

    return Undoable(undo)


def _can_be_fused(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    family: Any = _family(optimizer)
    if family is None or "fused" not in group or isinstance(group.get("lr"), Tensor):
        return False
    params = group["params"]
    if any(not p.is_floating_point() or (p.grad is not None and p.grad.is_sparse) for p in params):
        return False
    return bool(params) and all(_fused_works(family, device, dtype) for device, dtype in {(p.device, p.dtype) for p in params})


def _family(optimizer: Optimizer) -> type[Optimizer] | None:
    """The class of PyTorch's whose update this is; None for other people's optimizers."""
    if not _raw_step(type(optimizer)).__module__.startswith("torch.optim"):
        return None
    return next(kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("torch.optim"))


@functools.cache
def _fused_works(family: type[Optimizer], device: torch.device, dtype: torch.dtype) -> bool:
    """Asks PyTorch, by updating one number: which optimizers are fused on which devices differs from version to version."""
    try:
        parameter = torch.zeros(1, device=device, dtype=dtype, requires_grad=True)
        parameter.grad = torch.zeros_like(parameter)
        trial = family([parameter], lr=0.0, fused=True)
        _raw_step(family)(trial)  # Without hooks: this step is not counted.
    except (RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return False
    return True


def _move_steps(optimizer: Optimizer, group: dict[str, Any], on_device: bool) -> None:
    """Fused kernels count steps on the device, the others on the host."""
    for p in group["params"]:
        step = optimizer.state[p].get("step") if p in optimizer.state else None
        if isinstance(step, Tensor):
            wanted = torch.float32 if on_device else torch_optimizer._get_scalar_dtype()
            optimizer.state[p]["step"] = step.to(device=p.device if on_device else "cpu", dtype=wanted)


# -- Steps in parts

# Groups of the optimizer, each with some of its parameters.
_Part = list[tuple[dict[str, Any], list[Tensor]]]


@dataclass
class _Attempt:
    """A step that has begun: hooks have been called, and ``parts`` are not updated yet."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Any
    parts: deque[Any] = field(default_factory=deque)


class ResumableStep:
    """Lets ``optimizer.step()`` be called again after an out-of-memory: no parameter is left half updated, and none is updated twice.

    Parameters are updated ``bucket_bytes`` at a time (a fused group at once). State that a failed attempt made is dropped. With kernels
    that are not fused, the values before the update are kept until it is over, so that it can be taken back.
    """

    def __init__(self, optimizer: Optimizer, bucket_bytes: int = _CHUNK) -> None:
        if _family(optimizer) is None:
            name = type(optimizer).__name__
            raise FitError(f"{name} is not one of torch.optim's: it is not known whether it may be called for some parameters at a time")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise FitError("LBFGS looks at all parameters at once, so that its step cannot be taken in parts")
        self.optimizer = optimizer
        self.bucket_bytes = bucket_bytes
        self._raw = _raw_step(type(optimizer))
        self._attempt: _Attempt | None = None
        self._undone = False
        self._previous = optimizer.__dict__.get("step")
        self._replace_step()

    def _replace_step(self) -> None:
        kept = self._previous or functools.partial(type(self.optimizer).step, self.optimizer)

        @functools.wraps(type(self.optimizer).step)
        def step(*args: Any, **kwargs: Any) -> Any:
            return kept(*args, **kwargs) if self._undone else self.step(*args, **kwargs)

        # A scheduler that is made later has nothing to add to this: `step` shows it that it was called.
        step._wrapped_by_lr_sched = step._with_counter = True  # type: ignore[attr-defined]  # a mark on the function
        self._installed = step
        self.optimizer.step = step

    @property
    def in_progress(self) -> bool:
        """Whether a step has begun and failed; the next ``step`` goes on with it."""
        return self._attempt is not None

    def abandon(self) -> None:
        """Forgets a step that failed: the next one begins anew, with the gradients that are there then."""
        self._attempt = None

    def leave_the_rest(self) -> None:
        """Gives up a step that failed, for another way to go on with: parameters that were updated already have no gradient then."""
        if self._attempt is None:
            return
        waiting = {id(p) for part in self._attempt.parts for p in (part.params if isinstance(part, _Bucket) else [p for _, params in part for p in params])}
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in waiting:
                    p.grad = None
        self._attempt = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters that have a gradient, or goes on with the step that failed."""
        with torch.autograd.profiler.record_function(f"Optimizer.step#{type(self.optimizer).__name__}.step"):
            if self._attempt is None:
                self._attempt = self._begin(closure)
            attempt = self._attempt
            with torch.no_grad():
                self._update_all(attempt.parts)
            self._attempt = None
            self.optimizer._opt_called = True  # LR schedulers look for it.
            hooks = chain(self.optimizer._optimizer_step_post_hooks.values(), torch_optimizer._global_optimizer_post_hooks.values())
            for hook in hooks:
                hook(self.optimizer, attempt.args, attempt.kwargs)
            return attempt.loss

    def _begin(self, closure: Callable[[], Any] | None) -> _Attempt:
        args: tuple[Any, ...] = (self.optimizer,) if closure is None else (self.optimizer, closure)
        kwargs: dict[str, Any] = {}
        hooks = chain(torch_optimizer._global_optimizer_pre_hooks.values(), self.optimizer._optimizer_step_pre_hooks.values())
        for hook in hooks:
            changed = hook(self.optimizer, args, kwargs)
            if changed is not None:
                args, kwargs = changed
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            return _Attempt(args, kwargs, loss, deque(self._divide()))

    def _divide(self) -> Iterable[Any]:
        for group in self.optimizer.param_groups:
            due = [p for p in group["params"] if p.grad is not None]
            limit = sys.maxsize if group.get("fused") else self.bucket_bytes
            for params in _in_pieces(due, limit, size_of):
                yield [(group, params)]

    def _update_all(self, parts: deque[Any]) -> None:
        while parts:
            self._update(parts[0])
            parts.popleft()

    def _update(self, part: _Part, saved_elsewhere: Iterable[tuple[Tensor, str]] = ()) -> None:
        """The optimizer's own update of these parameters, or nothing at all. State in ``saved_elsewhere`` is put back by the caller."""
        before = _Before(self.optimizer, part, saved_elsewhere)
        try:
            with _only(self.optimizer, part):
                self._raw(self.optimizer)
        except BaseException:
            before.restore()
            raise

    def undo(self) -> None:
        """Gives the optimizer its own ``step`` back."""
        if self._undone:
            return
        self._undone = True
        if self.optimizer.__dict__.get("step") is self._installed:
            if self._previous is None:
                del self.optimizer.step
            else:
                self.optimizer.step = self._previous


class _Before:
    """What parameters and their state were, for the case that their update fails."""

    def __init__(self, optimizer: Optimizer, part: _Part, saved_elsewhere: Iterable[tuple[Tensor, str]]) -> None:
        self._optimizer = optimizer
        self._params = [p for _, params in part for p in params]
        # A fused group allocates state before it changes anything, and nothing afterwards; but of two groups, the first may be done when
        # the second fails.
        untouched_by_failure = len(part) == 1 and bool(part[0][0].get("fused"))
        self._values = [] if untouched_by_failure else [(p, p.detach().clone()) for p in self._params]
        self._states: list[dict[str, Any] | None] = []
        self._tensors: list[tuple[Tensor, Tensor]] = []
        elsewhere = {(id(p), key) for p, key in saved_elsewhere}
        for p in self._params:
            state = optimizer.state.get(p)
            self._states.append(None if state is None else dict(state))
            for key, value in (state or {}).items():
                if isinstance(value, Tensor) and (id(p), key) not in elsewhere and not untouched_by_failure:
                    self._tensors.append((value, value.clone()))

    def restore(self) -> None:
        for tensor, was in chain(self._values, self._tensors):
            tensor.copy_(was)
        for p, state in zip(self._params, self._states):
            if state is None:
                self._optimizer.state.pop(p, None)
            else:
                self._optimizer.state[p].clear()
                self._optimizer.state[p].update(state)


@contextmanager
def _only(optimizer: Optimizer, part: _Part) -> Iterator[None]:
    """The optimizer as if it had these parameters and no others."""
    groups = optimizer.param_groups
    all_params = [(group, group["params"]) for group, _ in part]
    optimizer.param_groups = [group for group, _ in part]
    for group, params in part:
        group["params"] = params
    try:
        yield
    finally:
        for group, params in all_params:
            group["params"] = params
        optimizer.param_groups = groups


def _raw_step(kind: type[Optimizer]) -> Callable[..., Any]:
    """``step`` without what PyTorch wraps around it when the first optimizer of a class is made: hooks and a mark for the profiler."""
    step = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _in_pieces(params: Iterable[Tensor], limit: int, size: Callable[[Tensor], int]) -> Iterator[list[Tensor]]:
    piece: list[Tensor] = []
    full = 0
    for p in params:
        if piece and full + size(p) > limit:
            yield piece
            piece, full = [], 0
        piece.append(p)
        full += size(p)
    if piece:
        yield piece


# -- State in host memory


@dataclass(frozen=True, eq=False)
class _Place:
    """Where one tensor of state lies in its bucket's slab."""

    param: Tensor
    key: str
    offset: int
    size: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    def inside(self, memory: Tensor) -> Tensor:
        return memory[self.offset : self.offset + self.size].view(self.dtype).as_strided(self.shape, self.stride)

    def like(self, other: _Place) -> bool:
        mine, others = ((id(p.param), p.key, p.offset, p.dtype, p.shape, p.stride) for p in (self, other))
        return mine == others

    def holds(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.dtype == self.dtype and value.shape == self.shape


class _Bucket:
    """Parameters whose state travels together, as one copy."""

    def __init__(self, params: list[Tensor], hosted: bool = True) -> None:
        self.params = params
        self.device = params[0].device
        # Its state waits in host memory; otherwise it stays on the device.
        self.hosted = hosted
        self.slab: Slab | None = None
        self.homes: list[tuple[_Place, Tensor]] = []

    def lay_out(self, state: dict[Tensor, dict[str, Any]]) -> list[_Place]:
        """A place for each tensor of state that is no scalar, on the parameter's device or in host memory already."""
        places: list[_Place] = []
        end = 0
        for p in self.params:
            for key, value in state.get(p, {}).items():
                if type(value) is not Tensor or value.ndim == 0 or value.layout != torch.strided:
                    continue
                if value.device not in (p.device, torch.device("cpu")):
                    continue
                dense = torch.empty_like(value, device="meta")  # With the strides that a copy would have.
                places.append(_Place(p, key, end, size_of(value), value.dtype, value.shape, dense.stride()))
                end += aligned(size_of(value))
        return places

    def settle(self, places: list[_Place]) -> None:
        """Takes host memory for these places."""
        self.homes, self.slab = [], None
        if places:
            self.slab = Slab(places[-1].offset + places[-1].size, self.device)
            self.homes = [(place, place.inside(self.slab.tensor)) for place in places]

    @property
    def used(self) -> int:
        return self.homes[-1][0].offset + self.homes[-1][0].size if self.homes else 0


@dataclass
class _Guest:
    """A bucket whose state is on the device, or on its way. ``keep`` is not to be freed before ``left``."""

    bucket: _Bucket
    memory: Tensor | None
    arrived: Any = None
    left: Any = None
    keep: list[Tensor] = field(default_factory=list)
    #: What the optimizer was given of its state, in the order of the bucket's homes.
    given: list[Tensor] = field(default_factory=list)


class StatesOnHost(ResumableStep):
    """Keeps a ``share`` of the optimizer's state in pinned host memory and takes it through the GPU at each step, ``bucket_bytes`` of it at a time.

    While one bucket is updated, the next one comes and the one before goes back, so that three are on the GPU at once; a parameter whose
    state is larger than a bucket is a bucket. The state of the first step is made bucket by bucket too. Values are those of the plain
    optimizer, bit by bit. ``optimizer.state`` holds host tensors in between: ``state_dict()`` waits until they are whole, others call
    ``synchronize()`` first. Scalars (``step``) stay where the optimizer wants them.

    Inside ``releasing()``, buckets are updated in the backward pass, as soon as the gradients of one are whole, and these are freed: copies run beside the work, and
    gradients of all parameters are never there at once. ``step`` updates what is left.
    """

    def __init__(self, optimizer: Optimizer, bucket_bytes: int | None = None, *, share: float = 1.0) -> None:
        if bucket_bytes is None:
            state = 2 * sum(size_of(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad)
            bucket_bytes = min(max(_BUCKET, state // _BUCKETS), _LARGEST_BUCKET)
        super().__init__(optimizer, bucket_bytes)
        self.share = share
        # Of the state in buckets so far, what is on the host and what there is.
        self._hosted, self._counted = 0, 0
        self._buckets: list[_Bucket] = []
        self._release: _Release | None = None
        self._lanes: dict[torch.device, Lanes] = {}
        self._state_dict_hook = optimizer.register_state_dict_pre_hook(lambda _: self.synchronize())
        try:
            with torch.no_grad():
                self._take_what_is_there()
        except BaseException:
            self.undo()
            raise

    @property
    def bytes_on_host(self) -> int:
        return sum(bucket.slab.size for bucket in self._buckets if bucket.slab is not None)

    def synchronize(self) -> None:
        """Waits until the state in host memory is whole."""
        for lanes in self._lanes.values():
            if lanes.going is not None:
                lanes.going.synchronize()

    def undo(self, to_device: bool = True) -> None:
        """Puts the state back on the device and gives the optimizer its own ``step`` back.

        Without ``to_device``, and where it does not fit there, the state stays in host memory, for another ``StatesOnHost`` to take over.
        """
        if self._undone:
            return
        self.synchronize()
        if to_device:
            with torch.no_grad():
                self._bring_back()
        self._buckets.clear()
        self._state_dict_hook.remove()
        super().undo()

    def _bring_back(self) -> None:
        """All of it, or nothing where it does not fit: half of it there would leave no room for anything else, and be of no use."""
        moved: list[tuple[dict[str, Any], str, Tensor]] = []
        try:
            for bucket in self._buckets:
                for place, host in bucket.homes:
                    state = self.optimizer.state.get(place.param, {})
                    if state.get(place.key) is host:
                        state[place.key] = host.to(bucket.device, copy=True)
                        moved.append((state, place.key, host))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            for state, key, host in moved:
                state[key] = host
            torch.cuda.empty_cache()
            warnings.warn(
                f"the optimizer's state stays in host memory: its {text(self.bytes_on_host)} do not fit the GPU beside the model. It is whole, and state_dict() has it; "
                "to train on with this optimizer, give it to oomph.fit again",
                stacklevel=5,  # Of whoever closes the fit.
            )

    def _take_what_is_there(self) -> None:
        has_state = [p for group in self.optimizer.param_groups for p in group["params"] if self.optimizer.state.get(p)]
        for bucket in self._new_buckets(has_state):
            if bucket.hosted:
                self._copy_to_host(_Guest(bucket, None))
                self._lane(bucket).wait_for_all()
        self.synchronize()

    def _new_buckets(self, params: list[Tensor]) -> list[_Bucket]:
        made: list[_Bucket] = []
        for device in dict.fromkeys(p.device for p in params):
            # Before the first step it is unknown what an optimizer will keep; Adam keeps two values for each one of the parameter. The last come first: so
            # their gradients do.
            pieces = _in_pieces(reversed([p for p in params if p.device == device]), self.bucket_bytes, lambda p: 2 * size_of(p))
            made.extend(_Bucket(piece, self._is_hosted(sum(map(size_of, piece)))) for piece in pieces)
        self._buckets.extend(made)
        return made

    def _is_hosted(self, size: int) -> bool:
        """Whether the next bucket is one of the share: they are spread evenly, so that copies are."""
        self._counted += size
        hosted = self._hosted + size / 2 <= self.share * self._counted
        self._hosted += size if hosted else 0
        return hosted

    def _lane(self, bucket: _Bucket) -> Lanes:
        if bucket.device not in self._lanes:
            self._lanes[bucket.device] = Lanes(bucket.device)
        return self._lanes[bucket.device]

    def _divide(self) -> Iterable[_Bucket]:
        due = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        known = {p for bucket in self._buckets for p in bucket.params}
        for bucket in self._buckets:
            self._move_back_to_host(bucket)
        self._new_buckets([p for p in due if p not in known])
        due_now = set(due)
        return [bucket for bucket in self._buckets if not due_now.isdisjoint(bucket.params)]

    def _move_back_to_host(self, bucket: _Bucket) -> None:
        """``load_state_dict`` puts state on the device, in tensors of its own."""
        if not bucket.hosted:
            return
        values = [self.optimizer.state.get(place.param, {}).get(place.key) for place, _ in bucket.homes]
        if all(value is host for value, (_, host) in zip(values, bucket.homes)):
            return
        if not all(place.holds(value) for value, (place, _) in zip(values, bucket.homes)):
            bucket.settle([])  # Another state: it gets a new place when it has been used.
            return
        self.synchronize()
        for value, (place, host) in zip(values, bucket.homes):
            if value is not host:
                host.copy_(value)
                self.optimizer.state[place.param][place.key] = host

    def _update_all(self, parts: deque[_Bucket]) -> None:
        group_of = {p: group for group in self.optimizer.param_groups for p in group["params"]}
        guest: _Guest | None = None
        coming: _Guest | None = None
        leaving: deque[_Guest] = deque()
        try:
            while parts:
                # Before the next one comes, the last but one must have left.
                self._wait_for_copies(leaving, leave=1)
                guest = coming or self._bring(parts[0])
                coming = self._bring_if_there_is_room(parts[1]) if len(parts) > 1 else None
                self._update_guest(guest, group_of)
                parts.popleft()
                leaving.append(self._copy_to_host(guest))
                guest = None  # So that its memory is free when it has left.
                if coming is None:
                    self._wait_for_copies(leaving)
        finally:
            # Memory that the streams still read or write goes back to the program when it is dropped here.
            for lanes in self._lanes.values():
                lanes.wait_for_all()

    def _wait_for_copies(self, leaving: deque[_Guest], leave: int = 0) -> None:
        while len(leaving) > leave:
            guest = leaving.popleft()
            self._lane(guest.bucket).wait(guest.left)

    def _bring_if_there_is_room(self, bucket: _Bucket) -> _Guest | None:
        try:
            return self._bring(bucket)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return None  # It comes when the others have left.

    def _bring(self, bucket: _Bucket) -> _Guest:
        if bucket.slab is None:
            return _Guest(bucket, None)
        memory = torch.empty(bucket.used, dtype=torch.uint8, device=bucket.device)
        lanes = self._lane(bucket)
        with lanes.copying(lanes.coming):
            if copies_are_real or not lanes.is_cuda:
                memory.copy_(bucket.slab.tensor[: bucket.used], non_blocking=True)
        return _Guest(bucket, memory, arrived=lanes.mark(lanes.coming))

    # -- in the backward pass

    @property
    def has_released(self) -> bool:
        """Whether the backward pass that runs, or that failed, has updated parameters already: it cannot be repeated then."""
        return self._release is not None and self._release.updated

    @contextmanager
    def releasing(self) -> Iterator[None]:
        """Around a backward pass whose gradients are the last to be added. Hooks before the optimizer's step come after updates: see `releases`."""
        if self._attempt is not None:
            raise FitError("the step before has failed, and is not over")
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        known = {p for bucket in self._buckets for p in bucket.params}
        for bucket in self._buckets:
            self._move_back_to_host(bucket)
        self._new_buckets([p for p in trained if p not in known])
        self._release = release = _Release(self, self._buckets)
        handles = [p.register_post_accumulate_grad_hook(release.arrived) for p in trained]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for lanes in self._lanes.values():
                lanes.wait_for_all()
            release.drop()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = super().step(closure)
        self._release = None
        return loss

    def _update_guest(self, guest: _Guest, group_of: dict[Tensor, dict[str, Any]]) -> None:
        bucket, state = guest.bucket, self.optimizer.state
        by_group: dict[int, tuple[dict[str, Any], list[Tensor]]] = {}
        for p in bucket.params:
            if p in group_of:
                by_group.setdefault(id(group_of[p]), (group_of[p], []))[1].append(p)
        self._lane(bucket).wait(guest.arrived)
        try:
            if guest.memory is not None:
                guest.given = [place.inside(guest.memory) for place, _ in bucket.homes]
                for (place, _), value in zip(bucket.homes, guest.given):
                    state[place.param][place.key] = value
            self._update(list(by_group.values()), [(place.param, place.key) for place, _ in bucket.homes])
        except BaseException:
            for place, host in bucket.homes:  # What is there is what was before.
                state[place.param][place.key] = host
            raise

    def _is_as_given(self, guest: _Guest) -> bool:
        state = self.optimizer.state
        tensors = sum(type(value) is Tensor and value.ndim > 0 for p in guest.bucket.params for value in state.get(p, {}).values())
        return tensors == len(guest.given) and all(state[place.param].get(place.key) is value for (place, _), value in zip(guest.bucket.homes, guest.given))

    def _copy_to_host(self, guest: _Guest) -> _Guest:
        bucket, state = guest.bucket, self.optimizer.state
        if not bucket.hosted:
            return guest
        # Mostly it has worked in place, and kept nothing else.
        in_one_piece = bool(guest.given) and self._is_as_given(guest)
        if not in_one_piece:
            places = bucket.lay_out(state)
            if len(places) != len(bucket.homes) or not all(place.like(home) for place, (home, _) in zip(places, bucket.homes)):
                bucket.settle(places)
        if bucket.slab is None:
            return guest
        values = guest.given if in_one_piece else [state[place.param][place.key] for place, _ in bucket.homes]
        lanes = self._lane(bucket)
        with lanes.copying(lanes.going):
            if copies_are_real or not lanes.is_cuda:
                if in_one_piece:
                    bucket.slab.tensor[: bucket.used].copy_(guest.memory, non_blocking=True)
                else:
                    for value, (_, host) in zip(values, bucket.homes):
                        host.copy_(value, non_blocking=True)
        for place, host in bucket.homes:
            state[place.param][place.key] = host
        guest.left, guest.keep = lanes.mark(lanes.going), values
        return guest


class _Release:
    """The updates of one backward pass: which buckets wait for gradients still, and whose state is on its way."""

    def __init__(self, states: StatesOnHost, buckets: list[_Bucket]) -> None:
        self._states, self._buckets = states, buckets
        self._group_of = {p: group for group in states.optimizer.param_groups for p in group["params"]}
        self._bucket_of = {p: index for index, bucket in enumerate(buckets) for p in bucket.params}
        self._missing = [{p for p in bucket.params if p.requires_grad} for bucket in buckets]
        self._coming: dict[int, _Guest] = {}
        self._leaving: deque[_Guest] = deque()
        self.updated = False

    def arrived(self, parameter: Tensor) -> None:
        index = self._bucket_of.get(parameter)
        if index is None:
            return
        missing = self._missing[index]
        if not missing:
            raise FitError(
                "a gradient comes in two pieces (a layer that a checkpoint of its own runs twice?), and its parameter was updated after the first: such a model cannot be updated within the backward pass"
            )
        missing.discard(parameter)
        if not missing:
            with torch.no_grad():
                self._update(index)

    def drop(self) -> None:
        self._coming.clear()
        self._leaving.clear()

    def _update(self, index: int) -> None:
        states, bucket = self._states, self._buckets[index]
        states._wait_for_copies(self._leaving, leave=1)
        guest = self._coming.pop(index, None) or states._bring(bucket)
        following = next((later for later in range(index + 1, len(self._buckets)) if self._buckets[later].hosted and self._missing[later]), None)
        if following is not None and following not in self._coming:
            coming = states._bring_if_there_is_room(self._buckets[following])
            if coming is not None:
                self._coming[following] = coming
        self.updated = True
        states._update_guest(guest, self._group_of)
        for p in bucket.params:
            p.grad = None
        if bucket.hosted:
            self._leaving.append(states._copy_to_host(guest))


# -- 8-bit state


class Replaced(Undoable):
    """Another optimizer, in ``optimizer``, for the same parameters."""

    def __init__(self, optimizer: Optimizer, undo: Callable[[], None]) -> None:
        super().__init__(undo)
        self.optimizer = optimizer


def to_8bit(optimizer: Optimizer) -> Replaced:
    """An optimizer of the same kind that keeps its state in 8 bits: of bitsandbytes, or of torchao. It changes numerics.

    Both have the same groups, as the same objects, and the same hooks, so that a scheduler that was made with the old one steers the new
    one. ``undo`` drops the 8-bit state, and the old optimizer begins with none.
    """
    steps = max((int(state.get("step", 1)) for state in optimizer.state.values() if state), default=0)
    if steps > 0:
        raise FitError("the optimizer has made steps, and its state is not converted to 8 bits: ask for 8 bits before the first step")
    if any(p.device.type != "cuda" for group in optimizer.param_groups for p in group["params"]):
        raise FitError("8-bit optimizers work on the GPU only: move the model there before its optimizer is made")
    make = _bitsandbytes_maker(optimizer) or _torchao_maker(optimizer)
    if make is None:
        raise FitError("no 8-bit optimizer is installed\n\nhint: pip install bitsandbytes (or torchao, for Adam and AdamW)")

    before = [dict(group) for group in optimizer.param_groups]
    new = make()
    for group, theirs in zip(optimizer.param_groups, new.param_groups):
        for key, value in theirs.items():
            if key == "betas" or isinstance(value, Tensor):
                group[key] = value
            elif key != "params":
                group.setdefault(key, value)
    new.param_groups = optimizer.param_groups
    new._optimizer_step_pre_hooks = optimizer._optimizer_step_pre_hooks
    new._optimizer_step_post_hooks = optimizer._optimizer_step_post_hooks

    # Schedulers ask the optimizer that they were made with whether it has stepped.
    old = weakref.ref(optimizer)

    def mark_as_called(*_: Any) -> None:
        if (first := old()) is not None:
            first._opt_called = True

    hook = new.register_step_post_hook(mark_as_called)

    def undo() -> None:
        hook.remove()
        for group, was in zip(optimizer.param_groups, before):
            for key in [key for key in group if key not in was]:
                del group[key]
            if "betas" in was:
                group["betas"] = was["betas"]
            if isinstance(group["lr"], Tensor) and not isinstance(was["lr"], Tensor):
                group["lr"] = float(group["lr"])
        new.param_groups = []
        new.state.clear()

    return Replaced(new, undo)


def _bitsandbytes_maker(optimizer: Optimizer) -> Callable[[], Optimizer] | None:
    try:
        import bitsandbytes as bnb
    except ImportError:
        return None

    def groups(betas: Callable[[dict[str, Any]], tuple[float, float]]) -> list[dict[str, Any]]:
        shared = ("params", "lr", "eps", "weight_decay")
        return [{**{key: group[key] for key in shared if key in group}, "betas": betas(group)} for group in optimizer.param_groups]

    name = type(optimizer).__name__
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        decoupled = isinstance(optimizer, torch.optim.AdamW) or all(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
        _refuse(optimizer, "amsgrad", lambda group: group["amsgrad"])
        _refuse(optimizer, "maximize", lambda group: group["maximize"])
        # Theirs shrinks the weights in both cases.
        coupled = "a weight_decay that is added to the gradient (AdamW's is not)"
        _refuse(optimizer, coupled, lambda group: group["weight_decay"] and not decoupled)
        kind = bnb.optim.AdamW8bit if decoupled else bnb.optim.Adam8bit
        return lambda: kind(groups(lambda group: group["betas"]))
    if isinstance(optimizer, torch.optim.SGD):
        _refuse(optimizer, "nesterov, dampening or maximize", lambda group: group["nesterov"] or group["dampening"] or group["maximize"])
        if not all(group["momentum"] for group in optimizer.param_groups):
            raise FitError("SGD without momentum keeps no state: there is nothing to keep in 8 bits")
        first = optimizer.param_groups[0]
        return lambda: bnb.optim.SGD8bit(groups(lambda group: (group["momentum"], 0.0)), lr=first["lr"], momentum=first["momentum"])
    raise FitError(f"{name} has no 8-bit form here; Adam, AdamW and SGD with momentum have one")


def _torchao_maker(optimizer: Optimizer) -> Callable[[], Optimizer] | None:
    try:
        from torchao.optim import Adam8bit, AdamW8bit
    except ImportError:
        return None
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        raise FitError(f"torchao has no 8-bit {type(optimizer).__name__}\n\nhint: pip install bitsandbytes")
    _refuse(optimizer, "maximize", lambda group: group["maximize"])
    kind = AdamW8bit if isinstance(optimizer, torch.optim.AdamW) else Adam8bit
    shared = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")
    return lambda: kind([{key: group[key] for key in shared} for group in optimizer.param_groups])


def _refuse(optimizer: Optimizer, what: str, is_so: Callable[[dict[str, Any]], Any]) -> None:
    if any(is_so(group) for group in optimizer.param_groups):
        raise FitError(f"the 8-bit form of {type(optimizer).__name__} does not know {what}")


def steps_in_parts(optimizer: Optimizer) -> bool:
    """Whether the optimizer may be called for some parameters at a time: those of PyTorch may."""
    try:
        ResumableStep(optimizer).undo()
    except FitError:
        return False
    return True


def has_sparse_gradients(model: torch.nn.Module) -> bool:
    return any(getattr(module, "sparse", False) for module in model.modules() if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)))


def _fused(step: Any) -> Undoable | None:
    # Fused kernels take no sparse gradients, and optimizers in 8 bits have kernels of their own.
    return None if step.plan.optimizer_8bit or has_sparse_gradients(step.model) else fuse(step.stepped)


FUSED = Technique("fused", lambda *_: "optimizer without temporary copies (fused)", "same numbers, usually faster", apply=_fused, stage=OPTIMIZER)
OPTIMIZER_8BIT = Technique(
    "optimizer_8bit",
    lambda *_: "optimizer state in 8 bits (allowed)",
    "you allowed it",
    apply=lambda step: to_8bit(step.optimizer),
    stage=OPTIMIZER,
    allow="8bit-optimizer",
    allowed="optimizer state in 8 bits",
    asked=lambda half: {"optimizer_8bit": True, "fused": False},
    turn=2,
    lasts=True,
)
STATES_ON_HOST = Technique(
    "states_on_host",
    lambda share, *_: "optimizer state in host memory" if share >= 1 else f"{share:.0%} of the optimizer's state in host memory",
    "same numbers; pays with copies at each step",
    apply=lambda step: StatesOnHost(step.stepped, share=float(step.plan.states_on_host)),
    stage=STEP,
)
RELEASE = Technique(
    "release",
    lambda *_: "parameters updated within the backward pass",
    "same numbers; gradients are freed as they come",
    # Where state is on the host too, that is what updates.
    apply=lambda step: None if step.plan.states_on_host else StatesOnHost(step.stepped, share=0.0),
    stage=STEP,
)


def releases(optimizer: Optimizer) -> bool:
    """Whether its parameters may be updated before all gradients are there: not where somebody looks at these before its step. The virtual GPU's own does not."""
    hooks = chain(optimizer._optimizer_step_pre_hooks.values(), torch_optimizer._global_optimizer_pre_hooks.values())
    return all(str(getattr(hook, "__module__", "")).startswith("_oomph_virtual.") for hook in hooks) and steps_in_parts(optimizer)
