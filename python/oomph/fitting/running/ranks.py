"""Several ranks: all plan the same, step down together, and have the same gradients. With one process, nothing happens here.

DistributedDataParallel starts to talk in the middle of a backward pass, where a rank that ran out of memory would leave the others waiting for ever. So its model
is used without it: each rank runs its backward pass by itself, all agree that none has failed, and then gradients are averaged. Where the model is sharded, ranks must talk within a step:
that is for ``agreeing``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from oomph._environment import on_virtual_gpu
from oomph.fitting.errors import FitError
from oomph.fitting.planning.card import Room
from oomph.sharding.state import is_sharded_parameter

Answer = TypeVar("Answer")


def several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def first() -> bool:
    return not several() or dist.get_rank() == 0


def without_ddp(model: torch.nn.Module) -> torch.nn.Module:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def refuse_sharded(model: torch.nn.Module) -> None:
    """For loops that are not ours: a step that one rank could not finish must be repeated by all."""
    kinds = {type(module).__name__ for module in model.modules()} | {type(parameter).__name__ for parameter in model.parameters()}
    if any(name.startswith("FSDP") or name in ("FullyShardedDataParallel", "DTensor") for name in kinds):
        raise FitError(
            "the model is sharded (FSDP): its ranks talk within forward and backward, so one that runs out of memory cannot be repeated in this loop. Use oomph.fit with fit.step, "
            "or oomph predict --ranks"
        )


def any_of(flag: bool, device: torch.device) -> bool:
    """Whether it is so on any rank. All ranks must ask."""
    return bool(worst(int(flag), device))


def worst(code: int, device: torch.device) -> int:
    """The highest of all ranks. All ranks must ask."""
    return highest([code], device)[0]


def highest(numbers: list[int], device: torch.device) -> list[int]:
    """Of each, the highest of all ranks. All ranks must ask."""
    if not several():
        return numbers
    agreed = torch.tensor(numbers, device=device)
    try:
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        return [int(number) for number in agreed.tolist()]
    except Exception as error:
        raise unreachable(error) from error


def unreachable(error: BaseException | None) -> FitError:
    """What a collective has raised, in words."""
    why = f": {(str(error).splitlines() or [''])[0]}" if error is not None else ""
    return FitError(
        "another rank has ended, or does not answer, in the middle of a step that needs all of them: this rank ends as well. Look for the first error among the ranks, and go on from "
        f"your last saved state{why}"
    )


def least_room(room: Room) -> Room:
    """The same for all: that of the rank that has least."""
    if not several() or on_virtual_gpu():
        return room
    rooms: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rooms, dataclasses.asdict(room))
    return Room(**min(rooms, key=lambda one: one["limit"] - one["margin"]))


def by_the_first(work: Callable[[], Answer]) -> Answer:
    """Done by rank 0, known to all; an error too. On the virtual GPU each rank runs without the others, and does it by itself."""
    if not several() or on_virtual_gpu():
        return work()
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = work()
        except FitError as error:
            answer[1] = error
    dist.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def average_gradients(parameters: list[torch.Tensor]) -> None:
    """As DistributedDataParallel would have done within the backward pass. What no rank has used keeps no gradient; what is sharded has its mean already."""
    if not several():
        return
    world = dist.get_world_size()
    trained = [parameter for parameter in parameters if parameter.requires_grad and not is_sharded_parameter(parameter)]
    if not trained:
        return
    used = torch.tensor([float(parameter.grad is not None) for parameter in trained], device=trained[0].device)
    dist.all_reduce(used, op=dist.ReduceOp.MAX)
    waiting = []
    for parameter, anywhere in zip(trained, used.tolist()):
        if not anywhere:
            continue
        if parameter.grad is None:
            # A rank whose samples did not use it takes part all the same.
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.div_(world)
        waiting.append(dist.all_reduce(parameter.grad, async_op=True))
    for work in waiting:
        work.wait()
