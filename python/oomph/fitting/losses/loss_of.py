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
  loss=f for any f(model, batch) that calls the model and gives the loss"""


class LossOf:
    """Calls the model and the loss on a batch. Picklable, so that a child can do the same."""

    def __init__(self, loss: Callable[..., Any] | None) -> None:
        self.loss = loss
        self.takes_model = loss is not None and _first_parameter(loss) == "model"

    def settled(self, model: torch.nn.Module, batch: Any) -> LossOf:
        """The same, once it is known whether the loss takes the model, by whatever name: a function that may is asked."""
        self.takes_model = self.takes_model or (self.loss is not None and _may_take_model(self.loss) and _takes_model(self.loss, model, batch))
        return self

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


class _Used(BaseException):
    """The stand-in was used; no handler of the program's takes it for an error."""

    def __init__(self, as_model: bool) -> None:
        self.as_model = as_model


class _StandIn:
    """Stands for the first argument of a loss until that is used: as a model, which is called, or as its output."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.__model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _Used(as_model=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("device", "dtype"):
            # Both have them, and are asked for them on the way.
            return getattr(next(self.__model.parameters()), name)
        raise _Used(as_model=hasattr(self.__model, name) and not hasattr(torch.Tensor, name))


def _takes_model(loss: Callable[..., Any], model: torch.nn.Module, batch: Any) -> bool:
    """Whether it uses its first argument as a model. It is run until it does, without a forward pass, and draws no random numbers of the program's."""
    device = next(model.parameters(), torch.empty(0)).device
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
            loss(_StandIn(model), batch)
    except _Used as used:
        return used.as_model
    except Exception:
        pass  # A loss of tensors cannot do without one.
    return False


def _may_take_model(loss: Callable[..., Any]) -> bool:
    """Whether it can be called with two arguments, and is none of PyTorch's own."""
    if (getattr(loss, "__module__", None) or "").partition(".")[0] == "torch":
        return False
    try:
        inspect.signature(loss).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _first_parameter(function: Callable[..., Any]) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None
