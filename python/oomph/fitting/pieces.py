"""The plain tensors that a tensor is made of: those are what takes memory.

Quantised weights are tensors of other classes. Some wrap tensors and have no memory of their own (torchao); others are tensors with more of them
among their attributes (bitsandbytes). Nothing is known here of what the pieces mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

# How far the attributes of objects among a tensor's attributes are looked into: bitsandbytes has scales of scales.
_DEPTH = 5


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is PyTorch's own tensor, parameter or buffer."""
    kind = type(tensor)
    return kind in (torch.Tensor, torch.nn.Parameter) or (kind.__name__ == "Buffer" and kind.__module__.startswith("torch."))


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether it only wraps other tensors, and says which: its own storage has no bytes."""
    return hasattr(tensor, "__tensor_flatten__") and hasattr(type(tensor), "__tensor_unflatten__")


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that hold the bytes of a tensor. Some may share a storage."""
    yield from _inside(tensor, _DEPTH, set())


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain tensor, without the class around it."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor._make_subclass(torch.Tensor, tensor.detach())


def _inside(thing: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    # Attributes may refer back to the tensor that they are of.
    if depth == 0 or id(thing) in seen or isinstance(thing, (torch.nn.Module, type)):
        return
    seen.add(id(thing))
    inner: Iterable[Any] = ()
    if isinstance(thing, torch.Tensor):
        if is_wrapper(thing):
            inner = [getattr(thing, name) for name in thing.__tensor_flatten__()[0]]
        elif is_plain(thing):
            yield thing
        else:
            yield plain(thing)
            inner = vars(thing).values()
    elif isinstance(thing, dict):
        inner = thing.values()
    elif isinstance(thing, (list, tuple)):
        inner = thing
    elif hasattr(thing, "__dict__") and not callable(thing):
        inner = vars(thing).values()
    for each in inner:
        yield from _inside(each, depth - 1, seen)
