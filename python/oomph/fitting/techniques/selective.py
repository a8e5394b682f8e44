"""Selective checkpointing: some of what a block's operations made is not kept for the backward pass but made again there, from what is kept.

In ``selective`` blocks matrix products, convolutions and attention are kept, and outputs of activations, norms, dropout, sums and copies are dropped where the graph itself still
has what they were made of. In ``lean`` blocks products are dropped too; attention stays, and what takes far more work for its size than the largest of them. No operation is watched: autograd says what it saves, by the hooks for saved tensors,
and the node that made a tensor says how (``remaking``). The first time, and every so often, a block compares what it would make with what is there, and is left alone from then on if
anything differs. What is not known, whose inputs nobody keeps, or what was changed in place, stays as it is. A change that autograd does not see (through ``.data``, or in place
without gradients) is seen only where it is compared.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from oomph._environment import on_virtual_gpu
from oomph.fitting.techniques.blocks import SELECTIVE, Surrounded, get_block
from oomph.fitting.techniques.caches import without_caches
from oomph.fitting.techniques.remaking import CHEAP, PRODUCTS, RESHAPES, VIEWS, Make, bytes_made, inner_length, kept_by, seen, shape_made
from oomph.fitting.techniques.saved import HandedOn, Stayed, hand_on, is_taken
from oomph.fitting.techniques.technique import Technique, differs_in_length, some_of
from oomph.live.out_of_memory import is_out_of_memory

# Smaller tensors stay: they are not worth a launch.
_SMALLEST = 64 << 10

# What is asked of PyTorch's nodes here, and older versions do not have.
_KNOWN = hasattr(torch._C._autograd, "_get_sequence_nr") and hasattr(torch._C._FunctionBase, "_input_metadata")

# Operations that models have work in place, on what the one before has made: the node has the history of both.
_IN_PLACE = frozenset({"ReluBackward0"})

# Products that sum so many times more numbers than the widest of a block are dear for their size: they stay in lean blocks too.
_DEAR = 2

# How often a block compares all again.
_COMPARED_AGAIN = 64
# Nodes that are looked at for one tensor. Beyond that, to make it again is not cheap.
_FARTHEST = 64

# Of the integer types, those in which bits are compared.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SelectiveBlocks(Surrounded):
    """Blocks that keep only what is dear, until ``undo()``; with ``products``, attention and the products that are dearest for their size."""

    def __init__(self, model: nn.Module, names: Sequence[str], products: bool = False) -> None:
        self.counted = {name: Counted() for name in names}
        super().__init__(model, SELECTIVE, {name: _Selective(get_block(model, name), self.counted[name], products) for name in names})


class Counted:
    """What was dropped of a block: bytes, each storage once, and the floating-point operations of the products that are made again."""

    def __init__(self) -> None:
        self.dropped = 0
        self.flops = 0


class _Selective:
    """What lies around the forward of one block."""

    def __init__(self, block: nn.Module, counted: Counted, products: bool) -> None:
        self._counted = counted
        # Up to which length of their sums products are dropped.
        self._products = _DEAR * _widest(block) if products else -1.0
        self._norms = [module for module in block.modules() if isinstance(module, (nn.LayerNorm, nn.GroupNorm)) and module.weight is not None]
        # What was found to be the same when it was made again.
        self._compared: set[Any] = set()
        # Of what autograd saves in a forward, by its place: the node that made what could not be dropped, in each way to run the block. There is no need to look again.
        self._stays: dict[Any, dict[int, str]] = {}
        self._forwards = 0
        self._left_alone = False
        # Whether numbers that are added are looked for: until it is known that there are none.
        self._notes_numbers = True

    def _eps(self) -> dict[int, float]:
        """By weight: nodes of norms do not keep it. Where two norms share a weight and differ in it, nothing is known."""
        found: dict[int, set[float]] = {}
        for norm in self._norms:
            found.setdefault(id(norm.weight), set()).add(norm.eps)
        return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Selective:
        return self

    def __call__(self, block: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if not _KNOWN or self._left_alone:
            # What would stay must not go to hooks farther out instead.
            with torch.autograd.graph.saved_tensors_hooks(Stayed, _unpack) if is_taken() else contextlib.nullcontext():
                return forward(*args, **kwargs)
        args, kwargs, _ = without_caches(block, args, kwargs)
        self._forwards += 1
        if self._forwards % _COMPARED_AGAIN == 0:
            self._compared.clear()
            self._stays.clear()
        call = _Call(self._eps(), self._counted, self._products, self._compared, self._stays, block.training)
        entered = (tensor for tensor in pytree.tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor) and _is_plain(tensor))
        call.entered.update(tensor.untyped_storage()._cdata for tensor in entered)
        try:
            with torch.autograd.graph.saved_tensors_hooks(call.pack, _unpack), _watching(call), call.numbers if self._notes_numbers else contextlib.nullcontext():
                result = forward(*args, **kwargs)
            call.keep(result)
            if call.has_dropped:
                self._notes_numbers = call.numbers.used
            return result
        finally:
            self._left_alone = call.closed
            call.forget()


def _widest(block: nn.Module) -> float:
    """How many numbers the products of a block sum that make the widest outputs; of several as wide, the most. Without limit where none is known."""
    known: list[tuple[int, float]] = []
    for module in block.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear):
            known.append((module.out_features, module.in_features))
        elif isinstance(module, nn.modules.conv._ConvNd):
            known.append((module.out_channels, math.prod(module.kernel_size) * module.in_channels / module.groups))
        elif isinstance(getattr(module, "nf", None), int) and isinstance(weight, torch.Tensor) and weight.dim() == 2:
            # A Linear whose weight lies the other way round, as in GPT-2.
            known.append((weight.shape[1], weight.shape[0]))
    return max(known, default=(0, math.inf))[1]


# In a trial, what is made is looked at only, and not kept until all have it who need it.
_looking = threading.local()


def _without_autocast() -> Any:
    """Nodes have their conversions already; a backward pass may run under autocast all the same."""
    if not any(map(torch.is_autocast_enabled, ("cuda", "cpu"))):
        return contextlib.nullcontext()
    off = contextlib.ExitStack()
    for kind in ("cuda", "cpu"):
        off.enter_context(torch.autocast(kind, enabled=False))
    return off


class _Dropped:
    """A storage that is made again when it is first asked for. It lasts as long as the graph has something that needs it: autograd lets go of what it has saved once it was used."""

    __slots__ = ("__weakref__", "_layout", "_make", "_nbytes", "_value", "dtype")

    def __init__(self, make: Make, nbytes: int, dtype: torch.dtype, layout: tuple[torch.Size, tuple[int, ...]] | None) -> None:
        self._make: Make | None = make
        self._nbytes, self._layout, self.dtype = nbytes, layout, dtype
        self._value: torch.Tensor | None = None

    def keep(self, tensor: torch.Tensor) -> bool:
        """It is not dropped after all, if this is all of it."""
        if self._layout != (tensor.shape, tensor.stride()) or tensor.storage_offset() or self._value is not None:
            return False
        self._make = Stayed(tensor)
        return True

    def value(self) -> torch.Tensor:
        if self._value is not None:
            return self._value
        assert self._make is not None
        with torch.no_grad(), _without_autocast():
            made = self._make()
        if made.untyped_storage().nbytes() != self._nbytes:
            raise RuntimeError("what an operation makes has another size when it is made again: this block cannot be checkpointed selectively")
        if self._layout is not None and made.stride() != self._layout[1]:
            # The same numbers in another order: views of what was there before count on the first.
            with torch.no_grad():
                made = torch.empty_strided(*self._layout, dtype=made.dtype, device=made.device).copy_(made)
        if not getattr(_looking, "on", False):
            # What it was made of is let go.
            self._value, self._make = made, None
        return made


class _View:
    """What the graph holds in place of a tensor whose storage was dropped."""

    __slots__ = ("dropped", "offset", "shape", "stride")

    def __init__(self, dropped: _Dropped, tensor: torch.Tensor) -> None:
        self.dropped = dropped
        self.shape, self.stride, self.offset = tensor.shape, tensor.stride(), tensor.storage_offset()

    def value(self) -> torch.Tensor:
        value = self.dropped.value()
        if value.shape == self.shape and value.stride() == self.stride and value.storage_offset() == self.offset:
            return value
        with torch.no_grad():
            return value.as_strided(self.shape, self.stride, self.offset)


def _unpack(saved: Stayed | HandedOn | _View) -> torch.Tensor:
    return saved.value() if isinstance(saved, _View) else saved()


class _Call:
    """One forward of a block: what its nodes have saved so far."""

    def __init__(self, eps: dict[int, float], counted: Counted, products: float, compared: set[Any], stays: dict[Any, dict[int, str]], training: bool) -> None:
        self.eps, self._counted, self._products, self._compared = eps, counted, products, compared
        self._hands_on = is_taken()
        # How many tensors were saved so far.
        self._place = 0
        # Of a virtual GPU there is nothing to compare.
        self._compares = not on_virtual_gpu()
        self._way = (training, *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu")))
        self._stays = stays.setdefault(self._way, {})
        #: Storages that came into the block: what is without history may have been made inside.
        self.entered: set[int] = set()
        self.numbers = _Numbers()
        self.has_dropped = False
        self._looked_at = 0
        # Nothing more is dropped: something was not the same when it was made again, or hooks of others lie inside.
        self.closed = False
        # Nodes of before are others' business: what they made is kept elsewhere, mostly.
        self.since = torch._C._autograd._get_sequence_nr()
        # By storage and version, what was dropped of it. The storage is gone then, and its number may come again: a weak reference tells.
        self._dropped: dict[tuple[int, int], tuple[Any, _Dropped]] = {}
        # By node and output: what somebody keeps of it, as it is; and what is made again once for all.
        self._stayed: dict[tuple[Any, int], weakref.ref[Stayed | HandedOn]] = {}
        self._remade: dict[tuple[Any, int], _Dropped] = {}

    def forget(self) -> None:
        """Once the forward is over. The graph holds the hooks, and these would hold the graph."""
        self._dropped.clear()
        self._stayed.clear()
        self._remade.clear()
        self.numbers.by_node.clear()

    def keep(self, result: Any) -> None:
        """What comes out of the block is there anyway: whoever takes it keeps it."""
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _is_plain(tensor):
                storage = tensor.untyped_storage()
                known = self._dropped.get((storage._cdata, tensor._version))
                if known is not None and known[0]() is not None and known[1].keep(tensor):
                    self._counted.dropped -= storage.nbytes()

    def pack(self, tensor: torch.Tensor) -> Stayed | HandedOn | _View:
        node = tensor.grad_fn
        if node is None:
            return hand_on(tensor) if _is_plain(tensor) and tensor.untyped_storage()._cdata in self.entered else Stayed(tensor)
        place, self._place = self._place, self._place + 1
        if self.closed or tensor.nbytes < _SMALLEST or not _is_plain(tensor):
            return Stayed(tensor)
        name = node.name()
        if self._stays.get(place) == name:
            return self._stay(tensor, node)
        storage = tensor.untyped_storage()
        known = self._dropped.get((storage._cdata, tensor._version))
        if known is not None and known[0]() is not None:
            return _View(known[1], tensor) if known[1].dtype == tensor.dtype else Stayed(tensor)
        # What was changed in place is not what its node made, but where that node did it.
        is_made = tensor._version == 0 or name in _IN_PLACE
        self._looked_at = 0
        dropped = self._drop(tensor, node, storage.nbytes()) if is_made else None
        if dropped is not None and self._compares and not self._was_the_same(dropped, tensor, node):
            self.closed, dropped = True, None
        if dropped is None:
            self._stays[place] = name
            return self._stay(tensor, node)
        self._dropped[storage._cdata, tensor._version] = (_alive(storage), dropped)
        self._counted.dropped += storage.nbytes()
        self.has_dropped = True
        return _View(dropped, tensor)

    def _stay(self, tensor: torch.Tensor, node: Any) -> Stayed | HandedOn:
        # What came into the block may go elsewhere meanwhile.
        stayed = hand_on(tensor) if self._hands_on and self._is_from_before(node) else Stayed(tensor)
        self._stayed[node, tensor.output_nr] = weakref.ref(stayed)
        return stayed

    def _was_the_same(self, dropped: _Dropped, tensor: torch.Tensor, node: Any) -> bool:
        """By its place among the block's operations, and what it is: compared once."""
        key = (node._sequence_nr() - self.since, node.name(), tensor.dtype, self._way)
        if key not in self._compared:
            if not self._is_the_same(dropped, tensor):
                return False
            self._compared.add(key)
        return True

    def _is_the_same(self, dropped: _Dropped, tensor: torch.Tensor) -> bool:
        """Whether what is made again is what is there, to the bit."""
        _looking.on = True
        try:
            with torch.no_grad():
                made, there = _View(dropped, tensor).value(), tensor.detach()
                bits = _BITS[there.element_size()]
                return made.dtype == there.dtype and torch.equal(made.view(bits), there.view(bits))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            return False
        finally:
            _looking.on = False

    def _drop(self, tensor: torch.Tensor, node: Any, nbytes: int) -> _Dropped | None:
        """How the whole storage of a tensor is made again."""
        output, reshaped, is_whole = tensor.output_nr, True, True
        while (name := node.name()) in VIEWS:
            reshaped, is_whole = reshaped and name in RESHAPES, False
            (node, output) = node.next_functions[0]
            if node is None:
                return None
        if node._sequence_nr() < self.since or output != 0:
            return None
        if (shared := self._remade.get((node, 0))) is not None:
            return shared
        if (tensor.nbytes if is_whole else bytes_made(node)) != nbytes:
            return None
        base = tensor if is_whole else tensor._base
        layout = (base.shape, base.stride()) if base is not None and (is_whole or tuple(base.shape) == shape_made(node)) else None
        # A copy may lie in any order: that must be known, or be in one piece.
        if name == "CloneBackward0" and layout is None and not (reshaped and tensor.is_contiguous()):
            return None
        make = self._recipe(node, name)
        if make is None:
            return None
        dropped = _Dropped(make, nbytes, tensor.dtype, layout)
        self._remade[node, 0] = dropped
        return dropped

    def _is_from_before(self, node: Any) -> bool:
        """Whether a tensor, or what it is a view of, came into the block."""
        while node is not None and node.name() in VIEWS:
            node = node.next_functions[0][0]
        return node is None or node._sequence_nr() < self.since

    def _recipe(self, node: Any, name: str) -> Make | None:
        recipe = CHEAP.get(name)
        if recipe is None and self._products > 0 and name in PRODUCTS and inner_length(node) <= self._products:
            recipe = PRODUCTS[name]
        make = recipe(self, node) if recipe is not None else None
        if make is not None and name in PRODUCTS:
            self._counted.flops += 2 * inner_length(node) * math.prod(shape_made(node))
        return make

    def number(self, node: Any) -> float | None:
        """That was added by a node."""
        return self.numbers.of(node)

    def value(self, node: Any, output: int) -> Make | None:
        """How the value of an output of a node can be had: made again, or kept by somebody."""
        if node is None:
            return None
        stayed = self._stayed.get((node, output))
        if stayed is not None and (kept := stayed()) is not None:
            return kept
        if node._sequence_nr() < self.since:
            return None
        known = self._remade.get((node, output))
        if known is not None:
            return known.value
        self._looked_at += 1
        if self._looked_at > _FARTHEST:
            return None
        found = kept_by(node, output) or seen(self, node, output)
        if found is not None or output != 0:
            return found
        name = node.name()
        make = self._recipe(node, name)
        if make is None or name not in PRODUCTS:
            return make
        # What is dear is made once for all who need it.
        shared = _Dropped(make, bytes_made(node), node._input_metadata[0].dtype, None)
        self._remade[node, 0] = shared
        return shared.value


