"""The techniques of ``oomph.fit``: one line for each, in the order in which they are counted and listed."""

from __future__ import annotations

from oomph.fitting.losses.cross_entropy import DEFER_LOGITS
from oomph.fitting.techniques.activations import OFFLOADED_ACTIVATIONS
from oomph.fitting.techniques.allocator import EXPANDABLE
from oomph.fitting.techniques.autocast import AUTOCAST
from oomph.fitting.techniques.checkpoints import CHECKPOINTED_BLOCKS
from oomph.fitting.techniques.compiled import ACTIVATION_BUDGET
from oomph.fitting.techniques.grouped_queries import GROUPED_QUERIES
from oomph.fitting.techniques.liger import LIGER
from oomph.fitting.techniques.optimizers import FUSED, OPTIMIZER_8BIT, RELEASE, STATES_ON_HOST
from oomph.fitting.techniques.parts import PARTS
from oomph.fitting.techniques.selective import LEAN_BLOCKS, SELECTIVE_BLOCKS
from oomph.fitting.techniques.sharding import SHARDED
from oomph.fitting.techniques.technique import Technique
from oomph.fitting.techniques.tiles import IN_TILES
from oomph.fitting.techniques.weights import BF16_WEIGHTS

TECHNIQUES: tuple[Technique, ...] = (
    SHARDED,
    FUSED,
    OPTIMIZER_8BIT,
    DEFER_LOGITS,
    GROUPED_QUERIES,
    EXPANDABLE,
    LIGER,
    AUTOCAST,
    BF16_WEIGHTS,
    RELEASE,
    ACTIVATION_BUDGET,
    PARTS,
    SELECTIVE_BLOCKS,
    LEAN_BLOCKS,
    CHECKPOINTED_BLOCKS,
    IN_TILES,
    OFFLOADED_ACTIVATIONS,
    STATES_ON_HOST,
)

# What may change the numbers, and therefore is done only if it is named in ``allow``, in the order in which it is tried.
ALLOWABLE = tuple(sorted((one for one in TECHNIQUES if one.allow is not None), key=lambda one: one.turn))
ALLOWED = {one.allow: one.allowed for one in ALLOWABLE if one.allow is not None}
