"""Sharding a model over ranks by PyTorch's FSDP2: ``blocks`` wraps the model, ``optimizers`` gives an optimizer that was made before the new parameters. Nothing here is imported before it is asked for."""

from oomph.sharding.blocks import Sharded, shard, why_not
from oomph.sharding.optimizers import shard_optimizer

__all__ = ["Sharded", "shard", "shard_optimizer", "why_not"]
