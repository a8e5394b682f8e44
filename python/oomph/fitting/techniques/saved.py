"""What hooks for saved tensors hold of those that they leave where they are. What goes elsewhere, or is made again, is for who has the hooks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Stayed:
    """A tensor that stays. Without its history: an output would hold the graph that holds it. Called, it gives the tensor, if nobody has changed it since."""

    __slots__ = ("__weakref__", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.version = tensor.detach(), tensor._version

    def __call__(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise changed(self.tensor.shape)
        return self.tensor


class HandedOn:
    """A tensor that hooks farther out have taken. Called, it gives the tensor."""

    __slots__ = ("__weakref__", "_saved", "_unpack")

    def __init__(self, tensor: torch.Tensor, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> None:
        self._saved, self._unpack = pack(tensor), unpack

    def __call__(self) -> torch.Tensor:
        return self._unpack(self._saved)


# Of the thread, the hooks that what lies inside may hand on to: autograd itself asks the innermost only.
_outer = threading.local()


@contextlib.contextmanager
def taking(pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> Iterator[None]:
    """Hooks for saved tensors, to which those that lie inside may hand on by `hand_on`."""
    before = getattr(_outer, "hooks", None)
    _outer.hooks = pack, unpack
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        _outer.hooks = before


def in_backward() -> bool:
    """Whether a backward pass is under way in this thread, or what it runs again."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_taken() -> bool:
    """Whether there are hooks farther out to hand on to."""
    return getattr(_outer, "hooks", None) is not None


def hand_on(tensor: torch.Tensor) -> HandedOn | Stayed:
    """What stays, as far as these hooks are concerned: farther out it may be sent elsewhere."""
    hooks = getattr(_outer, "hooks", None)
    return Stayed(tensor) if hooks is None else HandedOn(tensor, *hooks)


def away_from_hooks() -> torch.autograd.graph.saved_tensors_hooks:
    """For a graph that is used at once: hooks that checkpoint or offload what a forward saves have no business with it. Each tensor without its history, or one that keeps its own
    output would never be freed where the graph is not run back."""
    return torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, _as_it_is)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def changed(shape: torch.Size) -> RuntimeError:
    """Autograd's own check is left out where there are hooks."""
    return RuntimeError(f"a tensor of shape {list(shape)} that is needed for the gradient has been changed in place after it was saved")
