"""How what an operation made is made again from what its node in autograd's graph still has: one recipe for each kind of node.

The same operation on the same numbers gives the same bits. Which tensors are dropped, and when they are made, is for ``selective``.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from oomph.fitting.techniques.saved import Stayed

# Gives a value: kept somewhere, or made again.
Make = Callable[[], torch.Tensor]


class Values(Protocol):
    """What recipes ask for: the value of an output of a node, if it can be had, and what nodes do not keep: the numbers of norms and sums."""

    eps: dict[int, float]

    def value(self, node: Any, output: int) -> Make | None: ...

    def number(self, node: Any) -> float | None: ...


Recipe = Callable[[Values, Any], Make | None]

# Views share the memory of what they are views of: the same bytes, seen otherwise.
VIEWS = frozenset(
    f"{name}Backward0"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Expand", "Slice", "Select", "AsStrided", "Alias", "Detach"),
        *("Split", "SplitWithSizes", "Unbind"),
    )
) | {"SqueezeBackward1", "SqueezeBackward2", "TransposeBackward1"}
# Of these a tensor that lies in one piece was made in one piece.
RESHAPES = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})

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


def kept_by(node: Any, output: int) -> Make | None:
    """What a node keeps of its own output."""
    key = _SAVED_OUTPUTS.get(node.name())
    return (lambda: getattr(node, key)) if key is not None and output == 0 and hasattr(type(node), key) else None


def shape_made(node: Any) -> tuple[int, ...]:
    return tuple(node._input_metadata[0].shape)


def bytes_made(node: Any) -> int:
    made = node._input_metadata[0]
    return math.prod(made.shape) * int(made.dtype.itemsize)


def _signed(dimension: int) -> int:
    """Nodes show negative dimensions as large positive ones."""
    return dimension - (1 << 64) if dimension >= 1 << 63 else dimension


# -- views


def seen(values: Values, node: Any, output: int) -> Make | None:
    """A view of what lies before it. Nothing for nodes that are none, or that do not keep how they look at it."""
    name = node.name()
    look = _LOOKS.get(name)
    of = values.value(*node.next_functions[0]) if look is not None else None
    if look is None or of is None:
        return None
    return look(node, output, of)


def _reshaped(node: Any, output: int, of: Make) -> Make:
    shape = shape_made(node)
    return lambda: of().reshape(shape)


def _expanded(node: Any, output: int, of: Make) -> Make:
    shape = shape_made(node)
    return lambda: of().expand(shape)


def _transposed(node: Any, output: int, of: Make) -> Make:
    return lambda: of().transpose(_signed(node._saved_dim0), _signed(node._saved_dim1))


def _permuted(node: Any, output: int, of: Make) -> Make:
    return lambda: of().permute([_signed(dim) for dim in node._saved_dims])


def _sliced(node: Any, output: int, of: Make) -> Make:
    return lambda: torch.ops.aten.slice(of(), _signed(node._saved_dim), _signed(node._saved_start), min(_signed(node._saved_end), (1 << 63) - 1), node._saved_step)


def _selected(node: Any, output: int, of: Make) -> Make:
    return lambda: of().select(_signed(node._saved_dim), _signed(node._saved_index))


def _split(node: Any, output: int, of: Make) -> Make:
    sizes = node._saved_split_size if node.name() == "SplitBackward0" else node._saved_split_sizes
    return lambda: of().split(sizes, _signed(node._saved_dim))[output]


def _unbound(node: Any, output: int, of: Make) -> Make:
    return lambda: of().select(_signed(node._saved_dim), output)


_LOOKS: dict[str, Callable[[Any, int, Make], Make]] = {
    **dict.fromkeys(("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0", "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2"), _reshaped),
    "ExpandBackward0": _expanded,
    "TransposeBackward0": _transposed,
    "PermuteBackward0": _permuted,
    "TBackward0": lambda node, output, of: lambda: of().t(),
    "AliasBackward0": lambda node, output, of: of,
    "SliceBackward0": _sliced,
    "SelectBackward0": _selected,
    "SplitBackward0": _split,
    "SplitWithSizesBackward0": _split,
    "UnbindBackward0": _unbound,
}


# -- what is cheap


def _of_saved_self(function: Callable[[Any], torch.Tensor]) -> Recipe:
    return lambda values, node: lambda: function(node)


def _of_input(function: Callable[[torch.Tensor], torch.Tensor]) -> Recipe:
    """Of operations that keep their result: these must not be made of what they keep."""

    def recipe(values: Values, node: Any) -> Make | None:
        of = values.value(*node.next_functions[0])
        return None if of is None else lambda: function(of())

    return recipe


def _product(values: Values, node: Any) -> Make | None:
    """Each factor is saved if the other has a gradient; otherwise it may be had elsewhere."""
    (left, left_output), (right, right_output) = node.next_functions
    first = (lambda: node._saved_self) if right is not None else values.value(left, left_output)
    second = (lambda: node._saved_other) if left is not None else values.value(right, right_output)
    if first is None or second is None:
        return None
    return lambda: first() * second()


def _sum(sign: int) -> Recipe:
    """Of two tensors, or of a tensor and a number."""

    def recipe(values: Values, node: Any) -> Make | None:
        number = values.number(node) if node.next_functions[1][0] is None else None
        first = values.value(*node.next_functions[0])
        if first is not None and number is not None:
            return lambda: torch.add(first(), number, alpha=sign * node._saved_alpha)
        second = values.value(*node.next_functions[1])
        if first is None or second is None:
            return None
        return lambda: torch.add(first(), second(), alpha=sign * node._saved_alpha)

    return recipe


def _joined(values: Values, node: Any) -> Make | None:
    """What has no gradient is kept by nobody; it may have been empty, as caches are before the first token."""
    known = [one for one in node.next_functions if one[0] is not None]
    parts = [values.value(*one) for one in known]
    if not parts or any(part is None for part in parts):
        return None
    dim = _signed(node._saved_dim)
    if len(known) < len(node.next_functions) and sum(_length(before, output, dim) for before, output in known) != shape_made(node)[dim]:
        return None
    return lambda: torch.cat([part() for part in parts if part is not None], dim)


def _length(node: Any, output: int, dim: int) -> int:
    with contextlib.suppress(IndexError, AttributeError):
        return int(node._input_metadata[output].shape[dim])
    return -1


def _converted(values: Values, node: Any) -> Make | None:
    of, made = values.value(*node.next_functions[0]), node._input_metadata[0].dtype
    return None if of is None else lambda: of().to(made)


def _copied(values: Values, node: Any) -> Make | None:
    of = values.value(*node.next_functions[0])
    return None if of is None else lambda: of().clone(memory_format=torch.contiguous_format)


def _layer_norm(values: Values, node: Any) -> Make | None:
    eps = _eps(values, node)
    if eps is None:
        return None
    return lambda: F.layer_norm(node._saved_input, node._saved_normalized_shape, node._saved_weight, node._saved_bias, eps)


def _eps(values: Values, node: Any) -> float | None:
    owner = node.next_functions[1][0]
    return values.eps.get(id(getattr(owner, "variable", None)))


def _group_norm(values: Values, node: Any) -> Make | None:
    eps, bias = _eps(values, node), _parameter(node, 2)
    if eps is None or bias is None:
        return None
    return lambda: F.group_norm(node._saved_input, node._saved_group, node._saved_weight, bias(), eps)


def _parameter(node: Any, place: int) -> Make | None:
    """Its node does not keep it: the parameter itself, as long as nobody changes it."""
    owner = node.next_functions[place][0]
    return Stayed(owner.variable) if hasattr(owner, "variable") else None


def _batch_norm(values: Values, node: Any) -> Make | None:
    """cuDNN's, with statistics of the batch: those are computed again, and the running ones left alone."""
    bias = _parameter(node, 2)
    if not node._saved_training or bias is None:
        return None
    return lambda: torch.ops.aten.cudnn_batch_norm(node._saved_input, node._saved_weight, bias(), None, None, True, 0.0, node._saved_epsilon)[0]


