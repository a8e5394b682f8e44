"""What is done to a model so that its forward passes fit: plain data, the same in the child that predicts it and in the process that applies it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

# What may change the numbers, and therefore is done only if it is named in ``allow``.
ALLOWED = {
    "bf16-weights": "weights in bfloat16",
    "8bit-weights": "weights of linear layers in 8 bits",
    "4bit-weights": "weights of linear layers in 4 bits",
    "8bit-cache": "the cache of keys and values in 8 bits (needs hqq)",
    "pruning": "two of every four weights of linear layers dropped (fp16 or bf16, compute capability 8.0 or newer)",
}


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
        if self.bf16_weights:
            said.append("weights in bfloat16 (allowed)")
        if self.bits:
            said.append(f"weights in {self.bits} bits (allowed)")
        if self.pruned:
            said.append("two of every four weights dropped (allowed)")
        if self.cache:
            said.append("the cache in host memory" if self.cache == "offloaded" else "the cache in 8 bits (allowed)")
        if self.streamed:
            said.append(f"weights of {self.streamed} of {blocks} blocks in host memory")
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
