"""Which plan for inference, inside the child on the virtual GPU: candidates in order of what they change, each run, the first that fits."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from oomph._sizes import text
from oomph.fitting.planning.card import bytes_on
from oomph.fitting.planning.inference_plan import InferencePlan
from oomph.fitting.planning.plan import Measured
from oomph.fitting.planning.search import Tried
from oomph.fitting.running.batches import samples
from oomph.fitting.running.inference import FitInference
from oomph.fitting.techniques import optimizers
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.inference import TECHNIQUES
from oomph.fitting.techniques.technique import Technique


def plan_in_child(things: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """In the child: the first of the candidates that fits, cheapest first."""
    optimizers.copies_are_real = False
    return _Search(things, options).run()


class _Search:
    """Bases from what changes least to what changes most; of the first that fits, the largest parts; then weights that travel, as few as will do."""

    def __init__(self, things: dict[str, Any], options: dict[str, Any]) -> None:
        self.model, self.batch, self.generate, self.to = things["model"], things["batch"], things["generate"], things["to"]
        self.allow = options["allow"]
        self.progress = options["progress"]
        self.count, self.blocks = samples(self.batch), len(find_blocks(self.model))
        self.tried: Tried[InferencePlan] = Tried(self.measure, options["limit"], options["host"])
        #: What pruning saved, by plan.
        self.saved: dict[InferencePlan, int] = {}
        self.notes: list[str] = []

    def run(self) -> dict[str, Any]:
        chosen = self.choose()
        least = min(self.tried.seen.values(), key=lambda one: one.reserved)
        answer = {"chosen": chosen and dataclasses.asdict(chosen), "least": dataclasses.asdict(least.plan), "tried": len(self.tried.seen)}
        if chosen in self.saved:
            self.notes.append(f"pruning saves {text(self.saved[chosen])} of weights, and changes results")
        return {**answer, "reserved": self.tried.measure(chosen or least.plan).reserved, "blocks": self.blocks, "notes": self.notes}

    def choose(self) -> InferencePlan | None:
        bases = self.tried.bases(InferencePlan(), filter(self.may, TECHNIQUES), "bfloat16")
        for base in bases:
            size = self.largest_size(base)
            if size is not None:
                return base.but(size=size)
        base = bases[-1].but(bits=0, pruned=False, streamed=self.blocks)
        if not self.blocks or (size := self.largest_size(base)) is None:
            return None
        # The fewer travel, the faster.
        counts = range(1, self.blocks + 1)
        return base.but(size=size, streamed=counts[self.tried.first(counts, lambda count: base.but(size=size, streamed=count))])

    def may(self, technique: Technique) -> bool:
        """Whether it may be done, and does something here."""
        if technique.allow is not None and technique.allow not in self.allow:
            return False
        why_not = technique.why_not(self)
        if why_not:
            self.notes.append(why_not)
        return why_not is None

    def largest_size(self, base: InferencePlan) -> int | None:
        sizes = list(dict.fromkeys([0, *(-(-self.count // (1 << power)) for power in range(1, self.count.bit_length() + 1))]))
        index = self.tried.first(sizes, lambda size: base.but(size=size))
        return sizes[index] if index < len(sizes) else None

    def measure(self, plan: InferencePlan) -> Measured[InferencePlan]:
        """What PyTorch reserves at most, in two parts and with the outputs of all."""
        device = torch.device("cuda", torch.cuda.current_device())
        fitted = FitInference(self.model, device, plan, self.count, self.to)
        try:
            host = fitted.stream.bytes_on_host if fitted.stream is not None else 0
            if fitted.pruning is not None:
                self.saved[plan] = fitted.pruning.saved
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            run = fitted.forward if self.generate is None else lambda part: fitted.generate_part(part, _to_the_end(self.generate))
            outputs, sizes = fitted.in_parts(self.batch, run, only=2)
            stats = torch.cuda.memory_stats()
            peak = stats["reserved_bytes.all.peak"]
            if self.to is None:
                # Outputs of the other parts are there too, and once more, in one piece, when they are joined.
                each = bytes_on(device, outputs[0]) if isinstance(outputs[0], (Tensor, Mapping, tuple, list)) else 0
                parts = -(-self.count // (plan.size or self.count))
                peak += each * (max(0, parts - 2) + (parts if parts > 1 else 0))
            del outputs, sizes
        finally:
            fitted.close()
        with open(self.progress, "a") as file:
            file.write(".")
        return Measured(plan, stats["allocated_bytes.all.peak"], peak, seconds=0.0, host=host)


def _to_the_end(generate: dict[str, Any]) -> dict[str, Any]:
    """Values are not true on the virtual GPU: no sequence may end by chance before it is as long as it can be."""
    return {**generate, **({"min_new_tokens": generate["max_new_tokens"]} if "max_new_tokens" in generate else {})}
