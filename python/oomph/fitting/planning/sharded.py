"""What may be done to a model that is sharded, and what its ranks take to talk: for the process that asks and the child that plans.

Left out is what takes parameters, gradients or saved tensors for plain ones of this rank alone: updates within the backward pass, state and activations in host memory, 8-bit and
bfloat16 weights, operations kept one by one, tiles, Liger's kernels, budgets of compiled code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from oomph.fitting.planning.costs import ForwardCosts, Step
from oomph.fitting.planning.plan import Plan
from oomph.fitting.techniques.sharding import HOST, MACHINES, MACHINES_KEPT, WHOLE, keeps

ENTRY = "oomph.fitting.planning.sharded_child:plan"

# What may be allowed beyond the exact.
_ALLOWED = ("bf16",)
# What is sent beside work hides behind it but for this part: the first and the last block have nothing beside them.
_NEVER_HIDDEN = 0.1
# An update reads a parameter, its gradient and two of state, and writes all but the gradient, at so many bytes a second of a host that several ranks share.
_READ_BY_UPDATES, _HOST_MEMORY = 7, 5e9
# Between machines, so much slower than within one.
_ACROSS = 4.0


def limits(plain: Plan, allow: Iterable[str], splits: bool) -> dict[str, Any]:
    """Fields of `Facts` for plans upon ``plain``, which says how the model is sharded."""
    sound = {"hosts": False, "releases": False, "tiled": (), "away": (), "budgets": (), "offloads": False, "groups": False, "defers": False}
    return {**sound, "allow": tuple(name for name in allow if name in _ALLOWED), "splits": splits, "plain": Plan(shard=plain.shard)}


@dataclass(frozen=True)
class Sharing:
    """How a model is shared out in one way: over how many ranks its parts are, of how many in all."""

    sharding: str
    parts: int
    ranks: int
    #: Bytes a second between ranks.
    speed: float
    #: And between the host and the card.
    link: float

    @classmethod
    def of(cls, sharding: str, ranks: int, per_machine: int, speed: float, link: float, mesh: list[int] | None) -> Sharing:
        parts = mesh[-1] if mesh is not None else per_machine if sharding in (MACHINES, MACHINES_KEPT) else ranks
        # What is measured is measured over all. Within a machine it is faster.
        return cls(sharding, parts, ranks, speed * (_ACROSS if parts < ranks and per_machine < ranks else 1.0), link)

    def seconds(self, plan: Plan, step: Step, alone: float) -> float:
        """Of a step that takes so long without talking."""
        weights, gradients = step.weights / (2 if plan.autocast is None and plan.bf16_weights else 1), step.trained
        if self.sharding == WHOLE:
            # Once the backward pass is over: nothing hides it. A sum over all is sent twice.
            return alone + 2 * gradients * (self.ranks - 1) / self.ranks / self.speed
        parts = -(-step.samples // (plan.micro or step.samples))
        others = (self.parts - 1) / self.parts
        sent = weights * others * parts * (1 if keeps(self.sharding) else 2) + gradients * others
        if self.parts < self.ranks:
            sent += 2 * gradients / self.parts * _ACROSS
        talking = sent / self.speed
        step_in_all = max(alone, talking) + _NEVER_HIDDEN * min(alone, talking)
        if self.sharding != HOST:
            return step_in_all
        # Parts come from the host as often as blocks are gathered, gradients go there, and the host updates.
        copied = (2 * parts * weights + gradients) / self.parts / self.link
        return step_in_all + copied + _READ_BY_UPDATES * gradients / self.parts / _HOST_MEMORY

    def bytes_of(self, plan: Plan, costs: ForwardCosts, step: Step) -> tuple[int, int]:
        """As `costs.bytes_of`, where weights, gradients and state are shared out."""
        parts = -(-step.samples // (plan.micro or step.samples))
        samples = -(-step.samples // parts)
        held = 0 if self.sharding == HOST else (step.weights + step.states + step.trained) // self.parts
        largest = max((block.trained for block in costs.blocks.values()), default=0)
        gathered = step.weights if keeps(self.sharding) else 3 * largest
        whole = step.trained if parts > 1 else 2 * largest
        return held + gathered + whole, costs.peak(plan, samples, gathers=False) // (2 if plan.autocast else 1)

    def on_host(self, step: Step) -> int:
        return (step.weights + step.states + step.trained) // self.parts if self.sharding == HOST else 0
