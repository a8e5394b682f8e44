"""The model shared out over the ranks (FSDP2). It is sharded once, before any step (``running.sharded``), and stays so; a plan says how, and here is what two plans may differ in."""

from __future__ import annotations

from typing import Any

from oomph.fitting.techniques.technique import BLOCKS, Technique
from oomph.sharding.state import is_sharded, reshard_after_forward

# Whole on each rank; as the program has sharded it; and then from what talks least to what takes least.
WHOLE, GIVEN, KEPT, RESHARDED, MACHINES_KEPT, MACHINES, HOST = "", "given", "kept", "resharded", "machines-kept", "machines", "host"

_WORDS = {
    GIVEN: "sharded as it is",
    KEPT: "sharded over the ranks, blocks gathered once a step",
    RESHARDED: "sharded over the ranks, blocks gathered again in the backward pass",
    MACHINES_KEPT: "sharded within each machine, blocks gathered once a step",
    MACHINES: "sharded within each machine, blocks gathered again in the backward pass",
    HOST: "sharded over the ranks, parts in host memory",
}
SHARDINGS = tuple(_WORDS)
# Those that differ in nothing but what is kept between the passes: from one to the other without sharding anew.
_GATHERED_AGAIN = {KEPT: RESHARDED, MACHINES_KEPT: MACHINES}


def gathered_again(sharding: str) -> str:
    """The same, in less memory."""
    return _GATHERED_AGAIN.get(sharding, sharding)


def keeps(sharding: str) -> bool:
    return sharding in _GATHERED_AGAIN


def same_parts(one: str, other: str) -> bool:
    return gathered_again(one) == gathered_again(other)


class _Gathering:
    """What is kept between the passes. There is nothing to undo: the next plan says it again."""

    def __init__(self, model: Any, sharding: str) -> None:
        if sharding != GIVEN and is_sharded(model):
            reshard_after_forward(model, not keeps(sharding))

    def undo(self) -> None:
        pass


SHARDED = Technique(
    "shard",
    lambda sharding, *_: _WORDS.get(sharding, sharding),
    "same numbers; ranks send parameters to each other",
    apply=lambda step: _Gathering(step.model, step.plan.shard),
    stage=BLOCKS,
    is_new=lambda before, after: bool(before != after and after),
)
