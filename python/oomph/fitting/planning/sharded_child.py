"""Inside the child, as the first rank of a world whose others are made believe: plans for a model whole on each rank, and sharded in each way that there is.

The first rank has the largest parts, so what fits it fits all. What is run, rank by rank, is what would be run: the same wrapping, the same steps, PyTorch's own process group.
"""

from __future__ import annotations

import dataclasses
import gc
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from oomph.fitting.planning.child import Trials
from oomph.fitting.planning.costs import ForwardCosts, Speeds
from oomph.fitting.planning.plan import Measured, Plan
from oomph.fitting.planning.search import Facts, Found, Search
from oomph.fitting.planning.sharded import Sharing, limits
from oomph.fitting.running.sharded import apply_sharding, per_machine
from oomph.fitting.running.step import Running
from oomph.fitting.techniques import optimizers
from oomph.fitting.techniques.sharding import HOST, WHOLE, same_parts
from oomph.live.out_of_memory import is_out_of_memory

# Seconds for plans of one way that only might be better.
_LATE = 8.0


def plan(things: dict[str, Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entry: three answers, as `child.plan` gives them."""
    optimizers.copies_are_real = False
    again: Callable[[], dict[str, Any]] = things.pop("again")
    dist.init_process_group("nccl")
    yield {"usual": []}
    ways = Ways(things, options, again)
    found, search, blocks = ways.find()
    yield {**found.to_dict(), "blocks": blocks, "problems": ways.problems}
    if search is not None:
        before = found.chain
        search.explain(found)
        _lead(found, before)
    yield {**found.to_dict(), "blocks": blocks}


def _lead(found: Found, before: list[Measured]) -> None:
    """The way to what is sharded begins at the plain step."""
    found.chain = [*before, *found.chain] if before and found.chain and found.chain[0].plan != before[0].plan else found.chain
    for way in found.ways:
        if before and way.chain and way.chain[0].plan != before[0].plan:
            way.chain = [*before, *way.chain]


class Ways:
    """The ways in which the model may be shared out, one after another on the same card."""

    def __init__(self, things: dict[str, Any], options: dict[str, Any], again: Callable[[], dict[str, Any]]) -> None:
        self.things, self.options, self.again = things, options, again
        self.given = {**options["facts"], "tiled": tuple(options["facts"].get("tiled", ()))}
        self.speeds = Speeds(**options["speeds"])
        #: What was found of the model as it came: costs of a forward pass, which are those of every way.
        self.first: Among | None = None
        #: Ways that could not be run, and why.
        self.problems: list[str] = []

    def find(self) -> tuple[Found, Search | None, int]:
        """The best of all ways, what it was found by, and how many blocks there are."""
        best: tuple[Found, Search] | None = None
        least: Found | None = None
        plain: Measured | None = None
        tried, trials = 0, None
        for sharding in self.options["ways"]:
            sharing = self._sharing(sharding)
            if best is not None and self.first is not None:
                assert best[0].chosen is not None
                bound = sharing.seconds(Plan(shard=sharding), self.first.step, self.first.alone(Plan()))
                if bound >= best[0].chosen.seconds:
                    continue
            try:
                if trials is None or not same_parts(trials.sharing.sharding, sharding):
                    self._forget(trials)
                    trials = None
                    trials = self._trials(sharing)
                trials.sharing = sharing
                self.first = self.first or trials
                search = self._search(trials, sharding)
                found = search.find()
            except Exception as error:
                if self.first is None or is_out_of_memory(error):
                    raise
                # Not every model can be run in every way. The others are left.
                traceback.print_exc()
                self.problems.append(f"{sharding}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
                traceback.clear_frames(error.__traceback__)
                self._forget(trials)
                trials = None
                continue
            tried += len(search.seen)
            plain = plain or found.plain
            if found.chosen is None:
                least = found if least is None or found.least.reserved < least.least.reserved else least
                continue
            if best is None or found.chosen.seconds < (best[0].chosen.seconds if best[0].chosen is not None else 0.0):
                best = (found, search)
            if found.chosen.plan == Plan():
                break
        assert plain is not None and self.first is not None
        blocks = len(self.first.blocks)
        if best is None:
            assert least is not None
            least.plain, least.tried = plain, tried
            return least, None, blocks
        found, search = best
        chosen = found.chosen.plan.shard if found.chosen is not None else ""
        if trials is not None and not same_parts(trials.sharing.sharding, chosen):
            # It is run once more, for what leads to it and away from it.
            self._forget(trials)
            trials = self._trials(self._sharing(chosen))
        assert trials is not None
        self._measure_by(search, trials)
        found.chain = [plain] if plain.plan != found.plain.plan else []
        found.plain, found.tried = plain, tried
        for way in found.ways:
            way.chain = list(found.chain) or way.chain
        return found, search, blocks

    def _sharing(self, sharding: str) -> Sharing:
        return Sharing.of(sharding, dist.get_world_size(), per_machine(), self.options["between"], self.speeds.link, self.options["mesh"])

    def _trials(self, sharing: Sharing) -> Among:
        things = dict(self.things) or self.again()
        # Whoever else has them must not keep the model on the card once another takes its place.
        self.things.clear()
        return Among(things, self.speeds, self.options["progress"], sharing, self.first, self.options["mesh"])

    def _search(self, trials: Among, sharding: str) -> Search:
        end = time.monotonic() + _LATE
        given, path = dict(self.given), trials.path()
        if sharding != WHOLE:
            given |= limits(Plan(shard=sharding), self.given.get("allow", ()), self.options["splits_sharded"])
            path = tuple((mode, name) for mode, name in path if mode == "checkpoint")
        given["allow"] = tuple(given.get("allow", ()))
        facts = Facts(**{"blocks": trials.blocks, "path": path, "groups": trials.has_groups, **given})
        search = Search(facts, trials.measure, trials.seconds, trials.guess, trials.prove, trials.shares, lambda: time.monotonic() > end)
        self._measure_by(search, trials)
        return search

    @staticmethod
    def _measure_by(search: Search, trials: Among) -> None:
        search._measure, search._prove = trials.measure, trials.prove

    @staticmethod
    def _forget(trials: Among | None) -> None:
        """The card is another's then."""
        if trials is None:
            return
        trials.leave()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        torch.cuda.empty_cache()


class Among(Trials):
    """A model on the virtual GPU as one rank has it."""

    def __init__(self, things: dict[str, Any], speeds: Speeds, progress: str, sharing: Sharing, first: Among | None, mesh: list[int] | None) -> None:
        self.sharing, self.first = sharing, first
        if things.get("restore") is not None:
            # As the program has sharded it.
            things["restore"].restore(things["model"], things["optimizer"])
        elif sharing.sharding != WHOLE:
            apply_sharding(things["model"], things["optimizer"], sharing.sharding, _mesh(mesh))
            torch.cuda.empty_cache()
        super().__init__(things, speeds, progress)

    def _learn_costs(self) -> None:
        if self.first is None:
            super()._learn_costs()
            return
        self.forwards, self.blocks, self.step, self.has_groups = self.first.forwards, self.first.blocks, self.first.step, self.first.has_groups

    def leave(self) -> None:
        """Costs stay, tensors go."""
        self.reset()
        self.model = self.optimizer = self.loss_of = self.batch = None
        self.state = {}

    def alone(self, plan: Plan) -> float:
        """Seconds of a step without those that ranks talk."""
        return super().seconds(dataclasses.replace(plan, shard=""))

    def seconds(self, plan: Plan) -> float:
        return self._as(plan).seconds(plan, self.step, self.alone(plan))

    def guess(self, plan: Plan) -> tuple[int, int]:
        if plan.shard == WHOLE:
            return super().guess(plan)
        return self._as(plan).bytes_of(plan, self.forward_costs(None), self.step)

    def forward_costs(self, half: str | None) -> ForwardCosts:
        if half not in self.forwards and self.first is not None:
            # Of another type: in proportion, as nothing but the speed of products differs much.
            return self.forwards.get("bfloat16") or self.forwards[None]
        return super().forward_costs(half)

    def _as(self, plan: Plan) -> Sharing:
        return dataclasses.replace(self.sharing, sharding=plan.shard)

    def _run(self, plan: Plan, steps: int, parts: int) -> Measured:
        # Gradients of the parts before the last are whole, and FSDP's own: they are made by a part of their own.
        measured = super()._run(plan, steps, max(parts, 2) if plan.shard else parts)
        return dataclasses.replace(measured, host=measured.host + self._as(plan).on_host(self.step))

    def _has_begun(self, running: Running) -> bool:
        return super()._has_begun(running) and not running.sharded

    def _make_state(self, running: Running) -> None:
        if running.plan.shard != HOST:
            super()._make_state(running)

    def _update(self, running: Running) -> None:
        if running.plan.shard != HOST:
            return super()._update(running)
        # On the host it takes nothing of the card, and would take real memory and time here.
        running.forget_gradients()


def _mesh(shape: list[int] | None) -> Any:
    if shape is None:
        return "auto"
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cuda", tuple(shape), mesh_dim_names=("replicate", "shard")[-len(shape) :])
