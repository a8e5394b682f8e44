"""``oomph.data.share``: a list or dict that processes share instead of copying.

A worker that is forked has its parent's objects without a copy, until it looks at them: looking counts references, which writes to the page,
which copies it (pytorch#13246). A worker that is spawned gets all of them anew. Here the items lie in one piece of memory without counters,
as bytes with a table of where each begins, and become objects when they are read. Every reading makes new objects: what is done to them
does not reach the list.

*The memory* is a memfd: it has no name, so that the kernel frees it with the last process that has it, however that one ends, and nothing
can be left behind. It does not count against the size of /dev/shm (which Docker makes 64 MiB), only as memory. ``multiprocessing.shared_memory``
has names, and a tracker that deletes them too early or too late. Workers that are forked inherit the mapping; to those of spawn and
forkserver, and through queues of multiprocessing, the descriptor is sent. Plain ``pickle`` (to a file, to another machine) takes the bytes along.

*The bytes* are of this process's own making: pickles of its own objects, plain UTF-8, or numbers. None are read from elsewhere.
"""

from __future__ import annotations

import array
import collections.abc
import hashlib
import io
import math
import mmap
import numbers
import os
import pickle
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import reduction
from typing import Any

from oomph._sizes import text

_PROTOCOL = 5
# Where numbers may begin: what the largest of them wants.
_ALIGNMENT = 16
# A table twice as large as its keys and more: a search meets one or two strangers.
_ROOM = 2
_INTEGERS = "bhiq"
_MASK = (1 << 64) - 1


def share(items: Sequence[Any] | Mapping[Any, Any]) -> SharedList | SharedDict:
    """The same items, read-only, in memory that all workers of a DataLoader share.

    ``dataset.samples = oomph.data.share(dataset.samples)`` before the DataLoader starts, and drop the original. Works with fork,
    forkserver and spawn, with torch and without.
    """
    if isinstance(items, (SharedList, SharedDict)):
        return items
    if isinstance(items, Mapping):
        return _share_dict(items)
    if isinstance(items, Sequence) and not isinstance(items, (str, bytes, bytearray, memoryview)):
        with _Writer() as writer:
            column = _write(writer, items, "item")
            memory = writer.memory()
        return SharedList(column(memory), range(len(items)))
    raise TypeError(f"a list or a dict can be shared, not {type(items).__name__}; an array is shared by forked workers as it is")


class SharedList(collections.abc.Sequence):
    """A read-only list in shared memory. A slice is a view of it; a read gives a new object."""

    __slots__ = ("_column", "_span", "__weakref__")
    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __init__(self, column: _Column, span: range) -> None:
        self._column, self._span = column, span

    @property
    def nbytes(self) -> int:
        """What the memory takes, once for all processes, for the whole list and not only for this view."""
        return self._column.memory.size

    def __len__(self) -> int:
        return len(self._span)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return SharedList(self._column, self._span[index])
        try:
            place = self._span[index]
        except IndexError:
            raise IndexError(f"list index out of range: {index} of {len(self)}") from None
        return self._column[place]

    def __iter__(self) -> Iterator[Any]:
        return map(self._column.__getitem__, self._span)

    def __reversed__(self) -> Iterator[Any]:
        return map(self._column.__getitem__, reversed(self._span))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (SharedList, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other))

    def __repr__(self) -> str:
        return f"SharedList({len(self)} items, {self._column.kind}, {text(self.nbytes)} shared)"

    def __copy__(self) -> SharedList:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> SharedList:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedList, (self._column, self._span)


class SharedDict(collections.abc.Mapping):
    """A read-only dict in shared memory, in the order of the original. The table of its keys is shared too."""

    __slots__ = ("_keys", "_values", "_table", "__weakref__")
    __hash__ = None  # type: ignore[assignment]  # as a dict has none

    def __init__(self, keys: _Column, values: _Column, table: _Numbers) -> None:
        self._keys, self._values, self._table = keys, values, table

    @property
    def nbytes(self) -> int:
        """What the memory takes, once for all processes."""
        return self._keys.memory.size

    def __len__(self) -> int:
        return self._keys.count

    def __getitem__(self, key: Any) -> Any:
        place = self._find(key)
        if place is None:
            raise KeyError(key)
        return self._values[place]

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[Any]:
        return map(self._keys.__getitem__, reversed(range(len(self))))

    def values(self) -> collections.abc.ValuesView[Any]:
        return _Values(self)

    def items(self) -> collections.abc.ItemsView[Any, Any]:
        return _Items(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(self) == len(other) and all(key in other and other[key] == value for key, value in self.items())

    def __repr__(self) -> str:
        return f"SharedDict({len(self)} items, keys {self._keys.kind}, values {self._values.kind}, {text(self.nbytes)} shared)"

    def __copy__(self) -> SharedDict:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> SharedDict:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedDict, (self._keys, self._values, self._table)

    def _find(self, key: Any) -> int | None:
        hash(key)  # What cannot be a key raises TypeError, as a dict does.
        found = stable_hash(key)
        if found is None:
            return None
        for slot in _slots(found, self._table.count):
            place = self._table[slot]
            if place < 0:
                return None
            if self._keys[place] == key:
                return place
        return None


class _Values(collections.abc.ValuesView):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping._values)


