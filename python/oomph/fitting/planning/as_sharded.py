"""A model that the program has sharded by ``fully_shard``, on its way to the child: it travels whole and plain, with what was asked of FSDP2, and is sharded again there in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from oomph.fitting.errors import FitError
from oomph.sharding.blocks import places_of_parameters
from oomph.sharding.optimizers import shard_optimizer
from oomph.sharding.state import fsdp_modules, groups_of, is_sharded_parameter, reshard, state_of

# Where modules keep hooks; FSDP2 has some in all of them.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
# What says more of a hook, by its number.
_OF_HOOKS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
_MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
_FSDP = "torch.distributed.fsdp"


@dataclass(frozen=True)
class _Call:
    """One call of ``fully_shard``."""

    names: tuple[str, ...]
    mesh: tuple[int, ...]
    dimensions: tuple[str, ...] | None
    reshards: bool
    precision: Any
    offload: Any


class AsSharded:
    """What was asked of FSDP2, of the inner modules first."""

    def __init__(self, calls: list[_Call]) -> None:
        self.calls = calls

    @classmethod
    def of(cls, model: nn.Module) -> AsSharded:
        reshard(model)
        named = {id(module): name for name, module in model.named_modules()}
        seen: dict[int, _Call] = {}
        for module in fsdp_modules(model):
            state = state_of(module)
            groups = groups_of(module)
            if len(groups) > 1 or any(placement.is_shard() and placement.dim for group in groups for one in group.fsdp_params for placement in one.sharded_param.placements):
                raise FitError(
                    "the model is sharded along other dimensions than the first, or in several groups a module: oomph.fit cannot plan for that. oomph predict --ranks runs it as it is"
                )
            mesh = _mesh_of(module)
            names = tuple(named[id(one)] for one in state._modules)
            reshards = any(group.post_forward_mesh_info is not None for group in groups)
            offload = groups[0].offload_policy if groups else None
            seen.setdefault(id(state), _Call(names, tuple(mesh.shape), mesh.mesh_dim_names, reshards, state._mp_policy, offload))
        return cls(list(seen.values())[::-1])

    @property
    def mesh(self) -> list[int]:
        return list(self.calls[-1].mesh)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import OffloadPolicy, fully_shard

        before = places_of_parameters(model)
        meshes: dict[Any, Any] = {}
        for call in self.calls:
            key = (call.mesh, call.dimensions)
            if key not in meshes:
                meshes[key] = init_device_mesh("cuda", call.mesh, mesh_dim_names=call.dimensions)
            modules: Any = [model.get_submodule(name) for name in call.names]
            settings = {"mesh": meshes[key], "reshard_after_forward": call.reshards, "mp_policy": call.precision, "offload_policy": call.offload or OffloadPolicy()}
            fully_shard(modules[0] if len(modules) == 1 else modules, **settings)
        shard_optimizer(optimizer, {parameter: module._parameters[name] for (module, name), parameter in before})


def _mesh_of(module: nn.Module) -> Any:
    """That of its own parameters, or of what is inside it."""
    return next(parameter.device_mesh for parameter in module.parameters() if is_sharded_parameter(parameter))


def plain_class(module: nn.Module) -> type:
    """What its class was before."""
    kind = type(module)
    return kind.__mro__[2] if kind.__module__.startswith(_FSDP) else kind


def plain_state(module: nn.Module) -> dict[str, Any]:
    """What the module holds, without what FSDP2 has put there."""
    state = {name: value for name, value in vars(module).items() if name not in _MARKS and not name.startswith("__composable_api_state_key")}
    gone: set[int] = set()
    for name in _HOOKS:
        hooks = state.get(name)
        if hooks:
            gone.update(number for number, hook in hooks.items() if _is_fsdp2(hook))
            state[name] = type(hooks)((number, hook) for number, hook in hooks.items() if not _is_fsdp2(hook))
    for name in _OF_HOOKS:
        if state.get(name):
            state[name] = type(state[name])((number, said) for number, said in state[name].items() if number not in gone)
    return state


def _is_fsdp2(hook: Any) -> bool:
    return any(str(getattr(one, "__module__", "")).startswith(_FSDP) for one in _inside(hook))


def _inside(hook: Any) -> Iterator[Any]:
    while hook is not None:
        yield hook
        hook = getattr(hook, "hook", None) or getattr(hook, "func", None) or getattr(hook, "__func__", None)
