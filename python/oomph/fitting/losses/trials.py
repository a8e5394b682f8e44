"""Which rule makes the loss and the gradients of a batch from those of its parts: found by trying both on a few samples.

The rules are stated in ``counts``. A loss alone is not enough: a fresh model has the same one whatever it is shown, so gradients are
compared too. An example does not show either what padding will do that it has not: `Verifier` tries again where a batch has more of it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from oomph.fitting.errors import FitError, NotSplittable
from oomph.fitting.losses.counts import Counted, Weighing, batch_norms
from oomph.fitting.running.batches import pick, samples, traits
from oomph.fitting.running.repeating import random_numbers_kept
from oomph.fitting.running.spill import with_room

ComputeLoss = Callable[[Any], Any]
Place = tuple[list[int], int]  # Samples by their numbers, and how many of them are the first part.
Traits = dict[tuple[int, str], list[float]]  # As `oomph.fitting.running.batches.traits` returns them.

_KINDS = ("targets", "samples", "sum")
_SAMPLES = 4
_ENOUGH = 2  # Trials that say something.
_PAIRS = 6  # Of samples that differ, tried for one batch.
_FAILURES = 8
_GRADIENTS = 64 << 20  # Bytes of gradients that are compared.
_SMALL = 64 << 10
_NOISE = 8.0  # Times what chance alone makes of a gradient.
_NODES = 50_000


class _Precision(NamedTuple):
    """How far apart the same may be when other shapes are multiplied."""

    loss: float
    gradient: float
    nothing: float  # Of the norm of all gradients: less than that is rounding.
    scale: float  # Keeps small gradients from vanishing.


_FULL = _Precision(1e-3, 1e-3, 1e-5, 1.0)  # TensorFloat-32 has ten bits.
_HALF = _Precision(2e-2, 5e-2, 5e-3, 256.0)


class Verifier:
    """Calls `verify` for the batches that have more padding, or other uneven samples, than those that were tried.

    One for each training. Nothing to do where the rule is proved; otherwise it looks at every batch, and tries the rule when samples
    differ more than twice as much as in any before: a few times at the beginning, then hardly ever.
    """

    def __init__(self, weighing: Weighing) -> None:
        self.weighing = weighing
        self._tried: dict[tuple[int, str], float] = {}
        self._failures = 0

    def check(self, compute_loss: ComputeLoss, batch: Any, model: nn.Module) -> None:
        """Before the batch is run in parts. Raises NotSplittable where they would give something else than the whole."""
        if not self.weighing.provisional or self._failures >= _FAILURES:
            return
        spread = {key: (row, max(row) - min(row)) for key, row in traits(batch).items()}
        new = {key: row for key, (row, width) in spread.items() if width > 2 * self._tried.get(key, 0.0)}
        if not new:
            return
        with _in_full_precision():
            tried = verify(self.weighing, compute_loss, batch, model, new)
        self._tried.update((key, spread[key][1]) for key in tried)
        # What can never be tried is not tried for ever.
        self._failures = 0 if tried else self._failures + 1


@contextlib.contextmanager
def _in_full_precision() -> Iterator[None]:
    """Without TensorFloat-32: rounded to ten bits, the same sum in other parts may look like another."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@_in_full_precision()
def learn_weighing(compute_loss: ComputeLoss, batch: Any, model: nn.Module) -> Weighing:
    """Finds out how the loss of a batch is made of those of its parts, by computing both for a few samples, and their gradients.

    Nothing of the model changes: the modules are in evaluation meanwhile (dropout would hide the answer), and gradients, buffers and the
    state of random numbers are as before. The values must be real, so this is nothing for a virtual GPU. Raises NotSplittable where parts
    cannot give the loss and the gradients of the whole.
    """
    count = samples(batch)
    if count < 2:
        raise NotSplittable("the batch has one sample: there is nothing to part")
    names = batch_norms(model)
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        raise NotSplittable(
            f"the model has statistics over the batch ({shown}): parts of a batch give another result. GroupNorm has none; "
            "BatchNorm in evaluation, as in much fine-tuning, has none either"
        )
    with _evaluating(model) as in_training:
        try:
            precision = _precision(compute_loss, pick(batch, [0]), model)
            uneven = [places for places, _ in _uneven(traits(batch), most=1)]
            trials = _trials(compute_loss, batch, [*uneven, *([place] for place in _ends(count))])
        except FitError as error:
            return _without_evaluation(compute_loss, pick(batch, [0, 1]), in_training, error)
        except Exception as error:
            return Weighing("unknown", f"the loss in evaluation failed with {_in_short(error)}")
        if not trials:
            return Weighing("unknown", "the samples that were tried have no loss in evaluation")
        for kind in _KINDS:
            if not all(trial.holds(kind, precision.loss) for trial in trials):
                continue
            try:
                agree = _gradients_agree(compute_loss, batch, model, kind, trials[0], precision)
            except Exception as error:
                return Weighing("unknown", f"the gradients of parts could not be compared: {_in_short(error)}")
            if agree is not False:
                return _learnt(kind, trials, compared=agree is not None)
        again = _Trial.of(compute_loss, batch, trials[0].rows, trials[0].cut)
        if again is None or abs(again.whole.loss - trials[0].whole.loss) > precision.loss * 1e-3 * abs(again.whole.loss):
            return Weighing("unknown", "the loss is random in evaluation too")
    time_first = _time_first(model)
    why = f"the first dimension is time for {time_first} with batch_first=False, or " if time_first else ""
    raise NotSplittable(
        f"the loss of a batch is not the mean of its parts' losses, nor their sum, in its value or in its gradients: {why}samples are "
        "compared with each other (in-batch negatives? a term over the whole batch?), or several means have different counts"
    )


