"""Steps within which ranks talk to each other: when one fails in the middle, none waits for it, and all know.

A rank that runs out of memory in a forward or backward pass of a sharded model leaves the others in a collective that it will never start. So the collectives of a step are known: in
the first step of a kind, each rank writes into the store what it is about to start; later steps are the same. The rank that failed takes part in those that are left, with buffers
whose contents do not matter. Then all agree on what has happened. What is done about it is for ``fit``.

Seen are PyTorch's functions that collect tensors, called as ``torch.distributed.…``: FSDP2 does. A step that talks in other ways, or differently from step to step, is not mended here: it
ends with the process group's time-out.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from oomph._environment import on_virtual_gpu
from oomph.fitting.errors import FitError
from oomph.fitting.running import ranks
from oomph.live.out_of_memory import is_out_of_memory
from oomph.sharding.blocks import talk_by_nccl

Answer = TypeVar("Answer")

# The functions, by kind: where the output and the input are among their arguments, by place and name. An alias is called by some versions of FSDP2.
_GATHER, _SCATTER, _REDUCE, _BROADCAST = "gather", "scatter", "reduce", "broadcast"
_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "all_gather_into_tensor": (_GATHER, ("output_tensor", "input_tensor")),
    "all_gather_single": (_GATHER, ("output_tensor", "input_tensor")),
    "reduce_scatter_tensor": (_SCATTER, ("output", "input")),
    "reduce_scatter_single": (_SCATTER, ("output", "input")),
    "all_reduce": (_REDUCE, ("tensor",)),
    "broadcast": (_BROADCAST, ("tensor",)),
}
# How often a rank that waits looks into the store.
_LOOK = 0.002
_MADE = itertools.count()
# What a step came to: nothing, out of memory, or anything else that was raised.
FINE, NO_MEMORY, FAILED = range(3)


@dataclass(frozen=True)
class Call:
    """One collective: as much as is needed to take part in it."""

    kind: str
    #: What the caller calls its group: the same for all that do the same.
    group: str
    numels: tuple[int, ...]
    dtypes: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps([self.kind, self.group, self.numels, self.dtypes])

    @staticmethod
    def from_json(given: str) -> Call:
        kind, group, numels, dtypes = json.loads(given)
        return Call(kind, group, tuple(numels), tuple(dtypes))


@dataclass
class Outcome:
    """Of one step, on all ranks: ``verdict`` is the worst that happened to any, ``rank`` to which."""

    verdict: int
    rank: int
    #: What this rank raised.
    error: BaseException | None = None
    result: Any = None


@dataclass
class _Step:
    """The one that is running."""

    number: int
    #: Its collectives, where the like of it has been run before.
    known: list[Call] | None
    done: list[Call] = field(default_factory=list)
    #: What a collective raised: others have ended.
    broken: BaseException | None = None


class Together:
    """All ranks must call `run` in the same order. ``device`` is that of the tensors they talk by."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[Any, list[Call]] = {}
        self._number = 0
        self._groups: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._step: _Step | None = None
        store = dist.distributed_c10d._get_default_store()
        # All ranks make theirs in the same order; what an earlier one wrote is not for this one.
        self._store = dist.PrefixStore(f"oomph_fit_{next(_MADE)}", store) if not on_virtual_gpu() else None

    def run(self, key: Any, work: Callable[[], Answer], forget: Callable[[], None]) -> Outcome:
        """Does the work, whose like has the same ``key`` on all ranks. ``forget`` leaves what failed, so that its memory is there again. Raises nothing of the work; where the others
        cannot be reached, a FitError."""
        self._number += 1
        step = self._step = _Step(self._number, self._known.get(key))
        error: BaseException | None = None
        result: Any = None
        try:
            with self._watched():
                result = work()
            self._say("ended")
        except Exception as raised:
            error = raised
        finally:
            self._step = None
        if step.broken is not None:
            raise self._unreachable(step.broken)
        if self._store is None:
            return Outcome(FINE if error is None else NO_MEMORY if is_out_of_memory(error) else FAILED, 0, error, result)
        if error is not None:
            # The frames of what failed hold its tensors.
            traceback.clear_frames(error.__traceback__)
            forget()
            self._follow(step)
        outcome = self._agree(error, result)
        if outcome.verdict == FINE:
            # Steps that differ are not known: each is written down.
            self._known[key] = step.done
            if step.known is not None and step.known != step.done:
                del self._known[key]
        return outcome

    def _agree(self, error: BaseException | None, result: Any) -> Outcome:
        mine = FINE if error is None else NO_MEMORY if is_out_of_memory(error) else FAILED
        # The rank with the worst, the first of several.
        world = dist.get_world_size()
        try:
            worst = ranks.worst(mine * world + (world - 1 - dist.get_rank()), self.device)
        except FitError:
            self._say_broken()
            raise
        return Outcome(worst // world, world - 1 - worst % world, error, result)

    # -- what is started

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        before = {name: getattr(dist, name) for name in _FUNCTIONS if hasattr(dist, name)}
        for name, function in before.items():
            setattr(dist, name, self._noting(name, function))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(dist, name, function)

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        kind, names = _FUNCTIONS[name]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            step = self._step
            if step is None or step.broken is not None:
                return function(*args, **kwargs)
            tensors = [args[place] if place < len(args) else kwargs[each] for place, each in enumerate(names)]
            group = kwargs.get("group")
            if group is None:
                group = next((one for one in args if isinstance(one, dist.ProcessGroup)), None)
            call = Call(kind, self._name_of(group), tuple(one.numel() for one in tensors), tuple(str(one.dtype).removeprefix("torch.") for one in tensors))
            self._write(step, call)
            step.done.append(call)
            try:
                return function(*args, **kwargs)
            except Exception as error:
                step.broken = error
                raise

        return called

    def _write(self, step: _Step, call: Call) -> None:
        place = len(step.done)
        if self._store is not None and (step.known is None or step.known[place : place + 1] != [call]):
            self._store.set(f"{step.number}/{place}", call.to_json())

    def _name_of(self, group: Any) -> str:
        """By how its ranks lie to each other, and which of those it is: ranks in the same place of several groups call theirs the same."""
        group = group if group is not None else dist.group.WORLD
        if group not in self._names:
            self._names, self._groups, met = {}, {}, Counter[str]()
            for one, members in dist.distributed_c10d._world.pg_group_ranks.items():
                among = sorted(members)
                shape = f"{len(among)} ranks, each {among[1] - among[0] if len(among) > 1 else 0} from the next"
                met[shape] += 1
                self._names[one] = f"{shape}, group {met[shape]} of these"
                self._groups[self._names[one]] = one
        return self._names[group]

    # -- without this rank's own work

    def _follow(self, step: _Step) -> None:
        """Takes part in what is left of the step."""
        self._say("failed", step)
        place = len(step.done)
        if step.known is not None:
            for call in step.known[place:]:
                self._take_part(call)
            return
        # Later than that, the others have given up too.
        end = time.monotonic() + _timeout().total_seconds()
        store = cast("dist.Store", self._store)
        while True:
            # In this order: who has ended, or failed, wrote before that what it started.
            over = self._said(step, "ended") > 0 or self._said(step, "failed") == dist.get_world_size()
            if store.check([f"{step.number}/{place}"]):
                self._take_part(Call.from_json(store.get(f"{step.number}/{place}").decode()))
                place += 1
            elif over:
                return
            elif self._said(step, "broken") or time.monotonic() > end:
                raise self._unreachable(None)
            else:
                time.sleep(_LOOK)

    def _take_part(self, call: Call) -> None:
        self._name_of(None)
        if call.group not in self._groups:
            raise FitError(f"this rank ran out of memory, and cannot stand by in a collective over {call.group}, which it has not used before: all ranks must be started again")
        group = self._groups[call.group]
        try:
            tensors = [torch.zeros(numel, dtype=getattr(torch, dtype), device=self.device) for numel, dtype in zip(call.numels, call.dtypes)]
        except Exception as error:
            self._say_broken()
            raise FitError(
                "this rank ran out of memory, and has no room even for the buffers of the collective that the others are in, so that it ends: start all ranks again, with a smaller budget=, "
                "or see what else is on its card (oomph top)"
            ) from error
        try:
            if call.kind == _GATHER:
                dist.all_gather_into_tensor(tensors[0], tensors[1], group=group)
            elif call.kind == _SCATTER:
                dist.reduce_scatter_tensor(tensors[0], tensors[1], group=group)
            elif call.kind == _REDUCE:
                dist.all_reduce(tensors[0], group=group)
            else:
                dist.broadcast(tensors[0], src=dist.get_process_group_ranks(group)[0], group=group)
        except Exception as error:
            raise self._unreachable(error) from error

    def _say(self, what: str, step: _Step | None = None) -> None:
        """That this rank has ended its part of a step, or failed in it: only where others may look."""
        step = step or self._step
        if self._store is not None and step is not None and step.known is None:
            self._store.add(f"{step.number}/{what}", 1)

    def _said(self, step: _Step, what: str) -> int:
        return int(cast("dist.Store", self._store).add(f"{step.number}/{what}", 0))

    def _say_broken(self) -> None:
        """To who waits for what this rank would have started next."""
        with contextlib.suppress(Exception):
            if self._store is not None:
                self._store.add(f"{self._number}/broken", 1)

    def _unreachable(self, error: BaseException | None) -> FitError:
        self._say_broken()
        return ranks.unreachable(error)


def _timeout() -> datetime.timedelta:
    group = dist.distributed_c10d._get_default_group()
    with contextlib.suppress(Exception):
        return group._get_backend(torch.device("cuda" if talk_by_nccl() else "cpu")).options._timeout
    return dist.distributed_c10d.default_pg_timeout
