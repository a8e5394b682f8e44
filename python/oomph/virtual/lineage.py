"""How the bytes of the virtual GPU came about, so that they can be computed on the CPU when somebody reads them.

Kernels do nothing on the virtual GPU. What was copied from the host, and each operation on something that is known, is kept as a
node instead: the operation, and what went into it. Nothing is computed until a read asks; then exactly what that read needs is,
within a budget of host memory and time. Bytes belong to storages, not to tensors: views cost nothing, and a write in place makes a
new value of the storage, without a copy where nobody needs the old one.

Boundary: knows storages, operations and the budget. Which reads there are, what hangs on them and what is said of them is ``values``' business.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Any, NoReturn

    from torch._ops import OpOverload

    from .gradients import Form

    # An operation of PyTorch's, or a derivative of one.
    Function = Callable[..., Any]
    # What an operation writes to: the index and the name of an argument.
    Write = tuple[int, str]
    # Gives the true bytes of a storage.
    Alias = Callable[[torch.UntypedStorage], torch.Tensor]
    # Seed and offset of the card's generator, and which card it is.
    Drawn = tuple[int, int, int]

Tensor = torch.Tensor
CPU = torch.device("cpu")

# Nodes that wait at the same time: each keeps what went into it.
NODES = 100_000
# Why something is lost that a larger budget would have kept.
FULL = "the memory for values (--values) is full"
UNDRAWN = "weights of the host were not drawn"
# How often storages that are gone are looked for: once in as many new values.
SWEEP = 512
# The host's tensors up to this many bytes are copied when they are used: cheaper than to watch them.
COPIED = 1 << 20
# What the CPU does in a second, roughly, to decide what is not even begun.
FLOPS, BYTES, CALLS = 2e10, 2e9, 2e5


def operations(*names: str, namespace: str = "aten") -> set[OpOverload]:
    """The operations that this PyTorch has, of all these names and all their forms."""
    found: set[OpOverload] = set()
    for name in names:
        packet = getattr(getattr(torch.ops, namespace), name, None)
        if packet is not None:
            found.update(getattr(packet, overload) for overload in packet.overloads())
    return found


# What is written over whole, whatever was there.
OVERWRITES = operations("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_")
# What is in new memory is anybody's guess, on a card too.
BLANK = operations("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
# Written, although their schemas do not say so: which arguments, and which one says whether.
HIDDEN: dict[Any, tuple[tuple[int, int], int | None]] = {func: ((3, 4), 5) for func in operations("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")}
HIDDEN.update({func: ((3, 4), None) for func in operations("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")})
HIDDEN.update({func: ((1, 2), None) for func in operations("batch_norm_update_stats")})
PRODUCTS = operations("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "_addmm_activation", "linear")
CONVOLUTIONS = operations("convolution", "_convolution", "cudnn_convolution", "conv1d", "conv2d", "conv3d")


class Value:
    """The bytes of a storage at one moment: computed, to be computed by a node, or lost."""

    __slots__ = ("node", "flat", "size", "uses", "lost", "made_up", "budget", "__weakref__")

    def __init__(self, size: int, node: Node | None = None) -> None:
        self.size, self.node = size, node
        self.flat: torch.Tensor | None = None
        self.lost: str | None = None
        self.budget: Budget | None = None
        # It follows from a choice that was drawn in the place of one that is not known.
        self.made_up = False
        # Nodes that wait for it, and one if it is what the storage has now.
        self.uses = 0

    def lose(self, why: str) -> None:
        self.lost, self.node = why, None

    def set(self, flat: torch.Tensor, budget: Budget) -> None:
        """Its bytes, a tensor of uint8 with one dimension."""
        self.flat, self.node, self.budget = flat, None, budget
        budget.take(self.size)

    def taken(self) -> torch.Tensor | None:
        """The bytes, which are somebody else's from now on."""
        flat, self.flat = self.flat, None
        budget: Any = self.budget
        budget.give(self.size)
        self.budget = None
        self.lost = "it was written over"
        return flat

    def __del__(self) -> None:
        if self.budget is not None:
            self.budget.give(self.size)


