"""A model that is sharded over ranks, or is about to be: how it comes to be, and what a step must do for it besides.

Which way is taken is the plan's (``techniques.sharding``); what happens when a rank fails is ``agreeing``'s.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import torch
import torch.distributed as dist

from oomph._environment import on_virtual_gpu
from oomph.fitting.errors import FitError
from oomph.fitting.running import ranks
from oomph.fitting.techniques.sharding import GIVEN, HOST, MACHINES, MACHINES_KEPT, SHARDINGS, WHOLE, keeps
from oomph.sharding import blocks
from oomph.sharding.optimizers import shard_optimizer
from oomph.sharding.state import is_sharded, is_sharded_parameter


def refuse_what_cannot_be(model: torch.nn.Module, shard: Any, optimizer: torch.optim.Optimizer) -> None:
    """What is sharded in a way that plans cannot treat, and what is asked for that is no way."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise FitError(
            "the model is sharded by FullyShardedDataParallel (FSDP 1), whose parameters are flat pieces that cannot be planned for. Give oomph.fit the model itself with "
            'shard="auto", or shard it by torch.distributed.fsdp.fully_shard; oomph predict --ranks runs it as it is'
        )
    if shard is not None and shard != "auto" and not hasattr(shard, "mesh_dim_names"):
        raise FitError('shard= is "auto", or a torch.distributed DeviceMesh of one dimension (FSDP) or two (HSDP)')
    if not is_sharded(model):
        if any(is_sharded_parameter(parameter) for parameter in model.parameters()):
            raise FitError(
                "the model's parameters are DTensors that fully_shard has not made (tensor parallelism?): oomph.fit cannot plan for that. oomph predict --ranks runs it as it is"
            )
        return
    if any(not is_sharded_parameter(parameter) for parameter in model.parameters()):
        raise FitError("the model is sharded in part: call torch.distributed.fsdp.fully_shard on the model itself too, after its blocks")
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    for name, parameter in model.named_parameters():
        if parameter.device_mesh.size() != world:
            raise FitError(
                f"{name} is shared out among {parameter.device_mesh.size()} of {world} ranks: oomph.fit plans for models whose mesh has all ranks. oomph predict --ranks runs it as it is"
            )
        if (parts := getattr(parameter._spec, "shard_order", None)) and len({place.tensor_dim for place in parts}) > 1:
            raise FitError(f"{name} is shared out along several of its dimensions (tensor parallelism?): oomph.fit cannot plan for that. oomph predict --ranks runs it as it is")
    if not any(is_sharded_parameter(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        raise FitError("the optimizer was made before the model was sharded, and has other parameters: make it after fully_shard, or give oomph.fit both as they were before")


def why_not(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str | None:
    """Why these cannot be sharded, in words; None if they can."""
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
        return "the optimizer has parameters besides the model's, and PyTorch's optimizers do not take sharded ones and others together: give those a module of their own inside the model"
    return blocks.why_not(model)


def ways(shard: Any) -> list[str]:
    """Those that there are here, from what talks least."""
    if shard is None:
        return [WHOLE]
    if shard != "auto":
        return [WHOLE, *((MACHINES_KEPT, MACHINES) if shard.ndim == 2 else ("kept", "resharded")), HOST]
    several = [MACHINES_KEPT, MACHINES] if 1 < per_machine() < dist.get_world_size() else []
    return [WHOLE, *several, "kept", "resharded", HOST]


def per_machine() -> int:
    """Ranks on one machine: as torchrun says it, or all of them."""
    world = dist.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return local if 0 < local <= world and world % local == 0 else world


def apply_sharding(model: torch.nn.Module, optimizer: torch.optim.Optimizer, sharding: str, shard: Any) -> None:
    """Shards the model and its optimizer as a plan says; in the child that plans as in the process that trains."""
    if sharding in (WHOLE, GIVEN) or is_sharded(model):
        return
    if sharding not in SHARDINGS:
        raise FitError(f"a plan's shard is one of {', '.join(SHARDINGS)}, not {sharding}")
    if (why := why_not(model, optimizer)) is not None:
        raise FitError(f"the model cannot be sharded: {why}")
    mesh = shard if shard is not None and shard != "auto" else None
    if mesh is None and sharding in (MACHINES, MACHINES_KEPT):
        mesh = blocks.machines_mesh(model, per_machine())
    done = blocks.shard(model, mesh, reshard_after_forward=not keeps(sharding), offload=sharding == HOST)
    shard_optimizer(optimizer, done.replaced)


def take_the_weights_of_the_first(model: torch.nn.Module, device: torch.device) -> str | None:
    """Ranks that have made the model from other random numbers would train a mixture. What was done about it, in words; None where they have the same."""
    tensors = [*model.parameters(), *model.buffers()]
    if on_virtual_gpu() or any(tensor.is_meta for tensor in tensors):
        return None
    sums: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sums, [_sum_of(tensor) for tensor in tensors])
    if all(one == sums[0] for one in sums):
        return None
    if any(tensor.device.type != device.type for tensor in tensors):
        raise FitError(
            "the ranks have made models of different weights, and these wait on the CPU, from where they cannot be sent: seed all ranks alike (torch.manual_seed), or load the same weights"
        )
    for tensor in tensors:
        dist.broadcast(tensor.detach(), src=0)
    return "the ranks had made models of different weights: those of rank 0 are taken, as DistributedDataParallel takes them"


def _sum_of(tensor: torch.Tensor) -> tuple[float, float]:
    """Equal for equal tensors. What cannot be summed is taken to be the same."""
    try:
        plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        first = float(plain.flatten()[0]) if plain.numel() else 0.0
        # Not a number is equal to nothing, itself included.
        return (float(plain.sum(dtype=torch.float64).nan_to_num()), 0.0 if math.isnan(first) else first)
    except (RuntimeError, NotImplementedError, TypeError):
        return (0.0, 0.0)


def agree_on_parts(mine: int, samples: int, device: torch.device) -> int:
    """How many parts each rank cuts its batch into: as many as the one that needs most. Each part talks, so all must have as many."""
    if not ranks.several() or on_virtual_gpu():
        return mine
    most, fewest = ranks.highest([mine, -samples], device)
    fewest = -fewest
    if fewest < most:
        raise FitError(f"one rank cuts its batch into {most} parts, and another has a batch of {fewest}: ranks of a sharded model need batches of about the same size")
    return most


def device_to_train_on(model: torch.nn.Module, where: torch.device) -> torch.device:
    """Of a model that waits on the CPU, this rank's GPU, where ranks talk by NCCL."""
    if where.type == "meta":
        raise FitError("the model is on the meta device, without values: shard it by oomph.sharding.shard, load its weights, and give it to oomph.fit then")
    return torch.device("cuda", torch.cuda.current_device()) if where.type == "cpu" and blocks.device_type(model) == "cuda" else where


# What is sent once to know how fast: enough that the time to begin does not count.
_PROBE_BYTES = 16 << 20
# Bytes a second between ranks where nothing can be sent: those of a PCIe link.
_ASSUMED = 12e9


def speed_between(device: torch.device) -> float:
    """Bytes a second that a rank gets from the others, all at once."""
    if on_virtual_gpu() or device.type != "cuda":
        return _ASSUMED
    world = dist.get_world_size()
    mine = torch.empty(_PROBE_BYTES // world, dtype=torch.uint8, device=device)
    whole = torch.empty(mine.numel() * world, dtype=torch.uint8, device=device)
    seconds = 0.0
    for _ in range(2):
        # The first one connects.
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        dist.all_gather_into_tensor(whole, mine)
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begun
    # That of the slowest.
    return -1e6 * ranks.worst(-int(whole.numel() / max(seconds, 1e-9) / 1e6), device)
