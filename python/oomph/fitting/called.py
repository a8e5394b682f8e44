"""``oomph.fit``, the function that people call: which kind of fit it is, and whether there is one already."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from oomph.fitting.fit import Asked, Fit, fit_of_before, keep, take_loss
from oomph.fitting.losses.loss_of import LossOf
from oomph.fitting.planning.plan import Plan
from oomph.fitting.running import ranks
from oomph.fitting.sharded_fit import ShardedFit
from oomph.sharding.state import is_sharded


def fit(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    batch: Any,
    loss: Callable[..., Any] | None = None,
    budget: str | int = "auto",
    gpu: str | None = None,
    allow: Iterable[str] = (),
    clip_grad_norm: float | None = None,
    scaler: Any = None,
    plan: Plan | dict[str, Any] | None = None,
    plan_seconds: float = 20.0,
    reuse: bool = False,
    shard: Any = None,
    quiet: bool = False,
) -> Fit:
    """Makes the training step of a model fit the GPU, with the same result, and runs it.

    >>> fit = oomph.fit(model, optimizer, loss=loss_fn, batch=example)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     loss = fit.step(batch)

    ``batch`` is an example as large as they come: the longest sequences, the full number of samples. ``loss`` is ``loss(output, target)`` for batches
    ``(input, target)``, or a function ``f(model, batch)``, or None for models that give their loss themselves (Hugging Face); it is the mean over the batch. ``budget`` is "auto" (what is free on this card), or a size such as "14GiB", the CUDA context
    included; ``gpu="t4"`` takes the budget of that card. The process is held to a budget that is named.

    Only what gives the same numbers is done. ``allow=("liger", "bf16", "8bit-optimizer", "bf16-weights")`` names what may be done beyond that.
    ``clip_grad_norm`` clips gradients before each update; ``scaler`` is the torch.amp.GradScaler of a loss in float16. ``plan`` takes a plan of before (``fit.plan.chosen``) and predicts nothing.
    Where there is a GPU, the plans that may be the fastest run for a few steps each on it, and the fastest is taken: for at most about ``plan_seconds``, and 0 takes the one with the
    best estimate. Everything is put back as it was before.
    ``reuse=True`` plans once for a model and its optimizer: after that it gives the same fit back, with this ``loss``, which is one of the same kind. It is for a function that is called
    again and again, such as for every epoch. Other settings are planned anew; a larger ``batch`` is not, and steps down if memory runs out. The optimizer keeps the fit, and the fit the
    optimizer: without ``fit.close()``, Python's garbage collector frees them and the model.
    ``shard="auto"`` is for several ranks, each of which calls this with the same model, whole, and its part of the batch: where the model does not fit whole, it is sharded by FSDP2, in
    the way that is the fastest by its estimate, and so is the optimizer's state. The model may be on the CPU, and need not fit a GPU whole. A ``DeviceMesh`` says over which ranks: one of
    two dimensions has replicas along the first. A model that ``fully_shard`` was called on is planned as it is. ``close`` leaves a model sharded.
    """
    asked = Asked.of(batch, budget=budget, gpu=gpu, allow=allow, clip_grad_norm=clip_grad_norm, scaler=scaler, plan=plan, shard=shard)
    kept = fit_of_before(model, optimizer, asked) if reuse else None
    if kept is not None:
        take_loss(kept, LossOf(loss).settled(kept.model, batch, kept.loss_of))
        return kept
    loss_of = LossOf(loss)
    if shard is not None or isinstance(model, torch.nn.Module) and is_sharded(model):
        fitted: Fit = ShardedFit(model, optimizer, loss_of, batch, asked.allow, clip_grad_norm, scaler, shard=shard)
    else:
        fitted = Fit(model, optimizer, loss_of, batch, asked.allow, clip_grad_norm, scaler)
    loss_of.settled(fitted.model, batch)
    if asked.plan is not None:
        fitted._apply_given(asked.plan)
    else:
        fitted._plan_and_apply(budget, gpu, plan_seconds)
    if not quiet and ranks.first():
        print(f"oomph.fit: {fitted.plan.summary()}", file=sys.stderr)
        for note in fitted.plan.notes:
            print(f"  {note}", file=sys.stderr)
    if reuse:
        keep(fitted, asked)
    return fitted