def _native_batch_norm(values: Values, node: Any) -> Make | None:
    bias = _parameter(node, 2)
    if not node._saved_training or bias is None:
        return None
    return lambda: torch.ops.aten.native_batch_norm(node._saved_input, node._saved_weight, bias(), None, None, True, 0.0, node._saved_eps)[0]


def _dropout(values: Values, node: Any) -> Make | None:
    """With the mask of the first time: no random number is drawn."""
    of, share = values.value(*node.next_functions[0]), node._saved_p
    if of is None or not 0 < share < 1:
        return None
    return lambda: torch.ops.aten.native_dropout_backward(of(), node._saved_result1, 1 / (1 - share))


CHEAP: dict[str, Recipe] = {
    "SiluBackward0": _of_saved_self(lambda node: F.silu(node._saved_self)),
    "GeluBackward0": _of_saved_self(lambda node: F.gelu(node._saved_self, approximate=node._saved_approximate)),
    "HardswishBackward0": _of_saved_self(lambda node: F.hardswish(node._saved_self)),
    "MishBackward0": _of_saved_self(lambda node: F.mish(node._saved_self)),
    "PowBackward0": _of_saved_self(lambda node: node._saved_self.pow(node._saved_exponent)),
    "MulBackward0": _product,
    "MulBackward1": lambda values, node: None if (of := values.value(*node.next_functions[0])) is None else lambda: of() * node._saved_other,
    "AddBackward0": _sum(1),
    "SubBackward0": _sum(-1),
    "NegBackward0": _of_input(torch.neg),
    "CatBackward0": _joined,
    "CloneBackward0": _copied,
    "ToCopyBackward0": _converted,
    "NativeLayerNormBackward0": _layer_norm,
    "NativeGroupNormBackward0": _group_norm,
    "CudnnBatchNormBackward0": _batch_norm,
    "NativeBatchNormBackward0": _native_batch_norm,
    "NativeDropoutBackward0": _dropout,
    "ReluBackward0": _of_input(torch.relu),
    "TanhBackward0": _of_input(torch.tanh),
    "SigmoidBackward0": _of_input(torch.sigmoid),
}


