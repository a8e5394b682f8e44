"""Which plan: candidates in order of what they cost, each measured on the virtual GPU, the fastest that fits.

It runs nothing: it is given a function that measures a plan, and one that estimates the time of a step under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from oomph.fitting.planning.plan import AnyPlan, Measured, Plan
from oomph.fitting.techniques.technique import Technique
from oomph.fitting.techniques.training import ALLOWABLE, TECHNIQUES

# Estimated times that are nearer to each other than this are taken to be the same.
_SAME_TIME = 1.03
# A rung that saves less is no rung.
_WORTH = 0.97
# When a plan that seemed to fit did not when it was tried for longer, the next must need that much less.
_TIGHTER = 0.97
_PROOFS = 6


@dataclass(frozen=True)
class Facts:
    """What there is to work with."""

    #: Samples in the example.
    batch: int
    #: Blocks, those first that free most bytes for a second of recomputation.
    blocks: tuple[str, ...]
    #: What a process may reserve, the margin taken off.
    limit: int
    #: The same with the margin.
    whole: int
    #: Host memory that may be used.
    host: int
    #: The batch may be cut.
    splits: bool = True
    #: There are logits that can be made in pieces.
    defers: bool = False
    expands: bool = True
    fuses: bool = True
    #: The optimizer may be called for some parameters at a time.
    hosts: bool = True
    #: What is allowed of techniques.training.ALLOWED.
    allow: tuple[str, ...] = ()
    #: The 16-bit type of the card.
    half: str = "bfloat16"


@dataclass
class Found:
    """The answer. ``chosen`` is None if nothing fits; then ``least`` is what needs least."""

    plain: Measured
    chosen: Measured | None
    least: Measured
    #: From the plain step to the chosen plan, one technique after another.
    chain: list[Measured] = field(default_factory=list)
    #: What to do when memory runs out all the same, each needing less than the one before.
    rungs: list[Measured] = field(default_factory=list)
    tried: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "plain": self.plain.to_dict(),
            "chosen": self.chosen and self.chosen.to_dict(),
            "least": self.least.to_dict(),
            "chain": [one.to_dict() for one in self.chain],
            "rungs": [one.to_dict() for one in self.rungs],
            "tried": self.tried,
        }

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Found:
        one = Measured.from_dict
        return cls(
            one(given["plain"]),
            given["chosen"] and one(given["chosen"]),
            one(given["least"]),
            [one(each) for each in given["chain"]],
            [one(each) for each in given["rungs"]],
            given["tried"],
        )


class Tried(Generic[AnyPlan]):
    """Plans that were run, each once, and whether they fit: what all searches have in common."""

    def __init__(self, measure: Callable[[AnyPlan], Measured[AnyPlan]], limit: int, host: int) -> None:
        self.limit, self.host = limit, host
        self.seen: dict[AnyPlan, Measured[AnyPlan]] = {}
        self._measure = measure

    def measure(self, plan: AnyPlan) -> Measured[AnyPlan]:
        if plan not in self.seen:
            self.seen[plan] = self._measure(plan)
        return self.seen[plan]

    def fits(self, plan: AnyPlan) -> bool:
        measured = self.measure(plan)
        return measured.reserved <= self.limit and measured.host <= self.host

    def bases(self, first: AnyPlan, techniques: Iterable[Technique], half: str) -> list[AnyPlan]:
        """The first plan, and upon it one technique after another, from what changes least to what changes most."""
        bases = [first]
        for technique in sorted(techniques, key=lambda one: one.turn):
            if technique.asked is not None:
                bases.append(bases[-1].but(**technique.asked(half)))
        return bases

    def first(self, values: Sequence[int], plan_of: Callable[[int], AnyPlan]) -> int:
        """The index of the first value whose plan fits, where all after it do; the length if none does."""
        low, high = 0, len(values)
        if not values or not self.fits(plan_of(values[-1])):
            return high
        high -= 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(plan_of(values[middle])) else (middle + 1, high)
        return low


class Search(Tried[Plan]):
    """One search for a training step. ``measure`` runs a plan for a step or two, ``seconds`` estimates without running it, ``prove`` runs it for longer,
    held to a limit or to none, and finds the largest block."""

    def __init__(
        self,
        facts: Facts,
        measure: Callable[[Plan], Measured],
        seconds: Callable[[Plan], float],
        prove: Callable[[Plan, int | None], Measured] | None = None,
    ) -> None:
        super().__init__(measure, facts.limit, facts.host)
        self.facts, self.seconds = facts, seconds
        self._prove = prove or (lambda plan, limit: measure(plan))

    def run(self) -> Found:
        plain = self.measure(Plan())
        chosen = self.proven()
        least = self._prove(self.most_frugal(), None)
        if chosen is None:
            return Found(plain, None, least, tried=len(self.seen))
        chain = self.chain(chosen)
        rungs = self.rungs(chosen)
        return Found(plain, self.measure(chosen), least, chain, rungs, len(self.seen))

    def proven(self) -> Plan | None:
        """The plan that is chosen, tried for longer: holes that grow from step to step show only then.

        In another process they lie elsewhere, and what they are too small for is the largest block: there must be room for one more of it.
        """
        for _ in range(_PROOFS):
            chosen = Plan() if self.fits(Plan()) else self.choose()
            if chosen is None:
                return None
            proof = self._prove(chosen, self.facts.limit)
            if not proof.short and proof.reserved + proof.largest <= self.facts.whole:
                self.seen[chosen] = proof
                return chosen
            self.limit = min(int(min(self.limit, self.measure(chosen).reserved) * _TIGHTER), self.facts.whole - proof.largest)
        return None

    def free(self) -> Plan:
        plan = Plan(fused=self.facts.fuses, expandable=self.facts.expands)
        # Where the loss is not one that takes logits in pieces, to defer them only costs.
        defers = self.facts.defers and self.measure(plan.but(defer_logits=True)).allocated <= self.measure(plan).allocated
        return plan.but(defer_logits=defers)

    def most_frugal(self) -> Plan:
        plan = self.allowed()[-1].but(checkpoint=self.facts.blocks, offload=self.facts.blocks, states_on_host=self.facts.hosts)
        plan = plan if not self.facts.hosts else plan.but(optimizer_8bit=False)
        return plan.but(micro=1) if self.facts.splits and self.facts.batch > 1 else plan

    def allowed(self) -> list[Plan]:
        """What is the same for every size of a part: the exact techniques that cost nothing, then what is allowed beyond them."""
        return self.bases(self.free(), [one for one in ALLOWABLE if one.allow in self.facts.allow], self.facts.half)

    def choose(self) -> Plan | None:
        found: list[Plan] = []
        for base in self.allowed():
            here = self.explore(base, found)
            if not here and self.facts.hosts:
                here = self.explore(base.but(states_on_host=True, optimizer_8bit=False), found)
            found += here
        if not found:
            return None
        best = min(map(self.seconds, found))
        near = [plan for plan in found if self.seconds(plan) <= best * _SAME_TIME]
        # The earliest found is the one that changes least.
        return min(near, key=lambda plan: (not plan.exact, found.index(plan)))

    def sizes(self) -> list[int]:
        """Samples in a part, from the whole batch (0) down to one."""
        batch = self.facts.batch
        if not self.facts.splits or batch < 2:
            return [0]
        parts = sorted({count for power in range(batch.bit_length() + 1) for count in (1 << power, 3 << power >> 1) if 1 < count <= batch} | {batch})
        return [0, *dict.fromkeys(-(-batch // count) for count in parts)]

    def explore(self, base: Plan, found: list[Plan]) -> list[Plan]:
        """The plans on this base that fit: the largest part that needs nothing else, and larger ones with blocks run again or offloaded."""
        sizes, blocks = self.sizes(), self.facts.blocks
        if blocks and self.measure(base.but(micro=sizes[-1], checkpoint=blocks, offload=blocks)).reserved > self.limit:
            return []
        plain = self.first(sizes, lambda size: base.but(micro=size))
        fitting = [base.but(micro=sizes[plain])] if plain < len(sizes) else []
        best = min((self.seconds(plan) for plan in [*found, *fitting]), default=float("inf"))
        if not blocks:
            return fitting
        worse = 0
        for size in sizes[:plain]:
            # Smaller parts with fewer blocks run again are faster for a while, and then slower.
            if worse == 2:
                break
            part = base.but(micro=size)
            # At least one block is run again: is even that too slow?
            if self.seconds(part.but(checkpoint=blocks[:1])) >= best:
                continue
            if self.fits(part.but(checkpoint=blocks)):
                plan = part.but(checkpoint=blocks[: self._least_blocks(part)])
            elif self.fits(part.but(checkpoint=blocks, offload=blocks)):
                count = 1 + self.first(range(1, len(blocks) + 1), lambda n: part.but(checkpoint=blocks, offload=blocks[:n]))
                plan = part.but(checkpoint=blocks, offload=blocks[:count])
            else:
                continue
            fitting.append(plan)
            worse = 0 if self.seconds(plan) < best else worse + 1
            best = min(best, self.seconds(plan))
        return fitting

    def _least_blocks(self, part: Plan) -> int:
        """How many blocks must be run again. Memory is nearly a line between none and all, so the guess is nearly right."""
        blocks = self.facts.blocks
        low, high = 0, len(blocks)
        none, every = self.measure(part).reserved, self.measure(part.but(checkpoint=blocks)).reserved
        guess = low + (high - low) * (none - self.limit) // max(1, none - every)
        for step in (guess + 1, guess, (low + high) // 2):
            if low < step < high:
                low, high = (low, step) if self.fits(part.but(checkpoint=blocks[:step])) else (step, high)
        left = range(low + 1, high + 1)
        return left[self.first(left, lambda count: part.but(checkpoint=blocks[:count]))]

    def chain(self, chosen: Plan) -> list[Measured]:
        """One technique after another, in the order in which they are counted."""
        plan, chain = Plan(), [self.measure(Plan())]
        for technique in TECHNIQUES:
            if getattr(chosen, technique.name) != getattr(plan, technique.name):
                plan = plan.but(**{name: getattr(chosen, name) for name in (technique.name, *technique.besides)})
                chain.append(self.measure(plan))
        return chain

    def rungs(self, chosen: Plan) -> list[Measured]:
        """Down from the chosen plan: smaller parts, then blocks run again, then host memory."""
        candidates = [chosen if chosen != Plan() else self.free()]
        top = candidates[0]
        blocks = self.facts.blocks
        smaller = [size for size in self.sizes() if 0 < size < (top.micro or self.facts.batch)]
        candidates += [top.but(micro=size) for size in smaller[:2]]
        full = top.but(checkpoint=blocks)
        candidates += [full, *(full.but(micro=size) for size in smaller[1::2])]
        last = full.but(micro=smaller[-1]) if smaller else full
        candidates += [last.but(offload=blocks), self.most_frugal().but(autocast=top.autocast, bf16_weights=top.bf16_weights)]
        rungs, below = [], self.measure(chosen).reserved
        for candidate in candidates:
            measured = self.measure(candidate)
            if measured.reserved <= below * _WORTH and measured.host <= self.facts.host:
                rungs.append(measured)
                below = measured.reserved
        return rungs
