"""Weights that take less memory: in bf16, in 8 or 4 bits for inference, or with zeros that are not stored. All of these change numerics.

Nothing here is done unless it was allowed. Each function changes a live model, says how many bytes its weights took before and after, and
can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from oomph.fitting.errors import FitError
from oomph.fitting.pieces import pieces
from oomph.fitting.techniques.technique import WEIGHTS, Technique

# Groups of four weights that are sorted at once: sorting takes memory too.
_FOURS = 1 << 18
_PIP = "\n\nhint: pip install torchao (or bitsandbytes)"


class Shrunk:
    """What was done to the weights; ``saved`` is measured. ``undo`` may be called more than once."""

    def __init__(self, bytes_before: int, bytes_after: int, note: str, undo: Callable[[], None]) -> None:
        self.bytes_before = bytes_before
        self.bytes_after = bytes_after
        self.note = note
        self._undo: Callable[[], None] | None = undo

    @property
    def saved(self) -> int:
        return self.bytes_before - self.bytes_after

    def undo(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None


def weight_bytes(model: nn.Module) -> int:
    """Bytes of parameters and buffers, as they are stored: quantised and sparse ones too, shared ones once."""
    parts: dict[tuple[torch.device, int], int] = {}
    for piece in (piece for tensor in _tensors(model) for piece in pieces(tensor)):
        storage = piece.untyped_storage()
        parts[piece.device, storage.data_ptr() or id(piece)] = storage.nbytes()
    return sum(parts.values())


# -- bf16


def bf16_weights(model: nn.Module, optimizer: Optimizer | None = None) -> Shrunk:
    """Makes floating parameters and buffers bf16, in place: they stay the same objects, so that an optimizer keeps them.

    Gradients and the state of ``optimizer``, where it has some, become bf16 too, and so does what the model is called with. ``undo`` gives
    them their old dtype back and keeps the values that were trained, as bf16 had them.
    """
    before = weight_bytes(model)
    dtypes = [(tensor, tensor.dtype) for tensor in _tensors(model) if tensor.dtype in (torch.float32, torch.float64)]
    for tensor, _ in dtypes:
        _convert(tensor, torch.bfloat16, optimizer)
    _flatten_again(model)
    casting = model.register_forward_pre_hook(_cast_inputs, with_kwargs=True, prepend=True)

    def undo() -> None:
        casting.remove()
        for tensor, dtype in dtypes:
            _convert(tensor, dtype, optimizer)
        _flatten_again(model)

    return Shrunk(before, weight_bytes(model), "weights, gradients and new optimizer state are bf16: about 3 decimal digits", undo)


def _convert(tensor: Tensor, dtype: torch.dtype, optimizer: Optimizer | None) -> None:
    gradient, was = tensor.grad, tensor.dtype
    tensor.grad = None
    tensor.data = tensor.data.to(dtype)
    if gradient is not None:
        tensor.grad = gradient.to(dtype)
    state = optimizer.state.get(tensor, {}) if optimizer is not None else {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.ndim > 0 and value.dtype == was:
            state[key] = value.to(dtype)


def _cast_inputs(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return _to_bf16(args), _to_bf16(kwargs)


def _to_bf16(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.bfloat16) if value.dtype in (torch.float32, torch.float64) else value
    if type(value) in (tuple, list):
        return type(value)(map(_to_bf16, value))
    if type(value) is dict:
        return {key: _to_bf16(part) for key, part in value.items()}
    return value


def _flatten_again(model: nn.Module) -> None:
    """cuDNN wants the weights of a recurrent layer in one piece."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


# -- Fewer bits, for inference


