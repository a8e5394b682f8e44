"""What is sharded by FSDP2, seen from outside: which modules, how they talk, what they hold, and how a step that failed in the middle is forgotten.

Of the insides of PyTorch's FSDP2, this module alone knows anything.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch
from torch import nn


def fsdp_modules(model: nn.Module) -> list[Any]:
    """Those that ``fully_shard`` was called on, from the outside in; none where the model is whole."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:
        return []
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def is_sharded(model: nn.Module) -> bool:
    return bool(fsdp_modules(model))


def roots(model: nn.Module) -> list[Any]:
    """The outermost of them: one, where the model itself was sharded."""
    found = fsdp_modules(model)
    inside = {id(inner) for module in found for inner in module.modules() if inner is not module}
    return [module for module in found if id(module) not in inside]


def state_of(module: Any) -> Any:
    return module._get_fsdp_state()


def device_of(model: nn.Module) -> torch.device | None:
    """Where it runs, which is not where its parts wait if they are offloaded; None where it is whole."""
    return next((torch.device(state_of(module)._device) for module in fsdp_modules(model)), None)


def groups_of(module: Any) -> list[Any]:
    """The groups of parameters that talk together: one for each module in most versions of PyTorch."""
    state = state_of(module)
    several = getattr(state, "_fsdp_param_groups", None)
    one = several if several is not None else [state._fsdp_param_group]
    return [group for group in one if group is not None]


def is_sharded_parameter(parameter: Any) -> bool:
    return hasattr(parameter, "device_mesh") and hasattr(parameter, "placements")


def synchronize(model: nn.Module, now: bool) -> None:
    """Whether the next backward pass sums gradients over ranks; until then each rank keeps its own, whole."""
    for root in roots(model):
        root.set_requires_gradient_sync(now)


def whole_gradients(model: nn.Module) -> list[Any]:
    """What backward passes without `synchronize` have left: things with a ``grad``, as parameters have one."""
    found = []
    for module in fsdp_modules(model):
        for group in groups_of(module):
            for one in group.fsdp_params:
                gathered = getattr(one, "unsharded_accumulated_grad", None)
                if gathered is None:
                    gathered = getattr(getattr(one, "_unsharded_param", None), "grad", None)
                if gathered is not None:
                    found.append(types.SimpleNamespace(grad=gathered))
    return found


def reshard_after_forward(model: nn.Module, reshard: bool) -> None:
    """Of the blocks; the outermost keep what they have until the backward pass, which needs it first."""
    outermost = roots(model)
    for module in fsdp_modules(model):
        if not any(module is root for root in outermost):
            module.set_reshard_after_forward(reshard, recurse=False)


def reshard(model: nn.Module) -> None:
    """After a forward pass that no backward pass follows."""
    for module in fsdp_modules(model):
        module.reshard()


def forget_step(model: nn.Module) -> None:
    """After a forward or a backward pass that failed in the middle: its gradients are lost, and the next forward pass begins anew."""
    for root in roots(model):
        with contextlib.suppress(AttributeError):
            # The version's own way also waits for what is under way.
            state_of(root)._reset_iter_state()
    for module in fsdp_modules(model):
        _forget(state_of(module))
        for group in groups_of(module):
            _forget_group(group)


def _forget(state: Any) -> None:
    state._training_state = type(state._training_state).IDLE
    _clear(state, "_modules_to_run_forward")
    context, talk = state._state_ctx, state._comm_ctx
    context.iter_forward_root, context.post_backward_final_callback_queued, context.is_last_backward = None, False, True
    _clear(talk, "post_forward_order")
    for name in ("all_gather_state", "reduce_scatter_state"):
        if getattr(talk, name, None) is not None:
            # Whoever waited for it waits no more; what it holds may be freed only once it is done.
            _wait(getattr(talk, name).event)
            setattr(talk, name, None)


def _forget_group(group: Any) -> None:
    result = group._all_gather_result
    if result is not None:
        _wait(result.all_gather_event)
        if isinstance(result.all_gather_work, torch.distributed.Work):
            result.all_gather_work.wait()
        group._all_gather_result = None
    for name in ("_post_reduce_event", "_reshard_after_forward_event"):
        _wait(getattr(group, name, None))
        setattr(group, name, None)
    held = getattr(group, "_all_reduce_state", None)
    if held is not None:
        _wait(held.event)
        group._all_reduce_state = None
    group._partial_reduce_output = None
    _clear(group, "_post_forward_indices")
    group._training_state = type(group._training_state).IDLE
    for one in group.fsdp_params:
        if getattr(one, "unsharded_accumulated_grad", None) is not None:
            one.unsharded_accumulated_grad = None
        if getattr(one, "_unsharded_param", None) is not None:
            one._unsharded_param.grad = None
        one.sharded_param.grad = None
    group._to_sharded()


def _clear(holder: Any, name: str) -> None:
    if getattr(holder, name, None):
        getattr(holder, name).clear()


def _wait(event: Any) -> None:
    if event is not None and hasattr(event, "synchronize"):
        event.synchronize()