def verify(weighing: Weighing, compute_loss: ComputeLoss, batch: Any, model: nn.Module, differing: Traits | None = None) -> list[Any]:
    """Tries the rule on those samples of this batch that differ most in padding. Raises NotSplittable where it does not hold.

    Of what the samples differ in (all, unless given), returns what the rule has been tried on. `Verifier` says for which batches this is worth its time.
    """
    if weighing.kind == "unknown" or samples(batch) < 2:
        return []
    tried, holds = [], True
    with _evaluating(model):
        try:
            precision = _precision(compute_loss, pick(batch, [0]), model)
            for places, keys in _uneven(traits(batch) if differing is None else differing, most=_PAIRS):
                for trial in _trials(compute_loss, batch, [places]) if holds else ():
                    tried += keys
                    holds = trial.holds(weighing.kind, precision.loss)
                    with contextlib.suppress(Exception):  # No memory for gradients: the losses have been compared.
                        holds = holds and _gradients_agree(compute_loss, batch, model, weighing.kind, trial, precision) is not False
        except Exception:  # It fails in evaluation: the step itself will report it, and better.
            return []
    if not holds:
        raise NotSplittable(
            f"the loss was taken for {_in_words(weighing.kind)}, which is not true for this batch: its samples count differently "
            "(padding?), and the loss divides by something that cannot be seen. Let PyTorch take the mean, as F.cross_entropy(scores, "
            'targets, ignore_index=-100) does, whose targets are counted, or give the loss as a sum (reduction="sum") divided by a fixed '
            "number"
        )
    return tried


class _Seen(NamedTuple):
    """What one forward showed."""

    loss: float
    targets: float | None
    samples: int
    counts: tuple[float, ...]  # Of the means over targets, each by itself.
    kinds: int
    value: float | None  # Of the mean, if there was one only.

    @staticmethod
    def of(loss: torch.Tensor, counted: Counted, count: int) -> _Seen:
        kinds = counted.kinds()
        counts = tuple(float(mean.count) for mean in kinds if isinstance(mean.count, torch.Tensor))
        total, value = counted.total(), counted.means[0].value if len(counted.means) == 1 else None
        total, value = (None if one is None else float(one) for one in (total, value))
        return _Seen(float(loss), total, count, counts, len(kinds), value)