def quantize_weights(model: nn.Module, bits: int = 8) -> Shrunk:
    """Keeps the weights of linear layers in 8 or 4 bits, for inference: by torchao or bitsandbytes, whichever is installed.

    Weights that other modules share stay as they are. The full weights wait in host memory for ``undo``.
    """
    if bits not in (4, 8):
        raise FitError(f"weights can be kept in 8 or 4 bits, not in {bits}")
    if not any(True for _ in _linears(model)):
        raise FitError("the model has no linear layer of its own weights: nothing to quantise")
    # For 4 bits, torchao wants packages beside it.
    makers = (_torchao_quantiser, _bitsandbytes_quantiser) if bits == 8 else (_bitsandbytes_quantiser, _torchao_quantiser)
    quantise = makers[0](bits) or makers[1](bits)
    if quantise is None:
        raise FitError(f"nothing that keeps weights in {bits} bits is installed{_PIP}")
    before = weight_bytes(model)
    replaced: list[tuple[nn.Module, str, nn.Linear, torch.device]] = []

    def undo() -> None:
        while replaced:
            parent, name, old, device = replaced.pop()
            _move(old, device)
            setattr(parent, name, old)

    try:
        for parent, name, old in list(_linears(model)):
            device = old.weight.device
            setattr(parent, name, quantise(old))
            replaced.append((parent, name, old, device))
            _move(old, torch.device("cpu"))
    except BaseException:
        undo()
        raise
    return Shrunk(before, weight_bytes(model), f"weights of {len(replaced)} linear layers are kept in {bits} bits", undo)


def _linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear and owners[id(child.weight)] == 1 and child.weight.is_floating_point():
                yield parent, name, child


def _torchao_quantiser(bits: int) -> Callable[[nn.Linear], nn.Module] | None:
    try:
        from torchao import quantization as ao
    except ImportError:
        return None
    if bits == 8:
        config = ao.Int8WeightOnlyConfig() if hasattr(ao, "Int8WeightOnlyConfig") else ao.int8_weight_only()
    else:
        config = ao.Int4WeightOnlyConfig() if hasattr(ao, "Int4WeightOnlyConfig") else ao.int4_weight_only()

    def quantise(old: nn.Linear) -> nn.Module:
        new = nn.Sequential(_copy_of(old))  # What is given to it is not quantised itself, only what it contains.
        try:
            ao.quantize_(new, config)
        except ImportError as error:
            raise FitError(f"torchao cannot keep weights in {bits} bits here: {error}\n\nhint: pip install bitsandbytes") from error
        return new[0]

    return quantise


def _bitsandbytes_quantiser(bits: int) -> Callable[[nn.Linear], nn.Module] | None:
    try:
        import bitsandbytes as bnb
    except ImportError:
        return None

    def quantise(old: nn.Linear) -> nn.Module:
        weight, bias = old.weight.detach(), old.bias
        new: nn.Module
        if bits == 8:
            new = bnb.nn.Linear8bitLt(old.in_features, old.out_features, bias is not None, has_fp16_weights=False, device="meta")
            # It is quantised on its way to the GPU, so it has to come from the host.
            new.weight = bnb.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False)
        else:
            new = bnb.nn.Linear4bit(old.in_features, old.out_features, bias is not None, weight.dtype, quant_type="nf4", device="meta")
            new.weight = bnb.nn.Params4bit(weight.cpu(), requires_grad=False, quant_type="nf4", module=new)
        if bias is not None:
            new.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
        new.weight = new.weight.to(old.weight.device)
        return new.train(old.training)

    return quantise


# -- Zeros


def prune(model: nn.Module, amount: float = 0.5, semi_structured: bool = False, device: torch.device | None = None) -> Shrunk:
    """Makes the smallest weights of linear and convolution layers zero, for good: ``amount`` of each layer.

    That saves no memory, because zeros are stored like other numbers. With ``semi_structured``, the two smallest of every four weights of
    linear layers are dropped and not stored (fp16 or bf16, on GPUs of compute capability 8.0 or newer): 9/16 of the bytes remain. They go to
    ``device``, one after the other, so that the GPU need not hold the full ones; those wait in host memory for ``undo``.
    """
    before = weight_bytes(model)
    kept: list[tuple[nn.Module, nn.Parameter, Tensor]] = []

    def undo() -> None:
        while kept:
            module, parameter, values = kept.pop()
            parameter.data = values.to(parameter.device)
            module.weight = parameter

    try:
        if semi_structured:
            note = _drop_two_of_four(model, kept, device)
        else:
            note = _zero_smallest(model, amount, kept)
    except BaseException:
        undo()
        raise
    return Shrunk(before, weight_bytes(model), note, undo)


