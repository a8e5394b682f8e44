"""A model and what belongs to it, sent to a child process without the bytes of its tensors.

Tensors travel as their shape, strides, type and storage; the child makes them anew on the virtual GPU. Values of small integers and masks
travel too, because programs steer by them. Tensors of other classes (quantised weights) travel as the plain tensors that they are made of. Classes
and functions of a notebook or a script travel by value, by cloudpickle.
"""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import io
import pickle
import sys
from typing import Any

import torch

from oomph.fitting.errors import FitError
from oomph.fitting.pieces import is_plain, is_wrapper, pieces, plain
from oomph.fitting.planning.as_sharded import plain_class, plain_state
from oomph.sharding.state import is_sharded, is_sharded_parameter

# What programs steer by: ids, masks, lengths. The virtual GPU keeps values up to the same sizes.
_INTEGERS, _FLOATS = 1 << 20, 4096


_AS_PYTORCH_MAKES_IT = torch.optim.SGD([torch.empty(0)])


class NotPackable(FitError):
    """Something cannot be sent to another process; the message says what."""


def _pickler() -> type:
    try:
        import cloudpickle
    except ImportError:
        return pickle.Pickler
    return cloudpickle.Pickler


def pack(things: Any, *, onto_gpu: bool = False) -> bytes:
    """The bytes that ``unpack`` makes ``things`` of. With ``onto_gpu``, tensors of the CPU arrive on the GPU."""
    base: Any = _pickler()
    # Kept until the end: an id must not come back for another tensor.
    seen: dict[int, torch.Tensor] = {}
    weights = _Weights()

    class Packer(base):
        # Modules inside have hooks of FSDP2 too.
        sharded = isinstance(things, dict) and isinstance(things.get("model"), torch.nn.Module) and is_sharded(things["model"])

        def persistent_id(self, thing: Any) -> Any:
            if isinstance(thing, torch.Tensor) and is_sharded_parameter(thing):
                if id(thing) in seen:
                    return ("again", id(thing))
                seen[id(thing)] = thing
                return _describe_whole(thing)
            if isinstance(thing, torch.Tensor) and is_plain(thing):
                if id(thing) in seen:
                    return ("again", id(thing))
                seen[id(thing)] = thing
                return _describe(thing, onto_gpu, weights)
            if isinstance(thing, torch.Generator):
                return ("generator", str(thing.device.type))
            return None

        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, torch.Tensor):
                return _taken_apart(thing, onto_gpu, weights)
            if isinstance(thing, torch.nn.Module) and self.sharded:
                return _empty, (plain_class(thing),), plain_state(thing)
            if isinstance(thing, torch.optim.Optimizer) and type(thing).__getstate__ is torch.optim.Optimizer.__getstate__:
                return copyreg.__newobj__, (type(thing),), {**_attributes_beside(thing), **thing.__getstate__()}  # type: ignore[attr-defined]  # pickle's own
            return super().reducer_override(thing) if hasattr(base, "reducer_override") else NotImplemented

    out = io.BytesIO()
    try:
        Packer(out, protocol=pickle.HIGHEST_PROTOCOL).dump(things)
    except NotPackable:
        raise
    except Exception as error:
        hint = "" if base is not pickle.Pickler else " (pip install cloudpickle, for classes and functions of notebooks and scripts)"
        raise NotPackable(f"the model, the loss or the batch cannot be sent to another process: {error}{hint}") from error
    return pickle.dumps((list(sys.path), out.getvalue()))