class _Items(collections.abc.ItemsView):
    _mapping: SharedDict

    def __iter__(self) -> Iterator[Any]:
        return zip(self._mapping._keys, self._mapping._values)


def _share_dict(items: Mapping[Any, Any]) -> SharedDict:
    keys = list(items)
    table = array.array("q", [-1]) * (1 << max(_ROOM * len(keys) - 1, 1).bit_length())
    for place, key in enumerate(keys):
        found = stable_hash(key)
        if found is None:
            raise TypeError(f"keys that can be shared are str, bytes, numbers, None, and tuples and frozensets of them, not {_kind(key)}: {_shown(key)}")
        for slot in _slots(found, len(table)):
            if table[slot] < 0:
                table[slot] = place
                break
    with _Writer() as writer:
        columns = _write(writer, keys, "key"), _write(writer, [items[key] for key in keys], "the value of", keys), _write_numbers(writer, table)
        memory = writer.memory()
    return SharedDict(*(column(memory) for column in columns))


def stable_hash(key: Any) -> int | None:
    """A hash that is the same in every process, as Python's own of text is not, and the same for keys that are equal. None for what has none."""
    if isinstance(key, (str, bytes)):
        data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
        return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
    if isinstance(key, numbers.Number):
        return hash(key) & _MASK
    if key is None:
        return 0
    if isinstance(key, (tuple, frozenset)):
        parts: list[Any] = [stable_hash(part) for part in key]
        if any(part is None for part in parts):
            return None
        data = b"".join(part.to_bytes(8, "little") for part in (sorted(parts) if isinstance(key, frozenset) else parts))
        return stable_hash(data)
    return None


def _slots(found: int, count: int) -> Iterator[int]:
    """Where a key may lie, the likeliest first. The count is a power of two; mixing spreads keys that are multiples of one."""
    mixed = (found * 0x9E3779B97F4A7C15 & _MASK) >> 32
    return ((mixed + step) & (count - 1) for step in range(count))


# --- columns: items of one kind ----------------------------------------------------------------------------


class _Column:
    """Items in a memory: ``column[place]`` gives one. ``arguments`` say where they lie, and travel with the memory."""

    kind = ""

    def __init__(self, memory: _Memory, count: int, *arguments: Any) -> None:
        self.memory, self.count, self.arguments = memory, count, arguments

    def __getitem__(self, place: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self.count))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.memory, self.count, *self.arguments)


class _Numbers(_Column):
    """int of 64 bits or less, and float, each in the smallest type that holds all."""

    kind = "numbers"

    def __init__(self, memory: _Memory, count: int, start: int, code: str) -> None:
        super().__init__(memory, count, start, code)
        self._all = memory.numbers(start, count, code)

    def __getitem__(self, place: int) -> Any:
        return self._all[place]


class _Booleans(_Numbers):
    kind = "bool"

    def __getitem__(self, place: int) -> Any:
        return self._all[place] != 0


class _Arrays(_Column):
    """NumPy arrays of one type and shape, or NumPy's scalars of one type."""

    kind = "arrays"

    def __init__(self, memory: _Memory, count: int, start: int, dtype: Any, shape: tuple[int, ...]) -> None:
        import numpy

        super().__init__(memory, count, start, dtype, shape)
        self._all = numpy.frombuffer(memory.view, dtype, count * math.prod(shape), start).reshape(count, *shape)

    def __getitem__(self, place: int) -> Any:
        item = self._all[place]
        return item.copy() if self.arguments[2] else item


class _Pieces(_Column):
    """Items of any length, each with its place in a table."""

    def __init__(self, memory: _Memory, count: int, ends: int, start: int) -> None:
        super().__init__(memory, count, ends, start)
        # One more than there are items: the first begins where the table says that nothing ends.
        self._ends, self._start = memory.numbers(ends, count + 1, "q"), start

    def __getitem__(self, place: int) -> Any:
        return self._decode(self.memory.view[self._start + self._ends[place] : self._start + self._ends[place + 1]])

    @staticmethod
    def _decode(piece: memoryview) -> Any:
        raise NotImplementedError


class _Texts(_Pieces):
    kind = "str"

    @staticmethod
    def _decode(piece: memoryview) -> Any:
        return str(piece, "utf-8", "surrogatepass")


class _Bytes(_Pieces):
    kind = "bytes"
    _decode: Any = staticmethod(bytes)


class _Pickles(_Pieces):
    kind = "pickled"
    _decode: Any = staticmethod(pickle.loads)


_Made = Callable[["_Memory"], Any]


