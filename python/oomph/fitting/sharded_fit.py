"""``oomph.fit`` for a model that is shared out over ranks, or may be: plans as one rank of the world, shards as the plan says, and steps down on all ranks at once.

How a model is sharded is ``oomph.sharding``'s, how ranks agree ``running.agreeing``'s, and what plans there are ``planning.sharded``'s.
"""

from __future__ import annotations

from typing import Any

import torch

from oomph._environment import on_virtual_gpu
from oomph.fitting.errors import FitError, NotSplittable
from oomph.fitting.fit import Fit
from oomph.fitting.losses.counts import Accumulator, Counted, Weighing
from oomph.fitting.losses.trials import Verifier
from oomph.fitting.planning import sharded as planning
from oomph.fitting.planning.as_sharded import AsSharded
from oomph.fitting.planning.asking import Asking
from oomph.fitting.planning.card import Card, Room
from oomph.fitting.planning.costs import Speeds
from oomph.fitting.planning.plan import Plan
from oomph.fitting.planning.search import Found
from oomph.fitting.running import ranks
from oomph.fitting.running.agreeing import FAILED, FINE, NO_MEMORY, Outcome, Together
from oomph.fitting.running.batches import moved, refuse_what_gives_batches, take
from oomph.fitting.running.repeating import Before, release_memory
from oomph.fitting.running.sharded import apply_sharding, device_to_train_on, per_machine, refuse_what_cannot_be, speed_between, take_the_weights_of_the_first, ways, why_not
from oomph.fitting.running.step import device_of
from oomph.fitting.running.trying import OnTheCard
from oomph.fitting.techniques.sharding import GIVEN, RESHARDED, WHOLE
from oomph.live.out_of_memory import is_out_of_memory
from oomph.sharding.state import forget_step, is_sharded, reshard


