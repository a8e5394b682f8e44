"""``oomph.fit_accelerate``: a fit inside a loop of Hugging Face Accelerate, which has the mixed precision, the gradient scaler and the accumulation."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from oomph.fitting.adapters.loops import LoopFit, missing
from oomph.fitting.errors import FitError
from oomph.fitting.fit import Asked, fit_of_before, keep, take_loss
from oomph.fitting.losses.loss_of import LossOf
from oomph.fitting.planning.plan import Plan
from oomph.fitting.running.ranks import without_ddp


def fit_accelerate(
    accelerator: Any,
    model: torch.nn.Module,
    optimizer: Any,
    *,
    batch: Any,
    loss: Callable[..., Any] | None = None,
    budget: str | int = "auto",
    gpu: str | None = None,
    allow: Iterable[str] = (),
    clip_grad_norm: float | None = None,
    plan: Plan | dict[str, Any] | None = None,
    reuse: bool = False,
    quiet: bool = False,
) -> AccelerateLoop:
    """``oomph.fit`` for what ``accelerator.prepare`` returned: a model and its optimizer.

    >>> fit = oomph.fit_accelerate(accelerator, model, optimizer, loss=loss_fn, batch=example)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     with accelerator.accumulate(model):
    ...         loss = fit.step(batch)
    ...         scheduler.step()

    ``step`` is forward, ``accelerator.backward``, clipping, ``optimizer.step`` and ``zero_grad``, each when Accelerate says that it is due.
    Precision is the accelerator's. ``reuse`` is as in ``oomph.fit``.
    """
    try:
        from accelerate.optimizer import AcceleratedOptimizer
    except ImportError:
        raise missing("accelerate", "oomph.fit_accelerate") from None
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise FitError("oomph.fit_accelerate takes what accelerator.prepare(model, optimizer) returns: this optimizer was not prepared")
    asked = Asked.of(batch, budget=budget, gpu=gpu, allow=allow, clip_grad_norm=clip_grad_norm, scaler=None, plan=plan)
    kept = fit_of_before(model, optimizer.optimizer, asked) if reuse else None
    loss_of = PreparedLoss(LossOf(loss).settled(model, batch, kept.loss_of.loss_of if kept is not None else None), accelerator)
    if kept is not None:
        take_loss(kept, loss_of)
        return kept
    fitted = AccelerateLoop(accelerator, model, optimizer, loss_of, batch, asked.allow, clip_grad_norm)
    fitted.start(budget=budget, gpu=gpu, plan=plan, quiet=quiet)
    if reuse:
        keep(fitted, asked)
    return fitted


class PreparedFit(LoopFit):
    """A fit of a model and an optimizer that an accelerator has prepared."""

    def __init__(
        self,
        accelerator: Any,
        model: torch.nn.Module,
        optimizer: Any,
        loss_of: Any,
        example: Any,
        allow: Iterable[str],
        clip_grad_norm: float | None,
    ) -> None:
        refuse_sharding(accelerator)
        self.accelerator, self.prepared = accelerator, optimizer
        super().__init__(model, optimizer.optimizer, loss_of, example, allow, clip_grad_norm)

    def _ask(self, *args: Any) -> Any:
        with as_before_preparing(self.model):
            return super()._ask(*args)

    def _cover(self) -> None:
        super()._cover()
        self._patch_scaled_step()

    def _uncover(self) -> None:
        super()._uncover()
        self._patch_scaled_step()

    def _patch_scaled_step(self) -> None:
        """With a gradient scaler, Accelerate calls the ``step`` that the optimizer had when it was prepared."""
        if self.prepared.scaler is not None:
            from accelerate.optimizer import patch_optimizer_step

            self.prepared._optimizer_original_step_method = self.optimizer.step
            self.prepared._optimizer_patched_step_method = patch_optimizer_step(self.prepared, self.optimizer.step)


class AccelerateLoop(PreparedFit):
    """A fit in a loop that its person wrote with Accelerate."""

    def step(self, batch: Any) -> torch.Tensor:
        """Forward and backward; at the end of an accumulation the optimizer's step. The loss of the whole batch, without a graph."""
        loss = self.backward(batch)
        self.update()
        return loss

    def backward(self, batch: Any) -> torch.Tensor:
        """Instead of the forward pass and ``accelerator.backward(loss)``."""

        def through(part: Any, weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            loss = self.loss_of(self.model, part)
            del part
            self.accelerator.backward(weigh(loss))
            return loss.detach()

        return self.run(batch, through, last=self.accelerator.sync_gradients)

    def update(self) -> None:
        """Clips gradients (``clip_grad_norm``), steps and lets gradients go, if it is due."""
        if not self.accelerator.sync_gradients:
            return
        if self.clip_grad_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        self.prepared.step()
        self.prepared.zero_grad()
        self.after_update()


class PreparedLoss:
    """The loss of a prepared model. In a child process, where the model arrives as it was before, it is prepared in the same way first."""

    def __init__(self, loss_of: Callable[[Any, Any], torch.Tensor], accelerator: Any, accumulates: bool = False) -> None:
        self.loss_of = loss_of
        self.half = {"bf16": "bfloat16", "fp16": "float16"}.get(str(accelerator.mixed_precision)) if accelerator.native_amp else None
        self.batches_in_update = 2 if accumulates or accelerator.gradient_accumulation_steps > 1 else 1

    def __call__(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if self.half is not None and not hasattr(model, "_original_forward"):
            _prepare(model, getattr(torch, self.half))
        return self.loss_of(model, batch)


def refuse_sharding(accelerator: Any) -> None:
    kind = accelerator.distributed_type.name
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise FitError(f"with {kind} the ranks talk within forward and backward, so one that runs out of memory cannot be repeated")
    parallel = getattr(accelerator, "parallelism_config", None)
    if parallel is not None and any(getattr(parallel, f"{kind}_enabled", False) for kind in ("tp", "cp", "sp", "fsdp")):
        raise FitError("a batch that several ranks share cannot be run in parts")


@contextlib.contextmanager
def as_before_preparing(model: torch.nn.Module) -> Iterator[None]:
    """The model without Accelerate's mixed precision around its ``forward``, which cannot be sent to another process."""
    model = without_ddp(model)
    taken = {name: model.__dict__.pop(name) for name in ("forward", "_original_forward") if "_original_forward" in model.__dict__ and name in model.__dict__}
    original = taken.get("_original_forward")
    if original is not None and getattr(original, "__func__", None) is not type(model).forward:
        model.__dict__["forward"] = original
    try:
        yield
    finally:
        model.__dict__.update(taken)


def _prepare(model: torch.nn.Module, half: torch.dtype) -> None:
    from accelerate.utils import convert_outputs_to_fp32

    model._original_forward = model.forward
    function = getattr(model.forward, "__func__", None)
    device = next(model.parameters()).device.type
    if function is None:
        model.forward = convert_outputs_to_fp32(torch.autocast(device, half)(model.forward))
    else:
        model.forward = types.MethodType(convert_outputs_to_fp32(torch.autocast(device, half)(function)), model)