class _Weights:
    """Storages that belong to tensors of other classes: codes and scales, by which nobody steers, and those that are for the host."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[bool, Any]] = {}

    def add(self, tensor: torch.Tensor, on_host: bool) -> None:
        for piece in pieces(tensor):
            storage = piece.untyped_storage()
            self._storages.setdefault(storage._cdata, (on_host, storage))

    def has(self, storage: Any) -> bool:
        return storage._cdata in self._storages

    def on_host(self, storage: Any) -> bool:
        return self._storages.get(storage._cdata, (False, None))[0]


def _describe(tensor: torch.Tensor, onto_gpu: bool, weights: _Weights) -> tuple[Any, ...]:
    _refuse_strange(tensor)
    storage = tensor.untyped_storage()
    if storage.nbytes() and not storage.data_ptr():
        raise NotPackable(f"a tensor of type {_class_of(tensor)} that holds no memory cannot be sent to another process")
    parameter = isinstance(tensor, torch.nn.Parameter)
    on_gpu = tensor.device.type == "cuda" or (onto_gpu and not weights.on_host(storage))
    return (
        "tensor",
        id(tensor),
        (storage._cdata, storage.nbytes()),
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.size()),
        tensor.stride(),
        tensor.storage_offset(),
        parameter,
        tensor.requires_grad and tensor.is_leaf,
        on_gpu,
        None if parameter else _values(tensor, _FLOATS if weights.has(storage) else _INTEGERS),
        # Marks of libraries, such as that a page may move to the host.
        {name: value for name, value in vars(tensor).items() if isinstance(value, (bool, int, float, str))},
    )


def _describe_whole(tensor: Any) -> tuple[Any, ...]:
    """One that is sharded over ranks travels whole, and is sharded again where it arrives (``as_sharded``)."""
    parameter = isinstance(tensor, torch.nn.Parameter)
    bytes_ = tensor.numel() * tensor.element_size()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return ("tensor", id(tensor), (id(tensor), bytes_), dtype, tuple(tensor.size()), tensor.stride(), 0, parameter, tensor.requires_grad and tensor.is_leaf, True, None, {})


def _refuse_strange(tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise NotPackable(f"a tensor of {tensor.layout} on {tensor.device} cannot be sent to another process")


def _class_of(tensor: torch.Tensor) -> str:
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def _taken_apart(tensor: torch.Tensor, onto_gpu: bool, weights: _Weights) -> tuple[Any, ...]:
    """A tensor of another class, as pickle wants it: what makes it anew of its pieces, and its attributes, which may refer to it."""
    _refuse_strange(tensor)
    parameter, grad = isinstance(tensor, torch.nn.Parameter), tensor.requires_grad and tensor.is_leaf
    if is_wrapper(tensor):
        weights.add(tensor, on_host=False)
        names, context = tensor.__tensor_flatten__()
        inner = {name: getattr(tensor, name) for name in names}
        return _wrapped, (type(tensor), inner, context, tuple(tensor.size()), tensor.stride(), parameter, grad)
    waits = onto_gpu and _waits_for_the_gpu(tensor)
    weights.add(tensor, on_host=waits)
    return _of_class, (type(tensor), plain(tensor), grad), dict(vars(tensor)), None, None, _with_attributes_on_gpu if waits else _with_attributes


def _waits_for_the_gpu(tensor: torch.Tensor) -> bool:
    """bitsandbytes quantises weights when they are moved to the GPU, and packs those that were used on the CPU in another way until then."""
    if not type(tensor).__module__.startswith("bitsandbytes.") or tensor.device.type != "cpu":
        return False
    packed_for_cpu = getattr(getattr(tensor, "quant_state", None), "packing_format_for_cpu", False)
    return tensor.is_floating_point() or packed_for_cpu


def _wrapped(kind: Any, inner: dict[str, Any], context: Any, size: Any, stride: Any, parameter: bool, grad: bool) -> torch.Tensor:
    made: torch.Tensor = kind.__tensor_unflatten__(inner, context, size, stride)
    return torch.nn.Parameter(made, requires_grad=grad) if parameter else made.requires_grad_(grad)


def _of_class(kind: Any, data: torch.Tensor, grad: bool) -> torch.Tensor:
    # Not by its constructor, which wants what only its library knows.
    return torch.Tensor._make_subclass(kind, data, grad)


def _empty(kind: Any) -> Any:
    return kind.__new__(kind)


def _with_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    vars(tensor).update(attributes)


def _with_attributes_on_gpu(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    vars(tensor).update(attributes)
    moved = tensor.cuda()
    if moved is not tensor:
        tensor.data = moved.data
        vars(tensor).update(vars(moved))


def _attributes_beside(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer of another library keeps that PyTorch's own pickling leaves out, as far as it can be sent."""
    found = {}
    for name, value in vars(optimizer).items():
        if name in vars(_AS_PYTORCH_MAKES_IT) or name.startswith("_") or callable(value):
            continue
        with contextlib.suppress(NotPackable):
            pack(value)
            found[name] = value
    return found


def _values(tensor: torch.Tensor, most: int) -> bytes | None:
    if tensor.numel() > (_FLOATS if tensor.is_floating_point() or tensor.is_complex() else most):
        return None
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def unpack(data: bytes) -> Any:
    """In the child: the same things, their tensors on the (virtual) GPU."""
    places, body = pickle.loads(data)
    sys.path.extend(place for place in places if place not in sys.path)
    storages: dict[Any, Any] = {}
    tensors: dict[int, torch.Tensor] = {}

    def tensor(
        key: int, storage: Any, dtype: str, size: Any, stride: Any, offset: int, parameter: bool, grad: bool, on_gpu: bool, values: bytes | None, marks: dict[str, Any]
    ) -> Any:
        device = "cuda" if on_gpu else "cpu"
        if storage not in storages:
            storages[storage] = torch.empty(storage[1], dtype=torch.uint8, device=device).untyped_storage()
        kind = getattr(torch, dtype)
        made = torch.empty(0, dtype=kind, device=device).set_(storages[storage], offset, size, stride)
        if values:
            made.copy_(torch.frombuffer(bytearray(values), dtype=kind).view(size))
        if parameter:
            made = torch.nn.Parameter(made, requires_grad=grad)
        elif grad:
            made.requires_grad_()
        vars(made).update(marks)
        tensors[key] = made
        return made

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, given: Any) -> Any:
            if given[0] == "generator":
                return torch.Generator(device=given[1])
            return tensors[given[1]] if given[0] == "again" else tensor(*given[1:])

    return Unpacker(io.BytesIO(body)).load()
