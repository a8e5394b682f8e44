"""``oomph.FitLightning``: a fit inside the automatic optimisation of Lightning, of either name (``lightning.pytorch``, ``pytorch_lightning``).

Lightning's closure is forward, ``zero_grad`` and backward; ours does the same over the parts of the batch. What ``training_step`` logs is held back and logged
once, for the whole batch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from oomph.fitting.adapters.loops import LoopFit, missing, replaced
from oomph.fitting.errors import FitError
from oomph.fitting.fit import FitPlan
from oomph.fitting.planning.plan import Plan
from oomph.fitting.running import ranks
from oomph.fitting.running.batches import samples

_NAMES = ("lightning.pytorch", "pytorch_lightning")
_SAID: tuple[str, ...] = ("global_step", "current_epoch", "max_epochs", "max_steps", "num_training_batches", "accumulate_grad_batches", "world_size")
_SAID += ("global_rank", "local_rank", "is_global_zero", "estimated_stepping_batches", "sanity_checking")
_PRECISIONS = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


def _callbacks() -> tuple[type, ...]:
    """Both are one library under two names, which do not know each other's classes: that of the one that is in use, or of both."""
    there = [sys.modules[name].Callback for name in _NAMES if hasattr(sys.modules.get(name), "Callback")]
    for name in _NAMES:
        if not there:
            with contextlib.suppress(ImportError):
                there.append(importlib.import_module(name).Callback)
    return tuple(dict.fromkeys(there))


_BASES = _callbacks()


