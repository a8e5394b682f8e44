"""Where the memory of Python's arrays is: NumPy's description of it, or the buffer protocol's, without a copy.

Boundary: says address, type, shape and strides; whoever asked keeps the owner.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, cast

# struct's letters and NumPy's; sizes are those of the machine.
_KINDS = {"?": "b", "b": "i", "B": "u", "c": "u", "h": "i", "H": "u", "i": "i", "I": "u", "l": "i", "L": "u", "q": "i", "Q": "u", "n": "i", "N": "u", "e": "f", "f": "f", "d": "f"}


@dataclass(frozen=True)
class Described:
    """Elements in memory, and who has it."""

    owner: Any
    address: int
    typestr: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def as_arguments(self) -> tuple[Any, int, int, str, list[int], int, list[int]]:
        """As the native side takes it: the lowest byte and how many there are from it, and how far in the first element is."""
        width = int("".join(filter(str.isdigit, self.typestr.partition("[")[0])) or 0)
        width *= 4 if self.typestr[1:2] == "U" else 1
        if 0 in self.shape:
            return self.owner, self.address, 0, self.typestr, list(self.shape), 0, list(self.strides)
        reaches = [(length - 1) * stride for length, stride in zip(self.shape, self.strides)]
        start = -sum(min(reach, 0) for reach in reaches)
        behind = sum(max(reach, 0) for reach in reaches) + width
        return self.owner, self.address - start, start + behind, self.typestr, list(self.shape), start, list(self.strides)


def described(array: Any) -> Described | None:
    """Where an array's memory is; none if the object is no array."""
    interface = getattr(array, "__array_interface__", None)
    if isinstance(interface, dict):
        return _of_interface(array, interface)
    try:
        view = memoryview(array)
    except TypeError:
        return None
    return _of_view(view)


def _of_interface(array: Any, interface: dict[str, Any]) -> Described:
    typestr, shape = interface["typestr"], tuple(interface["shape"])
    if typestr[1] == "V":
        raise TypeError("elements of several fields cannot be taken as numbers; take one field at a time")
    if typestr[1] == "O":
        raise TypeError("Python objects are no numbers: an array of them has only their addresses")
    strides = interface.get("strides")
    return Described(array, interface["data"][0], typestr, shape, tuple(strides) if strides else _contiguous(shape, typestr))


def _contiguous(shape: tuple[int, ...], typestr: str) -> tuple[int, ...]:
    width = int(typestr.partition("[")[0][2:]) * (4 if typestr[1] == "U" else 1)
    strides = []
    for length in reversed(shape):
        strides.append(width)
        width *= max(length, 1)
    return tuple(reversed(strides))


def _of_view(view: memoryview) -> Described:
    order, letter = (view.format[0], view.format[1:]) if view.format[0] in "@=<>!" else ("=", view.format)
    if letter not in _KINDS:
        raise TypeError(f"elements of the format {view.format!r} are not numbers")
    order = ">" if order in ">!" else "<"
    typestr = f"{'|' if view.itemsize == 1 else order}{_KINDS[letter]}{view.itemsize}"
    return Described(view, _address(view), typestr, cast("tuple[int, ...]", view.shape), cast("tuple[int, ...]", view.strides))


class _Buffer(ctypes.Structure):
    """``Py_buffer``."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


# With strides, without a right to write.
_STRIDED_READ_ONLY = 0x0018


def _address(view: memoryview) -> int:
    """Where its first element is. It stays there for as long as there is the view, which is what is kept."""
    buffer = _Buffer()
    if ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), _STRIDED_READ_ONLY) != 0:
        raise TypeError("its memory cannot be read")
    address = buffer.buf or 0
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address
