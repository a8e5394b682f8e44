"""What lies in a dataset or a batch: Python's objects, which a forked worker copies as it reads them, and buffers, which it shares.

Containers of many items are sampled. An object that two items of a sample have is taken as shared by all, one that a single item
has as that item's own. None of the objects' own code is run, but for what tables of pyarrow and polars say of their size.
"""

from __future__ import annotations

import gc
import itertools
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from oomph.data.share import SharedDict, SharedList
from oomph.live.walk import children

PAGE = 4096
# Items sampled in a container of more; enough that the mean of their sizes is within a few percent.
_SAMPLE = 500
# Python's own allocator hands these out by size, those of one size together on a page; larger ones are malloc's.
_SMALL, _STEP = 512, 16
_COLLECTED = 16  # The collector's header of an object.
# Their items lie elsewhere, and are only read.
_HEADED = (list, dict, set, frozenset, deque)
_LIKE_LISTS = (list, tuple, deque, set, frozenset, dict)
# They lead to the program, not to its data.
_NOT_DATA = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType, types.FrameType, types.GeneratorType, types.TracebackType)


@dataclass
class Weight:
    """Bytes. ``written`` is what counting references writes to, and how many objects that are, by the size that keeps them together."""

    objects: float = 0.0
    written: dict[int, tuple[float, float]] = field(default_factory=dict)
    arrays: float = 0.0
    tensors: float = 0.0
    shared: float = 0.0
    # Addresses of the buffers, and the views of them that were met.
    buffers: set[int] = field(default_factory=set)
    views: list[Any] = field(default_factory=list)
    # By the name that leads to them: containers that were large enough to be sampled.
    containers: dict[str, float] = field(default_factory=dict)

    @property
    def fresh(self) -> float:
        return self.objects + self.arrays + self.tensors


# What a piece is: a Python object, and its size class; or a buffer.
_OBJECT, _ARRAY, _TENSOR, _SHARED = range(4)
_Piece = tuple[int, int, int, float]  # kind, bytes written, bytes, how many of it


def weigh(thing: Any, name: str = "", but: frozenset[int] | set[int] = frozenset()) -> Weight:
    """What lies in a thing, without the buffers at the addresses ``but``."""
    weight = Weight()
    look = _Look(weight, but)
    for kind, written, size, count in look.at([(name, thing)], top=True).values():
        if kind == _OBJECT:
            weight.objects += size * count
            group = written if written <= _SMALL else 0
            total, number = weight.written.get(group, (0.0, 0.0))
            weight.written[group] = total + written * count, number + count
        elif kind == _ARRAY:
            weight.arrays += size * count
        elif kind == _TENSOR:
            weight.tensors += size * count
        else:
            weight.shared += size * count
    return weight