class _Trial(NamedTuple):
    """Some samples, the first of them up to the cut, and the others."""

    rows: list[int]
    cut: int
    whole: _Seen
    one: _Seen
    rest: _Seen

    @staticmethod
    def of(compute_loss: ComputeLoss, batch: Any, rows: list[int], cut: int) -> _Trial | None:
        seen = []
        for some in (rows, rows[:cut], rows[cut:]):
            with Counted() as counted:
                loss = _number(compute_loss(pick(batch, some)))
            # A part without targets has no mean, and says nothing.
            if loss is None or bool(loss != loss):
                return None
            seen.append(_Seen.of(loss, counted, len(some)))
        return _Trial(rows, cut, *seen)

    def weights(self, kind: str) -> tuple[float, float] | None:
        """Of both parts, or None where the rule says nothing about them."""
        whole, one, rest = self.whole, self.one, self.rest
        if kind == "sum":
            return 1.0, 1.0
        if kind == "samples":
            return one.samples / whole.samples, rest.samples / whole.samples
        if not whole.targets or one.targets is None or rest.targets is None:
            return None
        if abs(one.targets + rest.targets - whole.targets) > 1e-4 * whole.targets:
            return None
        return one.targets / whole.targets, rest.targets / whole.targets

    def holds(self, kind: str, tolerance: float) -> bool:
        weights = self.weights(kind)
        if weights is None:
            return False
        whole, one, rest = self.whole.loss, self.one.loss, self.rest.loss
        return abs(whole - one * weights[0] - rest * weights[1]) <= tolerance * max(abs(one), abs(rest), abs(whole))

    def has_even_targets(self) -> bool:
        """Whether counting targets gives the same weights as counting samples."""
        by_targets, by_samples = self.weights("targets"), self.weights("samples")
        return by_targets is not None and by_samples is not None and abs(by_targets[0] - by_samples[0]) <= 1e-4

    def has_even_counts(self) -> bool:
        """The same for each of several means."""
        parts = (self.one, self.rest)
        if any(part.kinds != self.whole.kinds or len(part.counts) != len(self.whole.counts) for part in parts):
            return False
        share = [count / self.whole.samples for count in self.whole.counts]
        return all(abs(count / part.samples - one) <= 1e-4 * one for part in parts for count, one in zip(part.counts, share))


def _trials(compute_loss: ComputeLoss, batch: Any, places: list[list[Place]]) -> list[_Trial]:
    """The first ones that say something, one of each list."""
    found: list[_Trial] = []
    for alternatives in places:
        for rows, cut in alternatives if len(found) < _ENOUGH else ():
            if (trial := _Trial.of(compute_loss, batch, rows, cut)) is not None:
                found.append(trial)
                break
    return found


