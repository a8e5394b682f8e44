"""An optimizer that was made before its model was sharded: it gets the new parameters in place of the old, and its state is sharded as they are.

In place: schedulers, scalers and whoever else holds the optimizer go on with it.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import torch


def shard_optimizer(optimizer: torch.optim.Optimizer, replaced: Mapping[Any, Any]) -> None:
    """``replaced`` says what each parameter has become (`blocks.Sharded`); others stay as they are."""
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]
    state: Any = collections.defaultdict(dict)
    # The whole goes as its part is made: both are never there for more than one parameter.
    before = dict(optimizer.state)
    optimizer.state.clear()
    while before:
        parameter = next(iter(before))
        values = before.pop(parameter)
        becomes = replaced.get(parameter, parameter)
        for name in list(values):
            values[name] = _as_its_parameter(values[name], parameter, becomes)
        state[becomes] = values
    optimizer.state = state


def _as_its_parameter(value: Any, parameter: torch.Tensor, becomes: Any) -> Any:
    """Of a parameter's shape it is sharded like it; steps and other scalars are for all."""
    if parameter is becomes or not isinstance(value, torch.Tensor) or value.shape != parameter.shape or value.ndim == 0:
        return value
    return part_of(value, becomes)


def part_of(whole: torch.Tensor, like: Any) -> Any:
    """This rank's part of a tensor that all have whole, as ``like`` (a DTensor) is sharded. Nothing is sent."""
    from torch.distributed.tensor import DTensor, Shard

    mesh, local = like.device_mesh, whole
    for place, placement in enumerate(like.placements):
        if isinstance(placement, Shard):
            dim, length = placement.dim, local.shape[placement.dim]
            each = -(-length // mesh.size(place))
            start = min(mesh.get_local_rank(place) * each, length)
            local = local.narrow(dim, start, min(each, length - start))
    # A copy: a view would keep the whole.
    kept = local.detach().to(like.to_local().device, copy=True).contiguous()
    return DTensor.from_local(kept, mesh, like.placements, run_check=False, shape=whole.shape, stride=like.stride())
