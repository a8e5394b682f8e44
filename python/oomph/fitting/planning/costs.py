"""What a step takes in time: the operations of a forward pass, counted on the virtual GPU, at the speeds of the card.

An estimate, to put plans in order. Speeds are measured on the card where there is one; otherwise they follow from its multiprocessors.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oomph._environment import on_virtual_gpu
from oomph.fitting.planning.plan import Plan
from oomph.live.out_of_memory import is_out_of_memory
from oomph.virtual.speeds import SHORTEST, Speeds, assumed_speeds, seconds_of_operation

_MIB = 1 << 20

# What blocks may do beside keeping all and being run again whole: the fields of a plan.
IN_PART = ("selective", "lean")

# Beside a bare operation in a loop, what a model's takes the CPU, with the Python around it.
_BESIDE_A_BARE_ONE = 2.4
# What products reach that are run again without what lies between them in a model's forward pass: beside steps of three models, with and without.
_REACHED_ALONE = 1.1
# What checkpointing a block takes the CPU, in operations that it could have started instead; and what hooks for saved tensors do, for each of a block's operations.
_CHECKPOINT = 8
_HOOKED = {"selective": 1.0, "lean": 1.5}
# Of a block's work and activations, what is in modules that treat each position by itself.
_POSITIONWISE = 0.6
# Of the forward pass, what compiled code computes again for the share of its activations that it does not keep: to this power, for it gives up first what is made fastest.
_CHEAPEST_FIRST = 2
# Of a backward pass, the part in which copies can be hidden.
_HIDDEN = 0.4


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

        def started() -> float:
            start = time.perf_counter()
            for _ in range(100):
                small.add_(1)
            return (time.perf_counter() - start) / 100

        # The first time loads the kernel.
        launch = min(started() for _ in range(4))
        torch.cuda.synchronize(device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return assumed
    return Speeds(flops_32, flops_16, memory, link, _BESIDE_A_BARE_ONE * launch, measured=True)


class CountCosts(TorchDispatchMode):
    """Lists what the operations under it would take the GPU, in seconds, at the speeds of a card."""

    def __init__(self, speeds: Speeds) -> None:
        super().__init__()
        self.speeds = speeds
        self.operations: list[float] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        seconds = seconds_of_operation(self.speeds, func, args, kwargs or {}, out)
        if seconds is not None:
            self.operations.append(seconds)
        return out


@dataclass
class InPart:
    """A block of which some operations are run again."""

    #: Bytes that are kept all the same.
    kept: int
    #: Of the matrix products that are run again.
    flops: int = 0


@dataclass
class BlockCosts:
    """One forward pass of a block."""

    #: Of each operation, seconds that the GPU works.
    operations: list[float] = field(default_factory=list)
    #: Bytes that are kept for the backward pass, beside what goes in and comes out.
    kept: int = 0
    #: The same where some operations are run again: "selective", "lean".
    in_part: dict[str, InPart] = field(default_factory=dict)
    #: Bytes that go in: all that is remembered of it if it is run again.
    inputs: int = 0
    #: Bytes of its gradients.
    trained: int = 0


@dataclass
class ForwardCosts:
    """One forward pass of so many samples: block by block, in the order in which they run, and all."""

    samples: int
    operations: list[float] = field(default_factory=list)
    blocks: dict[str, BlockCosts] = field(default_factory=dict)
    _work: dict[tuple[str | None, int], tuple[float, int]] = field(default_factory=dict)

    def work(self, block: str | None, samples: int) -> tuple[float, int]:
        """Seconds of the GPU for so many samples, and operations that the CPU starts: of a block, or of all."""
        key = (block, samples)
        if key not in self._work:
            operations = self.operations if block is None else self.blocks[block].operations
            scale = samples / self.samples
            self._work[key] = (sum(max(seconds * scale, SHORTEST) for seconds in operations), len(operations))
        return self._work[key]

    def peak(self, plan: Plan, samples: int, gathers: bool) -> int:
        """Most bytes of activations, and of gradients where they ``gather``, at any time of a backward pass: block after block, from the last to the first, what was not kept is
        made again, and what was kept goes."""
        again = set(plan.checkpoint)
        # The last of them is there when the backward pass begins.
        sent = set(plan.offload)
        away = set(tuple(name for name in self.blocks if name in sent)[:-1])
        in_part = {name: mode for mode in IN_PART for name in getattr(plan, mode)}
        untiled = 1 if not plan.tiles else 1 - _POSITIONWISE
        scale = samples / self.samples
        steps = []
        for name, block in self.blocks.items():
            is_away = name in away
            # Of a block that keeps some, what came into it is away.
            kept = block.in_part[in_part[name]].kept if name in in_part else 0 if name in again or is_away else block.kept
            held = untiled * kept + (0 if is_away else block.inputs)
            steps.append((scale * held, scale * untiled * (block.kept - kept), block.trained))
        held, gradients, peak = sum(step[0] for step in steps), 0, 0.0
        for kept_now, made_again, trained in reversed(steps):
            peak = max(peak, held + made_again + gradients)
            held -= kept_now
            gradients += trained if gathers else 0
        return int(max(peak, gradients))

    def again_in_part(self, block: str, mode: str, speeds: Speeds, half: bool) -> float:
        """Seconds of the GPU to make again what is not kept, of all samples. What is cheap is read, written, and read once more."""
        costs = self.blocks[block]
        cheap = max(0, costs.kept - costs.in_part["selective"].kept)
        return 3 * cheap / speeds.memory + costs.in_part[mode].flops / (_REACHED_ALONE * (speeds.flops_16 if half else speeds.flops_32))

    def moved(self, plan: Plan, samples: int) -> int:
        """Bytes that go to host memory and come back."""
        again = {*plan.checkpoint, *plan.selective, *plan.lean}
        return sum(block.inputs if name in again else block.kept + block.inputs for name in plan.offload if (block := self.blocks.get(name)) is not None) * samples // self.samples


@dataclass(frozen=True)
class Step:
    """What is the same for all plans of one training step: bytes of what is trained and of the optimizer's state, and how many samples there are."""

    samples: int
    trained: int
    weights: int
    states: int


