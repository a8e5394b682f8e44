"""How the loss of a batch is computed: what the person gave, called in one of three ways."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from oomph.fitting.errors import FitError

_WAYS = """\
oomph.fit takes the loss in one of three ways:
  loss=None                        the model is called with the batch (a dict by keywords) and its result has .loss, as Hugging Face models do
  loss=torch.nn.CrossEntropyLoss() or any loss(output, target): the batch is (input, target)
  loss=f with a first parameter called model: f(model, batch) gives the loss"""


class LossOf:
    """Calls the model and the loss on a batch. Picklable, so that a child can do the same."""

    def __init__(self, loss: Callable[..., Any] | None) -> None:
        self.loss = loss
        self.takes_model = loss is not None and _first_parameter(loss) == "model"

    def __call__(self, model: Callable[..., Any], batch: Any) -> torch.Tensor:
        value = self._compute(model, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise FitError(f"the loss must be one number, the mean over the batch, and is {shape}; use reduction='mean'")
        return value if value.dim() == 0 else value.reshape(())

    def _compute(self, model: Callable[..., Any], batch: Any) -> Any:
        if self.takes_model:
            assert self.loss is not None
            return self.loss(model, batch)
        if self.loss is None:
            return _loss_in(_call(model, batch))
        if isinstance(batch, Mapping) or not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise FitError(f"the batch is a {type(batch).__name__}, so loss(output, target) does not know what is the target\n{_WAYS}")
        inputs, target = batch
        return self.loss(_call(model, inputs), target)


def _call(model: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)) and not hasattr(inputs, "_fields"):
        return model(*inputs)
    return model(inputs)


def _loss_in(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if getattr(output, "loss", None) is not None:
        return output.loss
    if isinstance(output, tuple) and output and isinstance(output[0], torch.Tensor) and output[0].numel() == 1:
        return output[0]
    raise FitError(f"the model's result ({type(output).__name__}) has no loss\n{_WAYS}")


def _first_parameter(function: Callable[..., Any]) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None