def _write(writer: _Writer, items: Sequence[Any], name: str, names: Sequence[Any] | None = None) -> _Made:
    """Writes items in the smallest form that gives all of them back exactly."""
    kinds = set(map(type, items))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is bool:
        return _write_numbers(writer, array.array("b", items), _Booleans)
    if kind is float:
        return _write_numbers(writer, array.array("d", items))
    if kind is int:
        least, most = min(items), max(items)
        for code in _INTEGERS:
            bits = 8 * array.array(code).itemsize - 1
            if -(1 << bits) <= least and most < 1 << bits:
                return _write_numbers(writer, array.array(code, items))
    if kind is str:
        return _write_pieces(writer, (item.encode("utf-8", "surrogatepass") for item in items), len(items), _Texts)
    if kind is bytes:
        return _write_pieces(writer, items, len(items), _Bytes)
    numpy = sys.modules.get("numpy")
    if kind is not None and numpy is not None and _are_alike(numpy, kind, items):
        start = writer.begin()
        for item in items:
            writer.add(item.tobytes())
        count, dtype, shape = len(items), items[0].dtype, items[0].shape
        return lambda memory: _Arrays(memory, count, start, dtype, shape)
    return _write_pieces(writer, _pickled(items, name, names), len(items), _Pickles)


def _are_alike(numpy: Any, kind: type, items: Sequence[Any]) -> bool:
    if issubclass(kind, (numpy.number, numpy.bool_)):
        return all(item.dtype == items[0].dtype for item in items)
    # An array of no dimension would come back as a scalar, one of objects is pickled.
    if kind is not numpy.ndarray or items[0].ndim == 0 or items[0].nbytes == 0 or items[0].dtype.hasobject:
        return False
    return all(item.dtype == items[0].dtype and item.shape == items[0].shape for item in items)


def _pickled(items: Iterable[Any], name: str, names: Sequence[Any] | None) -> Iterator[bytes]:
    for place, item in enumerate(items):
        try:
            yield pickle.dumps(item, _PROTOCOL)
        except Exception as error:
            which = f"{name} {place}" if names is None else f"{name} {_shown(names[place])}"
            raise TypeError(f"{which} cannot be shared, because {_kind(item)} cannot be pickled: {error}") from error


def _write_numbers(writer: _Writer, numbers: array.array[Any], kind: type[_Numbers] = _Numbers) -> _Made:
    start = writer.begin()
    writer.add(numbers)
    count, code = len(numbers), numbers.typecode
    return lambda memory: kind(memory, count, start, code)


def _write_pieces(writer: _Writer, pieces: Iterable[bytes], count: int, kind: type[_Pieces]) -> _Made:
    start, ends = writer.begin(), array.array("q", [0])
    for piece in pieces:
        writer.add(piece)
        ends.append(writer.size - start)
    if len(ends) != count + 1:
        raise RuntimeError("the list changed while it was shared")
    table = writer.begin()
    writer.add(ends)
    return lambda memory: kind(memory, count, table, start)


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}".removeprefix("builtins.")


def _shown(key: Any) -> str:
    words = repr(key)
    return words if len(words) <= 60 else words[:59] + "…"


# --- memory ------------------------------------------------------------------------------------------------


class _Memory:
    """A mapping without a name, and the descriptor by which other processes get it. Both end with the last that refers to it."""

    def __init__(self, file: int, size: int) -> None:
        self.file, self.size = file, size
        self.view = memoryview(mmap.mmap(file, size, access=mmap.ACCESS_READ))
        weakref.finalize(self, os.close, file).atexit = False

    def numbers(self, start: int, count: int, code: Any) -> memoryview:
        return self.view[start : start + count * array.array(code).itemsize].cast(code)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (bytes(self.view),)


class _Writer:
    """Fills a memory from its beginning."""

    def __init__(self) -> None:
        self._file = _nameless_file()
        self._stream = io.BufferedWriter(io.FileIO(self._file, "wb", closefd=False), 1 << 20)
        self.size = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        # Before the descriptor: what the stream still has must not reach a file that gets its number.
        self._stream.close()
        if kind is not None:
            os.close(self._file)

    def begin(self) -> int:
        """Where the next part begins. What is empty begins with something too: nothing cannot be mapped."""
        self.add(bytes(_ALIGNMENT - self.size % _ALIGNMENT))
        return self.size

    def add(self, data: Any) -> None:
        self._stream.write(data)
        self.size += memoryview(data).nbytes

    def memory(self) -> _Memory:
        self._stream.flush()
        return _Memory(self._file, self.size)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("oomph-share", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # Not Linux.
        return os.dup(file.fileno())


def _from_bytes(data: bytes) -> _Memory:
    with _Writer() as writer:
        writer.add(data)
        return writer.memory()


def _send(memory: _Memory) -> tuple[Any, ...]:
    return _from_descriptor, (reduction.DupFd(memory.file), memory.size)


def _from_descriptor(sent: Any, size: int) -> _Memory:
    file = sent.detach()
    os.set_inheritable(file, False)
    return _Memory(file, size)


# What multiprocessing sends to a process on this machine, unlike what pickle writes.
reduction.ForkingPickler.register(_Memory, _send)
