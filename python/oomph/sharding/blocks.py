"""Wraps the repeated blocks of a model, and then the model itself, by FSDP2 (``torch.distributed.fsdp.fully_shard``).

Each rank keeps its part of every parameter, and a block's parameters are gathered while it runs. What becomes of an optimizer that was made before is for ``optimizers``; whether
it pays, and how, is for those who plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from oomph.fitting.errors import FitError
from oomph.fitting.techniques.blocks import find_blocks


@dataclass
class Sharded:
    """A model after `shard`."""

    model: nn.Module
    mesh: Any
    #: The names of the blocks that were wrapped by themselves; the rest is with the root.
    blocks: tuple[str, ...]
    #: What each parameter from before has become.
    replaced: dict[nn.Parameter, nn.Parameter] = field(default_factory=dict)


def shard(model: nn.Module, mesh: Any = None, *, reshard_after_forward: bool = True, offload: bool = False, precision: str | None = None) -> Sharded:
    """Shards a model that is whole on every rank, on the CPU, on the GPU, or on the meta device, where it is.

    ``mesh`` is one of the world by default; one of two dimensions shards along the second and replicates along the first (HSDP). ``reshard_after_forward=False`` keeps the parameters of
    blocks gathered from the forward pass to the backward pass. ``offload=True`` keeps the parts, their gradients and the optimizer's state in host memory. ``precision="bfloat16"`` computes in
    that type and reduces gradients in float32. Blocks that share a parameter with something outside are left to the root, so that tied weights stay one.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    if (why := why_not(model)) is not None:
        raise FitError(f"the model cannot be sharded: {why}")
    mesh = whole_mesh(model) if mesh is None else mesh
    if mesh.ndim not in (1, 2):
        raise FitError(f"a mesh of {mesh.ndim} dimensions: sharding takes one (FSDP) or two (HSDP: replicas, then parts)")
    settings: dict[str, Any] = {"mesh": mesh}
    if offload:
        # Pinned, copies run beside the work; where there is no CUDA, nothing can be pinned.
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    if precision is not None:
        settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=getattr(torch, precision), reduce_dtype=torch.float32)
    before = places_of_parameters(model)
    blocks = blocks_to_wrap(model)
    for name in blocks:
        fully_shard(model.get_submodule(name), reshard_after_forward=reshard_after_forward, **settings)
    # The root is needed first in the backward pass: what it has is kept from its forward pass.
    fully_shard(model, reshard_after_forward=False, **settings)
    return Sharded(model, mesh, blocks, {parameter: module._parameters[name] for (module, name), parameter in before})


def places_of_parameters(model: nn.Module) -> list[tuple[tuple[nn.Module, str], nn.Parameter]]:
    """Where each parameter is; one that is shared, as often as it is there."""
    return [((module, name), parameter) for module in model.modules() for name, parameter in module._parameters.items() if parameter is not None]


def whole_mesh(model: nn.Module) -> Any:
    """All ranks in a row."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type(model), (dist.get_world_size(),), mesh_dim_names=("shard",))


def machines_mesh(model: nn.Module, per_machine: int) -> Any:
    """Replicas on each machine, parts within it (HSDP)."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    machines = dist.get_world_size() // per_machine
    return init_device_mesh(device_type(model), (machines, per_machine), mesh_dim_names=("replicate", "shard"))


def device_type(model: nn.Module) -> str:
    """Where it will run: on the GPU where ranks talk by NCCL, wherever the model is now."""
    first = next(model.parameters(), None)
    if first is not None and first.device.type not in ("cpu", "meta"):
        return first.device.type
    return "cuda" if torch.cuda.is_available() and talk_by_nccl() else "cpu"


def talk_by_nccl() -> bool:
    """Whether ranks do on GPUs. The backend of a group that was made without one being named is "undefined", and NCCL all the same."""
    import torch.distributed as dist

    return "nccl" in str(dist.get_backend_config())


def blocks_to_wrap(model: nn.Module) -> tuple[str, ...]:
    """The model's blocks, but for those that share a parameter with something outside of them: in two groups it would be two parameters."""
    everywhere = Counter(parameter for _, parameter in places_of_parameters(model))
    chosen = []
    for name in find_blocks(model):
        block = model.get_submodule(name)
        inside = Counter(parameter for _, parameter in places_of_parameters(block))
        if inside and all(inside[parameter] == everywhere[parameter] for parameter in inside):
            chosen.append(name)
    return tuple(chosen)


def why_not(model: nn.Module) -> str | None:
    """Why FSDP2 does not take this model, in words; None if it does."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        return f"PyTorch {torch.__version__} has no torch.distributed.fsdp.fully_shard (2.6 and later have)"
    parameters = dict(model.named_parameters())
    if not parameters:
        return "it has no parameters"
    for name, parameter in parameters.items():
        if type(parameter) is not nn.Parameter:
            return f"its parameter {name} is a {type(parameter).__name__}, not a plain parameter"
        if parameter.ndim == 0:
            return f"its parameter {name} is a scalar: make it a tensor of one element"
    trained = {parameter.dtype for parameter in parameters.values() if parameter.requires_grad}
    if len(trained) > 1:
        return f"its trained parameters have several types ({', '.join(sorted(str(one).removeprefix('torch.') for one in trained))}), and FSDP reduces gradients of one"
    return None
