"""What a step takes in time: the operations of a forward pass, counted on the virtual GPU, at the speeds of the card.

An estimate, to put plans in order. Speeds are measured on the card where there is one; otherwise they follow from its multiprocessors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from oomph._environment import on_virtual_gpu
from oomph.live.out_of_memory import is_out_of_memory

_MIB = 1 << 20


@dataclass(frozen=True)
class Speeds:
    """Of one card, in its process: per second, but for ``launch`` (seconds that the CPU takes to start one operation)."""

    flops_32: float
    flops_16: float
    memory: float
    link: float
    launch: float
    measured: bool = False

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def assumed_speeds(multiprocessors: int, capability: tuple[int, int]) -> Speeds:
    """From what a card of its generation does: multiply-adds per multiprocessor and clock, at 1.5 GHz, two thirds of it reached."""
    lanes = 128 if capability >= (8, 6) or capability[0] == 6 and capability[1] else 64
    tensor = {7: 512, 8: 512 if capability >= (8, 6) else 1024, 9: 2048}.get(capability[0], 1024 if capability[0] >= 10 else lanes)
    reached = multiprocessors * 1.5e9 * 2 * 2 / 3
    return Speeds(lanes * reached, tensor * reached, multiprocessors * (25e9 if capability[0] == 9 else 8e9), 12e9, 8e-6)


def measure_speeds(device: torch.device) -> Speeds:
    """On the card itself, in less than a tenth of a second and 150 MiB. No random numbers are drawn."""
    properties = torch.cuda.get_device_properties(device)
    assumed = assumed_speeds(properties.multi_processor_count, (properties.major, properties.minor))
    if on_virtual_gpu():
        return assumed

    def seconds(work: Any, times: int) -> float:
        work()
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(times):
            work()
        torch.cuda.synchronize(device)
        return max((time.perf_counter() - start) / times, 1e-9)

    try:
        side = 2048
        a = torch.linspace(-1, 1, side * side, device=device).view(side, side)
        flops_32 = 2 * side**3 / seconds(lambda: a @ a, 6)
        half = torch.bfloat16 if properties.major >= 8 else torch.float16
        b = a.to(half)
        flops_16 = 2 * side**3 / seconds(lambda: b @ b, 12)
        big = torch.empty(32 * _MIB, dtype=torch.uint8, device=device)
        memory = 2 * 32 * _MIB / seconds(lambda: big.clone(), 8)
        host = torch.empty(32 * _MIB, dtype=torch.uint8, pin_memory=True)
        link = 32 * _MIB / seconds(lambda: big.copy_(host, non_blocking=True), 4)
        small = torch.zeros(8, device=device)
        start = time.perf_counter()
        for _ in range(200):
            small.add_(1)
        launch = (time.perf_counter() - start) / 200
        torch.cuda.synchronize(device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return assumed
    # A model's operation passes through more of Python than a bare add.
    return Speeds(flops_32, flops_16, memory, link, 2 * launch, measured=True)


@dataclass
class Cost:
    """Of some part of a forward pass: seconds that the GPU works, and operations that the CPU starts."""

    gpu: float = 0.0
    operations: int = 0

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.gpu - other.gpu, self.operations - other.operations)


class CountCosts(TorchDispatchMode):
    """Sums up what the operations under it would cost."""

    def __init__(self, speeds: Speeds) -> None:
        super().__init__()
        self.speeds, self.cost = speeds, Cost()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors: list[torch.Tensor] = []
        gather(args, tensors)
        gather(out, tensors)
        if any(tensor.is_cuda for tensor in tensors) and not _is_view(func):
            moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / self.speeds.memory
            flops = flop_registry.get(func._overloadpacket)
            worked = 0.0
            if flops is not None:
                half = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
                # Some formulas refuse what the operations themselves take: grouped queries, for instance.
                with contextlib.suppress(Exception):
                    worked = flops(*args, **(kwargs or {}), out_val=out) / (self.speeds.flops_16 if half else self.speeds.flops_32)
            self.cost.gpu += max(moved, worked, 2e-6)
            self.cost.operations += 1
        return out


def _is_view(func: Any) -> bool:
    return bool(getattr(func, "is_view", False))


def gather(things: Any, into: list[torch.Tensor]) -> None:
    if isinstance(things, torch.Tensor):
        into.append(things)
    elif isinstance(things, (list, tuple)):
        for thing in things:
            gather(thing, into)


@dataclass
class ForwardCosts:
    """One forward pass of a part: in all, and block by block, with what each block keeps for the backward pass."""

    whole: Cost
    blocks: dict[str, Cost] = field(default_factory=dict)
    #: Bytes that would be free if the block were run again instead of remembered.
    kept: dict[str, int] = field(default_factory=dict)
    #: Bytes that go into the block: all that is remembered of it if it is run again.
    inputs: dict[str, int] = field(default_factory=dict)

    def seconds(self, checkpointed: tuple[str, ...], launch: float) -> float:
        """Forward and backward (twice the work of the forward), and the blocks that are run again."""
        gpu, operations = 3 * self.whole.gpu, 3 * self.whole.operations
        for name in checkpointed:
            cost = self.blocks.get(name, Cost())
            gpu, operations = gpu + cost.gpu, operations + cost.operations
        return max(gpu, operations * launch)