class ShardedFit(Fit):
    """A fit whose model may be sharded. Where it is whole in the end, or there is one process, it is a `Fit`."""

    def __init__(self, *given: Any, shard: Any = None) -> None:
        self._shard = shard
        super().__init__(*given)
        #: As the program has sharded it.
        self.given = is_sharded(self.model)
        self._alone = not ranks.several()
        # To try a plan would be to shard the model, and to bring it together again.
        self.tries = self._alone
        self._together: Together | None = None
        self._weights_taken: str | None = None
        self._failed_rank = 0
        if self._alone:
            if self.given:
                raise FitError(
                    "the model is sharded over one rank: nothing is shared out, and it cannot be planned for. Start several, or give oomph.fit the model before fully_shard"
                )
            return
        self.device = device_to_train_on(self.model, device_of(self.model))
        if not self.given and (why := why_not(self.model, self.optimizer)) is not None and shard != "auto":
            raise FitError(f"the model cannot be sharded: {why}")
        self._together = Together(self.device)
        self._weights_taken = None if self.given else take_the_weights_of_the_first(self.model, self.device)

    def _refuse_sharded(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        refuse_what_cannot_be(model, self._shard, optimizer)

    @property
    def _talks(self) -> bool:
        """Whether ranks talk within a step."""
        return self._together is not None and is_sharded(self.model)

    # -- planning

    def _start_asking(self, card: Card, entry: str = planning.ENTRY, world: tuple[int, int] | None = None) -> Asking:
        if self._alone:
            return super()._start_asking(card)
        return super()._start_asking(card, entry, (torch.distributed.get_world_size(), per_machine()))

    def _where_it_is(self) -> str:
        # The model may wait on the CPU.
        return device_of(self.model).type

    def _things(self) -> dict[str, Any]:
        return {**super()._things(), "restore": AsSharded.of(self.model) if self.given else None}

    def _options(self) -> dict[str, Any]:
        if self._alone:
            return {}
        found = [GIVEN] if self.given else ways(self._shard) if (why := why_not(self.model, self.optimizer)) is None else [WHOLE]
        if not self.given and why is not None:
            self.plan.notes.append(f"the model is not sharded: {why}")
        mesh = AsSharded.of(self.model).mesh if self.given else None if self._shard in (None, "auto") else list(self._shard.shape)
        return {"ways": found, "mesh": mesh, "splits_sharded": self._splits_sharded(), "between": self._between}

    def _facts(self, room: Room, card: Card) -> dict[str, Any]:
        facts = super()._facts(room, card)
        # The ranks of a machine share its memory.
        return facts if self._alone else {**facts, "host": facts["host"] // per_machine()}

    def _splits_sharded(self) -> bool:
        """A rule that must be tried on each batch cannot be once ranks talk in every forward pass."""
        return self._weighing is not None and not self._weighing.provisional

    def _limits(self, plan: Plan) -> dict[str, Any]:
        return planning.limits(plan, self.allow, self._splits_sharded()) if plan.shard else {}

    def _find(self, card: Card, room: Room, speeds: Speeds, trial: OnTheCard | None) -> Found | None:
        # All ranks measure it, whoever asks.
        self._between = 0.0 if self._alone else speed_between(self.device)
        return super()._find(card, room, speeds, trial)

    def _unpredicted(self) -> Plan:
        if self._alone:
            return Plan()
        # A model that is whole cannot be sharded once memory has run out: the way that takes little.
        return Plan(shard=GIVEN if self.given else RESHARDED if why_not(self.model, self.optimizer) is None else WHOLE)

    def _note_what_was_seen(self) -> None:
        super()._note_what_was_seen()
        if self._weights_taken is not None:
            self.plan.notes.append(self._weights_taken)
        if self._alone:
            self.plan.notes.append("shard= has nothing to share the model among: there is one process")
        elif self._weighing is not None and not self._splits_sharded():
            self.plan.notes.append("sharded, the batch is not cut: whether its loss may be would have to be tried on each batch, on all ranks at once")

    # -- how the losses of parts make that of the whole

    def _learn(self) -> None:
        if self._alone:
            return super()._learn()
        if self._weighing is not None or self._not_splittable is not None:
            return
        if self.given:
            self._count_where_it_is_sharded()
        elif device_of(self.model) != self.device:
            # On the CPU, trials of a model that needs several GPUs would take minutes.
            self._count_on_the_cpu()
        else:
            super()._learn()
        # One rule for all ranks, that of the first: each has an example of its own.
        weighing, self._not_splittable = ranks.by_the_first(lambda: (self._weighing, self._not_splittable))
        self._weighing, self._verifier = weighing, Verifier(weighing) if weighing is not None else None

    def _count_where_it_is_sharded(self) -> None:
        """Nothing can be tried: gradients are not where trials look. A mean over targets shows itself all the same."""
        assert self._together is not None
        weighing = Weighing("unknown", "the model is sharded, so that nothing was tried")
        before = Before(self.model, self.device)
        outcome = self._together.run(("learn",), self._count_in_training, lambda: forget_step(self.model))
        forget_step(self.model)
        before.restore()
        if outcome.verdict == FINE and outcome.result.total() is not None:
            self._weighing = weighing
        else:
            self._not_splittable = f"how its loss is made cannot be found out: {weighing.reason}"

    def _count_on_the_cpu(self) -> None:
        weighing = Weighing("unknown", "the model waits on the CPU, where nothing was tried")
        try:
            self._try_to_train(weighing)
            self._weighing = weighing
        except NotSplittable as error:
            self._not_splittable = str(error)

    def _compute(self, part: Any) -> torch.Tensor:
        return self.loss_of(self.model, moved(part, device_of(self.model)))

    def _verify(self, batch: Any) -> None:
        if not self._talks:
            super()._verify(batch)

    # -- what is applied

    def _apply_given(self, plan: Plan) -> None:
        if not self._alone:
            # Once the model is sharded, nothing can be tried.
            self._learn()
        super()._apply_given(plan.but(shard=GIVEN) if self.given else plan)

    def _apply(self, plan: Plan) -> None:
        if not self._alone and self._running is None and not is_sharded(self.model):
            apply_sharding(self.model, self.optimizer, plan.shard, self._shard)
            if not is_sharded(self.model) and device_of(self.model) != self.device:
                self._move_to_the_gpu()
            release_memory(self.device)
        super()._apply(plan)

    def _move_to_the_gpu(self) -> None:
        """The parameters stay the same objects, so that the optimizer has them."""
        self.model.to(self.device)
        for state in self.optimizer.state.values():
            state.update({name: value.to(self.device) for name, value in state.items() if isinstance(value, torch.Tensor) and value.ndim})

    # -- running

    def _backward(self, batch: Any, release: bool) -> torch.Tensor:
        if not self._talks:
            return super()._backward(batch, release)
        refuse_what_gives_batches(batch)
        running = self._run()
        if self._due and any(parameter.grad is not None for parameter in running.parameters()):
            raise FitError("fit.backward was called twice without fit.update: give it the whole batch, it cuts it by itself")
        while True:
            parts = running.parts(batch)
            before = Before(self.model, self.device, self._untouched)
            loss = self._on_all("step", len(parts), before, lambda running=running, parts=parts: running.backward(batch, parts=parts))
            if loss is not None:
                before.learn(self._untouched)
                break
            running = self._run()
        ranks.average_gradients(running.parameters())
        running.unscale()
        self._due = True
        return loss

    def _on_all(self, kind: str, parts: int, before: Before, work: Any) -> Any:
        """What the work gives; None where a rank ran out of memory, and all have stepped down."""
        assert self._together is not None
        outcome = self._together.run((kind, self.plan.chosen, parts), work, self._forget)
        if outcome.verdict == FINE:
            return outcome.result
        # Nothing of the step may hold memory while a smaller one is made.
        outcome.result = None
        self._forget()
        before.restore()
        if outcome.verdict == FAILED:
            self._raise(outcome)
        error = outcome.error.with_traceback(None) if outcome.error is not None else None
        self._failed_rank = outcome.rank
        self._step_down(error)
        return None

    def _forget(self) -> None:
        forget_step(self.model)
        self._run().forget_gradients()
        release_memory(self.device)

    @staticmethod
    def _raise(outcome: Outcome) -> None:
        if outcome.error is not None and not is_out_of_memory(outcome.error):
            raise outcome.error
        raise FitError(f"rank {outcome.rank} failed in this step, and all ranks have given it up: its error says why")

    def _step_down(self, failed: BaseException | None) -> None:
        if self._talks and not self._rungs and self.plan.complete is None:
            raise FitError(f"memory ran out on rank {self._failed_rank}, and there is nothing left to do{self._not_allowed()}") from failed
        super()._step_down(failed)

    def _who_ran_out(self, failed: BaseException | None) -> str:
        return f"out of memory on rank {self._failed_rank}" if self._talks else super()._who_ran_out(failed)

    def _not_allowed(self) -> str:
        return "" if "bf16" in self.allow else '; not allowed so far: bf16 (allow=("bf16",))'

    def update(self) -> None:
        if not self._talks:
            return super().update()
        error: Exception | None = None
        try:
            self._run().update()
        except Exception as raised:
            error = raised
        worst = ranks.worst(FINE if error is None else NO_MEMORY if is_out_of_memory(error) else FAILED, self.device)
        if worst != FINE and not on_virtual_gpu():
            if error is not None and not is_out_of_memory(error):
                raise error
            if worst == FAILED:
                raise FitError("the optimizer's step failed on another rank, whose error says why: the model is between two steps. Go on from your last saved state") from error
            raise FitError(
                "memory ran out in the optimizer's step, on this rank or another: some parameters are updated, and the model is between two steps. Go on from your last saved state, with a "
                "smaller budget="
            ) from error
        if error is not None:
            raise error
        self._due = False
        self.steps += 1
        self._watch_for_thrashing()

    def _evaluate(self, batch: Any) -> torch.Tensor:
        if not self._talks:
            return super()._evaluate(batch)
        while True:
            parts = self._run().parts(batch)
            before = Before(self.model, self.device, self._untouched)
            loss = self._on_all("evaluate", len(parts), before, lambda parts=parts: self._loss_of_parts(batch, parts))
            # Without a backward pass, what the root has gathered would stay.
            reshard(self.model)
            if loss is not None:
                return loss

    def _loss_of_parts(self, batch: Any, parts: list[tuple[int, int]]) -> torch.Tensor:
        # Not inference_mode: what is gathered in it could not be trained with.
        with torch.no_grad(), self._run().autocast():
            if len(parts) == 1:
                return self._compute(batch)
            if self._weighing is None:
                raise NotSplittable(self._not_splittable or "the batch cannot be cut")
            gathered = Accumulator(self._weighing)
            for start, stop in parts:
                with Counted() as counted:
                    loss = self._compute(take(batch, start, stop))
                gathered.scale(loss, counted, stop - start)
            return gathered.finish([])