class Budget:
    """Host memory and time for values."""

    def __init__(self, size: int, seconds: float) -> None:
        self.size, self.seconds = size, seconds
        self.held = self.most = 0
        self.spent = 0.0

    def take(self, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)

    def give(self, size: int) -> None:
        self.held -= size


class Slot:
    """A tensor of the device, as a part of a value."""

    __slots__ = ("value", "dtype", "shape", "stride", "offset")

    def __init__(self, value: Any, tensor: torch.Tensor) -> None:
        # A value, or None for a slot that only says how its tensor lies.
        self.value: Value = value
        self.dtype, self.shape, self.stride, self.offset = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

    def tensor(self, flat: torch.Tensor) -> torch.Tensor:
        return view(flat, self)


class Sparse:
    """A sparse tensor of the device, by its parts."""

    __slots__ = ("layout", "parts", "shape", "coalesced")

    def __init__(self, tensor: torch.Tensor, parts: list[Slot]) -> None:
        self.layout, self.shape, self.parts = tensor.layout, tensor.shape, parts
        self.coalesced = tensor.is_coalesced() if self.layout is torch.sparse_coo else None

    def tensor(self, made: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.layout is torch.sparse_coo:
            return torch.sparse_coo_tensor(*made, self.shape, is_coalesced=self.coalesced, check_invariants=False)
        return torch.sparse_compressed_tensor(*made, self.shape, layout=self.layout, check_invariants=False)


class Held:
    """A tensor of the host, as it was: watched, and copied before somebody writes to it."""

    __slots__ = ("tensor", "version", "resizable", "size", "budget", "__weakref__")

    def __init__(self, tensor: torch.Tensor, version: int | None, budget: Budget | None = None) -> None:
        self.tensor, self.version, self.budget = tensor, version, budget
        self.resizable = version is not None and tensor.untyped_storage().resizable()
        self.size = tensor.numel() * tensor.element_size() if tensor.layout is torch.strided else 0
        if budget is not None:
            budget.take(self.size)

    def get(self) -> torch.Tensor | None:
        """None if it was written to behind our back, or may have been: NumPy has got hold of it."""
        if self.version is not None and (self.tensor._version != self.version or self.resizable and not self.tensor.untyped_storage().resizable()):
            return None
        return self.tensor

    def __del__(self) -> None:
        if self.budget is not None:
            self.budget.give(self.size)


class Node:
    """One operation that was not computed yet."""

    __slots__ = ("func", "args", "kwargs", "inputs", "made", "written", "cost", "draw", "live")

    def __init__(self, func: Function | None, args: Sequence[Any], kwargs: dict[str, Any], inputs: tuple[Value, ...], cost: float, live: list[int]) -> None:
        # None: the function of memory that is new, and the arguments once it is computed.
        self.func: Any = func
        self.args: Any = args
        self.kwargs: Any = kwargs
        self.inputs, self.cost, self.live = inputs, cost, live
        # What it makes, by the order of its results, and what it writes: (before, after).
        self.made: list[tuple[int, int, weakref.ref[Value], Any]] = []
        self.written: list[tuple[Value | None, weakref.ref[Value]]] = []
        self.draw: Drawn | None = None
        for value in inputs:
            value.uses += 1
        live[0] += 1

    def release(self) -> None:
        for value in self.inputs:
            value.uses -= 1
        self.inputs = ()
        self.args = self.kwargs = None

    def __del__(self) -> None:
        self.live[0] -= 1
        for value in self.inputs:
            value.uses -= 1


def flattened(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors, in order."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flattened(value)
        elif isinstance(value, Tensor):
            yield value


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether its elements are all of its storage, each once."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes() and torch._debug_has_internal_overlap(tensor) == 0


def hidden_writes(func: OpOverload, args: Sequence[Any]) -> list[torch.Tensor]:
    """What an operation writes to although its schema does not say so."""
    places, decides = HIDDEN.get(func, ((), None))
    if decides is not None and not args[decides]:
        return []
    return [args[place] for place in places if place < len(args) and args[place] is not None]


def not_kept() -> NoReturn:
    raise LookupError("it was promised, and never came")


class TakesTooLong(Exception):
    """The time for values is over."""


def view(flat: torch.Tensor, form: Form | Slot) -> torch.Tensor:
    """Bytes as a tensor of this form."""
    return torch._VF.empty(0, dtype=form.dtype, device=CPU).set_(flat.untyped_storage(), form.offset, form.shape, form.stride)


def blank(size: int) -> torch.Tensor:
    return torch._VF.zeros(size, dtype=torch.uint8, device=CPU)


def parts(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The strided tensors that a tensor consists of; None if they are not known."""
    if tensor.is_nested:
        return None
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return None


class Entry:
    """What is known of a storage that lives."""

    __slots__ = ("ref", "size", "value", "true", "made_up")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.ref, self.size = StorageWeakRef(storage), storage.nbytes()
        self.value: Value | None = None
        # The bytes at the device's address are the true ones, or the ones that were made up.
        self.true = self.made_up = False


class Lineage:
    def __init__(self, size: int, seconds: float, draw: Callable[[OpOverload, Sequence[Any], dict[str, Any], Any, Drawn], Any] | None = None) -> None:
        """``draw``: computes what the card's generator would have drawn, or gives None."""
        self.budget = Budget(size, seconds)
        self.entries: dict[int, Entry] = {}
        # Tensors of the host that nodes wait for; those whose values were never drawn; those that are files. All by their storages.
        self.held: dict[int, tuple[StorageWeakRef, weakref.WeakSet[Held]]] = {}
        self.undrawn: dict[int, tuple[StorageWeakRef, bool]] = {}
        self.files: dict[int, tuple[StorageWeakRef, bool]] = {}
        self.count = 0
        self.live = [0]
        self.draw = draw
        self.computing = False
        # Of the operation that is recorded: what it writes over whole, and why something of it is lost.
        self.blanks: dict[int, Value] = {}
        self.why: str | None = None

    # -- storages

    def entry(self, tensor: torch.Tensor) -> Entry | None:
        storage = tensor.untyped_storage()
        entry = self.entries.get(storage._cdata)
        if entry is None or entry.size != storage.nbytes():
            return None
        return entry

    def entry_for(self, tensor: torch.Tensor) -> Entry:
        storage = tensor.untyped_storage()
        entry = self.entries.get(storage._cdata)
        if entry is None:
            entry = self.entries[storage._cdata] = Entry(storage)
            self.count += 1
            if self.count >= SWEEP:
                self.sweep()
        elif entry.size != storage.nbytes():
            self.put(entry, None)
            entry.size, entry.true = storage.nbytes(), False
        return entry

    def sweep(self) -> None:
        """Storages that are gone need no values."""
        self.count = 0
        for key in [key for key, entry in self.entries.items() if entry.ref.expired()]:
            self.put(self.entries.pop(key), None)
        table: dict[int, Any]
        for table in (self.held, self.undrawn, self.files):
            for key in [key for key, (ref, _) in table.items() if ref.expired()]:
                del table[key]

    @staticmethod
    def put(entry: Entry, value: Value | None) -> None:
        if entry.value is not None:
            entry.value.uses -= 1
        entry.value = value
        if value is not None:
            value.uses += 1

    def forget(self, tensor: torch.Tensor, why: str | None = None) -> None:
        """Its bytes are not known from now on."""
        entry = self.entries.get(tensor.untyped_storage()._cdata)
        if entry is None and why is None:
            return
        entry = entry or self.entry_for(tensor)
        entry.true = False
        value = None
        if why is not None:
            value = Value(entry.size)
            value.lose(why)
        self.put(entry, value)

    def forget_all(self, why: str) -> None:
        """No bytes are known from now on."""
        for entry in self.entries.values():
            entry.true = False
            value = Value(entry.size)
            value.lose(why)
            self.put(entry, value)

    def forget_storage(self, address: int) -> None:
        entry = self.entries.pop(address, None)
        if entry is not None:
            self.put(entry, None)

    def is_pending_or_known(self, tensor: torch.Tensor) -> bool:
        entry = self.entry(tensor)
        return entry is not None and (entry.true or (entry.value is not None and entry.value.lost is None))

    # -- recording

    def record(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        out: Any,
        schema: Sequence[Write],
        makes: bool,
        alias: Alias,
        drawn: Drawn | None = None,
    ) -> Any:
        """Keeps how the results of an operation came about. ``alias`` gives the true bytes of a storage that has them; ``drawn``: seed, offset and card of the random numbers.

        What follows from something that is not known is not known."""
        before: dict[int, Value] = {}
        self.why = None
        if func in BLANK:
            node = Node(None, (), {}, (), 0.0, self.live)
        else:
            inputs: dict[int, Value] = {}
            over = self.overwritten(func, args, kwargs, schema, makes)
            try:
                slots = [self.slot(value, inputs, alias, over) for value in args]
                named = {name: self.slot(value, inputs, alias, over) for name, value in kwargs.items() if name != "pin_memory"}
            except LookupError:
                slots = None
            if slots is None or self.live[0] >= NODES:
                self.why = self.why if slots is None else f"more than {NODES:,} operations wait to be computed"
                return self.lose_all(func, args, kwargs, out, schema, makes)
            node = Node(func, tuple(slots), named, tuple(inputs.values()), self.cost(func, args, out), self.live)
            node.draw = drawn
            before = {id(value): value for value in node.inputs}
        if makes:
            results = out if isinstance(out, (list, tuple)) else (out,)
            for index, tensor in enumerate(results):
                if isinstance(tensor, Tensor) and tensor.is_cuda:
                    for number, part in enumerate(parts(tensor) or ()):
                        entry = self.entry_for(part)
                        entry.true = False
                        value = Value(entry.size, node)
                        node.made.append((index, number, weakref.ref(value), Slot(None, part)))
                        self.put(entry, value)
            hidden = hidden_writes(func, args)
            if hidden:
                self.write(node, hidden, before)
        else:
            self.write(node, list(self.targets(args, kwargs, schema)), before)
        return out

    def derive(self, func: Function, args: Sequence[Any], inputs: tuple[Value, ...], forms: Sequence[Form | Slot], cost: float) -> list[Slot] | None:
        """Slots of what a function of slots would give, which is in no storage; None if something is lost."""
        if self.live[0] >= NODES or any(value.lost is not None for value in inputs):
            return None
        node = Node(func, args, {}, inputs, cost, self.live)
        made = []
        for index, form in enumerate(forms):
            value = Value(form.size if hasattr(form, "size") else form.value.size, node)
            node.made.append((index, 0, weakref.ref(value), form))
            slot = Slot.__new__(Slot)
            slot.value, slot.dtype, slot.shape, slot.stride, slot.offset = value, form.dtype, form.shape, form.stride, form.offset
            made.append(slot)
        return made

    def promise(self, form: Form) -> Slot:
        """A slot whose value will be known later, if at all."""
        made: Any = self.derive(not_kept, (), (), [form], 0.0)
        return made[0]

    def keep_promise(self, promise: Slot, slot: Slot | None) -> None:
        """What was promised is what is in this slot; None: it is not known."""
        value = promise.value
        if value.flat is not None or value.lost is not None:
            return
        if slot is None or slot.shape != promise.shape or slot.dtype != promise.dtype or slot.value is None:
            value.lose("a function of the program's own computed it")
            return
        value.node = Node(torch.ops.aten.clone.default, (slot,), {}, (slot.value,), 0.0, self.live)
        value.node.made.append((0, 0, weakref.ref(value), promise))

    def bind(self, tensor: torch.Tensor, slot: Slot | Held) -> None:
        """What is in a tensor now. A part of a storage is not followed."""
        if not is_whole(tensor) or self.live[0] >= NODES:
            self.forget(tensor)
            return
        entry = self.entry_for(tensor)
        entry.true = False
        inputs = (slot.value,) if isinstance(slot, Slot) else ()
        node = Node(torch.ops.aten.clone.default, (slot,), {}, inputs, 0.0, self.live)
        value = Value(entry.size, node)
        node.made.append((0, 0, weakref.ref(value), Slot(None, tensor)))
        self.put(entry, value)

    def write(self, node: Node, targets: Iterable[Any], before: dict[int, Value]) -> None:
        done: set[int] = set()
        for tensor in targets:
            if not isinstance(tensor, Tensor) or not tensor.is_cuda:
                continue
            for part in parts(tensor) or ():
                entry = self.entry_for(part)
                if id(entry) in done:
                    continue
                done.add(id(entry))
                old = entry.value if entry.value is not None and id(entry.value) in before else self.blanks.get(id(entry))
                new = Value(entry.size, node)
                node.written.append((old, weakref.ref(new)))
                entry.true = False
                self.put(entry, new)

    @staticmethod
    def targets(args: Sequence[Any], kwargs: dict[str, Any], schema: Iterable[Write]) -> Iterator[Any]:
        for index, name in schema:
            target = args[index] if index < len(args) else kwargs.get(name)
            yield from target if isinstance(target, (list, tuple)) else (target,)

    def overwritten(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], schema: Sequence[Write], makes: bool) -> Collection[int]:
        """Storages that the operation writes over whole: what they had does not matter."""
        self.blanks = {}
        if makes or not (func in OVERWRITES or func._schema.name.endswith("out") or func._schema.overload_name.endswith("out")):
            return {}
        written = list(self.targets(args, kwargs, schema))
        # What is read as well is needed.
        read = {
            one.untyped_storage()._cdata
            for value in (*args, *kwargs.values())
            for one in (value if isinstance(value, (list, tuple)) else (value,))
            if isinstance(one, Tensor) and one.is_cuda and one.layout is torch.strided and all(one is not target for target in written)
        }
        if len({id(target) for target in written}) < sum(any(value is target for target in written) for value in (*args, *kwargs.values())):
            return {}
        return {
            target.untyped_storage()._cdata: target for target in written if isinstance(target, Tensor) and target.is_cuda and target.layout is torch.strided and is_whole(target)
        }.keys() - read

    def slot(self, value: Any, inputs: dict[int, Value], alias: Alias, over: Collection[int]) -> Any:
        if isinstance(value, Tensor):
            if not value.is_cuda:
                return self.hold(value)
            pieces = parts(value)
            if pieces is None:
                raise LookupError
            slots = [self.part(piece, inputs, alias, over) for piece in pieces]
            return slots[0] if value.layout is torch.strided else Sparse(value, slots)
        if isinstance(value, (list, tuple)):
            return [self.slot(one, inputs, alias, over) for one in value]
        if isinstance(value, torch.device):
            return CPU
        if isinstance(value, torch.Generator):
            return None
        return value

    def part(self, tensor: torch.Tensor, inputs: dict[int, Value], alias: Alias, over: Collection[int]) -> Slot:
        if tensor.is_conj() or tensor.is_neg():
            raise LookupError
        storage = tensor.untyped_storage()
        entry = self.entry(tensor)
        if storage._cdata in over:
            entry = entry or self.entry_for(tensor)
            value = self.blanks.setdefault(id(entry), Value(storage.nbytes()))
            if value.flat is None and value.node is None:
                value.node = Node(None, (), {}, (), 0.0, self.live)
                value.node.made.append((0, 0, weakref.ref(value), None))
        elif entry is None:
            raise LookupError
        elif entry.true and entry.value is not None and entry.value.flat is not None and torch.equal(entry.value.flat, alias(storage)):
            value = entry.value
        elif entry.true:
            # The bytes may change by the next operation, and may have changed since the last.
            value = Value(entry.size)
            value.set(alias(storage).clone(), self.budget)
            value.made_up = entry.made_up
            self.put(entry, value)
        elif entry.value is None or entry.value.lost is not None:
            self.why = entry.value.lost if entry.value is not None else None
            raise LookupError
        else:
            value = entry.value
        inputs[id(value)] = value
        return Slot(value, tensor)

    def lose_all(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], out: Any, schema: Sequence[Write], makes: bool) -> Any:
        if makes:
            for tensor in out if isinstance(out, (list, tuple)) else (out,):
                self.lose(tensor)
            for tensor in hidden_writes(func, args):
                self.lose(tensor)
        else:
            for tensor in self.targets(args, kwargs, schema):
                self.lose(tensor)
        return out

    def lose(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            for part in parts(tensor) or ():
                self.forget(part, self.why)

    # -- tensors of the host

    def hold(self, tensor: torch.Tensor) -> Held:
        if tensor.device.type != "cpu" or type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.is_nested:
            raise LookupError
        tensor = tensor.detach()
        if tensor.layout is not torch.strided:
            return Held(tensor.clone(), None)
        storage = tensor.untyped_storage()
        if storage._cdata in self.undrawn:
            self.why = UNDRAWN
            raise LookupError
        size, in_file = tensor.numel() * tensor.element_size(), not storage.resizable() and self.is_file(storage)
        if not in_file and not self.has_room(size):
            self.why = FULL
            raise LookupError
        if size <= COPIED or tensor.is_inference() or not storage.resizable() and not in_file:
            # Those that are not resizable are written to where nobody sees it: by NumPy, by another process.
            return Held(tensor.clone(), None, self.budget)
        held = Held(tensor, tensor._version, None if in_file else self.budget)
        _, holders = self.held.setdefault(storage._cdata, (StorageWeakRef(storage), weakref.WeakSet()))
        holders.add(held)
        return held

    def leave_undrawn(self, tensor: torch.Tensor | torch.UntypedStorage) -> None:
        """Its values were passed over: they are not known."""
        storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else tensor
        self.undrawn[storage._cdata] = (StorageWeakRef(storage), True)

    def spread_undrawn(self, args: Sequence[Any], kwargs: dict[str, Any], results: Iterable[Any]) -> None:
        """What follows on the host from what was not drawn was not drawn either."""
        on_host = lambda one: isinstance(one, Tensor) and one.device.type == "cpu" and one.layout is torch.strided and not one.is_nested
        if any(on_host(one) and one.untyped_storage()._cdata in self.undrawn for one in flattened((*args, *kwargs.values()))):
            for one in flattened(results):
                if on_host(one):
                    self.leave_undrawn(one)

    def before_host_write(self, func: OpOverload, tensor: torch.Tensor) -> None:
        """Somebody is about to write to a tensor of the host."""
        if self.undrawn and func in OVERWRITES and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes():
            self.undrawn.pop(tensor.untyped_storage()._cdata, None)
        if not self.held:
            return
        found = self.held.pop(tensor.untyped_storage()._cdata, None)
        for held in found[1] if found else ():
            if held.get() is not None:
                held.tensor, held.version = held.tensor.clone(), None

    def is_file(self, storage: torch.UntypedStorage) -> bool:
        """Whether its bytes are a file's, which nobody writes to."""
        address = storage.data_ptr()
        known = self.files.get(storage._cdata)
        if known is None:
            known = (StorageWeakRef(storage), _lies_in_file(address))
            self.files[storage._cdata] = known
        return known[1]

    def has_room(self, size: int) -> bool:
        if self.budget.held + size > self.budget.size:
            self.sweep()
        return self.budget.held + size <= self.budget.size

    # -- computing

    def compute_value(self, value: Value, limit: float) -> torch.Tensor | None:
        """Its bytes, computed if that takes about ``limit`` seconds or less; None if they cannot be had."""
        if value.flat is None and value.lost is None:
            if self.computing or self.takes(value, limit) > limit:
                return None
            began = time.monotonic()
            self.computing = True
            try:
                with alone():
                    self.force(value, began + max(limit, 1.0) * 4)
            except TakesTooLong:
                return None
            finally:
                self.computing = False
                self.budget.spent += time.monotonic() - began
        return value.flat

    @staticmethod
    def takes(value: Value, limit: float) -> float:
        """Seconds, roughly, to compute it; anything above the limit if it is more."""
        seen, left, seconds = set(), [value], 0.0
        while left:
            node = left.pop().node
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            seconds += node.cost
            if seconds > limit:
                break
            left.extend(value for value in node.inputs if value.flat is None)
        return seconds

    def force(self, value: Value, deadline: float) -> None:
        left = [value]
        while left:
            top = left[-1]
            # What is neither computed nor lost has one.
            node: Any = top.node
            if top.flat is not None or top.lost is not None:
                left.pop()
                continue
            waits = [one for one in node.inputs if one.flat is None and one.lost is None]
            if waits:
                left.extend(waits)
                continue
            left.pop()
            if time.monotonic() > deadline:
                raise TakesTooLong
            self.run(node)

    def run(self, node: Node) -> None:
        made_up = any(one.made_up for one in node.inputs)
        results = [ref() for _, _, ref, _ in node.made] + [ref() for _, ref in node.written]
        why = next((one.lost for one in node.inputs if one.lost is not None), None)
        size = sum(one.size for one in results if one is not None)
        if why is None and not self.has_room(size):
            why = FULL
        if why is None:
            try:
                self.compute(node)
            except Exception as error:  # no such operation on the CPU, or not with these
                name = node.func._schema.name if isinstance(node.func, torch._ops.OpOverload) else type(node.func).__name__
                why = f"{name} could not be done on the CPU: {type(error).__name__}"
        for one in results:
            if one is not None:
                one.made_up = made_up
                if one.flat is None and one.lost is None:
                    one.lose(why or "it was not computed")
        node.release()

    def compute(self, node: Node) -> None:
        if node.func is None:
            for _, _, ref, _ in node.made:
                value = ref()
                if value is not None:
                    value.set(blank(value.size), self.budget)
            return
        flats = {id(value): value.flat for value in node.inputs}
        old: Any
        for old, _ in node.written:
            if old is None:
                raise LookupError("what was there before is not known")
            # Nobody else needs it: this node is its only use.
            mine = old.uses == 1 and old.flat is not None
            flats[id(old)] = old.flat if mine else old.flat.clone()
        args = [self.given(value, flats) for value in node.args]
        kwargs = {name: self.given(value, flats) for name, value in node.kwargs.items()}
        out = self.call(node, args, kwargs)
        out = out if isinstance(out, (list, tuple)) else (out,)
        for index, number, ref, form in node.made:
            value = ref()
            if value is None or not isinstance(out[index], Tensor):
                continue
            pieces: Any = parts(out[index])
            true = pieces[number]
            if true.shape != form.shape or true.dtype != form.dtype:
                continue
            storage = true.untyped_storage()
            if true.stride() == form.stride and true.storage_offset() == form.offset and storage.nbytes() == value.size and not _among(storage, flats):
                flat = torch._VF.empty(0, dtype=torch.uint8, device=CPU).set_(storage, 0, (value.size,), (1,))
            else:
                flat = blank(value.size)
                view(flat, form).copy_(true)
            value.set(flat, self.budget)
        for old, ref in node.written:
            value, flat = ref(), flats[id(old)]
            if old.flat is flat:
                old.taken()
            if value is not None:
                value.set(flat, self.budget)

    def given(self, value: Any, flats: dict[int, torch.Tensor | None]) -> Any:
        if isinstance(value, Slot):
            return value.tensor(flats[id(value.value)])
        if isinstance(value, Sparse):
            return value.tensor([part.tensor(flats[id(part.value)]) for part in value.parts])
        if isinstance(value, Held):
            tensor = value.get()
            if tensor is None:
                raise LookupError("written to since")
            return tensor
        if isinstance(value, list):
            return [self.given(one, flats) for one in value]
        if isinstance(value, dict):
            return {key: self.given(one, flats) for key, one in value.items()}
        return value

    def call(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if node.draw is not None:
            return self.drawn(node, args, kwargs)
        substitute = SUBSTITUTES.get(node.func)
        return substitute(*args, **kwargs) if substitute else node.func(*args, **kwargs)

    def drawn(self, node: Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Random numbers, as the card would have drawn them."""
        forms = [form for _, _, _, form in node.made]
        out = [torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device="meta") for form in forms] or [args[0]]
        # Where a node draws, there is somebody to ask.
        draw: Any = self.draw
        result = draw(node.func, args, kwargs, out if len(out) > 1 else out[0], node.draw)
        if result is None:
            raise LookupError("random numbers of the card are not followed")
        if node.written:
            args[0].copy_(result)
        return result

    @staticmethod
    def cost(func: Function, args: Sequence[Any], out: Any) -> float:
        """Seconds that it takes on the CPU, roughly."""
        elements = sum(one.numel() for one in (out if isinstance(out, (list, tuple)) else (out,)) if isinstance(one, Tensor))
        size = 0
        for value in args:
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, Tensor):
                    size += one.numel() * one.element_size()
        seconds = (8 * elements + size) / BYTES + 1 / CALLS
        if func in PRODUCTS:
            seconds += 2 * elements * next((one.shape[-1] for one in args[-2:] if isinstance(one, Tensor) and one.dim()), 1) / FLOPS
        elif func in CONVOLUTIONS and isinstance(args[1], Tensor) and args[1].numel():
            seconds += 2 * elements * (args[1].numel() // args[1].shape[0]) / FLOPS
        elif "attention" in getattr(func, "__name__", "") and isinstance(args[1], Tensor) and args[1].dim() > 1:
            seconds += 4 * elements * args[1].shape[-2] / FLOPS
        return seconds


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Without modes, gradients, autocast and default devices: as the operation was when it was recorded."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast():
        yield


def _among(storage: torch.UntypedStorage, flats: dict[int, torch.Tensor | None]) -> bool:
    return any(flat is not None and flat.untyped_storage()._cdata == storage._cdata for flat in flats.values())


def _lies_in_file(address: int) -> bool:
    """Whether a private or read-only mapping of a file holds this address."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            span, rights, _, _, inode, *_ = line.split(maxsplit=5)
            start, end = (int(word, 16) for word in span.split("-"))
            if start <= address < end:
                return inode != "0" and (rights[3] == "p" or rights[1] == "-")
    return False


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    if dropout:
        raise LookupError("dropout inside of attention is not followed")
    out = torch.ops.aten._scaled_dot_product_attention_math.default(query, key, value, bias, 0.0, causal, scale=scale)
    return out if isinstance(out, Tensor) else out[0]


def _substitutes() -> dict[OpOverload, Function]:
    """What only CUDA has, by what the CPU has. Results that nobody reads are None."""
    table: dict[OpOverload, Function] = {}

    def add(name: str, function: Function) -> None:
        table.update(dict.fromkeys(operations(name), function))

    add(
        "_scaled_dot_product_efficient_attention",
        lambda query, key, value, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, scale=None: (
            _attention(query, key, value, bias, dropout_p, is_causal, scale), None, None, None,
        ),
    )  # fmt: skip
    add(
        "_scaled_dot_product_flash_attention",
        lambda query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, scale=None: (
            _attention(query, key, value, None, dropout_p, is_causal, scale), *[None] * 8,
        ),
    )  # fmt: skip
    add(
        "_scaled_dot_product_cudnn_attention",
        lambda query, key, value, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, scale=None: (
            _attention(query, key, value, bias, dropout_p, is_causal, scale), *[None] * 8,
        ),
    )  # fmt: skip
    normalise = torch.ops.aten.native_batch_norm.default
    add("cudnn_batch_norm", lambda input, weight, bias, mean, variance, training, momentum, epsilon: (
        *normalise(input, weight, bias, mean, variance, training, momentum, epsilon), None,
    ))  # fmt: skip
    return table


SUBSTITUTES = _substitutes()
