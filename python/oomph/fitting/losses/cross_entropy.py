"""Logits that are never whole: the head of a language model and its cross-entropy, computed for some rows at a time.

A head of 50 000 columns makes the largest tensors of a step, and the loss copies them three or four times. Here the head returns a
`DeferredLogits`, which only remembers what it would be computed from. Cross-entropy on it goes through the rows in chunks, and computes the
gradients of the hidden states and of the weight with each, so no row's logits outlive their chunk, and nothing is computed twice. Whatever
else touches it gets the plain logits, with their history.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_any, tree_leaves, tree_map

from oomph.fitting.errors import FitError
from oomph.fitting.losses import counts
from oomph.fitting.techniques.saved import away_from_hooks
from oomph.fitting.techniques.technique import Technique

# Below that, logits are small beside the rest.
_LEAST_COLUMNS = 4096

# Of the logits of one chunk in float32; the loss needs about three times that besides. Fewer rows keep a GPU less busy than it could be.
CHUNK_BYTES = 128 << 20


class DeferredHeads:
    """What was changed in a model; ``undo`` changes it back, and a second time does nothing."""

    def __init__(self, heads: dict[str, nn.Linear]) -> None:
        self.heads = list(heads)
        self._changed = list(heads.values())

    def undo(self) -> None:
        while self._changed:
            self._changed.pop().__dict__.pop("forward", None)


def find_heads(model: nn.Module) -> dict[str, nn.Linear]:
    """The Linear modules that give logits over a vocabulary, by name; not the wide ones inside of blocks."""
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear and "forward" not in module.__dict__}
    wide = {name: one for name, one in linears.items() if one.out_features >= _LEAST_COLUMNS and one.out_features > one.in_features}
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    words = {embedding.num_embeddings for embedding in embeddings}
    tied = {id(embedding.weight) for embedding in embeddings}
    widths = [one.out_features for one in linears.values()]
    last = next(reversed(linears), None)
    output = getattr(model, "get_output_embeddings", lambda: None)()

    def is_head(name: str, one: nn.Linear) -> bool:
        if one is output or id(one.weight) in tied or one.out_features in words:
            return True
        return name == last and widths.count(one.out_features) == 1

    return {name: one for name, one in wide.items() if is_head(name, one)}


def defer_logits(model: nn.Module, chunk_bytes: int = CHUNK_BYTES) -> DeferredHeads:
    """Makes the heads of a model return `DeferredLogits` while gradients are recorded. ``heads`` of the result has their names."""
    heads = find_heads(model)
    for head in heads.values():
        # A bound method, and no closure, so that a deep copy of the model has one of its own.
        head.forward = types.MethodType(_Forward(chunk_bytes), head)
    return DeferredHeads(heads)


class _Forward:
    """The forward of a head."""

    __name__ = "forward"

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes

    def __call__(self, head: nn.Linear, hidden: torch.Tensor) -> torch.Tensor:
        dtype = _dtype_of_linear(head, hidden)
        if dtype is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return F.linear(hidden, head.weight, head.bias)
        if not (hidden.requires_grad or head.weight.requires_grad):
            return F.linear(hidden, head.weight, head.bias)
        root = _Root(hidden, head.weight, head.bias, dtype, self.chunk_bytes)
        return _deferred(root, hidden, dtype)


def _dtype_of_linear(head: nn.Linear, hidden: torch.Tensor) -> torch.dtype | None:
    """What the plain head would return here; None where it is better left to itself."""
    kinds = {type(hidden), type(head.weight), *([type(head.bias)] if head.bias is not None else [])}
    of_another_shape = hidden.dim() < 1 or hidden.shape[-1] != head.in_features
    if not kinds <= {torch.Tensor, nn.Parameter} or hidden.device != head.weight.device or of_another_shape:
        return None  # Sharded, quantised, on the way from elsewhere, or an error that the plain head explains.
    allowed = (torch.float32, torch.bfloat16, torch.float16)
    if hidden.dtype not in allowed or head.weight.dtype not in allowed:
        return None
    if torch.is_autocast_enabled(hidden.device.type):
        return torch.get_autocast_dtype(hidden.device.type)
    return hidden.dtype if hidden.dtype == head.weight.dtype else None


class _Root:
    """One call of a head: what its logits are made of, and the logits, once something has asked for them whole."""

    def __init__(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, chunk_bytes: int) -> None:
        self.hidden, self.weight, self.bias, self.dtype, self.chunk_bytes = hidden, weight, bias, dtype, chunk_bytes
        self.whole: torch.Tensor | None = None
        # All that came of it.
        self.made: list[weakref.ref[DeferredLogits]] = []

    def make_all(self) -> None:
        for reference in self.made:
            _plain(reference())

    def logits(self) -> torch.Tensor:
        if self.whole is None:
            # With history whoever asks first: without gradients it may be a metric, and the loss comes later.
            with torch.enable_grad(), torch.autocast(self.hidden.device.type, enabled=False):
                bias = self.bias.to(self.dtype) if self.bias is not None else None
                self.whole = F.linear(self.hidden.to(self.dtype), self.weight.to(self.dtype), bias)
        return self.whole


class Change:
    """A function that was called on logits. ``matters``: gradients before it are others than after it, beside their dtype."""

    __slots__ = ("_function", "matters")

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], matters: bool = True) -> None:
        self._function, self.matters = function, matters

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self._function(value)


class DeferredLogits(torch.Tensor):
    """Logits that have a shape, a dtype and a device, and no memory.

    ``_step`` is the function that was called on ``_before`` to come here, such as a slice or a view; ``_hidden`` has been through the same ones, except for ``_changes``: those that
    change each number by itself, such as a conversion or a scale. They wait for the chunks.
    """

    _root: _Root
    _hidden: torch.Tensor
    _changes: tuple[Change, ...]
    _before: DeferredLogits | None
    _step: Change | None
    _own: torch.Tensor | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        deferring = _DEFERRING.get(func)
        if deferring is not None and torch.is_grad_enabled():
            answer = deferring(*args, **kwargs)
            if answer is not None:
                return answer
        if _writes(func):
            # Others that come from the same logits see what is written, or do not, as if all had been made at once.
            for root in {id(one._root): one._root for one in tree_leaves((args, kwargs)) if isinstance(one, DeferredLogits)}.values():
                root.make_all()
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        # Only what goes past __torch_function__ comes here, below autograd, which has the history from _Promise.
        with torch.no_grad():
            if func is torch.ops.aten.detach.default:
                return args[0]
            return func(*tree_map(_plain, args), **tree_map(_plain, kwargs or {}))

    def __repr__(self) -> str:
        return f"DeferredLogits(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return _plain(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)


def _deferred(
    root: _Root, hidden: torch.Tensor, dtype: torch.dtype, changes: tuple[Change, ...] = (), before: DeferredLogits | None = None, step: Change | None = None
) -> DeferredLogits:
    made: DeferredLogits = _Promise.apply(hidden, root.weight, root.bias, root.dtype, dtype, changes)
    made._root, made._hidden, made._changes, made._before, made._step, made._own = root, hidden, changes, before, step, None
    root.made.append(weakref.ref(made))
    return made


def _writes(func: Any) -> bool:
    """Whether it changes a tensor in place, by the convention of its name."""
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or name.startswith("__i") and name.endswith("__") or name.endswith("_") and not name.endswith("__")


def _plain(thing: Any) -> Any:
    """The plain logits for deferred ones; everything else as it is."""
    if not isinstance(thing, DeferredLogits):
        return thing
    if thing._own is None:
        # From what it was made of, so that what writes into one view is seen in the others.
        value = thing._root.logits() if thing._before is None else _plain(thing._before)
        with torch.enable_grad():
            thing._own = value if thing._step is None else thing._step(value)
    return thing._own


class _Promise(torch.autograd.Function):
    """Gives deferred logits their place in the graph, for what goes past ``__torch_function__``, as custom autograd functions do."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, shown: torch.dtype, changes: tuple[Change, ...]
    ) -> torch.Tensor:
        # Not save_for_backward: hooks would take a copy elsewhere of what is there anyway.
        ctx.hidden, ctx.weight, ctx.bias, ctx.dtype, ctx.changes = hidden, weight, bias, dtype, changes
        shape = (*hidden.shape[:-1], weight.shape[0])
        return torch.Tensor._make_wrapper_subclass(DeferredLogits, shape, dtype=shown, device=hidden.device)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        hidden = ctx.hidden.detach().reshape(-1, ctx.hidden.shape[-1]).to(ctx.dtype)
        if any(change.matters for change in ctx.changes):
            with torch.enable_grad():
                leaf = F.linear(hidden, ctx.weight.detach().to(ctx.dtype), None if ctx.bias is None else ctx.bias.detach().to(ctx.dtype)).requires_grad_()
                changed = _changed(leaf, ctx.changes)
            (gradient,) = torch.autograd.grad(changed, leaf, gradient.reshape(changed.shape))
        rows = gradient.reshape(-1, gradient.shape[-1]).to(ctx.dtype)
        of_hidden, of_weight, of_bias = None, None, None
        if ctx.needs_input_grad[0]:
            of_hidden = (rows @ ctx.weight.detach().to(ctx.dtype)).view(ctx.hidden.shape).to(ctx.hidden.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (rows.T @ hidden).to(ctx.weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_hidden, of_weight, of_bias, None, None, None


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The sum of the cross-entropies of all rows by `count`, with the gradients already at hand when backward asks for them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        count: torch.Tensor | None,
        root: _Root,
        changes: tuple[Change, ...],
        options: dict[str, Any],
    ) -> torch.Tensor:
        device, dtype = hidden.device.type, root.dtype
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        cast_weight = weight.detach().to(dtype)
        cast_bias = bias.detach().to(dtype) if bias is not None else None
        of_hidden = torch.empty_like(hidden, memory_format=torch.contiguous_format) if for_hidden else None
        # In float32 whatever the weight has: chunks are added, and the plain product rounds once.
        of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if for_weight else None
        of_bias = torch.zeros(weight.shape[0], dtype=torch.float32, device=weight.device) if for_bias else None
        total, loss_dtype = torch.zeros((), device=hidden.device), torch.float32
        for start, stop in _chunks(hidden.shape[0], weight.shape[0], root.chunk_bytes):
            rows = hidden[start:stop].to(dtype)
            with torch.autocast(device, enabled=False):
                logits = F.linear(rows, cast_weight, cast_bias)
            loss, of_logits = _loss_and_gradient(logits, changes, target[start:stop], options)
            del logits
            total, loss_dtype = total + loss.float(), loss.dtype
            with torch.autocast(device, enabled=False):
                if of_hidden is not None:
                    of_hidden[start:stop] = of_logits @ cast_weight
                if of_weight is not None:
                    _add_product(of_weight, of_logits, rows, root.chunk_bytes)
                if of_bias is not None:
                    of_bias += of_logits.sum(0)
            del of_logits
        ctx.gradients = (of_hidden, of_weight, of_bias)
        ctx.count, ctx.dtypes = count, (weight.dtype, bias.dtype if bias is not None else None)
        return (total if count is None else total / count).to(loss_dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.gradients is None:
            raise FitError("a second backward through the same loss: its logits were deferred, and their gradients are gone")
        of_hidden, of_weight, of_bias = ctx.gradients
        ctx.gradients = None  # Whoever gets them can keep them without a copy.
        scale = gradient
        if ctx.count is not None:
            # Without any target the loss is nan and the gradients are zeros, as those of the plain loss.
            scale = torch.where(ctx.count > 0, gradient / ctx.count, torch.zeros_like(gradient))
        if of_hidden is not None:
            of_hidden.mul_(scale)
        if of_weight is not None:
            of_weight = of_weight.mul_(scale).to(ctx.dtypes[0])
        if of_bias is not None:
            of_bias = of_bias.mul_(scale).to(ctx.dtypes[1])
        return of_hidden, of_weight, of_bias, None, None, None, None, None


def _loss_and_gradient(logits: torch.Tensor, changes: tuple[Change, ...], target: torch.Tensor, options: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's own cross-entropy of some rows, in the dtypes of the plain way, and the gradient of their logits."""
    with torch.enable_grad(), away_from_hooks():
        leaf = logits.detach().requires_grad_()
        value = _changed(leaf, changes)
        loss = F.cross_entropy(value, target, reduction="sum", **options)
        del value
        (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def _add_product(of_weight: torch.Tensor, of_logits: torch.Tensor, rows: torch.Tensor, chunk_bytes: int) -> None:
    if of_logits.dtype == of_weight.dtype:
        of_weight.addmm_(of_logits.T, rows)
        return
    # The product is rounded to the dtype of its factors, as in the plain way; in pieces, so that it is no second weight.
    for start, stop in _chunks(of_weight.shape[0], of_weight.shape[1], chunk_bytes):
        of_weight[start:stop] += of_logits[:, start:stop].T @ rows


def _chunks(rows: int, columns: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Even pieces of rows, each of at most about `chunk_bytes` in float32."""
    most = max(1, chunk_bytes // (4 * columns))
    pieces = max(1, -(-rows // most))
    size = max(1, -(-rows // pieces))
    for start in range(0, max(rows, 1), size):
        yield start, min(start + size, rows)


def _changed(value: torch.Tensor, changes: tuple[Change, ...]) -> torch.Tensor:
    with torch.autocast(value.device.type, enabled=False):
        for change in changes:
            value = change(value)
    return value


def _step(logits: DeferredLogits, hidden: torch.Tensor, step: Callable[[torch.Tensor], torch.Tensor]) -> DeferredLogits:
    return _deferred(logits._root, hidden, logits.dtype, logits._changes, logits, Change(step))


def _change(logits: DeferredLogits, change: Change, dtype: torch.dtype) -> DeferredLogits:
    """Of each number by itself: rows may be taken before or after it."""
    return _deferred(logits._root, logits._hidden, dtype, (*logits._changes, change), logits, change)


def _cast(logits: DeferredLogits, dtype: torch.dtype) -> DeferredLogits | None:
    if not dtype.is_floating_point:
        return None
    if dtype == logits.dtype:
        return logits
    return _change(logits, Change(lambda value: value.to(dtype), matters=False), dtype)


def _to(logits: DeferredLogits, *args: Any, **kwargs: Any) -> DeferredLogits | None:
    if tree_any(lambda one: isinstance(one, torch.Tensor), (args, kwargs)) or kwargs.get("copy"):
        return None
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **{name: value for name, value in kwargs.items() if name != "copy"})
    if memory_format is not None or device is not None and torch.empty(0, device=device).device != logits.device:
        return None
    return logits if dtype is None else _cast(logits, dtype)


def _added(logits: Any = None, other: Any = None, **options: Any) -> DeferredLogits | None:
    """A number for each column that is not trained, such as a bias that is a buffer."""
    if not isinstance(logits, DeferredLogits):
        logits, other = other, logits
    if options or type(other) is not torch.Tensor or not isinstance(logits, DeferredLogits) or other.requires_grad or not 0 < other.dim() <= min(2, logits.dim()):
        return None
    if not other.numel() == other.shape[-1] == logits.shape[-1] or other.device != logits.device:
        return None
    # It may be changed before the loss.
    row = other.detach().reshape(-1).clone()
    return _change(logits, Change(lambda value: value + row), torch.promote_types(logits.dtype, row.dtype))


def _scaled(logits: Any = None, factor: Any = None, **options: Any) -> DeferredLogits | None:
    if not isinstance(logits, DeferredLogits):
        logits, factor = factor, logits
    is_number = isinstance(logits, DeferredLogits) and type(factor) in (int, float) and not options
    return _change(logits, Change(lambda value: value * factor), logits.dtype) if is_number else None


def _divided(logits: Any = None, divisor: Any = None, **options: Any) -> DeferredLogits | None:
    is_number = isinstance(logits, DeferredLogits) and type(divisor) in (int, float) and not options
    return _change(logits, Change(lambda value: value / divisor), logits.dtype) if is_number else None


def _tanh(logits: Any = None, **options: Any) -> DeferredLogits | None:
    return _change(logits, Change(torch.tanh), logits.dtype) if isinstance(logits, DeferredLogits) and not options else None


def _reshape(logits: DeferredLogits, *shape: Any, **kwargs: Any) -> DeferredLogits | None:
    if kwargs.get("shape") is not None:
        shape = tuple(kwargs.pop("shape"))
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    if kwargs or not shape or not all(isinstance(size, int) for size in shape):
        return None
    columns = logits.shape[-1]
    known = 1
    for size in shape:
        known *= size if size != -1 else 1
    if known <= 0:
        return None
    resolved = tuple(size if size != -1 else logits.numel() // known for size in shape)
    if resolved[-1] != columns:
        return None
    hidden = logits._hidden.reshape(*resolved[:-1], logits._hidden.shape[-1])
    return _step(logits, hidden, lambda value: value.reshape(resolved))


def _flatten(logits: DeferredLogits, start_dim: int = 0, end_dim: int = -1) -> DeferredLogits | None:
    if not isinstance(start_dim, int) or end_dim % logits.dim() == logits.dim() - 1:
        return None
    start, end = start_dim % logits.dim(), end_dim % logits.dim()
    return _step(logits, logits._hidden.flatten(start, end), lambda value: value.flatten(start, end))


def _contiguous(logits: DeferredLogits, **kwargs: Any) -> DeferredLogits | None:
    return None if kwargs else _step(logits, logits._hidden, lambda value: value.contiguous())


def _getitem(logits: DeferredLogits, index: Any) -> DeferredLogits | None:
    """Some rows; whatever takes some columns only is no matter for this."""
    entries = index if isinstance(index, tuple) else (index,)
    used = []
    for entry in entries:
        if isinstance(entry, (slice, int)) and not isinstance(entry, bool):
            used.append(1)
        elif isinstance(entry, torch.Tensor) and not isinstance(entry, DeferredLogits) and not entry.is_floating_point():
            used.append(entry.dim() if entry.dtype in (torch.bool, torch.uint8) else 1)
        elif entry is Ellipsis:
            used.append(0)
        else:
            return None
    has_ellipsis = any(entry is Ellipsis for entry in entries)
    # Without an ellipsis the entries count from the first dimension, and may not reach the last.
    reaches_columns = entries[-1] is not Ellipsis if has_ellipsis else sum(used) >= logits.dim()
    if reaches_columns and not (isinstance(entries[-1], slice) and entries[-1] == slice(None)):
        return None
    return _step(logits, logits._hidden[index], lambda value: value[index])


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor | None:
    if not isinstance(input, DeferredLogits) or isinstance(target, DeferredLogits) or isinstance(weight, DeferredLogits):
        return None
    plain = input._root.whole is not None or size_average is not None or reduce is not None or reduction not in ("mean", "sum")
    if plain or input.dim() != 2 or target.dim() != 1 or target.is_floating_point() or not torch.is_grad_enabled() or target.shape[0] == 0:
        return None
    if target.shape[0] != input.shape[0] or target.device != input.device:
        return None  # The plain function says what is wrong.
    root = input._root
    options = {"weight": weight, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    count = None
    if reduction == "mean":
        with torch.no_grad():
            count = counts.targets_in(target, weight, ignore_index)
        counts.note_cross_entropy(target, weight, ignore_index, count)
    return _ChunkedCrossEntropy.apply(input._hidden, root.weight, root.bias, target, count, root, input._changes, options)


_Tensor = torch.Tensor

_DEFERRING: dict[Any, Callable[..., Any]] = {
    F.cross_entropy: _cross_entropy,
    _Tensor.float: lambda logits: _cast(logits, torch.float32),
    _Tensor.bfloat16: lambda logits: _cast(logits, torch.bfloat16),
    _Tensor.half: lambda logits: _cast(logits, torch.float16),
    _Tensor.to: _to,
    _Tensor.view: _reshape,
    _Tensor.reshape: _reshape,
    torch.reshape: _reshape,
    _Tensor.flatten: _flatten,
    torch.flatten: _flatten,
    _Tensor.contiguous: _contiguous,
    _Tensor.__getitem__: _getitem,
    **dict.fromkeys((torch.add, _Tensor.add, _Tensor.__add__, _Tensor.__radd__), _added),
    **dict.fromkeys((torch.mul, _Tensor.mul, _Tensor.__mul__, _Tensor.__rmul__), _scaled),
    **dict.fromkeys((torch.div, _Tensor.div, _Tensor.__truediv__), _divided),
    **dict.fromkeys((torch.tanh, _Tensor.tanh), _tanh),
}

_PROPERTIES: tuple[str, ...] = ("shape", "dtype", "device", "requires_grad", "grad_fn", "is_leaf", "ndim", "layout", "is_cuda", "is_cpu", "is_sparse")
_PROPERTIES += ("is_nested", "is_quantized", "is_meta", "is_mps", "is_xpu", "is_mkldnn", "itemsize", "names", "output_nr", "_version")
_PROPERTIES += ("_base", "grad", "_backward_hooks")
_METHODS: tuple[str, ...] = ("size", "dim", "numel", "nelement", "ndimension", "__len__", "is_floating_point", "is_complex", "element_size", "get_device")
_METHODS += ("__hash__", "is_inference")
_METADATA = {getattr(_Tensor, name).__get__ for name in _PROPERTIES if hasattr(_Tensor, name)}
_METADATA |= {getattr(_Tensor, name) for name in _METHODS} | {torch.is_floating_point, torch.is_complex, torch.numel, torch.is_inference}


DEFER_LOGITS = Technique("defer_logits", lambda *_: "logits and cross-entropy in pieces", "same numbers; the logits are never whole", apply=lambda step: defer_logits(step.model))