# -- products: dear, but what they are made of is often smaller, and attention is dearer


def _factor(values: Values, node: Any, place: int, other: int, key: str) -> Make | None:
    """A factor is saved if the other has a gradient."""
    if node.next_functions[other][0] is not None:
        return lambda: getattr(node, key)
    return values.value(*node.next_functions[place])


def _addmm(values: Values, node: Any) -> Make | None:
    bias, first, second = _parameter(node, 0), _factor(values, node, 1, 2, "_saved_mat1"), _factor(values, node, 2, 1, "_saved_mat2")
    if bias is None or first is None or second is None:
        return None
    return lambda: torch.addmm(bias(), first(), second(), beta=node._saved_beta, alpha=node._saved_alpha)


def _matrix_product(function: Callable[..., torch.Tensor]) -> Recipe:
    def recipe(values: Values, node: Any) -> Make | None:
        first, second = _factor(values, node, 0, 1, "_saved_self"), _factor(values, node, 1, 0, "_saved_mat2")
        return None if first is None or second is None else lambda: function(first(), second())

    return recipe


def _convolution(values: Values, node: Any) -> Make | None:
    if node.next_functions[1][0] is None or node.next_functions[0][0] is None:
        return None
    bias, has_bias = _parameter(node, 2), any(node._saved_bias_sym_sizes_opt or ())
    if has_bias and bias is None:
        return None
    return lambda: torch.ops.aten.convolution(
        *(node._saved_input, node._saved_weight, bias() if bias is not None else None),
        *(node._saved_stride, node._saved_padding, node._saved_dilation, node._saved_transposed, node._saved_output_padding, node._saved_groups),
    )


PRODUCTS: dict[str, Recipe] = {
    "AddmmBackward0": _addmm,
    "MmBackward0": _matrix_product(torch.mm),
    "BmmBackward0": _matrix_product(torch.bmm),
    "ConvolutionBackward0": _convolution,
}


def inner_length(node: Any) -> int:
    """How many products are summed in each number that a node of PRODUCTS makes; 0 where that is not known."""
    name = node.name()
    if name == "AddmmBackward0":
        return int(node._saved_mat1_sym_sizes[1])
    if name == "MmBackward0":
        return int(node._saved_self_sym_sizes[1])
    if name == "BmmBackward0":
        before, output = node.next_functions[0]
        return max(0, _length(before, output, 2))
    return math.prod(node._saved_weight.shape[1:])
