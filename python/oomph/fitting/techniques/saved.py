"""What hooks for saved tensors hold of those that they leave where they are. What goes elsewhere, or is made again, is for who has the hooks."""

from __future__ import annotations

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


def away_from_hooks() -> torch.autograd.graph.saved_tensors_hooks:
    """For a graph that is used at once: hooks that checkpoint or offload what a forward saves have no business with it. Each tensor without its history, or one that keeps its own
    output would never be freed where the graph is not run back."""
    return torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, _as_it_is)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def changed(shape: torch.Size) -> RuntimeError:
    """Autograd's own check is left out where there are hooks."""
    return RuntimeError(f"a tensor of shape {list(shape)} that is needed for the gradient has been changed in place after it was saved")
