"""Trials that the GPU has no room for: what their forward passes save for gradients goes to host memory instead. Slow, and of no matter for a trial of two samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from oomph.live.out_of_memory import is_out_of_memory

T = TypeVar("T")


def with_room(trial: Callable[[], T]) -> T:
    """What the trial returns. Where it runs out of memory it is run a second time, with what it saves in host memory: it must be able to begin anew."""
    try:
        return trial()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # Without the frames of the attempt, which hold its tensors.
        first = error.with_traceback(None)
    torch.cuda.empty_cache()
    try:
        with torch.autograd.graph.saved_tensors_hooks(_to_host, _back):
            return trial()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Something in it allows no hooks (torch.func): that is not why it failed.
        raise first from error


def _to_host(tensor: torch.Tensor) -> Any:
    whole = tensor if tensor._base is None else tensor._base
    # Parameters are there anyway.
    if not tensor.is_cuda or tensor.layout != torch.strided or isinstance(whole, nn.Parameter):
        return tensor
    return tensor.device, tensor.cpu()


def _back(saved: Any) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    device, tensor = saved
    there: torch.Tensor = tensor.to(device)
    return there
