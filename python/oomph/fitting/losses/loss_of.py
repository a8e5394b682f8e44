"""How the loss of a batch is computed: what the person gave, called in one of three ways."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from oomph.fitting.errors import FitError
from oomph.fitting.running.batches import in_new_containers
from oomph.fitting.running.repeating import random_numbers_kept

_WAYS = """\
oomph.fit takes the loss in one of three ways:
  loss=None                        the model is called with the batch (a dict by keywords) and its result has .loss, as Hugging Face models do
  loss=torch.nn.CrossEntropyLoss() or any loss(output, target): the batch is (input, target)
  loss=f for an f(model, batch) that calls the model and gives the loss; where the batch is a pair too, call its first parameter `model`"""

# What gives the loss of a model on a batch: a LossOf, or what others have around theirs.
Loss = Callable[[Any, Any], torch.Tensor]


class LossOf:
    """Calls the model and the loss on a batch. Picklable, so that a child can do the same."""

    def __init__(self, loss: Callable[..., Any] | None) -> None:
        self.loss = loss
        self.takes_model = loss is not None and _first_parameter(loss) == "model"
        #: Why it is called as it is, where it did not say so itself: for the error, if that was wrong.
        self._because: str | None = None

    def settled(self, model: torch.nn.Module, batch: Any, before: LossOf | None = None) -> LossOf:
        """The same, once it is known whether the loss takes the model, whatever it calls it.

        A batch that is no pair has no target for ``loss(output, target)``. For a pair the function is asked, if it is not the one of ``before``,
        and is taken for a loss of the output if that does not tell.
        """
        if self.loss is None or self.takes_model or not _may_take_model(self.loss):
            return self
        if not _is_pair(batch):
            self.takes_model, self._because = True, f"the batch, a {type(batch).__name__}, is no pair (input, target), so the loss is called as f(model, batch)"
            return self
        if before is not None and _code(before.loss) is _code(self.loss):
            self.takes_model = before.takes_model
        else:
            self.takes_model = _takes_model(self.loss, model, batch)
        if not self.takes_model:
            self._because = "the loss is called as loss(output, target); if it is f(model, batch), call its first parameter `model`"
        return self

    def __call__(self, model: Callable[..., Any], batch: Any) -> torch.Tensor:
        value = self._compute(model, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise FitError(f"the loss must be one number, the mean over the batch, and is {shape}; use reduction='mean'")
        return value if value.dim() == 0 else value.reshape(())

    def _compute(self, model: Callable[..., Any], batch: Any) -> Any:
        if self.takes_model:
            return self._call_loss(model, batch)
        if self.loss is None:
            return _loss_in(_call(model, batch))
        if not _is_pair(batch):
            raise FitError(f"the batch is a {type(batch).__name__}, so loss(output, target) does not know what is the target\n{_WAYS}")
        inputs, target = batch
        return self._call_loss(_call(model, inputs), target)

    def _call_loss(self, first: Any, second: Any) -> Any:
        assert self.loss is not None
        try:
            return self.loss(first, second)
        except (TypeError, AttributeError) as error:
            # The same error, for those who catch it: a note would be seen from Python 3.11 on only.
            if self._because is not None:
                error.args = (f"{error} ({self._because})",)
            raise


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) == 2


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


class _Called(BaseException):
    """A stand-in was called; no handler of the program's takes it for an error."""


class _StandIn:
    """Stands for the first argument of a loss, or for what the loss took out of that, until it is called as a model is. That it has an attribute
    says nothing: an output may have a field of the same name as a layer."""

    def __init__(self, of: Any) -> None:
        self.__of = of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _Called

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        of = self.__of
        if isinstance(of, torch.nn.Module) and not hasattr(of, name):
            if name == "module":
                # Where several ranks train, the program's model is one that holds this one.
                return self
            if name in ("device", "dtype"):
                # Programs ask either for them on the way.
                return getattr(next(of.parameters(), torch.empty(0)), name)
        value = getattr(of, name)
        if callable(value) and hasattr(torch.Tensor, name):
            # ``to`` and ``float``, say, which models and tensors have: both give what they are called on.
            return lambda *args, **kwargs: self
        return _stand_in(value)

    def __getitem__(self, key: Any) -> Any:
        return _stand_in(self.__of[key])

    def __iter__(self) -> Iterator[Any]:
        return map(_stand_in, iter(self.__of))

    def __len__(self) -> int:
        return len(self.__of)

    def __bool__(self) -> bool:
        # Else it would be asked for its length, which most models do not have.
        return True


def _stand_in(value: Any) -> Any:
    """For what is found on a model. Plain values are what they are: nothing can be changed or called in them."""
    return value if value is None or isinstance(value, (bool, int, float, str, torch.device, torch.dtype)) else _StandIn(value)


def _takes_model(loss: Callable[..., Any], model: torch.nn.Module, batch: Any) -> bool:
    """Whether it calls its first argument, or what it takes from that. It is run until it does, without a forward pass, on copies of the batch's
    containers, and draws no random numbers of the program's."""
    try:
        with random_numbers_kept(model), torch.no_grad():
            loss(_StandIn(model), in_new_containers(batch))
    except _Called:
        return True
    except Exception:
        pass  # A loss of tensors cannot do without one.
    return False


def _code(loss: Callable[..., Any] | None) -> Any:
    """The same for a function that is defined again by the same lines."""
    return getattr(loss, "__code__", loss)


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
