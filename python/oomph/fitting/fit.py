"""``oomph.fit``: plans on the virtual GPU, applies the plan, runs steps, and steps down when memory runs out all the same."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from oomph._environment import on_virtual_gpu
from oomph._progress import on_terminal
from oomph._sizes import text
from oomph.fitting.errors import FitError, NotSplittable
from oomph.fitting.losses.counts import Accumulator, Counted, Weighing
from oomph.fitting.losses.cross_entropy import find_heads
from oomph.fitting.losses.loss_of import Loss
from oomph.fitting.losses.trials import Verifier, learn_weighing
from oomph.fitting.planning import words
from oomph.fitting.planning.asking import Asking, NoAnswer
from oomph.fitting.planning.card import Card, Room, asked_for, bytes_on, half_of, here, named, room_here, room_on
from oomph.fitting.planning.costs import Speeds, assumed_speeds, measure_speeds
from oomph.fitting.planning.payload import NotPackable, pack
from oomph.fitting.planning.plan import Measured, Plan
from oomph.fitting.planning.search import Facts, Found, Search, Way
from oomph.fitting.running import ranks
from oomph.fitting.running.applied import Applied
from oomph.fitting.running.batches import moved, refuse_what_gives_batches, samples, take
from oomph.fitting.running.repeating import Before, release_memory
from oomph.fitting.running.saving import load_state, save_state
from oomph.fitting.running.spill import with_room
from oomph.fitting.running.step import Running, device_of
from oomph.fitting.running.trying import OnTheCard
from oomph.fitting.techniques.allocator import allocator_setter, hold_to, use_expandable_segments
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.compiled import Compiled, budget_now, compiled_modules, inside_compiled, is_of_one_graph
from oomph.fitting.techniques.host import host_room
from oomph.fitting.techniques.liger import why_not_liger
from oomph.fitting.techniques.optimizers import ResumableStep, fuse, has_sparse_gradients, releases, steps_in_parts, to_8bit
from oomph.fitting.techniques.positionwise import find_tiled
from oomph.fitting.techniques.training import ALLOWED
from oomph.live.out_of_memory import is_out_of_memory

# The fit that was made last for a model.
_FITS: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Fit]] = weakref.WeakKeyDictionary()

# What a fit that is to be given back is called on its optimizer: that lives as long, and neither copies nor saves what is not its own.
_KEPT = "_oomph_fit"

# With more samples than this, smaller parts do what tiles would.
_FEW_SAMPLES = 4
# Planning takes the seconds for trials, and about so many more: where predictions take longer, trials have less, but no less than this part.
_PREDICTING = 9.0
_LEAST_OF_TRIALS = 0.25
# By so much a plan that was not tried must be faster than one that was.
_UNTRIED = 1.15
# How much slower than the best on the card the estimate of a plan may be for it to be tried there.
_WORTH_A_TRY = 1.1


@dataclasses.dataclass(frozen=True)
class Asked:
    """How a fit was asked for: one that is kept is given back to who asks in the same way."""

    budget: str | int
    gpu: str | None
    allow: tuple[str, ...]
    clip_grad_norm: float | None
    scaler: Any
    plan: Plan | None
    shard: Any

    @classmethod
    def of(
        cls, batch: Any, *, budget: Any, gpu: str | None, allow: Iterable[str], clip_grad_norm: float | None, scaler: Any, plan: Plan | dict[str, Any] | None, shard: Any = None
    ) -> Asked:
        """Refuses what is no batch and no budget, whether there is a fit of before or not."""
        refuse_what_gives_batches(batch)
        given = plan if plan is None or isinstance(plan, Plan) else Plan.from_dict(plan)
        return cls(asked_for(budget), gpu, tuple(allow), clip_grad_norm, scaler, given, shard)


def keep(fitted: Fit, asked: Asked) -> None:
    """`fit_of_before` gives it back, until it is closed."""
    fitted._asked = asked
    setattr(fitted.optimizer, _KEPT, fitted)


def fit_of_before(model: Any, optimizer: Any, asked: Asked) -> Any:
    """The fit that was kept for these, if it is not closed and was asked for in the same way."""
    kept = getattr(optimizer, _KEPT, None)
    return kept if kept is not None and kept.model is ranks.without_ddp(model) and kept._asked == asked else None


def take_loss(fitted: Fit, loss_of: Any) -> None:
    """Another loss of the same kind: a function that is defined anew knows its own variables only. In place, for all who have it."""
    vars(fitted.loss_of).update(vars(loss_of))


class FitPlan:
    """What is done, and why: ``print(fit.plan)``."""

    def __init__(self, chosen: Plan, found: Found | None, batch: int, blocks: int, room: Room | None, card: Card | None, speeds: Speeds | None) -> None:
        self.chosen, self.found, self.batch, self.blocks, self.room, self.card, self.speeds = chosen, found, batch, blocks, room, card, speeds
        # Brings the rest of what was found, once it is asked for: a child measures it while the training goes on.
        self.complete: Callable[[Found], Found] | None = None
        #: What was seen and must be said.
        self.notes: list[str] = []
        #: What happened while it ran: each step down.
        self.history: list[str] = []

    def finish(self) -> None:
        """Waits for what is not known yet: how the plan is reached, step by step, and what comes if memory runs out."""
        complete, self.complete = self.complete, None
        if complete is not None and self.found is not None:
            self.found = complete(self.found)

    @property
    def predicted(self) -> Measured | None:
        """What was predicted for the plan that is applied now."""
        if self.found is None:
            return None
        # What was chosen has been run for longer than the others.
        ways = [way.measured for way in self.found.ways]
        known = [*([self.found.chosen] if self.found.chosen else []), *ways, self.found.plain, *self.found.chain, *self.found.rungs]
        return next((one for one in known if one.plan == self.chosen), None)

    def summary(self) -> str:
        done = words.techniques(Plan(), self.chosen, self.batch, self.blocks)
        predicted = self.predicted
        if predicted is None or self.room is None or self.found is None:
            return done
        fits = f"{text(predicted.reserved)} of {text(self.room.limit)} predicted"
        if self.chosen == Plan():
            return f"the plain step fits: {fits}; nothing is changed"
        return f"{done}: {fits} (the plain step: {text(self.found.plain.reserved)})"

    def __str__(self) -> str:
        self.finish()
        lines = [self.summary()]
        if self.room is not None and self.card is not None and self.found is not None:
            budget = f"budget {text(self.room.budget)} on {self.card.title}"
            lines += [f"{budget}: PyTorch may reserve {text(self.room.limit)}, {text(self.room.margin)} of it kept free", ""]
            lines += words.chain(self.found.chain, self.batch, self.blocks)
            how = "speeds measured on this card" if self.speeds and self.speeds.measured else "speeds assumed from the card's size"
            lines += ["", f"{self.found.tried} plans were run on the virtual GPU; bytes are what PyTorch would reserve; times are estimated ({how})"]
            lines += words.tried(self.found.ways, self.chosen, self.batch, self.blocks)
        if self.notes:
            lines += ["", *self.notes]
        if self.history:
            lines += ["", *self.history]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For scripts: plain data, bytes as integers."""
        self.finish()
        found = self.found.to_dict() if self.found else {}
        return {
            **found,
            "schema_version": 1,
            "chosen": self.chosen.to_dict(),
            "batch": self.batch,
            "blocks": self.blocks,
            "budget": self.room and self.room.budget,
            "limit": self.room and self.room.limit,
            "margin": self.room and self.room.margin,
            "gpu": self.card and self.card.name,
            "speeds": self.speeds and self.speeds.to_dict(),
            "notes": self.notes,
            "history": self.history,
        }