class _Numbers(TorchFunctionMode):
    """Notes the numbers that are added to tensors: no node keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.by_node: dict[Any, float] = {}
        self.used = False

    def of(self, node: Any) -> float | None:
        number = self.by_node.get(node)
        self.used = self.used or number is not None
        return number

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _ADDS and not kwargs and len(args) == 2 and type(args[1]) in (int, float) and type(made) is torch.Tensor and made.grad_fn is not None:
            self.by_node[made.grad_fn] = args[1]
        return made


_ADDS = {torch.add, torch.sub, torch.Tensor.add, torch.Tensor.sub, torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__sub__}


class _Watch:
    """Hooks that a block puts around parts of itself, such as a checkpoint's: what is saved there is theirs, and may be asked for once only. PyTorch is changed while there is a block
    to watch, whatever its thread."""

    def __init__(self) -> None:
        self._lock, self._active = threading.Lock(), 0
        self._of_thread = threading.local()
        self._push: Any = None

    @contextlib.contextmanager
    def __call__(self, call: _Call) -> Iterator[None]:
        calls = self._of_thread.__dict__.setdefault("calls", [])
        with self._lock:
            self._active += 1
            if self._active == 1:
                self._push = torch._C._autograd._push_saved_tensors_default_hooks
                torch._C._autograd._push_saved_tensors_default_hooks = self._pushed
        calls.append(call)
        try:
            yield
        finally:
            calls.pop()
            with self._lock:
                self._active -= 1
                if self._active == 0:
                    torch._C._autograd._push_saved_tensors_default_hooks = self._push

    def _pushed(self, pack: Any, unpack: Any) -> None:
        for call in getattr(self._of_thread, "calls", ()):
            call.closed = True
        self._push(pack, unpack)


_watching = _Watch()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is its storage, seen by shape and strides, and nothing else."""
    return type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_complex() and not tensor.is_neg()


def _alive(storage: torch.UntypedStorage) -> Callable[[], Any]:
    """Whether that storage is there still."""
    reference = StorageWeakRef(storage)
    return lambda: None if reference.expired() else reference


SELECTIVE_BLOCKS = Technique(
    "selective",
    lambda names, _, blocks: f"cheap operations of {some_of(len(names), blocks)} run again in the backward pass",
    "same numbers; matrix products and attention are kept",
    apply=lambda step: SelectiveBlocks(step.model, step.plan.selective),
    is_new=differs_in_length,
)
LEAN_BLOCKS = Technique(
    "lean",
    lambda names, _, blocks: f"most operations of {some_of(len(names), blocks)} run again in the backward pass",
    "same numbers; what attention made is kept, and what is dear for its size",
    apply=lambda step: SelectiveBlocks(step.model, step.plan.lean, products=True),
    is_new=differs_in_length,
)