def seconds_of(plan: Plan, costs: ForwardCosts, step: Step, speeds: Speeds) -> float:
    """An estimate, of a whole step: forward, backward (twice the work), what is run again, copies to the host where they are not hidden, and the update."""
    parts = -(-step.samples // (plan.micro or step.samples))
    samples = -(-step.samples // parts)
    operations: float
    gpu, operations = costs.work(None, samples)
    forward = gpu
    gpu, operations = 3 * gpu, 3 * operations
    for name in plan.checkpoint:
        if name in costs.blocks:
            again, started = costs.work(name, samples)
            gpu, operations = gpu + again, operations + started + _CHECKPOINT
    if plan.activation_budget is not None:
        gpu += (1 - plan.activation_budget) ** _CHEAPEST_FIRST * forward
    scale = samples / costs.samples
    half = bool(plan.autocast or plan.bf16_weights)
    for mode in IN_PART:
        for name in getattr(plan, mode):
            if name in costs.blocks:
                gpu += costs.again_in_part(name, mode, speeds, half) * scale
                operations += _HOOKED[mode] * len(costs.blocks[name].operations)
    if plan.tiles:
        for name in costs.blocks.keys() - set(plan.checkpoint):
            # What is in tiles is run again; in a block that is run again anyway, it is not run once more.
            again, started = costs.work(name, samples)
            gpu, operations = gpu + _POSITIONWISE * again, operations + int(_POSITIONWISE * started * plan.tiles)
    # The GPU waits for the CPU now and then, even where it has more to do.
    part = math.hypot(gpu, operations * speeds.launch)
    if plan.offload:
        moved = costs.moved(plan, samples) / speeds.link
        before = part / 3
        # Copies run beside the work; what is longer decides. Some of it never overlaps.
        part = max(before, moved) + max(part - before, moved) + 0.1 * moved
    # Parameter, gradient and two of state are read, all but the gradient written.
    update = 7 * step.trained / speeds.memory
    if plan.states_on_host:
        # There and back at once, each a little slower than alone.
        copied = 1.1 * plan.states_on_host * step.states / speeds.link
        update = max(update, copied - _HIDDEN * hidden_in(part, forward) if plan.release else copied)
    return parts * part + update


def hidden_in(part: float, forward: float) -> float:
    """Of a part, the seconds of its backward pass."""
    return max(part - forward, 0.0)


def share_that_is_hidden(plan: Plan, costs: ForwardCosts, step: Step, speeds: Speeds) -> float:
    """How much of the optimizer's state can travel while the last backward pass runs."""
    if not step.states:
        return 0.0
    parts = -(-step.samples // (plan.micro or step.samples))
    samples = -(-step.samples // parts)
    forward, _ = costs.work(None, samples)
    return min(1.0, _HIDDEN * 2 * forward * speeds.link / (1.1 * step.states))


def bytes_of(plan: Plan, costs: ForwardCosts, step: Step) -> tuple[int, int]:
    """A guess, to be put right by what is measured, where most is there: weights, gradients and state, and activations."""
    parts = -(-step.samples // (plan.micro or step.samples))
    samples = -(-step.samples // parts)
    halved = 2 if plan.bf16_weights else 1
    fixed = step.weights // halved + int((1 - min(plan.states_on_host, 1)) * step.states) // (4 if plan.optimizer_8bit else halved)
    gathers = parts == 1 and not plan.release
    moving = int(costs.peak(plan, samples, gathers=gathers) * (plan.activation_budget or 1.0)) // (2 if plan.autocast or plan.bf16_weights else 1)
    # With several parts, gradients are there from the second on.
    return fixed + (step.trained // halved if parts > 1 else 0), moving
