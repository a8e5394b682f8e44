"""A model and what belongs to it, sent to a child process without the bytes of its tensors.

Tensors travel as their shape, strides, type and storage; the child makes them anew on the virtual GPU. Values of small integers and masks
travel too, because programs steer by them. Classes and functions of a notebook or a script travel by value, by cloudpickle.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import sys
from typing import Any

import torch

from oomph.fitting.errors import FitError

# What programs steer by: ids, masks, lengths. The virtual GPU keeps values up to the same sizes.
_INTEGERS, _FLOATS = 1 << 20, 4096


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
    base = _pickler()
    # Kept until the end: an id must not come back for another tensor.
    seen: dict[int, torch.Tensor] = {}

    class Packer(base):  # type: ignore[misc, valid-type]
        def persistent_id(self, thing: Any) -> Any:
            if isinstance(thing, torch.Tensor):
                if id(thing) in seen:
                    return ("again", id(thing))
                seen[id(thing)] = thing
                return _describe(thing, onto_gpu)
            if isinstance(thing, torch.Generator):
                return ("generator", str(thing.device.type))
            return None

    out = io.BytesIO()
    try:
        Packer(out, protocol=pickle.HIGHEST_PROTOCOL).dump(things)
    except NotPackable:
        raise
    except Exception as error:
        hint = "" if base is not pickle.Pickler else " (pip install cloudpickle, for classes and functions of notebooks and scripts)"
        raise NotPackable(f"the model, the loss or the batch cannot be sent to another process: {error}{hint}") from error
    return pickle.dumps((list(sys.path), out.getvalue()))


def _describe(tensor: torch.Tensor, onto_gpu: bool) -> tuple[Any, ...]:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter) and kind.__name__ != "Buffer":
        raise NotPackable(f"a tensor of type {kind.__module__}.{kind.__qualname__} cannot be sent to another process")
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise NotPackable(f"a tensor of {tensor.layout} on {tensor.device} cannot be sent to another process")
    storage = tensor.untyped_storage()
    parameter = isinstance(tensor, torch.nn.Parameter)
    on_gpu = tensor.device.type == "cuda" or onto_gpu
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
        None if parameter else _values(tensor),
    )


def _values(tensor: torch.Tensor) -> bytes | None:
    if tensor.numel() > (_FLOATS if tensor.is_floating_point() or tensor.is_complex() else _INTEGERS):
        return None
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def unpack(data: bytes) -> Any:
    """In the child: the same things, their tensors on the (virtual) GPU."""
    places, body = pickle.loads(data)
    sys.path.extend(place for place in places if place not in sys.path)
    storages: dict[Any, Any] = {}
    tensors: dict[int, torch.Tensor] = {}

    def tensor(key: int, storage: Any, dtype: str, size: Any, stride: Any, offset: int, parameter: bool, grad: bool, on_gpu: bool, values: bytes | None) -> Any:
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
        tensors[key] = made
        return made

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, given: Any) -> Any:
            if given[0] == "generator":
                return torch.Generator(device=given[1])
            return tensors[given[1]] if given[0] == "again" else tensor(*given[1:])

    return Unpacker(io.BytesIO(body)).load()