class Fit(Applied):
    """A model that fits. ``step`` is forward, backward and optimizer, as the plain loop would do them."""

    plan: FitPlan
    #: ``step`` is what runs: parameters may be updated within its backward pass.
    releases = True
    #: Plans may be tried on the card: the loss does nothing but compute.
    tries = True

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_of: Loss,
        example: Any,
        allow: tuple[str, ...],
        clip_grad_norm: float | None,
        scaler: Any = None,
    ) -> None:
        super().__init__()
        unknown = [name for name in allow if name not in ALLOWED]
        if unknown:
            raise FitError(f"allow= knows {', '.join(ALLOWED)}, not {', '.join(unknown)}")
        if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
            raise FitError("oomph.fit(model, optimizer, ...) takes a torch.nn.Module and its torch.optim optimizer")
        refuse_what_gives_batches(example)
        self._refuse_sharded(model, optimizer)
        _refuse_optimizer_of_another(model, optimizer)
        self.model, self.optimizer, self.loss_of, self.allow, self.clip_grad_norm = ranks.without_ddp(model), optimizer, loss_of, allow, clip_grad_norm
        self._close_the_one_before()
        self.scaler = scaler
        self._weighing: Weighing | None = None
        self._verifier: Verifier | None = None
        self._not_splittable: str | None = None
        # The child that is asked for plans, in the process that asks.
        self._asking: Asking | None = None
        # The process is held to its budget.
        self._held = False
        # Of host memory, what plans may take: known once one is asked for.
        self._host = 0
        self.example, self.size = example, 1
        try:
            self.size = samples(example)
        except NotSplittable as error:
            self._not_splittable = str(error)
        self.device = device_of(self.model)
        self._running: Running | None = None
        self._rungs: list[Measured] = []
        # Buffers that forward passes leave alone: they need not be put back.
        self._untouched: set[int] = set()
        self._retries = 0
        self._thrashed = 0
        # Gradients are there that no update has used.
        self._due = False
        self.steps = 0
        # Of a fit that is kept.
        self._asked: Asked | None = None

    def _refuse_sharded(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        ranks.refuse_sharded(model)

    def _close_the_one_before(self) -> None:
        """A cell that is run again: what the fit of before has put around the model goes."""
        reference = _FITS.get(self.model)
        before = reference() if reference is not None else None
        if before is not None:
            before.close()
        _FITS[self.model] = weakref.ref(self)

    # -- planning

    def _plan_and_apply(self, budget: str | int, gpu: str | None, plan_seconds: float = 20.0) -> None:
        begun = time.monotonic()
        budget = asked_for(budget)
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            card = here(self.device)
            wanted = named(gpu).memory if gpu is not None and budget == "auto" else budget
            room = room_here(self.device, card, wanted, bytes_on(self.device, self.model, self.optimizer, self.example))
        else:
            card = self._card_to_plan_for(gpu)
            room = room_on(card, budget)
        room = ranks.least_room(room)
        if ranks.first() or on_virtual_gpu():
            # It has much to import, and can do that meanwhile.
            self._asking = self._start_asking(card)
            self._undo.append(self._asking.close)
        speeds = measure_speeds(self.device) if on_gpu else assumed_speeds(card.multiprocessors, card.capability)
        self._learn()
        if on_gpu:
            torch.cuda.empty_cache()
        self.plan = FitPlan(Plan(), None, self.size, 0, room, card, speeds)
        on_a_real_one = on_gpu and not on_virtual_gpu()
        trial = OnTheCard(self.model, self.optimizer, self.example, self.device, self._try, plan_seconds) if on_a_real_one and self.tries and plan_seconds > 0 else None
        try:
            found = self._find(card, room, speeds, trial)
            if found is not None and found.chosen is None:
                raise self._does_not_fit(found, room)
            self._hold(room)
            if found is not None and trial is not None:
                left = begun + plan_seconds + _PREDICTING - time.monotonic()
                trial.spend(max(_LEAST_OF_TRIALS * plan_seconds, min(plan_seconds, left)))
                self._take_the_fastest(found, trial)
        except BaseException:
            # Nobody has the fit to close it.
            self.close()
            raise
        finally:
            if trial is not None:
                trial.close()
        self._note_what_was_seen()
        self._rungs = self._unmeasured_rungs(self._unpredicted()) if found is None else []
        self.plan.chosen = found.chosen.plan if found is not None and found.chosen is not None else self._unpredicted()
        if found is not None:
            self.plan.complete = self._complete
            if not on_a_real_one or ranks.several():
                self.plan.finish()
        if on_gpu:
            self._apply(self.plan.chosen)

    def _start_asking(self, card: Card, entry: str = "oomph.fitting.planning.child:plan", world: tuple[int, int] | None = None) -> Asking:
        modules = {type(module).__module__ for module in self.model.modules()} - {"__main__"}
        return Asking(entry, gpu=card.name, modules=sorted(modules), world=world)

    def _unpredicted(self) -> Plan:
        """What is begun with where nothing could be predicted."""
        return Plan()

    def _hold(self, room: Room) -> None:
        """Once something is known to fit."""
        if room.fraction is not None and self.device.type == "cuda" and not self._held:
            self._undo.append(hold_to(room.fraction, self.device))
            self._held = True

    def _find(self, card: Card, room: Room, speeds: Speeds, trial: OnTheCard | None) -> Found | None:
        """The plans that fit; None where that cannot be predicted."""
        try:
            found, self.plan.blocks, self._host = ranks.by_the_first(lambda: self._ask(card, room, speeds, trial))
        except (NotPackable, NoAnswer) as error:
            if self.device.type != "cuda":
                raise
            self.plan.blocks = len(find_blocks(self.model))
            self.plan.notes.append(f"could not be predicted: {error}")
            self.plan.notes.append("the plain step is run, and memory is saved when it runs out")
            return None
        self.plan.found = found
        return found

    def _complete(self, found: Found) -> Found:
        """The rest of the child's answer: how the plan that is chosen is reached, and left if memory runs out."""
        chosen = found.chosen
        assert chosen is not None
        try:
            rest = ranks.by_the_first(lambda: Found.from_dict(self._asking.next()) if self._asking is not None else found)
        except FitError:
            # It has ended before its time. What is left is not measured.
            self._rungs = self._unmeasured_rungs(chosen.plan)
            return found
        if self._asking is not None:
            self._asking.close()
        times = {way.measured.plan: way.measured.timed for way in found.ways}
        for way in rest.ways:
            way.measured = dataclasses.replace(way.measured, timed=times.get(way.measured.plan))
        rest.take(next((way for way in rest.ways if way.measured.plan == chosen.plan), Way(chosen, rest.chain, rest.rungs)))
        self._rungs = list(rest.rungs)
        return rest

    def _take_the_fastest(self, found: Found, trial: OnTheCard) -> None:
        """Where several plans may be the fastest, each runs for a few steps here, and the fastest is chosen."""
        if len(found.ways) < 2:
            return
        line = on_terminal()
        line.say(f"oomph: trying {len(found.ways)} plans on the GPU")
        try:
            for way in found.ways:
                # Estimates are put right by what was tried so far. What cannot be the fastest even by the most favourable of them need not be tried.
                off = [taken / one.measured.seconds for one in found.ways if (taken := trial.times.get(one.measured.plan)) and one.measured.seconds]
                if not off or way.measured.seconds * min(off) <= _WORTH_A_TRY * trial.best():
                    trial.time([way.measured.plan], way.measured.host)
        finally:
            line.close()
        if trial.no_room:
            self.plan.notes.append("the plans were not timed on this card: there is no host memory for a copy of the parameters")
        self.plan.notes += [f"a plan failed when it was tried, and is left out: {problem}" for problem in trial.problems]
        for way in found.ways:
            way.measured = dataclasses.replace(way.measured, timed=trial.times.get(way.measured.plan))
        off = [one.measured.timed / one.measured.seconds for one in found.ways if one.measured.timed and one.measured.seconds]
        first = found.ways[0]
        # The first is known to fit. Where there was no time for it, it stands by its estimate, put right by those that were tried.
        untried = [(_UNTRIED * statistics.median(off) * first.measured.seconds, first)] if off and first.measured.plan not in trial.times else []
        known = [(way.measured.timed, way) for way in found.ways if way.measured.timed is not None]
        if known:
            found.take(min([*known, *untried], key=lambda one: one[0])[1])
            if found.chosen is not None and found.chosen.timed is None:
                self.plan.notes.append(
                    "there was no time to try the chosen plan on this card: it is the fastest by its estimate, which the others have put right (plan_seconds=...)"
                )

    def _try(self, plan: Plan) -> Running:
        self._expand(plan)
        scaler = torch.amp.GradScaler(self.device.type) if self.scaler is not None else None
        return Running(self.model, self.optimizer, self.loss_of, plan, self.example, self._weighing, self.clip_grad_norm, scaler=scaler)

    def _expand(self, plan: Plan) -> None:
        if plan.expandable and self.device.type == "cuda" and (undo := use_expandable_segments()) is not None:
            self._undo.append(undo)

    def _card_to_plan_for(self, gpu: str | None) -> Card:
        """Of a model that is on no GPU: where there is none, plans are made for one that is named, and nothing is run."""
        where = "the CPU" if self.device.type == "cpu" else f"the device {self.device.type!r}"
        if torch.cuda.is_available():
            raise FitError(f'the model is on {where}, and is planned on the GPU that it trains on: move it with model.to("cuda"), and make the optimizer after that')
        if gpu is None:
            raise FitError(f'the model is on {where}, and there is no GPU here: gpu="t4" makes a plan for that card, without running it')
        return named(gpu)

    def _apply_given(self, plan: Plan) -> None:
        if plan.micro and (plan.micro < self.size or self._not_splittable is not None):
            self._learn()
            if self._weighing is None:
                raise NotSplittable(self._not_splittable or "the batch cannot be cut")
        blocks = find_blocks(self.model)
        self.plan = FitPlan(plan, None, self.size, len(blocks), None, None, None)
        self._rungs = self._unmeasured_rungs(plan)
        self._apply(plan)

    def _learn(self) -> None:
        """How the losses of parts make that of the whole, or why they do not."""
        if self._weighing is not None or self._not_splittable is not None:
            return
        try:
            weighing = learn_weighing(self._compute, self.example, self.model)
            self._try_to_train(weighing)
            self._weighing, self._verifier = weighing, Verifier(weighing)
        except NotSplittable as error:
            self._not_splittable = str(error)

    def _compute(self, part: Any) -> torch.Tensor:
        return self.loss_of(self.model, moved(part, self.device))

    def _try_to_train(self, weighing: Weighing) -> None:
        """A forward pass of a few samples as in training: what it changes besides gradients would be changed once for each part."""
        before = Before(self.model, self.device)
        try:
            counted = with_room(self._count_in_training)
            if weighing.kind == "unknown" and counted.total() is None:
                raise NotSplittable(f"how its loss is made cannot be found out: {weighing.reason}")
            if changed := before.changed():
                raise NotSplittable(f"the buffer {changed[0]} is changed by every forward pass: in parts it would be changed more often")
        except Exception as error:
            if isinstance(error, FitError):
                raise
            raise NotSplittable(f"the loss of two samples failed with {type(error).__name__}: {error}") from error
        finally:
            before.restore()

    def _count_in_training(self) -> Counted:
        with Counted() as counted:
            self._compute(take(self.example, 0, min(2, self.size)))
        return counted

    def _facts(self, room: Room, card: Card) -> dict[str, Any]:
        fused = fuse(self.optimizer)
        if fused is not None:
            fused.undo()
        return {
            "batch": self.size,
            "limit": room.usable,
            "whole": room.limit,
            "host": self._host,
            "splits": self._weighing is not None,
            "defers": bool(self._heads()),
            "expands": allocator_setter() is not None,
            "fuses": (fused is not None or self.device.type != "cuda") and not has_sparse_gradients(self.model),
            "hosts": steps_in_parts(self.optimizer),
            "releases": self.releases and self.clip_grad_norm is None and self.scaler is None and not ranks.several() and releases(self.optimizer),
            "tiled": list(self._find_tiled()),
            "allow": [name for name in self.allow if self._can_be(name)],
            "half": half_of(card.capability),
        }

    def _heads(self) -> list[str]:
        """Those whose logits can be made in pieces: not where compiled code makes them."""
        heads = list(find_heads(self.model))
        inside = inside_compiled(self.model, heads)
        return [name for name in heads if name not in inside]

    def _open_blocks(self) -> list[str]:
        """Those that something can be put around: not where they are compiled into one graph with others."""
        blocks = find_blocks(self.model)
        inside = inside_compiled(self.model, blocks) if is_of_one_graph(self.model) else []
        return [name for name in blocks if name not in inside]

    def _find_tiled(self) -> tuple[str, ...]:
        """What may be run in tiles along the sequence. Worth looking for only where there are few samples or none to cut; and there must be real values.
        Compiled code cannot be cut open."""
        if on_virtual_gpu() or (self._weighing is not None and self.size > _FEW_SAMPLES) or compiled_modules(self.model):
            return ()
        try:
            return with_room(lambda: find_tiled(self.model, self.loss_of, self.example))
        except Exception as error:
            if isinstance(error, FitError) or is_out_of_memory(error):
                return ()
            raise

    def _can_be(self, allowed: str) -> bool:
        """Whether what is allowed can be done here; why not is noted."""
        try:
            if allowed == "8bit-optimizer":
                to_8bit(self.optimizer).undo()
        except FitError as error:
            self.plan.notes.append(f"the optimizer's state stays as it is: {error}")
            return False
        if allowed == "liger" and (why := why_not_liger(self.model)) is not None:
            self.plan.notes.append(why)
            return False
        return True

    def _ask(self, card: Card, room: Room, speeds: Speeds, trial: OnTheCard | None) -> tuple[Found, int, int]:
        """What was found, how many blocks there are, and how much host memory plans might take."""
        self._host = host_room()
        payload = pack(self._things(), onto_gpu=self._where_it_is() != "cuda")
        options = {"facts": self._facts(room, card), "speeds": speeds.to_dict(), **self._options()}
        assert self._asking is not None
        self._asking.send(payload, options)
        usual = [Plan.from_dict(plan) for plan in self._asking.next()["usual"]]
        if trial is not None and usual and not ranks.several():
            self._hold(room)
            # The usual ways are known early, and run here while the child looks for better ones.
            trial.time(usual, 0)
        said = self._asking.next()
        self.plan.notes += [f"not planned, because it failed on the virtual GPU: {problem}" for problem in said.get("problems", [])]
        return Found.from_dict(said), said["blocks"], self._host

    def _things(self) -> dict[str, Any]:
        """What a step is made of."""
        things = {"model": self.model, "optimizer": self.optimizer, "loss_of": self.loss_of, "batch": self.example}
        things |= {"weighing": self._weighing and self._weighing.unwatched(), "clip_grad_norm": self.clip_grad_norm, "scales": self.scaler is not None}
        return {**things, "compiled": Compiled.of(self.model)}

    def _where_it_is(self) -> str:
        return self.device.type

    def _options(self) -> dict[str, Any]:
        """For the child, besides."""
        return {}

    def _note_what_was_seen(self) -> None:
        if not self.model.training:
            self.plan.notes.append("the model is in evaluation: it is planned and trained like that; call model.train() before, if that is not meant")
        if self._not_splittable is not None and self.size > 1:
            self.plan.notes.append(f"the batch is not cut: {self._not_splittable}")
        if self._weighing is not None and self._weighing.kind not in ("targets", "sum") and "as far as" in self._weighing.reason:
            self.plan.notes.append(f"the loss is {self._weighing.reason}")
        chosen = self.plan.found.chosen if self.plan.found is not None else None
        self._note_what_is_compiled(chosen.plan if chosen is not None else Plan())
        if self._weighing is not None and (chosen is None or chosen.plan.micro) and _draws(self.model):
            self.plan.notes.append("dropout draws other random numbers when the batch is cut into parts")

    def _note_what_is_compiled(self, plan: Plan) -> None:
        inside = inside_compiled(self.model, find_blocks(self.model))
        opened = [name for name in inside if name in (*plan.selective, *plan.lean, *plan.checkpoint, *plan.offload)]
        if opened:
            self.plan.notes.append(f"{len(opened)} blocks inside compiled code run as they are, and slower: nothing that leaves them compiled fits")
        elif inside and plan != Plan():
            self.plan.notes.append(f"{len(inside)} blocks are inside compiled code, and stay there: what is kept for the backward pass is the compiler's choice")
        if plan.activation_budget is None and budget_now() < 1 and compiled_modules(self.model) and _draws(self.model):
            self.plan.notes.append("torch._functorch.config.activation_memory_budget is below 1: with dropout, PyTorch's gradients are wrong (pytorch/pytorch#190758)")

    def _does_not_fit(self, found: Found, room: Room) -> FitError:
        least = room.needed_for(found.least.reserved, found.least.largest)
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        if least <= room.budget and found.least.host > self._host:
            lines = [f"it does not fit: the GPU's {text(room.budget)} would do, but host memory does not"]
        else:
            lines = [f"it does not fit in {text(room.budget)}, whatever is done: the least budget that could work is {text(least)}"]
        if weights > room.usable:
            lines.append(f"the parameters alone are {text(weights)}")
        done = words.techniques(Plan(), found.least.plan, self.size, self.plan.blocks)
        lines.append(f"with {done}, it reserves {text(found.least.reserved)}; the plain step {text(found.plain.reserved)}")
        if found.least.host > self._host:
            lines.append(f"that takes {text(found.least.host)} of host memory, of which {text(self._host)} may be used")
        if self._not_splittable is not None:
            lines.append(f"the batch is not cut: {self._not_splittable}")
        rest = [name for name in ALLOWED if name not in self.allow]
        if rest:
            lines.append(f"not allowed so far: {', '.join(rest)} (allow=...)")
        lines.append("otherwise: a smaller model, shorter samples, or adapters (LoRA) instead of all parameters")
        return FitError("\n".join(lines), least)

    def _unmeasured_rungs(self, top: Plan | None = None) -> list[Measured]:
        """Where nothing could be predicted, down all the same: each rung is taken to need less."""
        top = Plan() if top is None else top
        blocks = tuple(self._open_blocks())
        known = {"hosts": steps_in_parts(self.optimizer), "allow": self.allow, "splits": self._weighing is not None, "defers": bool(self._heads())}
        facts = Facts(self.size, blocks, 0, 0, sys.maxsize, **{**known, "expands": allocator_setter() is not None, **self._limits(top)})
        reserved = iter(range(1 << 62, 0, -(1 << 55)))
        # Nothing is known of any of them: what comes later is taken to need less.
        return Search(facts, lambda plan: Measured(plan, 0, next(reserved) if plan != top else 1 << 63, 0.0), lambda plan: 0.0, lambda plan: (0, 1)).rungs(top)

    def _limits(self, plan: Plan) -> dict[str, Any]:
        """What is not to be done below this plan: fields of `Facts`."""
        return {}

    def _apply(self, plan: Plan) -> None:
        lasting = self._running.undo(then=plan) if self._running is not None else None
        self._running = None
        self._expand(plan)
        given = (self.model, self.optimizer, self.loss_of, plan, self.example, self._weighing, self.clip_grad_norm)
        self._running = Running(*given, scaler=self.scaler, lasting=lasting)
        self.plan.chosen = plan

    # -- running

    def step(self, batch: Any) -> torch.Tensor:
        """Forward, backward, optimizer. The loss of the whole batch, as a tensor without a graph."""
        loss = self._backward(batch, release=not ranks.several())
        self.update()
        return loss

    def backward(self, batch: Any) -> torch.Tensor:
        """Forward and backward alone: gradients of the mean over the whole batch are in ``.grad`` then, on all ranks the same. One call for each ``update``.

        Under a plan that updates parameters within the backward pass this takes more memory than ``step``, which need not keep gradients."""
        return self._backward(batch, release=False)

    def _backward(self, batch: Any, release: bool) -> torch.Tensor:
        refuse_what_gives_batches(batch)
        running = self._run()
        if self._due and any(parameter.grad is not None for parameter in running.parameters()):
            raise FitError("fit.backward was called twice without fit.update: give it the whole batch, it cuts it by itself")
        while True:
            before = Before(self.model, self.device, self._untouched)
            loss, failed, refused = None, None, None
            try:
                self._verify(batch)
                loss = running.backward(batch, release=release)
            except Exception as error:
                if getattr(running.states, "has_released", False):
                    what = "memory ran out" if is_out_of_memory(error) else f"{type(error).__name__}: {error}"
                    raise FitError(
                        f"{what}, in the backward pass, after some parameters had been updated: this step cannot be repeated, and the model is between two steps. "
                        "Go on from your last saved state, with a batch= as large as they come"
                    ) from error
                if isinstance(error, NotSplittable) and ranks.several():
                    # The others wait for this one.
                    refused = error
                elif is_out_of_memory(error):
                    # The frames of what failed hold its tensors.
                    traceback.clear_frames(error.__traceback__)
                    failed = error.with_traceback(None)
                else:
                    raise
            verdict = ranks.worst(2 if refused is not None else int(failed is not None), self.device)
            if verdict == 0:
                before.learn(self._untouched)
                break
            if verdict == 2:
                raise refused or NotSplittable("the batch of another rank cannot be cut")
            del loss
            before.restore()
            self._step_down(failed)
            running = self._run()
        ranks.average_gradients(running.parameters())
        running.unscale()
        self._due = True
        return loss

    def _verify(self, batch: Any) -> None:
        """Where a rule was learnt from an example that does not show all: whether it holds for this batch too."""
        running = self._run()
        if self._verifier is not None and self._weighing is not None and self._weighing.provisional and len(running.parts(batch)) > 1:
            with running.autocast():
                self._verifier.check(self._compute, batch, self.model)

    def update(self) -> None:
        """The optimizer's step, after ``backward``; gradients are freed."""
        running = self._run()
        try:
            running.update()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
            failed: Exception | None = error.with_traceback(None)
        else:
            failed = None
        if failed is not None:
            self._update_with_less(failed)
        self._due = False
        self.steps += 1
        self._watch_for_thrashing()

    def _update_with_less(self, failed: BaseException) -> None:
        """No activations are alive now, so what is cached can go; then the optimizer's state. Parameters that were updated already are not updated again."""
        release_memory(self.device)
        running = self._run()
        states = running.states
        if not isinstance(states, ResumableStep):
            raise FitError(f"the step of {type(states).__name__} does not fit, and is not known to be repeatable") from failed
        try:
            running.update()
            return
        except Exception as error:
            if not is_out_of_memory(error) or self.plan.chosen.states_on_host:
                raise
            traceback.clear_frames(error.__traceback__)
        states.leave_the_rest()
        self.plan.finish()
        self._rungs = [dataclasses.replace(rung, plan=rung.plan.but(states_on_host=True, optimizer_8bit=False)) for rung in self._rungs]
        self._notify(f"step {self.steps + 1}: out of memory in the optimizer; its state goes to host memory; the update goes on")
        self._apply(self.plan.chosen.but(states_on_host=True))
        release_memory(self.device)
        self._run().update(begun=True)

    def evaluate(self, batch: Any) -> torch.Tensor:
        """The loss of a batch without training: in eval mode, under inference_mode, in parts of the plan's size; fewer at a time if memory runs out."""
        refuse_what_gives_batches(batch)
        was = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            while True:
                try:
                    self._verify(batch)
                    return self._evaluate(batch)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    traceback.clear_frames(error.__traceback__)
                    failed = error.with_traceback(None)
                self._step_down(failed)
        finally:
            for module, training in was:
                module.training = training

    def _evaluate(self, batch: Any) -> torch.Tensor:
        running = self._run()
        parts = running.parts(batch)
        with torch.inference_mode(), running.autocast():
            if len(parts) == 1:
                return self._compute(batch)
            gathered = Accumulator(cast(Weighing, self._weighing))
            for start, stop in parts:
                with Counted() as counted:
                    loss = self._compute(take(batch, start, stop))
                gathered.scale(loss, counted, stop - start)
            return gathered.finish([])

    def save(self, path: str) -> None:
        """The model's and the optimizer's state into a folder, by torch.distributed.checkpoint: all ranks must call it. What is sharded is saved sharded, and `load` takes it on any number of
        ranks, sharded or not."""
        save_state(path, self.model, self._run().stepped, self.steps)

    def load(self, path: str) -> None:
        """What `save` wrote. All ranks must call it."""
        self.steps = load_state(path, self.model, self._run().stepped)

    def peak(self) -> tuple[int, int]:
        """Most that PyTorch has allocated and reserved in this process so far: to hold the prediction against."""
        return torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)

    def close(self) -> None:
        """Takes everything back: the model and the optimizer as they were, but for what they have learnt. Optimizer state that is in host memory, and for which the
        GPU has no room, stays there, with a warning."""
        if getattr(self.optimizer, _KEPT, None) is self:
            delattr(self.optimizer, _KEPT)
        if hasattr(self, "plan"):
            # The child ends too: what it has not said is not known.
            self.plan.complete = None
        try:
            # Limits first: what comes back to the GPU may need more than the plan did.
            super().close()
        finally:
            running, self._running = self._running, None
            if running is not None:
                running.undo()

    def _run(self) -> Running:
        if self._running is None:
            raise FitError("this fit was planned for a card that is not here, or was closed: it cannot run steps")
        return self._running

    def _step_down(self, failed: BaseException | None) -> None:
        """One rung. Raises what failed if there is none left."""
        self._run().forget_gradients()
        release_memory(self.device)
        if self._weighing is None and self._not_splittable is None:
            # Of a plan that was given nothing had to be known so far.
            self._learn()
            self._rungs = self._unmeasured_rungs(self.plan.chosen)
        self.plan.finish()
        if not self._rungs:
            allowed = [name for name in ALLOWED if name not in self.allow]
            more = f"; not allowed so far: {', '.join(allowed)}" if allowed else ""
            raise FitError(f"memory ran out and there is nothing left to do{more}") from failed
        rung = self._rungs.pop(0)
        words_for_it = words.techniques(self.plan.chosen, rung.plan, self.size, self.plan.blocks)
        why = self._who_ran_out(failed)
        self._notify(f"step {self.steps + 1}: {why}; one rung down: {words_for_it}; the batch is repeated")
        self._apply(rung.plan)

    def _who_ran_out(self, failed: BaseException | None) -> str:
        return "out of memory" if failed is not None else "out of memory on another rank"

    def _watch_for_thrashing(self) -> None:
        """A PyTorch that frees its cache and tries again, step after step, is about to run out, and slow."""
        if self.device.type != "cuda":
            return
        retries = torch._C._cuda_memoryStats(self.device.index or 0)["num_alloc_retries"]
        self._thrashed = self._thrashed + 1 if retries > self._retries else 0
        self._retries = retries
        if not ranks.any_of(self._thrashed >= 3, self.device):
            return
        self.plan.finish()
        if self._rungs:
            self._thrashed = 0
            rung = self._rungs.pop(0)
            release_memory(self.device)
            self._notify(
                f"step {self.steps}: the allocator frees its cache at every step; one rung down: {words.techniques(self.plan.chosen, rung.plan, self.size, self.plan.blocks)}"
            )
            self._apply(rung.plan)

    def _notify(self, what: str) -> None:
        self.plan.history.append(what)
        if ranks.first():
            print(f"oomph.fit: {what}", file=sys.stderr)


def _refuse_optimizer_of_another(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """None of its parameters is the model's, which has some to train. Others it may have besides."""
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if own and not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise FitError("the optimizer has none of this model's parameters, and would train another: make it of them, such as torch.optim.AdamW(model.parameters())")


def _draws(model: torch.nn.Module) -> bool:
    return any(isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules())