def _zero_smallest(model: nn.Module, amount: float, kept: list[tuple[nn.Module, nn.Parameter, Tensor]]) -> str:
    from torch.nn.utils import prune as torch_prune

    if not 0 < amount < 1:
        raise FitError(f"the share of weights to make zero is between 0 and 1, not {amount}")
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)) and isinstance(module.weight, nn.Parameter):
            parameter = module.weight
            kept.append((module, parameter, parameter.detach().cpu().clone()))
            torch_prune.l1_unstructured(module, "weight", amount)
            parameter.data.mul_(module.weight_mask)
            # Its own `remove` would make a new parameter, which no optimizer has.
            torch_prune.remove(module, "weight")
            module.weight = parameter
    return f"{amount:.0%} of the weights are zero; stored densely, zeros save no memory (semi_structured=True does, where the GPU knows it)"


def why_not_semi_structured(model: nn.Module, capability: tuple[int, int], halved: bool = False) -> str | None:
    """Why no weights can be stored with two zeros of every four; None if some can. ``halved`` asks for the model after ``bf16_weights``."""
    if capability < (8, 0):
        has = ".".join(map(str, capability))
        return f"weights with two zeros of every four are for GPUs of compute capability 8.0 or newer, and this one has {has}"
    if any(_has_fours(linear, halved) for _, _, linear in _linears(model)):
        return None
    why = "no linear layer has fp16 or bf16 weights in multiples of 64"
    return f"{why}, but some would with weights in bf16" if any(_has_fours(linear, True) for _, _, linear in _linears(model)) else why


def _has_fours(linear: nn.Linear, halved: bool) -> bool:
    kinds = (torch.float16, torch.bfloat16, *((torch.float32, torch.float64) if halved else ()))
    return linear.weight.dtype in kinds and not any(size % 64 for size in linear.weight.shape)


def _drop_two_of_four(model: nn.Module, kept: list[tuple[nn.Module, nn.Parameter, Tensor]], device: torch.device | None) -> str:
    from torch.sparse import to_sparse_semi_structured

    for _, _, linear in [found for found in _linears(model) if _has_fours(found[2], False)]:
        weight = linear.weight
        there = device or weight.device
        if there.type != "cuda":
            raise FitError("weights with two zeros of every four are for GPUs of compute capability 8.0 or newer")
        if (why := why_not_semi_structured(model, torch.cuda.get_device_capability(there))) is not None:
            raise FitError(why)
        kept.append((linear, weight, weight.detach().cpu()))
        values = weight.detach().to(there, copy=True, memory_format=torch.contiguous_format)
        for fours in values.view(-1, 4).split(_FOURS):
            fours.scatter_(1, fours.abs().argsort(dim=1)[:, :2], 0)
        linear.weight = nn.Parameter(to_sparse_semi_structured(values), requires_grad=False)
        weight.data = torch.empty(0, dtype=weight.dtype, device=weight.device)
    if not kept:
        raise FitError("no linear layer has fp16 or bf16 weights in multiples of 64: none can be stored with two zeros of every four")
    return f"two of every four weights are dropped in {len(kept)} linear layers"


# -- Helpers


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _copy_of(linear: nn.Linear) -> nn.Linear:
    new = nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    new.weight = nn.Parameter(linear.weight.detach(), requires_grad=False)
    if linear.bias is not None:
        new.bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=False)
    return new.train(linear.training)


def _move(linear: nn.Linear, device: torch.device) -> None:
    for parameter in linear.parameters():
        parameter.data = parameter.data.to(device)


BF16_WEIGHTS = Technique(
    "bf16_weights",
    lambda *_: "weights in bfloat16 (allowed)",
    "you allowed it",
    apply=lambda step: bf16_weights(step.model, step.optimizer),
    stage=WEIGHTS,
    allow="bf16-weights",
    allowed="weights and gradients in bfloat16",
    asked=lambda half: {"bf16_weights": True, "autocast": None},
    turn=3,
    lasts=True,
)
