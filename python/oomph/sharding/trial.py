"""A few steps of a model on one rank, shared in one way: what ``oomph.plan`` has run for each way, on virtual ranks.

Boundary: it trains as an ordinary script would, by PyTorch's own means; what that takes is seen from outside.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from oomph._plan import CHECKPOINTS, HOWS
from oomph.fitting.losses.loss_of import LossOf
from oomph.fitting.running.batches import moved
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.checkpoints import checkpoint_blocks
from oomph.sharding.blocks import machines_mesh, shard

# Optimizers make their state in the first step, DistributedDataParallel its buckets anew in the second.
STEPS = 3


def train(model_of: Callable[[], torch.nn.Module], optimizer_of: Callable[[Any], torch.optim.Optimizer], batch: Any, loss: Callable[..., Any] | None) -> None:
    """``--how`` and ``--checkpoint`` are arguments of the script that calls this, so that the command can choose."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=HOWS, default="replicate")
    parser.add_argument("--checkpoint", choices=CHECKPOINTS, default="none")
    asked = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    model = model_of()
    whole = model
    if asked.checkpoint == "blocks":
        checkpoint_blocks(whole, list(find_blocks(whole)))
    model = shared(model, asked.how, device)
    optimizer = optimizer_of(model.parameters())
    batch = moved(batch() if callable(batch) else batch, device)
    loss_of = LossOf(loss).settled(whole, batch)
    for _ in range(STEPS):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def shared(model: torch.nn.Module, how: str, device: torch.device) -> torch.nn.Module:
    """The model among the ranks, on the GPU. One on the meta device gets memory without values: they would change nothing."""
    if how == "replicate":
        model = _on(model, device)
        return torch.nn.parallel.DistributedDataParallel(model) if dist.get_world_size() > 1 else model
    mesh = None
    if how == "hybrid":
        machine = int(os.environ["LOCAL_WORLD_SIZE"])
        if machine in (1, dist.get_world_size()):
            raise ValueError(f"hybrid shares within machines of several ranks, of which there must be several: here one has {machine} of {dist.get_world_size()}")
        mesh = machines_mesh(model, machine)
    sharded = shard(model, mesh, reshard_after_forward=how != "shard-kept", offload=how == "shard-offload")
    # Of what is offloaded, the parts stay in host memory, and buffers are needed on the card.
    if how != "shard-offload":
        return _on(sharded.model, device)
    _on(sharded.model, torch.device("cpu"))
    for module in sharded.model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, buffer.to(device), persistent=name not in module._non_persistent_buffers_set)
    return sharded.model


def _on(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    if any(parameter.is_meta for parameter in model.parameters()):
        return model.to_empty(device=device)
    return model.to(device)
