"""How the losses of the parts make the loss of the whole.

A mean over targets is a sum over targets by their count: parts must be weighed by their counts, and those differ where sequences are
padded. `Counted` reads the count off PyTorch's own losses while they are called, `Weighing` states the rule (``trials`` finds out which one holds), and `Accumulator`
applies it over the parts of a step without making the program wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from oomph.fitting.errors import NotSplittable

_MEAN = 1  # torch.nn._reduction.get_enum("mean")
_SUM = 2

# The functions below torch.nn.functional that have a mean over all elements of what they return without one, and where `reduction` is
# among their arguments. Their names are looked up when they are called, so replacing them there reaches `from torch.nn.functional import
# mse_loss` too.
_OF_ELEMENTS = {
    (torch._C._nn, "mse_loss"): 2,
    (torch._C._nn, "l1_loss"): 2,
    (torch._C._nn, "smooth_l1_loss"): 2,
    (torch._C._nn, "huber_loss"): 2,
    (torch._C._nn, "binary_cross_entropy"): 3,
    (torch._C._nn, "soft_margin_loss"): 2,
    (torch, "binary_cross_entropy_with_logits"): 4,
    (torch, "kl_div"): 2,
}
# Means over something else than the elements: seen, so that no other count is taken for that of the whole loss.
_OF_OTHERS = {
    (torch._C._nn, "multi_margin_loss"): 5,
    (torch._C._nn, "multilabel_margin_loss"): 2,
    (torch, "hinge_embedding_loss"): 3,
    (torch, "margin_ranking_loss"): 4,
    (torch, "cosine_embedding_loss"): 4,
    (torch, "triplet_margin_loss"): 7,
    (torch, "poisson_nll_loss"): 5,
    (torch, "ctc_loss"): 5,
}
_OF_TARGETS = {(torch._C._nn, "cross_entropy_loss"): 3, (torch._C._nn, "nll_loss_nd"): 3}

# The ones that are counting now, the innermost last; the functions are replaced while there are any.
_counting: list[Counted] = []
_originals: dict[tuple[Any, str], Any] = {}


@dataclass(frozen=True)
class Mean:
    """One call of a loss that returned a mean: of what, its denominator, and the most that could be.

    ``count`` is a number, a tensor without dimensions on the device, or None where it is not known. ``over`` is kept so that no other
    tensor comes to lie where the targets were, and is taken for them. ``value`` is the mean itself, without its graph.
    """

    of: tuple[Any, ...]
    count: torch.Tensor | float | None
    most: int
    over: torch.Tensor | None = None
    value: torch.Tensor | None = None


class Counted:
    """While active, notes the denominators of the means that PyTorch's losses return.

    The functions that ``torch.nn.functional`` calls are replaced meanwhile. A TorchFunctionMode would see the same calls, and every other
    one: a forward of small modules took 22 % longer under an empty one, and nothing longer under this. What is compiled or scripted is not
    seen.
    """

    def __init__(self) -> None:
        self.means: list[Mean] = []
        self._with_grad = True

    def __enter__(self) -> Counted:
        self._with_grad = torch.is_grad_enabled()
        if not _counting:
            _replace()
        _counting.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _counting.remove(self)
        if not _counting:
            _restore()

    def total(self) -> torch.Tensor | float | None:
        """The denominator of the loss, as a number or as a tensor on the device (nothing waits for it).

        None where no mean was seen, or several whose denominators may differ: no single weight is right for them.
        """
        kinds = self.kinds()
        if any(mean.count is None for mean in kinds):
            return None
        if len(kinds) == 1:
            return kinds[0].count
        # Several fixed denominators grow together with the samples; that they do is seen in `meaning`.
        fixed = [mean.count for mean in kinds if not isinstance(mean.count, torch.Tensor)]
        return fixed[0] if fixed and len(fixed) == len(kinds) else None

    def kinds(self) -> list[Mean]:
        """One mean for each denominator: several heads may have the same targets."""
        return list({mean.of: mean for mean in self.means}.values())

    def most(self) -> int:
        """The most that `total` could be, known without asking the device."""
        return max(1, self.means[0].most) if self.means else 1

    def meaning(self) -> tuple[Any, ...]:
        """What was counted; parts whose meanings differ have no common weight."""
        kinds = self.kinds()
        if len(kinds) < 2:
            return tuple(mean.of[0] for mean in kinds)
        fixed = [mean.count if isinstance(mean.count, (int, float)) else 0 for mean in kinds]
        return tuple((mean.of[0], count / fixed[0] if fixed[0] else None) for mean, count in zip(kinds, fixed))

    def _note(self, mean: Mean, result: torch.Tensor | None = None) -> None:
        # What a program computes aside, without gradients, is no part of its loss.
        if torch.is_grad_enabled() != self._with_grad or (self._with_grad and result is not None and not result.requires_grad):
            return
        self.means.append(mean if result is None else replace(mean, value=result.detach()))


def note_cross_entropy(target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int, count: torch.Tensor) -> None:
    """For a cross-entropy that computes its mean by itself (`oomph.fitting.losses.cross_entropy`)."""
    if _counting:
        _counting[-1]._note(Mean(("cross_entropy", *_identity(target), ignore_index, _identity(weight)), count, target.numel(), target))


def targets_in(target: torch.Tensor, weight: torch.Tensor | None, ignore_index: int) -> torch.Tensor:
    """What PyTorch divides by for the mean over class indices: how many are not ignored, or the weights of their classes."""
    valid = target != ignore_index
    if weight is None:
        return valid.sum()
    return torch.where(valid, weight.detach()[target.where(valid, torch.zeros_like(target))], weight.new_zeros(())).sum()


def _identity(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    """The same for two calls with the same targets, as losses of several heads have them."""
    return () if tensor is None else (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _replace() -> None:
    for table, counter in ((_OF_TARGETS, _count_targets), (_OF_ELEMENTS, _count_elements), (_OF_OTHERS, _count_others)):
        for (module, name), place in table.items():
            original = getattr(module, name, None)
            if original is not None:
                _originals[module, name] = original
                setattr(module, name, _counting_version(original, name, place, counter))


def _restore() -> None:
    for (module, name), original in _originals.items():
        setattr(module, name, original)
    _originals.clear()


def _counting_version(original: Callable[..., Any], name: str, place: int, counter: Callable[..., Mean | None]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _counting and not torch.compiler.is_compiling() and isinstance(result, torch.Tensor):
            reduction = kwargs.get("reduction", args[place] if len(args) > place else _MEAN)
            mean = counter(name, reduction, args)
            if mean is not None:
                _counting[-1]._note(mean, result)
        return result

    return counting


def _count_targets(name: str, reduction: int, args: tuple[Any, ...]) -> Mean | None:
    if reduction != _MEAN:
        return None
    scores, target = args[0], args[1]
    weight = args[2] if len(args) > 2 else None
    if target.is_floating_point():  # Probabilities: the mean over rows.
        rows = scores.numel() // max(1, scores.shape[1 if scores.dim() > 1 else 0])
        return Mean(("rows", rows), rows, rows)
    ignore_index = args[4] if len(args) > 4 else -100
    with torch.no_grad():
        count = targets_in(target, weight, ignore_index)
    return Mean(("cross_entropy", *_identity(target), ignore_index, _identity(weight)), count, target.numel(), target)


def _count_elements(name: str, reduction: int, args: tuple[Any, ...]) -> Mean | None:
    if name == "kl_div" and reduction == _SUM:
        return Mean(("kl_div sum",), None, 1)  # "batchmean" divides this by the samples, later.
    if reduction != _MEAN:
        return None
    elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
    return Mean((name, elements), elements, elements)


def _count_others(name: str, reduction: int, args: tuple[Any, ...]) -> Mean | None:
    return Mean((name,), None, 1) if reduction == _MEAN else None


@dataclass(frozen=True)
class Weighing:
    """The rule that makes the loss of a batch from the losses of its parts.

    ``kind``: "targets" (each by its count of targets, read by `Counted` while it runs), "samples" (each by its samples), "sum" (their sum),
    "unknown" (could not be tried, see ``reason``; by targets if they can be counted). It can be pickled and has no tensors: what was learnt
    in one process is true in another. ``reason`` is for the person who asks.

    ``provisional``: the example does not prove the rule for batches whose samples count differently; see `oomph.fitting.losses.trials.verify`. ``means``: of so many
    means with targets of their own, each must have the same share of its targets in all parts; `Accumulator` refuses where they have not.
    """

    kind: str
    reason: str = ""
    provisional: bool = False
    means: int = 0

    def unwatched(self) -> Weighing:
        """The same rule where there are no true values to hold it against, as on a virtual GPU."""
        return replace(self, provisional=False, means=0)

    def weight(self, counted: Counted, part_samples: int) -> torch.Tensor | float:
        """How much a part weighs, in units that only its siblings share."""
        if self.kind == "sum":
            return 1.0
        if self.kind == "samples":
            return float(part_samples)
        total = counted.total()
        if total is None:
            seen = "several means with denominators of their own" if counted.means else "no mean of PyTorch's own"
            why = f" ({self.reason})" if self.reason else ""
            raise NotSplittable(f"the targets of a part cannot be counted: its loss has {seen}{why}")
        return total


class Accumulator:
    """Brings the gradients and losses of the parts of one step together; a new one for each step, with no gradients there before.

        accumulator = Accumulator(weighing)
        for part in parts:
            with Counted() as counted:
                loss = compute_loss(part)
            accumulator.scale(loss, counted, samples(part)).backward()    # scaler.scale(accumulator.scale(...)) with a GradScaler
        loss = accumulator.finish(parameters)

    The weights of all parts are known only after the last forward, and reading them would make the program wait. So every part is weighed
    in proportion to the first (factors near 1), and the gradients are divided by the sum of the factors at the end. Where ranks average
    their gradients in the last backward, give the parameters to the last `scale` instead: the division then comes before that backward.
    """

    def __init__(self, weighing: Weighing) -> None:
        self.weighing = weighing
        self._parts = 0
        self._meaning: tuple[Any, ...] = ()
        self._unit: torch.Tensor | float = 1.0  # What the gradients so far are divided by.
        self._total: torch.Tensor | float = 0.0
        self._losses: torch.Tensor | float = 0.0
        self._first: torch.Tensor | None = None
        self._share: torch.Tensor | None = None  # Of each mean, the targets for each sample of the first part.
        self._uneven: torch.Tensor | None = None  # Whether another part has another share; on the device, until the end.

    def scale(self, loss: torch.Tensor, counted: Counted, part_samples: int, *, last: Iterable[torch.Tensor] | None = None) -> torch.Tensor:
        """What to call backward on for this part. `last`: the parameters, if this is the last part and they are to be divided now."""
        first, self._parts = self._parts == 0, self._parts + 1
        if first:
            self._first = loss.detach()
            if last is not None:
                return loss  # The only part: nothing to weigh.
        weight = self._weight(counted, part_samples, first)
        if self.weighing.kind == "samples" and self.weighing.means:
            self._watch(counted, part_samples)
        if first:
            # A part without targets has no size to compare with; the most that it could have does as well.
            self._unit = torch.where(weight > 0, weight, counted.most()) if isinstance(weight, torch.Tensor) else weight
        self._total = self._total + weight
        self._losses = self._losses + _weighed(loss.detach().to(torch.promote_types(loss.dtype, torch.float32)), weight)
        if self.weighing.kind == "sum":
            return loss
        if last is not None:
            self._divide(last)
        return _weighed(loss, weight, self._unit)

    def finish(self, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """Divides the gradients, unless that is done, and returns the loss of the whole batch, detached.

        Raises NotSplittable, before anything is done with the gradients, if several means have turned out to have different counts.
        """
        if self._first is None:
            raise ValueError("no part has been scaled")
        if self._parts == 1:
            return self._first
        self.refuse_uneven()
        if self.weighing.kind == "sum":
            return torch.as_tensor(self._losses).to(self._first.dtype)
        if self._unit is not self._total:
            self._divide(parameters)
        return torch.as_tensor(self._losses / self._total).to(self._first.dtype)

    def refuse_uneven(self) -> None:
        """Raises NotSplittable if several means have turned out to have different counts; known once the last part is scaled."""
        if self._uneven is not None and bool(self._uneven):
            raise NotSplittable(
                "the loss has several means over targets, and the parts of this batch have different counts of them (some are ignored): no "
                "single weight is right. Take one F.cross_entropy over all targets, whose count is known, or give each with "
                'reduction="sum", divided by a fixed number'
            )

    def _weight(self, counted: Counted, part_samples: int, first: bool) -> torch.Tensor | float:
        if self.weighing.kind in ("targets", "unknown"):
            if first:
                self._meaning = counted.meaning()
            elif counted.meaning() != self._meaning:
                raise NotSplittable("the parts of a batch have different losses: the weights of their means cannot be compared")
        return self.weighing.weight(counted, part_samples)

    def _watch(self, counted: Counted, part_samples: int) -> None:
        kinds = counted.kinds()
        if len(kinds) != self.weighing.means:
            tried = self.weighing.means
            raise NotSplittable(f"the loss had {tried} means when it was tried, and has {len(kinds)} in a part of this batch")
        share = torch.stack([mean.count.detach().float() / part_samples for mean in kinds if isinstance(mean.count, torch.Tensor)])
        if self._share is None:
            self._share = share
            return
        uneven = ((share - self._share).abs() > 1e-4 * torch.maximum(share, self._share)).any()
        self._uneven = uneven if self._uneven is None else self._uneven | uneven

    def _divide(self, parameters: Iterable[torch.Tensor]) -> None:
        factor = self._unit / self._total
        if isinstance(factor, torch.Tensor):
            # Without any target the gradients are zeros, in the plain loop too.
            factor = torch.where(torch.as_tensor(self._total) > 0, factor, torch.ones_like(factor))
        self._unit = self._total
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        with torch.no_grad():
            for parameter in parameters:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if gradient.layout != torch.strided:
                    gradient.mul_(factor)
                    continue
                groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
            for (device, _), gradients in groups.items():
                torch._foreach_mul_(gradients, factor.to(device) if isinstance(factor, torch.Tensor) else factor)


def _weighed(loss: torch.Tensor, weight: torch.Tensor | float, unit: torch.Tensor | float = 1.0) -> torch.Tensor:
    """The loss by its weight. A mean over no targets is nan, and must not reach the others."""
    if not isinstance(weight, torch.Tensor):
        return loss if weight == unit else loss * (weight / unit)
    return torch.where(weight > 0, loss * (weight / unit).to(loss.dtype), torch.zeros_like(loss))


def batch_norms(model: nn.Module) -> list[str]:
    """The modules that, as they are now, take statistics over the batch: in parts they would give another result."""
    found = []
    for name, module in model.named_modules():
        of_batch = isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        # Each sample by itself, but the averages that evaluation uses move once for each part.
        averages = isinstance(module, _InstanceNorm) and module.training and module.track_running_stats
        if of_batch or averages:
            found.append(name or type(module).__name__)
    return found