def _ends(count: int) -> list[Place]:
    """Uneven parts distinguish the rules, and where one has no targets another cut may help."""
    size = min(count, _SAMPLES)
    first, last = list(range(size)), list(range(count - size, count))
    places = [(first, 1), (last, size - 1), (first, size - 1), (last, 1), (first, size // 2)]
    return [place for number, place in enumerate(places) if place not in places[:number]]


def _uneven(differing: Traits, most: int) -> list[tuple[list[Place], list[Any]]]:
    """The two samples that differ most in something, and in what else they do; with a third, since one may be without any target."""
    found: list[tuple[list[Place], list[Any]]] = []
    left = dict(sorted(differing.items(), key=lambda item: (max(item[1]) - min(item[1])) / max(map(abs, item[1])), reverse=True))
    while left and len(found) < most:
        values = next(iter(left.values()))
        order = sorted(range(len(values)), key=values.__getitem__)
        least, middle, largest = order[0], order[len(order) // 2], order[-1]
        keys = [key for key, row in left.items() if row is values or 2 * abs(row[least] - row[largest]) >= max(row) - min(row)]
        places = [([least, largest], 1)]
        if middle not in (least, largest):
            places += [([least, middle, largest], 2), ([least, middle, largest], 1)]
        found.append((places, keys))
        for key in keys:
            del left[key]
    return found


def _learnt(kind: str, trials: list[_Trial], compared: bool) -> Weighing:
    words = _in_words(kind)
    if not compared:
        words += " by the losses of a few samples, which have no gradients to compare"
    if kind == "samples":
        # Per-sample means come and go with the samples; a fixed number of means belongs to the whole batch.
        watched = trials[0].whole.kinds if trials[0].whole.counts and all(trial.has_even_counts() for trial in trials) else 0
        if watched:
            words += ", as far as the example shows: several means were seen, and their counts may differ in other batches"
        return Weighing(kind, words, provisional=True, means=watched)
    even = kind == "targets" and all(trial.has_even_targets() for trial in trials)
    return Weighing(kind, words, provisional=even and not _is_the_mean(trials))


def _is_the_mean(trials: list[_Trial]) -> bool:
    """Whether the loss is the one mean that was seen, or a fixed multiple of it, and nothing besides."""
    seen: list[Any] = [part for trial in trials for part in (trial.whole, trial.one, trial.rest)]
    if any(not part.value for part in seen):
        return False
    factors = [part.loss / part.value for part in seen]
    return max(factors) - min(factors) <= 5e-7 * max(map(abs, factors))  # Rounding in float32, and no more.


def _in_words(kind: str) -> str:
    return {"targets": "a mean over targets", "samples": "a mean over samples", "sum": "a sum"}[kind]


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _number(loss: Any) -> torch.Tensor | None:
    if loss is not None and (not isinstance(loss, torch.Tensor) or loss.numel() != 1):
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise FitError(f"the loss must be one number (a tensor without dimensions), not {what}: take its mean")
    return loss


def _without_evaluation(compute_loss: ComputeLoss, part: Any, in_training: Callable[[], None], error: FitError) -> Weighing:
    """Many models have a loss in training only. One that has none there either is not used as it should be."""
    in_training()
    try:
        _number(compute_loss(part))
    except FitError:
        raise
    except Exception as another:
        return Weighing("unknown", f"the loss failed in evaluation ({_in_short(error)}) and in training ({_in_short(another)})")
    return Weighing("unknown", "the model has a loss in training only, where it cannot be tried without its random numbers")


def _gradients_agree(compute_loss: ComputeLoss, batch: Any, model: nn.Module, kind: str, trial: _Trial, precision: _Precision) -> bool | None:
    """Whether the weighed gradients of two parts add up to those of the whole; None where there are none."""
    parameters = _compared(model)
    if not parameters:
        return None
    if len(trial.rows) == _SAMPLES:
        # Two samples take less memory, if both have a loss.
        small = _Trial.of(compute_loss, batch, trial.rows[trial.cut - 1 : trial.cut + 1], 1)
        if small is not None and small.weights(kind) is not None:
            trial = small
    torch.clear_autocast_cache()  # What was cast without gradients has none.
    weights = trial.weights(kind) or (1.0, 1.0)

    def gradients(rows: list[int], weight: float) -> list[torch.Tensor] | None:
        with _differentiable(model):
            return with_room(functools.partial(_gradients, compute_loss, pick(batch, rows), parameters, weight * precision.scale))

    parts = (trial.rows, 1.0), (trial.rows[: trial.cut], weights[0]), (trial.rows[trial.cut :], weights[1])
    found: list[Any] = [gradients(rows, weight) for rows, weight in parts]
    if any(one is None for one in found):
        return None
    whole, one, rest = found
    norms = _norms(whole)
    errors = _norms([first.add_(second).sub_(ours) for first, second, ours in zip(one, rest, whole)])
    del found, one, rest
    length = _norm_of(norms)
    if not length < float("inf") or (length == 0 and not any(errors)):
        return None
    allowed = [precision.gradient * norm + precision.nothing * length for norm in norms]
    if all(error <= most for error, most in zip(errors, allowed)):
        return True
    if _norm_of(errors) > precision.gradient * length:
        return False
    # All together they agree. Some come out differently each time on a GPU: the same samples once more show by how much.
    allowed = [max(most, _NOISE * by_chance) for most, by_chance in zip(allowed, _apart(gradients(trial.rows, 1.0), whole))]
    if all(error <= most for error, most in zip(errors, allowed)):
        return True
    # Others hang on how products of other shapes are rounded. In 16 bits that would be too much to tell anything.
    moved = _by_rounding(lambda: gradients(trial.rows, 1.0), whole, model) if precision is _FULL else None
    return moved is not None and all(error <= max(most, _NOISE * by_rounding) for error, most, by_rounding in zip(errors, allowed, moved))


def _by_rounding(gradients: Callable[[], list[torch.Tensor] | None], others: list[torch.Tensor], model: nn.Module) -> list[float] | None:
    """How far gradients are from others if everything in the forward pass is off by the last bit; None for a model that does not bear it."""
    try:
        with _rounded_otherwise(model):
            return _apart(gradients(), others)
    except Exception:
        return None


def _apart(ours: list[torch.Tensor] | None, others: list[torch.Tensor]) -> list[float]:
    """How far gradients are from others; the first are gone after that."""
    return [0.0] * len(others) if ours is None else _norms([one.sub_(other) for one, other in zip(ours, others)])


@contextlib.contextmanager
def _rounded_otherwise(model: nn.Module) -> Iterator[None]:
    """What modules without others inside return is off by the last bit or two, as if another kernel had summed it, and always towards zero: what has bounds, as probabilities do,
    stays within them. Compiled modules do not see it."""

    def jolt(module: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, torch.Tensor) or output.dtype != torch.float32 or output.layout != torch.strided or output.is_nested:
            return output
        return output * (1 - 2 * torch.finfo(output.dtype).eps * torch.rand_like(output.detach()))

    hooks = []
    try:
        for module in model.modules():
            if not any(True for _ in module.children()) and not isinstance(module, torch.jit.ScriptModule):
                hooks.append(module.register_forward_hook(jolt))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _norms(tensors: list[torch.Tensor]) -> list[float]:
    norms = [torch.linalg.vector_norm(one) for one in tensors]
    numbers: list[float] = torch.stack([one.to(norms[0].device) for one in norms]).double().tolist()
    return numbers


def _norm_of(norms: list[float]) -> float:
    return sum(norm * norm for norm in norms) ** 0.5


def _gradients(compute_loss: ComputeLoss, part: Any, parameters: list[nn.Parameter], weight: float) -> list[torch.Tensor] | None:
    """Those of the loss by its weight: numbers as large as in the whole are rounded like them. None where the loss has none."""
    loss = compute_loss(part)
    if not loss.requires_grad:
        return None
    found = torch.autograd.grad(loss, parameters, grad_outputs=torch.full_like(loss, weight), allow_unused=True)
    used = [torch.zeros_like(parameter) if one is None else one for one, parameter in zip(found, parameters)]
    dense = [one.to_dense() if one.layout != torch.strided else one for one in used]
    # Of its own: what a program's hooks return may be kept by it.
    return [one.detach().to(torch.promote_types(one.dtype, torch.float32), copy=True) for one in dense]


def _compared(model: nn.Module) -> list[nn.Parameter]:
    """Parameters whose gradients take little memory: all small ones, then from both ends, where embeddings and heads are."""
    trained = [one for one in model.parameters() if one.requires_grad and (one.is_floating_point() or one.is_complex())]
    large = [one for one in trained if _bytes(one) > _SMALL]
    ends = [one for pair in zip(reversed(large), large) for one in pair]
    chosen: dict[int, nn.Parameter] = {}
    left = _GRADIENTS
    for one in [*(one for one in trained if _bytes(one) <= _SMALL), *ends]:
        if id(one) not in chosen and _bytes(one) <= left:
            chosen[id(one)] = one
            left -= _bytes(one)
    return list(chosen.values()) or sorted(trained, key=_bytes)[:1]


def _bytes(parameter: torch.Tensor) -> int:
    return parameter.numel() * max(4, parameter.element_size())


@contextlib.contextmanager
def _differentiable(model: nn.Module) -> Iterator[None]:
    """Gradients on. cuDNN has none for recurrent modules in evaluation, so these are in training, without dropout."""
    recurrent = [(module, module.training, module.dropout) for module in model.modules() if isinstance(module, nn.RNNBase)]
    try:
        for module, _, _ in recurrent:
            module.training, module.dropout = True, 0.0
        with torch.enable_grad():
            yield
    finally:
        for module, training, dropout in recurrent:
            module.training, module.dropout = training, dropout


def _precision(compute_loss: ComputeLoss, part: Any, model: nn.Module) -> _Precision:
    """By what the model is in, and what the loss of one sample is computed in: programs have autocast within."""
    device = next((one.device.type for one in model.parameters()), "cpu")
    half = (torch.float16, torch.bfloat16)
    if torch.is_autocast_enabled(device) or any(one.dtype in half for one in model.parameters()):
        return _HALF
    with _differentiable(model):
        loss = with_room(lambda: compute_loss(part))
    waiting = [loss.grad_fn] if isinstance(loss, torch.Tensor) else []
    known: set[Any] = set()
    while waiting and len(known) < _NODES:
        node = waiting.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if any(getattr(one, "dtype", None) in half for one in getattr(node, "_input_metadata", ())):
            return _HALF
        waiting += [following for following, _ in node.next_functions]
    return _FULL


def _time_first(model: nn.Module) -> str | None:
    """The first module for which the first dimension is time."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and not module.batch_first:
            return f"{name} (nn.{type(module).__name__})" if name else f"nn.{type(module).__name__}"
    return None


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[Callable[[], None]]:
    """No gradients and all modules in evaluation; afterwards modes, buffers and random numbers are as they were.

    Gives a function that puts the modules into training, as far as they were.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module._buffers, name, buffer, buffer.clone()) for module in model.modules() for name, buffer in module._buffers.items() if buffer is not None]

    def put_back() -> None:
        for module, training in modes:
            module.training = training

    def in_training() -> None:
        put_back()
        if not model.training:
            model.train()

    try:
        with random_numbers_kept(model), torch.no_grad():
            model.eval()
            yield in_training
    finally:
        put_back()
        with torch.no_grad():
            for holder, name, buffer, was in buffers:
                holder[name] = buffer
                if not buffer.is_inference():
                    buffer.copy_(was)
