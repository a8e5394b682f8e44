"""What the last training step of a rank takes beside memory: bytes that are sent to other ranks, and an estimate of the time that the GPU works and of the operations that the CPU starts.

Boundary: operations are told of by the mode that sees all of a forward pass; a backward pass is taken to be twice its work. What it means for links between cards is for the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .speeds import SHORTEST, assumed_speeds, seconds_of_operation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from torch._ops import OpOverload
    from torch.optim import Optimizer

    from .child import Run
    from .speeds import Speeds

    # A collective: its function, the size of its group, and how many of that are on this machine.
    Call = tuple[str, int, int]

# Of each parameter that is trained, what an update reads and writes, in its own bytes: parameter, gradient and two of state, all but the gradient written.
_UPDATE = 7
# Of what is kept in host memory: bytes a second of an update there, and how often it is copied in a step (for the forward and the backward pass, and its gradient back).
_HOST_MEMORY, _COPIES = 10e9, 3


class Accounts:
    """Of one rank."""

    def __init__(self, torch: ModuleType, run: Run) -> None:
        self.torch, self.run = torch, run
        self.speeds: Speeds | None = None
        self.seconds, self.operations = 0.0, 0
        self.calls: dict[Call, int] = {}
        self.step: dict[str, float] | None = None

    # -- operations

    def operation(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """One of a forward pass, or of one that is run again within a backward pass."""
        if self.speeds is None:
            if not self.torch.cuda.is_initialized():
                return
            card = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
            self.speeds = assumed_speeds(card.multi_processor_count, (card.major, card.minor))
        seconds = seconds_of_operation(self.speeds, func, tuple(map(local, args)), kwargs, local(out))
        if seconds is not None:
            # What is run again has its backward pass counted already.
            passes = 3 if self.torch.is_grad_enabled() and not self.run.backward.under_way else 1
            self.seconds += passes * max(seconds, SHORTEST)
            self.operations += passes

    # -- steps

    def end_of_step(self, optimizer: Optimizer) -> None:
        calls = counted(self.run.nccl_calls())
        sent: dict[bool, float] = {True: 0, False: 0}
        out: float = 0
        for call, given in calls.items():
            name, ranks, here = call
            amount = sent_by(name, ranks, given - self.calls.get(call, 0))
            sent[here < ranks] += amount
            out += amount * share_that_leaves(name, ranks, here)
        self.step = {
            "seconds": self.seconds + self.seconds_of_update(optimizer),
            "operations": self.operations,
            "sent_within": round(sent[False]),
            "sent_between": round(sent[True]),
            "sent_out": round(out),
        }
        self.calls, self.seconds, self.operations = calls, 0.0, 0

    def seconds_of_update(self, optimizer: Optimizer) -> float:
        trained = {True: 0, False: 0}
        for one in (local(one) for group in optimizer.param_groups for one in group["params"]):
            trained[one.is_cuda] += one.numel() * one.element_size()
        if self.speeds is None:
            return 0.0
        on_host = trained[False] * (_UPDATE / _HOST_MEMORY + _COPIES / self.speeds.link)
        return _UPDATE * trained[True] / self.speeds.memory + on_host


def local(thing: Any) -> Any:
    """A rank's part of a tensor that is shared out."""
    if isinstance(thing, (list, tuple)):
        return type(thing)(map(local, thing)) if type(thing) in (list, tuple) else thing
    return getattr(thing, "_local_tensor", thing)


def counted(lines: Iterable[str]) -> dict[Call, int]:
    """Bytes that were given, by function, size of its group, and how many of that are on this machine."""
    given: dict[Call, int] = {}
    for line in lines:
        name, ranks, here, _, size = line.split()
        given[name, int(ranks), int(here)] = int(size)
    return given


def share_that_leaves(name: str, ranks: int, here: int) -> float:
    """Of what each rank of a machine sends, on average, to ranks of others, where ``here`` of the ranks are on one machine."""
    if here >= ranks:
        return 0
    if "Send" in name or "AlltoAll" in name:
        return (ranks - here) / (ranks - 1)
    # A ring goes through the ranks of a machine, and leaves it once.
    return 1 / here


def sent_by(name: str, ranks: int, given: int) -> float:
    """Bytes that a rank sends, of what it gave to a collective, where data go round in a ring."""
    if "AllReduce" in name:
        return 2 * (ranks - 1) / ranks * given
    if any(kind in name for kind in ("AllGather", "ReduceScatter", "AlltoAll")):
        # One part for each of the others.
        return (ranks - 1) * given
    return 0 if "Recv" in name else given
