"""Liger's Triton kernels in place of the norms and MLPs of a model of transformers: fewer temporary tensors, and faster.

They round otherwise than PyTorch's operations, so they must be allowed. Only the model that is given is changed: what Liger changes for
all models of a kind (classes, rotary embeddings) is put back at once. Its cross-entropy is not used: targets could not be counted in it,
and logits are made in pieces here anyway.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from torch import nn

from oomph.fitting.errors import FitError
from oomph.fitting.techniques.technique import WEIGHTS, Technique

# Not the whole of Liger: see above.
_LEFT_OUT = {"rope": False, "cross_entropy": False, "fused_linear_cross_entropy": False}


class LigerKernels:
    """Modules whose forward is Liger's until ``undo()``."""

    def __init__(self, model: nn.Module) -> None:
        liger, inner = _liger_for(model)
        before = [(module, dict(vars(module))) for module in inner.modules()]
        spaces = {type(module).__module__ for module in inner.modules()} & sys.modules.keys()
        shared = [(vars(sys.modules[name]), dict(vars(sys.modules[name]))) for name in spaces]
        try:
            liger._apply_liger_kernel_to_instance(model=inner, **_LEFT_OUT)
        finally:
            for space, was in shared:
                _put_back(space, was)
        # The attributes of the modules that were changed, as they were: None for those that were not there.
        self._changed = [(vars(module), {key: was.get(key, _NOTHING) for key in _differing(vars(module), was)}) for module, was in before]
        self._changed = [(attributes, was) for attributes, was in self._changed if was]
        if not self._changed:
            raise FitError("Liger has no kernels for the modules of this model")

    @property
    def modules(self) -> int:
        """How many were changed."""
        return len(self._changed)

    def undo(self) -> None:
        """Leaves the modules as they were. What others have put around them meanwhile must be taken off before."""
        while self._changed:
            attributes, was = self._changed.pop()
            for key, value in was.items():
                if value is _NOTHING:
                    attributes.pop(key, None)
                else:
                    attributes[key] = value


_NOTHING = object()


def use_liger(model: nn.Module) -> LigerKernels:
    """Has the norms and MLPs of a model run Liger's kernels. Raises FitError where there are none for it."""
    return LigerKernels(model)


def _liger_for(model: nn.Module) -> tuple[ModuleType, nn.Module]:
    """Liger's functions, and the model of transformers that they know: wrappers such as peft's are looked into."""
    try:
        liger = importlib.import_module("liger_kernel.transformers")
        known = importlib.import_module("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN
    except Exception as error:
        # It wants Triton, and a version of transformers: what it lacks, it says in many ways.
        raise FitError(f"Liger's kernels are not used: {type(error).__name__}: {error}\n\nhint: pip install liger-kernel") from error
    pretrained = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", ())
    for module in model.modules():
        if isinstance(module, pretrained):
            kind = getattr(getattr(module, "config", None), "model_type", None)
            if kind in known:
                return liger, module
    raise FitError("Liger has no kernels for this model")


def why_not_liger(model: nn.Module) -> str | None:
    """Why there is nothing to use; None if there is."""
    try:
        use_liger(model).undo()
    except FitError as error:
        return str(error)
    return None


def _differing(now: dict[str, Any], was: dict[str, Any]) -> set[str]:
    return {key for key in now.keys() | was.keys() if now.get(key, _NOTHING) is not was.get(key, _NOTHING)}


def _put_back(space: dict[str, Any], was: dict[str, Any]) -> None:
    for key in _differing(space, was):
        if key in was:
            space[key] = was[key]
        else:
            del space[key]


LIGER = Technique(
    "liger",
    lambda *_: "Liger's kernels for norms and MLPs (allowed)",
    "you allowed it; fewer temporary tensors, usually faster",
    apply=lambda step: use_liger(step.model),
    stage=WEIGHTS,
    allow="liger",
    allowed="Liger's Triton kernels for norms and MLPs, where liger-kernel is installed and knows the model",
    asked=lambda _: {"liger": True},
)
