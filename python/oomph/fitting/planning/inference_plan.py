"""What is done to a model so that its forward passes fit: plain data, the same in the child that predicts it and in the process that applies it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from oomph.fitting.techniques.inference import TECHNIQUES


@dataclass(frozen=True)
class InferencePlan:
    """One way to run the model. The default is all samples at once, with everything on the GPU."""

    #: Samples in a part; 0 is all at once.
    size: int = 0
    #: What transformers calls the implementation of the cache: None is its own choice, "offloaded" waits in host memory.
    cache: str | None = None
    #: Blocks whose weights wait in host memory until they are needed.
    streamed: int = 0
    bf16_weights: bool = False
    #: Bits of weights, 0 is as they are.
    bits: int = 0
    #: Two of every four weights are dropped.
    pruned: bool = False

    def but(self, **changes: Any) -> InferencePlan:
        return dataclasses.replace(self, **changes)

    def words(self, count: int, blocks: int) -> str:
        parts = -(-count // self.size) if self.size else 1
        said = [f"{count} samples in {parts} parts of {self.size}" if parts > 1 else f"all {count} samples at once"]
        plain = InferencePlan()
        said += [one.words(value, count, blocks) for one in TECHNIQUES if one.is_new(getattr(plain, one.name), value := getattr(self, one.name))]
        return ", ".join(said)

    def one_rung_down(self, size: int, generating: bool, blocks: int) -> InferencePlan | None:
        """What needs less than this, after a part of so many samples ran out of memory: smaller parts, then the cache in host memory, then weights."""
        if size > 1:
            return self.but(size=-(-size // 2))
        if generating and self.cache is None:
            return self.but(cache="offloaded", size=1)
        if self.streamed < blocks and not self.bits and not self.pruned:
            return self.but(streamed=min(blocks, max(1, self.streamed * 2)), size=1)
        return None
