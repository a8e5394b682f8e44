"""How long the GPU works for an operation: an estimate, from its multiply-adds and the bytes that it reads and writes, at the speeds of a card.

Boundary: which operations a step has is for the callers: `oomph.fit` counts those of a forward pass, `oomph plan` those of a rank's step.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

# No operation takes the GPU less.
SHORTEST = 4e-6
# Seconds that a model's operation takes the CPU, with the Python around it, where that is not measured.
LAUNCH = 23e-6
# Of the speed of a large product, what those of models reach, and what attention in full precision does; and bytes a second beside a plain copy's, for part of what is read has
# been written just before. Fitted to recorded steps of twelve models (docs/measured/fit-speed.md).
_REACHED, _REACHED_BY_ATTENTION, _CACHED = 0.65, 0.25, 2.3


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
    # TensorFloat-32 takes half as many.
    single = tensor / 2 if capability[0] >= 8 and torch.get_float32_matmul_precision() != "highest" else lanes
    return Speeds(single * reached, tensor * reached, multiprocessors * (25e9 if capability[0] == 9 else 8e9), 12e9, LAUNCH)


def seconds_of_operation(speeds: Speeds, func: Any, args: Any, kwargs: Any, out: Any) -> float | None:
    """None of one that the GPU has nothing to do with, or that only looks at a tensor in another way."""
    tensors: list[torch.Tensor] = []
    gather(args, tensors)
    gather(out, tensors)
    if getattr(func, "is_view", False) or not any(tensor.is_cuda for tensor in tensors):
        return None
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors) / (_CACHED * speeds.memory)
    flops, worked = flop_registry.get(func._overloadpacket), 0.0
    if flops is not None:
        half = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
        # Some formulas refuse what the operations themselves take: grouped queries, for instance.
        with contextlib.suppress(Exception):
            reached = _REACHED_BY_ATTENTION if not half and "attention" in func.name() else _REACHED
            worked = flops(*args, **kwargs, out_val=out) / (reached * (speeds.flops_16 if half else speeds.flops_32))
    return max(moved, worked)


def gather(things: Any, into: list[torch.Tensor]) -> None:
    """The tensors in lists of lists."""
    if isinstance(things, torch.Tensor):
        into.append(things)
    elif isinstance(things, (list, tuple)):
        for thing in things:
            gather(thing, into)
