"""Selective checkpointing: what a block's cheap operations made is not kept for the backward pass but made again there, from what its dear ones have kept.

Matrix products, convolutions and attention are kept; outputs of activations, norms, dropout, products and copies are dropped where the graph itself still has what they
were made of. No operation is watched: autograd says what it saves, by the hooks for saved tensors, and the node that made a tensor says how. The same operation on the same
numbers gives the same bits; in its first forward a block compares everything with what was there, and is left alone from then on if anything differs. What is not known to be
cheap, whose inputs nobody keeps, or what was changed in place, stays as it is. A change through ``.data`` is not seen.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from oomph._environment import on_virtual_gpu
from oomph.fitting.techniques.blocks import SELECTIVE, Surrounded, get_block
from oomph.fitting.techniques.saved import Stayed
from oomph.fitting.techniques.technique import Technique, differs_in_length, some_of
from oomph.live.out_of_memory import is_out_of_memory

# Smaller tensors stay: they are not worth a launch.
_SMALLEST = 64 << 10

# Views share the memory of what they are views of: the same bytes, seen otherwise.
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Expand", "Slice", "Select", "AsStrided", "Alias", "Detach")
) | {"SqueezeBackward1", "SqueezeBackward2", "TransposeBackward1"}
# Of these a tensor that lies in one piece was made in one piece.
_RESHAPES = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})

# What is asked of PyTorch's nodes here, and older versions do not have.
_KNOWN = hasattr(torch._C._autograd, "_get_sequence_nr") and hasattr(torch._C._FunctionBase, "_input_metadata")

# Makes a value again; None where that cannot be.
Make = Callable[[], torch.Tensor]


class SelectiveBlocks(Surrounded):
    """Blocks that keep only what is dear, until ``undo()``."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.counted = Counted()
        super().__init__(model, SELECTIVE, {name: _Selective(get_block(model, name), self.counted) for name in names})


class Counted:
    """What was dropped, in bytes: each storage once. What is made again is as much, and more where one thing is made of another."""

    def __init__(self) -> None:
        self.dropped = 0