class FitLightning(*_BASES):  # type: ignore[misc]  # they are known where Lightning is
    """``L.Trainer(callbacks=[oomph.FitLightning()])``: training fits the GPU, with the same batches, steps, losses, logs and schedule.

    It plans with the first batch; samples that are longer than those come in smaller parts. Arguments are those of ``oomph.fit``.
    ``callback.plan`` says what is done. Hooks around the backward pass are called for each part.
    """

    def __init__(
        self,
        *,
        budget: str | int = "auto",
        gpu: str | None = None,
        allow: Iterable[str] = (),
        plan: Plan | dict[str, Any] | None = None,
        quiet: bool = False,
    ) -> None:
        if not _BASES:
            raise missing("lightning", "oomph.FitLightning")
        self.budget, self.gpu, self.allow, self.given, self.quiet = budget, gpu, tuple(allow), plan, quiet
        self.fit: LoopFit | None = None
        self._inside = contextlib.ExitStack()

    @property
    def plan(self) -> FitPlan | None:
        """What is done and why, once training has begun."""
        return self.fit.plan if self.fit is not None else None

    # -- what Lightning calls

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._leave()
        self.fit = None
        if not pl_module.automatic_optimization:
            raise FitError(
                f"{type(pl_module).__name__} optimises by hand (automatic_optimization = False), so its backward pass is its own: use oomph.micro_batches in its training_step"
            )
        strategy = type(trainer.strategy).__name__
        if trainer.strategy.handles_gradient_accumulation or any(word in strategy for word in ("FSDP", "DeepSpeed", "ModelParallel", "XLA")):
            raise FitError(f"with {strategy} the ranks talk within forward and backward, so one that runs out of memory cannot be repeated")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.fit is not None:
            return
        loss_of = ModuleLoss(trainer, pl_module, batch_idx)
        fit = LoopFit(pl_module, trainer.optimizers[0], loss_of, batch, self.allow, trainer.gradient_clip_val)
        fit.start(budget=self.budget, gpu=self.gpu, plan=self.given, quiet=self.quiet)
        self.fit = fit
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        self._inside.enter_context(replaced(loop, "_make_closure", functools.partial(self._closure, trainer, loop)))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.fit is not None and not trainer.fit_loop._should_accumulate():
            self.fit.after_update()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._leave()

    def _leave(self) -> None:
        """Trainer, module and optimizer as they were. The plan stays available."""
        self._inside.close()
        if self.fit is not None:
            self.fit.close()

    # -- training

    def _closure(self, trainer: Any, loop: Any, kwargs: OrderedDict[str, Any], optimizer: Any, batch_idx: int) -> Any:
        plain = type(loop)._make_closure(loop, kwargs, optimizer, batch_idx)
        last = not trainer.fit_loop._should_accumulate()

        def closure(*_: Any, **__: Any) -> Any:
            if plain._zero_grad_fn is not None:
                # Before the forward pass and not after it: the gradients of the first parts stay.
                plain._zero_grad_fn()
            # Ranks are brought together at the end of the batch, and not within its last backward pass.
            with torch.enable_grad(), _without_sync(trainer.strategy):
                return self._run(trainer, loop, kwargs, plain._backward_fn, last)

        plain.closure = closure
        return plain

    def _run(self, trainer: Any, loop: Any, kwargs: OrderedDict[str, Any], backward: Callable[[torch.Tensor], None], last: bool) -> Any:
        module, name = trainer.lightning_module, next(iter(kwargs))
        fit = self.fit
        assert fit is not None
        whole = _Whole(module, fit)

        def through(part: Any, weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            whole.begin_part(samples(part))
            with replaced(module, "log", whole.hold_back):
                result = loop._training_step(OrderedDict(kwargs, **{name: part}))
            loss = result.closure_loss
            if loss is None:
                raise FitError("training_step returned None: a batch that is skipped cannot be run in parts")
            towards = weigh(loss)
            whole.end_part(result.extra)
            loss = loss.detach()
            del result
            backward(towards)
            return loss

        loss = fit.run(kwargs[name], through, last=last)
        whole.log()
        return loop.output_result_cls(loss, extra=whole.extra())


class _Whole:
    """What ``training_step`` logged and returned beside the loss, put together for the whole batch."""

    def __init__(self, module: Any, fit: LoopFit) -> None:
        self.module, self.fit = module, fit
        self._attempt = -1
        self._parts: list[_Part] = []

    def begin_part(self, size: int) -> None:
        if self.fit.attempt != self._attempt:
            # The batch is repeated.
            self._attempt, self._parts = self.fit.attempt, []
        self._parts.append(_Part(size))

    def hold_back(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self._parts[-1].logged[name] = (value.detach() if isinstance(value, torch.Tensor) else value, args, kwargs, getattr(value, "requires_grad", False))

    def end_part(self, extra: dict[str, Any]) -> None:
        self._parts[-1].extra = extra
        self._parts[-1].weight = self.fit.weight_of_part()

    def log(self) -> None:
        """As ``training_step`` would have done: once for each name."""
        module = self.module
        # Logging is refused outside of hooks; this is still the step.
        with replaced(module, "_current_fx_name", "training_step"):
            for name in dict.fromkeys(name for part in self._parts for name in part.logged):
                calls = [(part.logged[name], part) for part in self._parts if name in part.logged]
                (value, args, kwargs, has_graph), _ = calls[-1]
                if len(calls) > 1 and isinstance(value, (torch.Tensor, float, int)):
                    value = self._over_parts([(call[0], part) for call, part in calls], has_graph)
                if isinstance(kwargs.get("batch_size"), int):
                    kwargs = {**kwargs, "batch_size": sum(call[2]["batch_size"] for call, _ in calls)}
                module.log(name, value, *args, **kwargs)

    def extra(self) -> dict[str, Any]:
        extra = {}
        for key in dict.fromkeys(key for part in self._parts for key in part.extra):
            found = [(part.extra[key], part) for part in self._parts if key in part.extra]
            value = found[-1][0]
            if len(found) > 1 and isinstance(value, torch.Tensor):
                if value.dim() > 0 and all(one.shape[:1] == (part.size,) for one, part in found):
                    value = torch.cat([one for one, _ in found])
                elif value.numel() == 1:
                    value = self._over_parts(found, False)
            extra[key] = value
        return extra

    def _over_parts(self, values: list[tuple[Any, _Part]], is_loss: bool) -> Any:
        """A mean with the weights of the losses. Where those are sums, a value that was made of the same graph is one too."""
        if self.fit.losses_add():
            if is_loss:
                return sum(value for value, _ in values)
            weights: list[Any] = [part.size for _, part in values]
        else:
            weights = [part.weight for _, part in values]
        total = 0.0
        for (value, _), weight in zip(values, weights):
            weight = torch.as_tensor(weight, device=getattr(value, "device", None), dtype=torch.float32)
            # A mean over no targets is nan, and weighs nothing.
            total = total + torch.where(weight > 0, torch.as_tensor(value, device=weight.device) * weight, torch.zeros_like(weight))
        return total / sum(weights)


class _Part:
    def __init__(self, size: int) -> None:
        self.size = size
        self.weight: Any = 1.0
        self.logged: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}


class ModuleLoss:
    """``LightningModule.training_step``, in the precision of the Trainer, logging nothing."""

    def __init__(self, trainer: Any, module: Any, batch_idx: int) -> None:
        self.half = _PRECISIONS.get(str(trainer.precision))
        self.batches_in_update = 2 if trainer.accumulate_grad_batches > 1 else 1
        self.more = () if _takes_no_index(module) else (batch_idx,)
        #: What a training_step may ask its Trainer for.
        self.said = {name: value for name in _SAID if isinstance(value := getattr(trainer, name, None), (int, float, bool))}

    def __call__(self, module: Any, batch: Any) -> torch.Tensor:
        if module._trainer is None:
            # In a child process: the module arrives without its Trainer.
            module.__dict__["_trainer"] = SimpleNamespace(**self.said, logger=None, loggers=[], training=True)
        half: Any = contextlib.nullcontext()
        if self.half is not None:
            half = torch.autocast(next(module.parameters()).device.type, getattr(torch, self.half))
        with replaced(module, "log", lambda *_, **__: None), half:
            output = module.training_step(batch, *self.more)
        return output["loss"] if isinstance(output, Mapping) else output


def _takes_no_index(module: Any) -> bool:
    return len(inspect.signature(module.training_step).parameters) < 2


@contextlib.contextmanager
def _without_sync(strategy: Any) -> Iterator[None]:
    with strategy.block_backward_sync() if ranks.several() and hasattr(strategy, "block_backward_sync") else contextlib.nullcontext():
        yield
