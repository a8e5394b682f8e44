"""Forward passes and text generation under a plan: in parts, one rung down when memory runs out, without losing what is done. The same code where it is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oomph.fitting.planning.inference_plan import InferencePlan
from oomph.fitting.running.applied import Applied
from oomph.fitting.running.batches import moved, samples, take
from oomph.fitting.running.outputs import join, moved_to, pad_and_join
from oomph.fitting.running.repeating import release_memory
from oomph.fitting.techniques.allocator import hold_to
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.inference import FULL, PRUNED, SMALLER, TECHNIQUES, THERE
from oomph.fitting.techniques.technique import Technique
from oomph.fitting.techniques.weight_stream import WeightStream
from oomph.fitting.techniques.weights import Shrunk
from oomph.live.frames import release
from oomph.live.out_of_memory import is_out_of_memory


class FitInference(Applied):
    """A model that fits. Call it with a batch, or call ``generate``; ``close`` puts the model back as it was, but for weights that became
    bfloat16: they stay rounded.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        plan: InferencePlan,
        count: int,
        to: str | None = None,
        apply: bool = True,
        fraction: float | None = None,
    ) -> None:
        super().__init__()
        self.model, self.device, self.chosen, self.to = model, device, plan, to
        self.count = count
        self.blocks = len(find_blocks(model))
        #: What was predicted, in words; and each step down.
        self.notes: list[str] = []
        self.history: list[str] = []
        self.stream: WeightStream | None = None
        #: What pruning did, if it is in the plan and was applied.
        self.pruning: Shrunk | None = None
        try:
            self._prepare(apply, fraction)
        except BaseException:
            self.close()
            raise

    @property
    def plan(self) -> str:
        """What is done, and what has happened."""
        return "\n".join([self.chosen.words(self.count, self.blocks), *self.notes, *self.history])

    def _prepare(self, apply: bool, fraction: float | None) -> None:
        training = [(module, module.training) for module in self.model.modules()]

        def restore() -> None:
            for module, was in training:
                module.training = was

        self._undo.append(restore)
        self.model.eval()
        if not apply:
            return
        if fraction is not None:
            self._undo.append(hold_to(fraction, self.device))
        plain = InferencePlan()
        wanted = [one for one in TECHNIQUES if one.apply is not None and one.is_new(getattr(plain, one.name), getattr(self.chosen, one.name))]
        for stage in (FULL, PRUNED, THERE, SMALLER):
            if stage == THERE and not self.chosen.streamed:
                self._undo.append(_moving(self.model, self.device))
            for technique in wanted:
                if technique.stage == stage:
                    self._do(technique)

    def _do(self, technique: Technique) -> None:
        assert technique.apply is not None
        applied = technique.apply(self)
        self._undo.append(applied.undo)
        if technique.name == "streamed":
            self.stream = applied
        elif technique.name == "pruned":
            self.pruning = applied

    def close(self) -> None:
        super().close()
        self.stream = None

    def __call__(self, batch: Any) -> Any:
        """The model's output for the batch, as one forward pass would give it, on the device or where ``to`` says."""
        outputs, sizes = self.in_parts(batch, self.forward)
        return self._joined(lambda: join(outputs, sizes), lambda: join([moved_to(output, "cpu") for output in outputs], sizes))

    def generate(self, batch: Any, **options: Any) -> Any:
        """What ``model.generate`` gives; sequences that end early are filled up at the right with ``pad_token_id``.

        In parts, only sequences are given of an output with scores and the like. Sampling draws other random numbers than without parts.
        """
        outputs, _ = self.in_parts(batch, lambda part: self.generate_part(part, options), generating=True)
        if len(outputs) == 1:
            return outputs[0]
        sequences = [output if isinstance(output, Tensor) else output.sequences for output in outputs]
        joined = pad_and_join(sequences, _pad_token(self.model, options))
        return joined if isinstance(outputs[0], Tensor) else type(outputs[0])(sequences=joined)

    def forward(self, part: Any) -> Any:
        if isinstance(part, Mapping):
            # A cache of keys and values that is not read only costs memory.
            quiet = {} if "use_cache" in part or not hasattr(getattr(self.model, "config", None), "use_cache") else {"use_cache": False}
            return self.model(**part, **quiet)
        return self.model(*part) if isinstance(part, (tuple, list)) else self.model(part)

    def generate_part(self, part: Any, options: dict[str, Any]) -> Any:
        options = {**self._cache_options(), **options}
        if isinstance(part, Mapping):
            return self.model.generate(**part, **options)
        return self.model.generate(part, **options)

    def _cache_options(self) -> dict[str, Any]:
        if self.chosen.cache == "quantized":
            return {"cache_implementation": "quantized", "cache_config": {"backend": "hqq", "nbits": 8}}
        return {"cache_implementation": self.chosen.cache} if self.chosen.cache else {}

    def in_parts(self, batch: Any, run: Callable[[Any], Any], *, generating: bool = False, only: int | None = None) -> tuple[list[Any], list[int]]:
        count = samples(batch)
        outputs: list[Any] = []
        sizes: list[int] = []
        start = 0
        while start < count and (only is None or len(outputs) < only):
            stop = min(count, start + (self.chosen.size or count))
            error = None
            try:
                with torch.inference_mode():
                    output = run(moved(take(batch, start, stop), self.device))
                    outputs.append(output if self.to is None else moved_to(output, self.to))
                    del output
                sizes.append(stop - start)
                start = stop
            except Exception as raised:
                if not is_out_of_memory(raised):
                    raise
                release(raised)  # Its frames hold what the pass had made.
                error = raised
            if error is not None:
                self._step_down(error, stop - start, generating)
                error = None
        if self.stream is not None:
            self.stream.rest()  # The first block is there already, for a pass that does not come.
        return outputs, sizes

    def _step_down(self, error: Exception, size: int, generating: bool) -> None:
        plan = self.chosen.one_rung_down(size, generating, self.blocks)
        if self.stream is not None:
            self.stream.rest()
        if plan is None:
            raise error
        release_memory(self.device)
        self.chosen = plan
        if plan.streamed and self.stream is None:
            self._do(next(one for one in TECHNIQUES if one.name == "streamed"))
        elif self.stream is not None:
            self.stream.stream(plan.streamed)
        self.history.append(f"memory ran out; now: {plan.words(self.count, self.blocks)}")

    def _joined(self, join_here: Callable[[], Any], join_on_host: Callable[[], Any]) -> Any:
        try:
            return join_here()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            release(error)
        self.history.append("memory ran out for the joined outputs; they are in host memory")
        return join_on_host()


def _moving(model: nn.Module, device: torch.device) -> Callable[[], None]:
    origins = [(tensor, tensor.device) for tensor in [*model.parameters(), *model.buffers()]]

    def move(places: Iterable[tuple[Tensor, torch.device]]) -> None:
        for tensor, place in places:
            if tensor.device != place:
                tensor.data = tensor.data.to(place)

    def back() -> None:
        move(origins)

    try:
        move((tensor, device) for tensor, _ in origins)
    except BaseException:
        back()
        raise
    return back


def _pad_token(model: nn.Module, options: Mapping[str, Any]) -> int:
    config = getattr(model, "generation_config", None)
    for name in ("pad_token_id", "eos_token_id"):
        found = options.get(name, getattr(config, name, None))
        if found is not None:
            return int(found[0] if isinstance(found, (list, tuple)) else found)
    return 0
