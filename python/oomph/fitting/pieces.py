"""The plain tensors that a tensor is made of: those are what takes memory.

Quantised weights are tensors of other classes. Some wrap tensors and have no memory of their own (torchao); others are tensors with more of them
among their attributes (bitsandbytes). Nothing is known here of what the pieces mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# How far the attributes of objects among a tensor's attributes are looked into: bitsandbytes has scales of scales.
_DEPTH = 6


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is PyTorch's own tensor, parameter or buffer."""
    kind = type(tensor)
    return kind in (torch.Tensor, torch.nn.Parameter) or (kind.__name__ == "Buffer" and kind.__module__.startswith("torch."))


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether it only wraps other tensors, and says which: its own storage has no bytes."""
    return hasattr(tensor, "__tensor_flatten__") and hasattr(type(tensor), "__tensor_unflatten__")


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that hold the bytes of a tensor. Some may share a storage, and one may come twice."""
    if is_plain(tensor):
        yield tensor
    elif is_wrapper(tensor):
        yield from _inside([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]], _DEPTH)
    else:
        yield plain(tensor)
        yield from _inside(vars(tensor), _DEPTH)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain tensor, without the class around it."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor._make_subclass(torch.Tensor, tensor.detach())


def _inside(thing: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield from pieces(thing)
    elif depth == 0 or isinstance(thing, (torch.nn.Module, type)):
        return
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from _inside(value, depth - 1)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from _inside(value, depth - 1)
    elif hasattr(thing, "__dict__") and not callable(thing):
        yield from _inside(vars(thing), depth - 1)
