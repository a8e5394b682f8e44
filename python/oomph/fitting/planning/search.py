"""Which plan: candidates in order of what they cost, each measured on the virtual GPU, the fastest that fits.

It runs nothing: it is given a function that measures a plan, and one that estimates the time of a step under it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from oomph.fitting.planning.plan import AnyPlan, Measured, Plan
from oomph.fitting.techniques.sharding import gathered_again, keeps
from oomph.fitting.techniques.technique import Technique
from oomph.fitting.techniques.training import ALLOWABLE, TECHNIQUES

# Estimated times that are nearer to each other than this are taken to be the same.
_SAME_TIME = 1.03
# A rung that saves less is no rung.
_WORTH = 0.97
# By estimate, how much slower than the best so far a plan may be and still be measured.
_WORTH_A_TRY = 1.12
# The same of parts beside the best that runs the batch as a whole.
_OTHERWISE = 1.2
# Copies to the host take a little more than the estimate says.
_COPIES = 1.01
# What is so much slower by estimate is slower, whatever the error.
_HOPELESS = 2.5
# How many plans of one family are measured to find its best, how many that fit are looked for in all, and how many of those are tried on the card.
_TRIES = 4
_FOUND = 8
_CANDIDATES = 6
# Where a plan did not fit by estimates that were put right already, the next is farther along the path, by such a part of it.
_STRIDES = 40
# Pieces of a sequence: the least of a module's activations that are there at once is this part, and more pieces save little more.
_TILES = 8
# When a plan that seemed to fit did not when it was tried for longer, the next must need that much less.
_TIGHTER = 0.97
# The same where it is known how much it grew: at least that, the first time.
_A_LITTLE_TIGHTER = 0.99
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
    #: There is attention that writes out its scores, and need not.
    groups: bool = False
    expands: bool = True
    fuses: bool = True
    #: The optimizer may be called for some parameters at a time.
    hosts: bool = True
    #: What is allowed of techniques.training.ALLOWED.
    allow: tuple[str, ...] = ()
    #: The 16-bit type of the card.
    half: str = "bfloat16"
    #: Parameters may be updated within the backward pass.
    releases: bool = False
    #: Modules that treat each position of a sequence by itself.
    tiled: tuple[str, ...] = ()
    #: What blocks give up, one after another, those first that free most bytes for a second lost: ("selective", name), ("lean", name), ("checkpoint", name), ("offload", name).
    #: Without it, blocks in order are checkpointed, and then offloaded.
    path: tuple[tuple[str, str], ...] = ()
    #: Blocks whose inputs can go to host memory, and come back, while others run: few of them, and more, which are hidden only if the estimate is too short.
    away: tuple[tuple[str, ...], ...] = ()
    #: Shares of its activations that compiled code may keep, from what costs least; none where the model is not compiled.
    budgets: tuple[float, ...] = ()
    #: The step as the program has it, on which all is built: how it is sharded over ranks is no choice of a search.
    plain: Plan = Plan()
    #: Activations may go to host memory.
    offloads: bool = True


@dataclass(frozen=True)
class Family:
    """Plans that differ only in what blocks give up. ``turn`` is their place in the order of what changes least."""

    #: Of a family, ``offload`` has the blocks whose inputs go to host memory once they give up something.
    plan: Plan
    turn: int


@dataclass
class Way:
    """A plan that fits, and how it is reached and left."""

    measured: Measured
    #: From the plain step to the plan, one technique after another.
    chain: list[Measured]
    #: What to do when memory runs out all the same, each needing less than the one before.
    rungs: list[Measured]

    def to_dict(self) -> dict[str, Any]:
        return {"measured": self.measured.to_dict(), "chain": [one.to_dict() for one in self.chain], "rungs": [one.to_dict() for one in self.rungs]}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Way:
        one = Measured.from_dict
        return cls(one(given["measured"]), [one(each) for each in given["chain"]], [one(each) for each in given["rungs"]])


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
    #: Plans that fit and may be the fastest, the chosen one first: where there is a GPU, they are tried on it.
    ways: list[Way] = field(default_factory=list)

    def take(self, way: Way) -> None:
        """Another of the ways is chosen."""
        self.chosen, self.chain, self.rungs = way.measured, way.chain, way.rungs

    def to_dict(self) -> dict[str, Any]:
        return {
            "plain": self.plain.to_dict(),
            "chosen": self.chosen and self.chosen.to_dict(),
            "least": self.least.to_dict(),
            "chain": [one.to_dict() for one in self.chain],
            "rungs": [one.to_dict() for one in self.rungs],
            "tried": self.tried,
            "ways": [one.to_dict() for one in self.ways],
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
            [Way.from_dict(each) for each in given.get("ways", [])],
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
    """One search for a training step. ``measure`` runs a plan for a step or two, ``seconds`` and ``guess`` estimate its time and its bytes without running it (those that
    are there whatever is done with activations, and activations), ``prove`` runs it for longer, held to a limit or to none, and finds the largest block. ``shares`` gives the shares of the optimizer's state that are worth being
    on the host under a plan; ``is_late`` says that there is no more time for plans that only might be better."""

    def __init__(
        self,
        facts: Facts,
        measure: Callable[[Plan], Measured],
        seconds: Callable[[Plan], float],
        guess: Callable[[Plan], tuple[int, int]],
        prove: Callable[[Plan, int | None], Measured] | None = None,
        shares: Callable[[Plan], Sequence[float]] = lambda plan: (1.0,),
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(measure, facts.limit, facts.host)
        self.facts, self.seconds, self.shares, self.is_late = facts, seconds, shares, is_late
        self._guess = guess
        #: Plans that were measured, and what they were measured for.
        self._explored: dict[Plan, Family] = {}
        self._by_hand: dict[Plan, Family] = {}
        #: Of plans that were run for longer, what they reserved before: estimates and limits are of that.
        self._at_first: dict[Plan, int] = {}
        self._prove = prove or (lambda plan, limit: measure(plan))
        self.path = facts.path or (*(("checkpoint", name) for name in facts.blocks), *(("offload", name) for name in facts.blocks))

    def run(self) -> Found:
        found = self.find()
        self.explain(found)
        return found

    def usual(self) -> list[Plan]:
        """What people do by hand, where the plain step does not fit; not what is far slower than the other of them."""
        if self.fits(self.facts.plain):
            return []
        self._by_hand = self._settled(self.families(hosted=False))
        fastest = min(map(self.seconds, self._by_hand), default=0.0)
        return [plan for plan in self._by_hand if self.seconds(plan) <= _HOPELESS * fastest]

    def find(self) -> Found:
        """The plans that fit; the best first."""
        plain = self.measure(self.facts.plain)
        plans = self.proven()
        if not plans:
            return Found(plain, None, self._prove(self.most_frugal(), None), tried=len(self.seen))
        ways = [Way(self.measure(plan), [plain], []) for plan in plans]
        return Found(plain, ways[0].measured, min(self.seen.values(), key=lambda one: one.reserved), tried=len(self.seen), ways=ways)

    def explain(self, found: Found) -> None:
        """How each plan is reached from the plain step, and where it leads if memory runs out all the same."""
        if found.chosen is None:
            return
        plans = [way.measured.plan for way in found.ways]
        for plan in plans[1:]:
            # On a card they show by themselves whether they fit. What they reserve after more than one step is to be known all the same.
            self._run_for_longer(plan)
        chain, rungs = self.chain(plans[0]), self.rungs(plans[0])
        # Down from any other, the first comes first: it is known to fit.
        leads = {plan: rungs if plan == plans[0] else [self.measure(plans[0]), *rungs] for plan in plans}
        found.ways = [Way(self.measure(plan), chain if plan == plans[0] else self.chain(plan, measured=True), self._below(leads[plan], plan)) for plan in plans]
        found.least, found.tried = self.measure(self.most_frugal()), len(self.seen)
        found.take(found.ways[0])

    def _below(self, rungs: list[Measured], plan: Plan) -> list[Measured]:
        """Those that need less than a plan; the first of them however little less, for it is known to fit."""
        reserved = self.measure(plan).reserved
        return [rung for place, rung in enumerate(rungs) if rung.reserved <= reserved * _WORTH or (place == 0 and rung.plan != plan and rung.reserved < reserved)]

    def proven(self) -> list[Plan]:
        """The plans that are worth being tried, the best first, which is run for longer: holes that grow from step to step show only then.

        In another process they lie elsewhere, and what they are too small for is the largest block: there must be room for one more of it. What leaves the margin free but not that room is
        among the others, once, since a card shows whether it does.
        """
        bold: list[Plan] = []
        for turn in range(_PROOFS):
            plans = [self.facts.plain] if self.fits(self.facts.plain) else self.choose()
            if not plans:
                break
            if self._holds(plans[0], _TIGHTER if turn else _A_LITTLE_TIGHTER):
                return self._beside(plans[0], [*bold, *(plan for plan in plans[1:] if self._may_be_repeated(plan))])
            if not bold and self.seen[plans[0]].largest and self.seen[plans[0]].reserved <= self.facts.limit:
                bold.append(plans[0])
        # Limits were drawn tighter after each that failed: perhaps too tight for what needs least of all.
        last = self.most_frugal()
        within = self.measure(last).reserved <= self.facts.limit and self.measure(last).host <= self.facts.host
        return self._beside(last, bold) if within and self._holds(last, _TIGHTER) else []

    def _beside(self, first: Plan, others: list[Plan]) -> list[Plan]:
        # Limits were drawn tighter meanwhile. What people do by hand, and was told to be tried, is among them in any case.
        told = [plan for plan in self._by_hand if self.measure(plan).reserved <= self.facts.limit]
        return list(dict.fromkeys([first, *others, *told]))

    def _may_be_repeated(self, plan: Plan) -> bool:
        """A step that has updated some parameters when memory runs out cannot be repeated under a smaller plan: such plans are not tried if they would not leave the margin free."""
        if not plan.release:
            return True
        proof = self._run_for_longer(plan)
        return not proof.short and proof.reserved <= self.facts.limit

    def _run_for_longer(self, plan: Plan) -> Measured:
        """With all the room there is: held to the limit, it would have to free its cache once it needs more, and would not say how much that is."""
        if self.seen[plan].largest:
            return self.seen[plan]
        proof = self._prove(plan, self.facts.whole)
        if not proof.short:
            self._at_first[plan], self.seen[plan] = self.seen[plan].reserved, proof
        return proof

    def _holds(self, plan: Plan, tighter: float) -> bool:
        """Whether a plan leaves the margin free for longer than a step, and room for one more of its largest block. If not, the limit is drawn tighter, by as much as it grew if that is known."""
        self.measure(plan)
        proof = self._run_for_longer(plan)
        reserved, room = self._at_first.get(plan, self.measure(plan).reserved), min(self.facts.limit, self.facts.whole - proof.largest)
        if proof.short:
            self.limit = min(room, int(min(self.limit, reserved) * _TIGHTER))
            return False
        if proof.reserved <= room:
            return True
        self.limit = min(self.limit, room - (proof.reserved - reserved), int(reserved * tighter))
        return False

    def free(self) -> Plan:
        plan = self.facts.plain.but(fused=self.facts.fuses, expandable=self.facts.expands)
        # Where the loss is not one that takes logits in pieces, to defer them only costs.
        defers = self.facts.defers and self.measure(plan.but(defer_logits=True)).allocated <= self.measure(plan).allocated
        return plan.but(defer_logits=defers, repeat_groups=self.facts.groups and self.measure(plan.but(repeat_groups=True)).allocated <= self.measure(plan).allocated)

    def most_frugal(self) -> Plan:
        plan = self.allowed()[-1].but(
            checkpoint=self.facts.blocks, offload=self.facts.blocks if self.facts.offloads else (), release=self.facts.releases, states_on_host=float(self.facts.hosts)
        )
        plan = plan if not self.facts.hosts else plan.but(optimizer_8bit=False)
        if self.facts.tiled:
            plan = plan.but(tiles=4 * _TILES, tiled=self.facts.tiled)
        if budgets := self.budgets():
            plan = plan.but(activation_budget=budgets[-1])
        return plan.but(micro=1) if self.facts.splits and self.facts.batch > 1 else plan

    def allowed(self) -> list[Plan]:
        """What is the same for every size of a part: the exact techniques that cost nothing, then what is allowed beyond them."""
        return self.bases(self.free(), [one for one in ALLOWABLE if one.allow in self.facts.allow], self.facts.half)

    def budgets(self) -> list[float]:
        """The shares of activations that are worth being kept, each with fewer bytes than the one before: measured, for what is computed again at once may need more
        than was saved. None that lies below one that fits as it is."""
        worth: list[float] = []
        least = self.measure(self.free()).reserved
        for budget in self.facts.budgets:
            if least <= self.limit:
                break
            reserved = self.measure(self.free().but(activation_budget=budget)).reserved
            if reserved <= least * _WORTH:
                worth.append(budget)
                least = reserved
        return worth

    # -- what might be done, by estimate

    def sizes(self) -> list[int]:
        """Samples in a part, from the whole batch (0) down to one."""
        batch = self.facts.batch
        if not self.facts.splits or batch < 2:
            return [0]
        parts = sorted({count for power in range(batch.bit_length() + 1) for count in (1 << power, 3 << power >> 1) if 1 < count <= batch} | {batch})
        return [0, *dict.fromkeys(-(-batch // count) for count in parts)]

    def families(self, hosted: bool) -> list[Family]:
        """Each a size of parts and a place for the optimizer's state, ``hosted`` or not; within one, blocks give up more and more along the path."""
        found: list[Family] = []
        budgets = self.budgets()
        for base in self.allowed():
            for size in self.sizes():
                part = base.but(micro=size)
                variants = [part] if not hosted else []
                if self.facts.releases and not size and not hosted:
                    variants.append(part.but(release=True))
                if not hosted:
                    variants += [variant.but(offload=away) for away in self.facts.away[: 1 if size else None] for variant in variants]
                if self.facts.hosts and hosted:
                    there = part.but(release=self.facts.releases, optimizer_8bit=False)
                    variants += [there.but(states_on_host=share) for share in self.shares(there)]
                variants += [variant.but(activation_budget=budget) for budget in budgets for variant in variants]
                if self.facts.tiled and size == self.sizes()[-1]:
                    # Where samples cannot be fewer, what treats positions one by one takes fewer of them at a time.
                    variants += [variant.but(tiles=_TILES, tiled=self.facts.tiled) for variant in variants]
                found += [Family(variant, len(found) + place) for place, variant in enumerate(variants)]
        return found

    def at(self, family: Family, level: int) -> Plan:
        """The plan of a family after so many steps along the path."""
        chosen: dict[str, dict[str, None]] = {"selective": {}, "lean": {}, "checkpoint": {}, "offload": {}}
        for mode, name in self.path[:level]:
            chosen[mode][name] = None
            # Each takes the place of what comes before it; what goes to the host goes besides.
            for before in {"lean": ("selective",), "checkpoint": ("selective", "lean")}.get(mode, ()):
                chosen[before].pop(name, None)
        given_up = {name for mode in ("selective", "lean", "checkpoint") for name in chosen[mode]}
        chosen["offload"] |= {name: None for name in family.plan.offload if name in given_up}
        return family.plan.but(**{mode: tuple(names) for mode, names in chosen.items()})

    def estimate(self, plan: Plan) -> int:
        """Bytes: measured, or guessed and put right by what was measured of the plan that is most like it."""
        if plan in self.seen:
            return self.seen[plan].reserved
        fixed, moving = self._guess(plan)
        measured = [one for one in self.seen.values() if not one.short]
        like = min(measured, key=lambda one: (_unlike(one.plan, plan), abs(sum(self._guess(one.plan)) - fixed - moving)))
        # What the guess leaves out lies outside of blocks, and grows with the samples as they do.
        left_out = self._at_first.get(like.plan, like.reserved) - sum(self._guess(like.plan))
        return fixed + moving + int(left_out * self._samples(plan) / self._samples(like.plan))

    def _samples(self, plan: Plan) -> int:
        """That are on the GPU at once."""
        return plan.micro or self.facts.batch

    def level(self, family: Family, least: int = 0) -> int | None:
        """How far along the path a family must go to fit, by estimate."""
        low, high = least, len(self.path)
        if low > high or self.estimate(self.at(family, high)) > self.limit:
            return None
        if self.estimate(self.at(family, low)) <= self.limit:
            # Estimates farther along may be worse, and hide that this was measured.
            return low
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.estimate(self.at(family, middle)) <= self.limit else (middle + 1, high)
        return low

    # -- what is measured of that

    def choose(self) -> list[Plan]:
        """Plans that fit, the best first: the fastest by estimate, and of those as fast the one that changes least; beside them the usual ways, to be held against."""
        families = self.families(hosted=False)
        found = self._settled(families)
        usual = list(found)
        # What starts operations fewer times and what does less on the GPU are held against each other on the card: which is better hangs on its CPU.
        whole = [family for family in families if not family.plan.micro]
        of_whole: dict[Plan, Family] = {}
        self._explore(whole, of_whole)
        self._explore([family for family in families if family.plan.micro], found, _OTHERWISE * min(map(self.seconds, of_whole), default=float("inf")))
        found |= of_whole
        if self.facts.hosts and not any(2 * len(plan.checkpoint) < len(self.facts.blocks) for plan in found if plan not in usual):
            # Copies at each step are hidden in part only: they come when much is given up already, and for parts only when nothing else is left.
            of_hosted: dict[Plan, Family] = {}
            hosted = [Family(family.plan, len(families) + family.turn) for family in self.families(hosted=True)]
            most_hidden = max((family for family in hosted if not family.plan.micro), key=lambda family: (family.plan.states_on_host < 1, family.plan.states_on_host), default=None)
            self._explore([*families, *hosted] if not found else [most_hidden] if most_hidden is not None else [], of_hosted)
            found |= of_hosted
        if not found:
            found = {plan: family for family in families for plan in self._last_resort(family)}
        best = min(map(self.seconds, found), default=0.0)

        def rank(plan: Plan) -> tuple[Any, ...]:
            """Of those as fast as the best, the one that changes least comes first; then the others, the fastest first."""
            slower = self.seconds(plan) > best * _SAME_TIME
            given_up = len(plan.selective) + len(plan.lean) + 2 * len(plan.checkpoint) + len(plan.offload)
            return (slower, self.seconds(plan) if slower else 0.0, not plan.exact, found[plan].turn, given_up)

        different = self._different(sorted(found, key=rank))
        # The usual ways are always among those that are tried: no plan is to be slower than they are. And so is the best that runs the batch as a whole.
        held_against = [*[plan for plan in different if plan in of_whole][:1], *[plan for plan in different if plan.states_on_host][:1], *usual]
        return list(dict.fromkeys([*different[: max(1, _CANDIDATES - len(held_against))], *held_against]))

    def _explore(self, families: list[Family], found: dict[Plan, Family], most: float = float("inf")) -> None:
        """Measures what is the fastest by estimate, up to so many seconds, and adds what fits."""
        # Where the limit was drawn tighter, some of what was measured before may fit still.
        found |= {plan: family for plan, family in self._explored.items() if family in families and self.fits(plan)}
        levels = {family.plan: level for family in families if (level := self.level(family)) is not None}
        queue = [(self._due(self.at(family, levels[family.plan])), family.turn, family, levels[family.plan]) for family in families if self._is_worth_it(family.plan, levels)]
        heapq.heapify(queue)
        tries: Counter[int] = Counter()
        while queue:
            seconds, _, family, level = heapq.heappop(queue)
            best = min(map(self._due, found), default=float("inf"))
            if seconds > most or seconds > best * (1.0 if self.is_late() else _WORTH_A_TRY) or len(found) >= _FOUND:
                break
            plan = self.at(family, level)
            if plan in found:
                continue
            fits = self.fits(plan)
            self._explored[plan] = family
            if fits:
                found[plan] = family
            tries[family.turn] += 1
            # What was measured puts the estimates right: this family may do with less, or need more.
            better = self.level(family, 0 if fits else level + 1 + tries[family.turn] * len(self.path) // _STRIDES)
            if tries[family.turn] < _TRIES and better is not None and (better < level if fits else True):
                heapq.heappush(queue, (self._due(self.at(family, better)), family.turn, family, better))

    def _due(self, plan: Plan) -> float:
        """When a plan's turn to be measured comes: of two that are nearly the same, the one without copies first."""
        return self.seconds(plan) * (_COPIES if plan.offload else 1.0)

    @staticmethod
    def _is_worth_it(plan: Plan, levels: dict[Plan, int]) -> bool:
        """Parameters are updated within the backward pass where blocks need give up less for it."""
        return plan in levels and not (plan.release and not plan.states_on_host and levels.get(plan.but(release=False), 1 << 30) <= levels[plan])

    def _usual(self, families: list[Family]) -> list[Family]:
        """What people do by hand: parts as large as fit, with nothing else done, and with every block checkpointed."""
        plain = [
            family
            for family in families
            if not family.plan.release and not family.plan.states_on_host and family.plan.activation_budget is None and family.plan.exact and not family.plan.offload
        ]
        everywhere = [Family(family.plan.but(checkpoint=self.facts.blocks), family.turn) for family in plain if self.facts.blocks]
        alone = [Family(family.plan, family.turn) for family in plain]
        return [one for group in (alone, everywhere) if (one := next((each for each in group if self.estimate(each.plan) <= self.limit), None)) is not None]

    def _settled(self, families: list[Family]) -> dict[Plan, Family]:
        found: dict[Plan, Family] = {}
        for family in self._usual(families):
            self._settle(family, found)
        return found

    def _settle(self, family: Family, found: dict[Plan, Family]) -> None:
        """The usual way with the largest parts that fit: from where the estimate is, down until it fits, and then up again as far as it does."""
        sizes = self.sizes()
        place = sizes.index(family.plan.micro)
        while place < len(sizes) and not self.fits(family.plan.but(micro=sizes[place])):
            # The estimate is better now.
            place = next((later for later in range(place + 1, len(sizes)) if self.estimate(family.plan.but(micro=sizes[later])) <= self.limit), len(sizes))
        if place == len(sizes):
            return
        while place and self.estimate(larger := family.plan.but(micro=sizes[place - 1])) <= self.limit and self.fits(larger):
            place -= 1
        found[next((plan for plan in self._between(family.plan, sizes, place) if self.fits(plan)), family.plan.but(micro=sizes[place]))] = family

    def _between(self, plan: Plan, sizes: list[int], place: int) -> list[Plan]:
        """Parts a little larger than those that fit: sizes are far apart. The largest that fits by estimate, if there is one."""
        batch = self.facts.batch
        if place == 0:
            return []
        low, high = sizes[place], sizes[place - 1] or batch
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.estimate(plan.but(micro=middle)) <= self.limit else (low, middle)
        # Parts as even as they can be.
        even = -(-batch // -(-batch // low))
        return [plan.but(micro=even)] if even > sizes[place] else []

    def _last_resort(self, family: Family) -> list[Plan]:
        """By estimate nothing fits. What saves most of a family, in case the estimate is wrong."""
        if family.plan.micro not in (0, self.sizes()[-1]) or family.plan.states_on_host not in (0, 1):
            return []
        plan = self.at(family, len(self.path))
        return [plan] if self.fits(plan) else []

    def _different(self, ordered: list[Plan]) -> list[Plan]:
        """The best few, no two of one kind: they are to be tried, and what differs in a block or two takes the same time."""
        kinds: dict[tuple[Any, ...], Plan] = {}
        for plan in ordered:
            kind = (
                plan.micro,
                plan.tiles,
                plan.release,
                plan.states_on_host,
                bool(plan.checkpoint),
                bool(plan.selective),
                bool(plan.lean),
                -(-4 * len(plan.offload) // max(1, len(self.facts.blocks))),
                plan.activation_budget,
                plan.exact,
            )
            kinds.setdefault(kind, plan)
        return list(kinds.values())

    def chain(self, chosen: Plan, measured: bool = False) -> list[Measured]:
        """One technique after another, in the order in which they are counted; of those ``measured`` already, if no more are to be."""
        plan, chain = self.facts.plain, [self.measure(self.facts.plain)]
        for technique in TECHNIQUES:
            if getattr(chosen, technique.name) != getattr(plan, technique.name):
                plan = plan.but(**{name: getattr(chosen, name) for name in (technique.name, *technique.besides)})
                if not measured or plan in self.seen:
                    chain.append(self.measure(plan))
        return chain

    def rungs(self, chosen: Plan) -> list[Measured]:
        """Down from the chosen plan: smaller parts, then blocks run again, then host memory."""
        candidates = [chosen if chosen != self.facts.plain else self.free()]
        top = candidates[0]
        if keeps(top.shard):
            top = top.but(shard=gathered_again(top.shard))
            candidates.append(top)
        blocks = self.facts.blocks
        smaller = [size for size in self.sizes() if 0 < size < (top.micro or self.facts.batch)]
        candidates += [top.but(micro=size) for size in smaller[:1]]
        candidates += [top.but(activation_budget=budget) for budget in self.budgets()[-1:]]
        full = top.but(checkpoint=blocks, selective=(), lean=())
        candidates += [full, *(full.but(micro=size) for size in smaller[1::3])]
        last = full.but(micro=smaller[-1]) if smaller else full
        candidates += [*([last.but(offload=blocks)] if self.facts.offloads else []), self.most_frugal().but(autocast=top.autocast, bf16_weights=top.bf16_weights)]
        rungs, below = [], self.measure(chosen).reserved
        for candidate in candidates:
            # Of what is far above nobody need know how far.
            if candidate not in self.seen and self.estimate(candidate) > 1.2 * below:
                continue
            measured = self.measure(candidate)
            if measured.reserved <= below * _WORTH and measured.host <= self.facts.host:
                rungs.append(measured)
                below = measured.reserved
        return rungs


def _unlike(one: Plan, other: Plan) -> int:
    """In how many ways that make estimates differ."""
    ways = (
        "micro",
        "tiles",
        "liger",
        "release",
        "states_on_host",
        "autocast",
        "bf16_weights",
        "optimizer_8bit",
        "defer_logits",
        "expandable",
        "fused",
        "activation_budget",
        "repeat_groups",
        "shard",
    )
    return (
        sum(getattr(one, way) != getattr(other, way) for way in ways)
        + 2 * (bool(one.checkpoint) != bool(other.checkpoint))
        + (bool(one.selective or one.lean) != bool(other.selective or other.lean))
    )
