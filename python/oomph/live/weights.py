"""Which weights are frozen, and which are adapters: those that learn in a model that is frozen for the most part.

The optimizer does not know of frozen weights; the modules do. They are looked for once, among all that Python has. No tensor is made, and none of a
tensor subclass's own code is run.
"""

from __future__ import annotations

import gc

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

    from torch import Tensor
    from torch.nn import Parameter

# How far the attributes of quantised weights are looked into: scales may have scales of their own.
_DEPTH = 5


def pieces(tensor: Any, torch: ModuleType) -> Iterator[Tensor]:
    """A tensor and the tensors among its attributes: quantised weights have their codes and scales there."""
    yield from _inside(tensor, torch, _DEPTH, set())


def _inside(thing: Any, torch: ModuleType, depth: int, seen: set[int]) -> Iterator[Tensor]:
    # Attributes may refer back to the tensor that they are of.
    if depth == 0 or id(thing) in seen or isinstance(thing, type) or issubclass(type(thing), torch.nn.Module):
        return
    seen.add(id(thing))
    if issubclass(type(thing), torch.Tensor):
        yield thing
    of = thing if isinstance(thing, dict) else getattr(thing, "__dict__", None)
    for value in of.values() if isinstance(of, dict) else ():
        yield from _inside(value, torch, depth - 1, seen)


def frozen_and_adapters(torch: ModuleType) -> tuple[list[Parameter], list[Parameter]]:
    """The frozen parameters of all models, and those that learn in models that are frozen for the most part."""
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module) and "_parameters" in thing.__dict__]
    inside = {id(child) for module in modules for child in module._modules.values()}
    frozen: dict[int, Parameter] = {}
    adapters: dict[int, Parameter] = {}
    for root in modules:
        if id(root) in inside:
            continue
        still: dict[int, Parameter] = {}
        learning: dict[int, Parameter] = {}
        for module in root.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    (learning if parameter.requires_grad else still)[id(parameter)] = parameter
        frozen |= still
        if sum(parameter.numel() for parameter in still.values()) > sum(parameter.numel() for parameter in learning.values()):
            adapters |= learning
    return list(frozen.values()), list(adapters.values())