class _Look:
    def __init__(self, weight: Weight, but: frozenset[int] | set[int]) -> None:
        self._weight, self._but = weight, but
        self._numpy: Any = sys.modules.get("numpy")
        self._torch: Any = sys.modules.get("torch")
        # The program's own chance is not touched.
        self._chance = random.Random(0)

    def at(self, roots: Iterable[tuple[str, Any]], top: bool = False) -> dict[int, _Piece]:
        """All that is reached from the roots, by identity."""
        pieces: dict[int, _Piece] = {}
        waiting = list(roots)
        while waiting:
            name, thing = waiting.pop()
            kind = type(thing)
            if thing is None or kind is bool or issubclass(kind, _NOT_DATA) or id(thing) in pieces:
                continue
            if self._is_buffer(thing, kind, pieces):
                continue
            pieces[id(thing)] = _piece(thing, kind)
            if issubclass(kind, _LIKE_LISTS):
                if len(thing) > _SAMPLE:
                    inner = self._sampled(thing)
                    if top and name:
                        self._weight.containers[name] = sum(size * count for _, _, size, count in inner.values()) + pieces[id(thing)][2]
                    for identity, piece in inner.items():
                        pieces.setdefault(identity, piece)
                    continue
                waiting += ((f"{name}[…]", item) for item in _items(thing))
                if not issubclass(kind, (list, dict, tuple)) or kind in _LIKE_LISTS:
                    continue
            elif kind in (int, float, str, bytes, complex, bytearray):
                continue
            # First without names, so that names are met first: what is in C has none.
            waiting += (("", child) for child in gc.get_referents(thing))
            try:
                waiting += ((f"{name}{step}", child) for step, child in children(thing))
            except Exception:
                continue  # It changed during the walk, or lies about what it is.
        return pieces

    def _sampled(self, container: Any) -> dict[int, _Piece]:
        """What the items of a large container are, from some of them."""
        count = len(container)
        places = sorted(self._chance.sample(range(count), _SAMPLE))
        if isinstance(container, (list, tuple)):
            chosen: Iterable[Any] = (container[place] for place in places)
        else:
            steps = [places[0], *(after - before - 1 for before, after in zip(places, places[1:]))]
            stream = zip(dict.keys(container), dict.values(container)) if isinstance(container, dict) else iter(container)
            chosen = (next(itertools.islice(stream, step, None)) for step in steps)
        scale = count / _SAMPLE
        found: dict[int, _Piece] = {}
        times: dict[int, int] = {}
        keep = []  # Pairs of a dict are made here: their identity must last.
        for item in chosen:
            keep.append(item)
            parts = item if isinstance(container, dict) else (item,)
            for identity, piece in self.at(("", part) for part in parts).items():
                found[identity] = piece
                times[identity] = times.get(identity, 0) + 1
        return {identity: (kind, written, size, number if times[identity] > 1 else number * scale) for identity, (kind, written, size, number) in found.items()}

    def _is_buffer(self, thing: Any, kind: type, pieces: dict[int, _Piece]) -> bool:
        if issubclass(kind, (SharedList, SharedDict)):
            pieces[id(thing)] = (_SHARED, 0, thing.nbytes, 1.0)
        elif self._torch is not None and issubclass(kind, self._torch.Tensor):
            self._add_tensor(thing, pieces)
        elif self._numpy is not None and issubclass(kind, self._numpy.ndarray):
            self._add_array(thing, pieces)
        elif kind.__module__.startswith("pyarrow.") and isinstance(getattr(kind, "nbytes", None), types.GetSetDescriptorType):
            pieces[id(thing)] = (_ARRAY, 0, thing.nbytes, 1.0)
        elif kind.__module__.startswith("polars.") and hasattr(kind, "estimated_size"):
            pieces[id(thing)] = (_ARRAY, 0, int(thing.estimated_size()), 1.0)
        else:
            return False
        return True

    def _add_tensor(self, tensor: Any, pieces: dict[int, _Piece]) -> None:
        try:
            if tensor.device.type != "cpu":
                return
            storage = tensor.untyped_storage()
            address, size, is_shared = storage.data_ptr(), storage.nbytes(), storage.is_shared()
        except Exception:
            return  # Sparse, or without memory.
        self._add_buffer(tensor, address, size, _SHARED if is_shared else _TENSOR, pieces)

    def _add_array(self, array: Any, pieces: dict[int, _Piece]) -> None:
        owner = array
        while isinstance(owner.base, self._numpy.ndarray):
            owner = owner.base
        # A mapped file belongs to no object, and neither does what is inside another's buffer.
        kind = _SHARED if isinstance(owner, self._numpy.memmap) else _ARRAY
        self._add_buffer(array, owner.__array_interface__["data"][0], owner.nbytes, kind, pieces)
        if array.dtype.hasobject:
            scale = max(array.size / _SAMPLE, 1)
            for identity, (kind, written, size, number) in self.at(("", item) for item in array.ravel()[:_SAMPLE].tolist()).items():
                pieces[identity] = (kind, written, size, number * scale)

    def _add_buffer(self, view: Any, address: int, size: int, kind: int, pieces: dict[int, _Piece]) -> None:
        if address in self._but or not size:
            return
        self._weight.buffers.add(address)
        self._weight.views.append(view)
        # Addresses of buffers and identities of objects cannot meet: both are places in one memory.
        pieces[address] = (kind, 0, size, 1.0)


def _items(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        return itertools.chain(list(dict.keys(container)), list(dict.values(container)))
    return iter(list(container))


def _piece(thing: Any, kind: type) -> _Piece:
    collected = _COLLECTED if kind.__flags__ & 1 << 14 else 0  # Py_TPFLAGS_HAVE_GC
    if kind in (int, float, complex, str, bytes, tuple, *_HEADED):
        size = sys.getsizeof(thing)
        written = _rounded(kind.__basicsize__ + collected) if kind in _HEADED else min(_rounded(size), PAGE)
    else:
        size = kind.__basicsize__ + collected
        written = min(_rounded(size), PAGE)
    return _OBJECT, written, size, 1.0


def _rounded(size: int) -> int:
    return -(-size // _STEP) * _STEP