class _Selective:
    """What lies around the forward of one block."""

    def __init__(self, block: nn.Module, counted: Counted) -> None:
        self._counted = counted
        self._norms = [module for module in block.modules() if isinstance(module, (nn.LayerNorm, nn.GroupNorm)) and module.weight is not None]
        # Of a virtual GPU there is nothing to compare.
        self._compared = on_virtual_gpu()
        self._left_alone = False

    def _eps(self) -> dict[int, float]:
        """By weight: nodes of norms do not keep it. Where two norms share a weight and differ in it, nothing is known."""
        found: dict[int, set[float]] = {}
        for norm in self._norms:
            found.setdefault(id(norm.weight), set()).add(norm.eps)
        return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Selective:
        return self

    def __call__(self, block: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled() or not _KNOWN or self._left_alone:
            return forward(*args, **kwargs)
        call = _Call(self._eps(), self._counted, compare=not self._compared)
        try:
            with torch.autograd.graph.saved_tensors_hooks(call.pack, _unpack), call.watching_for_others():
                return forward(*args, **kwargs)
        finally:
            self._compared, self._left_alone = True, call.closed
            call.forget()


class _Dropped:
    """A storage that is made again when it is first asked for, and lasts until all have it who asked for it to be kept."""

    __slots__ = ("__weakref__", "_layout", "_make", "_nbytes", "_value", "_waiting", "dtype")

    def __init__(self, make: Make, nbytes: int, dtype: torch.dtype, layout: tuple[torch.Size, tuple[int, ...]] | None) -> None:
        self._make, self._nbytes, self._layout, self._waiting = make, nbytes, layout, 0
        self.dtype = dtype
        self._value: torch.Tensor | None = None

    def wanted(self) -> None:
        self._waiting += 1

    def peek(self) -> torch.Tensor:
        """For what is made of this one in turn."""
        return self._value if self._value is not None else self._made()

    def take(self) -> torch.Tensor:
        value = self.peek()
        self._waiting -= 1
        self._value = value if self._waiting > 0 else None
        return value

    def _made(self) -> torch.Tensor:
        with torch.no_grad():
            made = self._make()
        if made.untyped_storage().nbytes() != self._nbytes:
            raise RuntimeError("what an operation makes has another size when it is made again: this block cannot be checkpointed selectively")
        if self._layout is not None and made.stride() != self._layout[1]:
            # The same numbers in another order: views of what was there before count on the first.
            with torch.no_grad():
                made = torch.empty_strided(*self._layout, dtype=made.dtype, device=made.device).copy_(made)
        return made


class _View:
    """What the graph holds in place of a tensor whose storage was dropped."""

    __slots__ = ("dropped", "offset", "shape", "stride")

    def __init__(self, dropped: _Dropped, tensor: torch.Tensor) -> None:
        self.dropped = dropped
        self.shape, self.stride, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        dropped.wanted()


def _unpack(saved: Stayed | _View) -> torch.Tensor:
    if type(saved) is Stayed:
        return saved()
    assert isinstance(saved, _View)
    value = saved.dropped.take()
    if value.shape == saved.shape and value.stride() == saved.stride and value.storage_offset() == saved.offset:
        return value
    with torch.no_grad():
        return value.as_strided(saved.shape, saved.stride, saved.offset)


class _Call:
    """One forward of a block: what its nodes have saved so far."""

    def __init__(self, eps: dict[int, float], counted: Counted, compare: bool) -> None:
        self.eps, self._counted, self._compare = eps, counted, compare
        # Nothing more is dropped: something was not the same when it was made again, or hooks of others lie inside.
        self.closed = False
        # Nodes of before are others' business: what they made is kept elsewhere, mostly.
        self.since = torch._C._autograd._get_sequence_nr()
        # By storage and version, what was dropped of it. The storage is gone then, and its number may come again: a weak reference tells.
        self._dropped: dict[tuple[int, int], tuple[Any, _Dropped]] = {}
        # By node and output: what somebody keeps of it, as it is.
        self._stayed: dict[tuple[Any, int], weakref.ref[Stayed]] = {}

    def forget(self) -> None:
        """Once the forward is over. The graph holds the hooks, and these would hold the graph."""
        self._dropped.clear()
        self._stayed.clear()

    @contextlib.contextmanager
    def watching_for_others(self) -> Iterator[None]:
        """Hooks that the block puts around parts of itself, such as a checkpoint's: what is saved there is theirs, and may be asked for once only."""
        push = torch._C._autograd._push_saved_tensors_default_hooks

        def pushed(pack: Any, unpack: Any) -> None:
            self.closed = True
            push(pack, unpack)

        torch._C._autograd._push_saved_tensors_default_hooks = pushed
        try:
            yield
        finally:
            torch._C._autograd._push_saved_tensors_default_hooks = push

    def pack(self, tensor: torch.Tensor) -> Stayed | _View:
        node = tensor.grad_fn
        if node is None or self.closed or tensor.numel() * tensor.element_size() < _SMALLEST or not _is_plain(tensor):
            return Stayed(tensor)
        storage = tensor.untyped_storage()
        known = self._dropped.get((storage._cdata, tensor._version))
        if known is not None and known[0]() is not None:
            return _View(known[1], tensor) if known[1].dtype == tensor.dtype else Stayed(tensor)
        # What was changed in place is not what its node made.
        make = self._recipe(tensor, node, storage.nbytes()) if tensor._version == 0 else None
        if make is not None and self._compare and not self._is_the_same(make, tensor):
            self.closed, make = True, None
        if make is None:
            stayed = Stayed(tensor)
            self._stayed[node, tensor.output_nr] = weakref.ref(stayed)
            return stayed
        is_whole = tensor.grad_fn.name() not in _VIEWS
        dropped = _Dropped(make, storage.nbytes(), tensor.dtype, (tensor.shape, tensor.stride()) if is_whole else None)
        self._dropped[storage._cdata, tensor._version] = (_alive(storage), dropped)
        self._counted.dropped += storage.nbytes()
        return _View(dropped, tensor)

    def _is_the_same(self, make: Make, tensor: torch.Tensor) -> bool:
        """Whether what is made again is what is there, to the bit."""
        trial = _View(_Dropped(make, tensor.untyped_storage().nbytes(), tensor.dtype, None), tensor)
        with torch.no_grad():
            try:
                made = _unpack(trial)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                return False
            there = tensor.detach()
            return made.dtype == there.dtype and bool(((made == there) | ((made != made) & (there != there))).all())

    def _recipe(self, tensor: torch.Tensor, node: Any, nbytes: int) -> Make | None:
        """How the whole storage of a tensor is made again."""
        output, reshaped = tensor.output_nr, True
        while (name := node.name()) in _VIEWS:
            reshaped = reshaped and name in _RESHAPES
            ((node, output), *_) = node.next_functions
            if node is None:
                return None
        if node._sequence_nr() < self.since or output != 0:
            return None
        made = node._input_metadata[0]
        if math.prod(made.shape) * made.dtype.itemsize != nbytes:
            return None
        if name == "CloneBackward0":
            # Its strides are known only of a copy that lies in one piece.
            return self._copy(node) if reshaped and tensor.is_contiguous() else None
        remake = _REMAKES.get(name)
        return remake(self, node) if remake is not None else None

    def value(self, node: Any, output: int) -> Make | None:
        """How the value of an output of a node can be had: made again, or kept by somebody."""
        if node is None:
            return None
        stayed = self._stayed.get((node, output))
        if stayed is not None and (kept := stayed()) is not None:
            return kept
        if node._sequence_nr() < self.since:
            return None
        name = node.name()
        if (key := _SAVED_OUTPUTS.get(name)) is not None and output == 0 and hasattr(type(node), key):
            return lambda: getattr(node, key)
        if name in ("TransposeBackward0", "PermuteBackward0"):
            return self._turned(node, name)
        remake = _REMAKES.get(name)
        return remake(self, node) if remake is not None and output == 0 else None

    def _copy(self, node: Any) -> Make | None:
        of = self.value(*node.next_functions[0])
        return None if of is None else lambda: of().clone(memory_format=torch.contiguous_format)

    def _turned(self, node: Any, name: str) -> Make | None:
        of = self.value(*node.next_functions[0])
        if of is None:
            return None
        if name == "PermuteBackward0":
            return lambda: of().permute(node._saved_dims)
        return lambda: of().transpose(_signed(node._saved_dim0), _signed(node._saved_dim1))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is its storage, seen by shape and strides, and nothing else."""
    return type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_complex() and not tensor.is_neg()


def _signed(dimension: int) -> int:
    """Nodes show negative dimensions as large positive ones."""
    return dimension - (1 << 64) if dimension >= 1 << 63 else dimension


def _alive(storage: torch.UntypedStorage) -> Callable[[], Any]:
    """Whether that storage is there still."""
    from torch.multiprocessing.reductions import StorageWeakRef

    reference = StorageWeakRef(storage)
    return lambda: None if reference.expired() else reference


# -- what is cheap, and how it is made again: of a node, given the call, or None


def _of_saved_self(function: Callable[[Any], torch.Tensor]) -> Callable[[_Call, Any], Make]:
    return lambda call, node: lambda: function(node)


def _product(call: _Call, node: Any) -> Make | None:
    """Each factor is saved if the other has a gradient; otherwise it may be had elsewhere."""
    (left, left_output), (right, right_output) = node.next_functions
    first = (lambda: node._saved_self) if right is not None else call.value(left, left_output)
    second = (lambda: node._saved_other) if left is not None else call.value(right, right_output)
    if first is None or second is None:
        return None
    return lambda: first() * second()


def _power(call: _Call, node: Any) -> Make:
    return lambda: node._saved_self.pow(node._saved_exponent)


def _layer_norm(call: _Call, node: Any) -> Make | None:
    eps = _eps(call, node)
    if eps is None:
        return None
    return lambda: F.layer_norm(node._saved_input, node._saved_normalized_shape, node._saved_weight, node._saved_bias, eps)


def _eps(call: _Call, node: Any) -> float | None:
    owner = node.next_functions[1][0]
    return call.eps.get(id(getattr(owner, "variable", None)))


def _group_norm(call: _Call, node: Any) -> Make | None:
    eps, bias = _eps(call, node), _bias(node)
    if eps is None or bias is None:
        return None
    return lambda: F.group_norm(node._saved_input, node._saved_group, node._saved_weight, bias(), eps)


def _bias(node: Any) -> Make | None:
    """Its node does not keep it: the parameter itself, as long as nobody changes it."""
    owner = node.next_functions[2][0]
    return Stayed(owner.variable) if hasattr(owner, "variable") else None


def _batch_norm(call: _Call, node: Any) -> Make | None:
    """cuDNN's, with statistics of the batch: those are computed again, and the running ones left alone."""
    bias = _bias(node)
    if not node._saved_training or bias is None:
        return None
    return lambda: torch.ops.aten.cudnn_batch_norm(node._saved_input, node._saved_weight, bias(), None, None, True, 0.0, node._saved_epsilon)[0]


def _native_batch_norm(call: _Call, node: Any) -> Make | None:
    bias = _bias(node)
    if not node._saved_training or bias is None:
        return None
    return lambda: torch.ops.aten.native_batch_norm(node._saved_input, node._saved_weight, bias(), None, None, True, 0.0, node._saved_eps)[0]


def _dropout(call: _Call, node: Any) -> Make | None:
    """With the mask of the first time: no random number is drawn."""
    of, share = call.value(*node.next_functions[0]), node._saved_p
    if of is None or not 0 < share < 1:
        return None
    return lambda: torch.ops.aten.native_dropout_backward(of(), node._saved_result1, 1 / (1 - share))


def _relu(call: _Call, node: Any) -> Make | None:
    of = call.value(*node.next_functions[0])
    return None if of is None else lambda: torch.relu(of())


_REMAKES: dict[str, Callable[[_Call, Any], Make | None]] = {
    "SiluBackward0": _of_saved_self(lambda node: F.silu(node._saved_self)),
    "GeluBackward0": _of_saved_self(lambda node: F.gelu(node._saved_self, approximate=node._saved_approximate)),
    "HardswishBackward0": _of_saved_self(lambda node: F.hardswish(node._saved_self)),
    "MishBackward0": _of_saved_self(lambda node: F.mish(node._saved_self)),
    "MulBackward0": _product,
    "PowBackward0": _power,
    "NativeLayerNormBackward0": _layer_norm,
    "NativeGroupNormBackward0": _group_norm,
    "CudnnBatchNormBackward0": _batch_norm,
    "NativeBatchNormBackward0": _native_batch_norm,
    "NativeDropoutBackward0": _dropout,
    "ReluBackward0": _relu,
}

# Nodes that keep what they made themselves.
_SAVED_OUTPUTS = {
    "SoftmaxBackward0": "_saved_result",
    "TanhBackward0": "_saved_result",
    "SigmoidBackward0": "_saved_result",
    "ReluBackward0": "_saved_result",
    "RsqrtBackward0": "_saved_result",
    "ScaledDotProductEfficientAttentionBackward0": "_saved_output",
    "ScaledDotProductFlashAttentionBackward0": "_saved_output",
    "ScaledDotProductCudnnAttentionBackward0": "_saved_output",
    "ScaledDotProductFlashAttentionForCpuBackward0": "_saved_output",
}


SELECTIVE_BLOCKS = Technique(
    "selective",
    lambda names, _, blocks: f"cheap operations of {some_of(len(names), blocks)} run again in the backward pass",
    "same numbers; matrix products and attention are kept",
    apply=lambda step: SelectiveBlocks(step.model, step.plan.selective),
    is_new=differs_in_length,
)
