"""Activations of blocks in host memory: what blocks save for the backward leaves the GPU behind them and comes back ahead of the backward.

Whole storages are copied, so that views keep their strides and tensors that share memory go once. Copies run on streams of their own, one
each way. Memory is freed where the computing stream has been made to wait for the copy, one block behind: so the peak depends on the
program only, not on how fast the link is, and is the same on the virtual GPU. Host memory comes from a pool of own slabs
(``HostMemory``), which lasts from step to step.
"""

from __future__ import annotations

import bisect
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from oomph._pinned import pin, unpin
from oomph.fitting.techniques.blocks import OFFLOAD, Surrounded
from oomph.fitting.techniques.saved import Stayed, changed, in_backward, taking
from oomph.fitting.techniques.technique import Technique, differs_in_length, some_of

# Smaller storages stay: a copy costs about as much time to start as these take to move.
SMALLEST = 64 << 10
# A view of less than this part of its storage stays: it is a piece of something that is held elsewhere, as a micro-batch of its batch.
_LEAST_PART = 16
_ALIGNED = 512
_SMALLEST_SLAB, _USUAL_SLAB = 4 << 20, 64 << 20


class OffloadedBlocks(Surrounded):
    """Blocks whose saved activations go to host memory until ``undo()``."""

    def __init__(self, model: nn.Module, names: Sequence[str], pinned_limit: int | None, rehearse: bool) -> None:
        self._transfer = _Transfer(pinned_limit, rehearse)
        super().__init__(model, OFFLOAD, dict.fromkeys(names, self._transfer.around))

    @property
    def bytes_offloaded(self) -> int:
        """What the last forward has sent to the host (with micro-batches: that of the last one)."""
        return self._transfer.sent

    @property
    def bytes_kept(self) -> int:
        """What the last forward has left on the GPU because of the limit on pinned memory."""
        return self._transfer.kept

    @property
    def pinned_bytes(self) -> int:
        """The host memory that is held for this."""
        return self._transfer.held()

    def undo(self) -> None:
        super().undo()
        self._transfer.release_memory()


def offload_blocks(model: nn.Module, names: Sequence[str], *, pinned_limit: int | None = None, rehearse: bool = False) -> OffloadedBlocks:
    """Has what the named blocks save for the backward wait in host memory; results are the same to the bit.

    ``pinned_limit`` bounds the host memory in bytes; what does not fit into it stays on the GPU. To ``rehearse`` is to do all but the
    copies, on a GPU that computes nothing: host memory is counted then and not touched.
    """
    return OffloadedBlocks(model, names, pinned_limit, rehearse)


class HostMemory:
    """Host memory in slabs that are pinned once and used again from step to step.

    The slabs are ours, and registered with the driver: PyTorch's own pinned memory is rounded up to a power of two, and pinning per
    tensor costs milliseconds each. The first slab with room is taken, so that the same requests in the same order find the same places in
    every step.
    """

    def __init__(self, pinned: bool, limit: int | None = None) -> None:
        self._pinned = pinned
        self._limit = limit
        self._slabs: list[_Slab] = []
        # What is given back comes from destructors, in any thread and in the middle of anything: it is only put down here.
        self._returned: deque[Piece] = deque()

    @property
    def size(self) -> int:
        return sum(slab.size for slab in self._slabs)

    def take(self, size: int) -> Piece | None:
        """A piece of at least this size; None if the limit does not allow it."""
        piece: Piece | None
        while self._returned:
            piece = self._returned.popleft()
            piece.slab.give(piece)
        rounded = -(-size // _ALIGNED) * _ALIGNED
        for slab in self._slabs:
            if (piece := slab.take(rounded, size)) is not None:
                return piece
        held = self.size
        usual = min(_USUAL_SLAB, max(_SMALLEST_SLAB, held))
        if self._limit is not None:
            if held + rounded > self._limit:
                return None
            usual = min(usual, self._limit - held)
        self._slabs.append(_Slab(max(rounded, usual), self._pinned))
        return self._slabs[-1].take(rounded, size)

    def give(self, piece: Piece) -> None:
        self._returned.append(piece)

    def release_memory(self) -> None:
        """Forgets the slabs: each is freed when nothing is in it any more."""
        self._slabs = []


class Piece:
    """A part of a slab: its place, its size with what it is rounded up by, and the memory asked for."""

    def __init__(self, slab: _Slab, offset: int, size: int, memory: torch.Tensor) -> None:
        self.slab, self.offset, self.size, self.memory = slab, offset, size, memory


class _Slab:
    def __init__(self, size: int, pinned: bool) -> None:
        self.size = size
        self._memory = torch.empty(size, dtype=torch.uint8, device="cpu")
        # Free parts by offset, never two that touch.
        self._free = [(0, size)]
        if pinned and _register(self._memory):
            weakref.finalize(self, _unregister, self._memory).atexit = False

    def take(self, rounded: int, size: int) -> Piece | None:
        for place, (offset, length) in enumerate(self._free):
            if length >= rounded:
                self._free[place : place + 1] = [(offset + rounded, length - rounded)] if length > rounded else []
                return Piece(self, offset, rounded, self._memory[offset : offset + size])
        return None

    def give(self, piece: Piece) -> None:
        start, end = piece.offset, piece.offset + piece.size
        place = bisect.bisect(self._free, (start, 0))
        if place < len(self._free) and self._free[place][0] == end:
            end += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == start:
            place -= 1
            start = self._free.pop(place)[0]
        self._free.insert(place, (start, end - start))


def _register(memory: torch.Tensor) -> bool:
    """Pins memory in place. Where the driver will not (some containers and Windows), copies are slower and as right."""
    return pin(memory, torch.device("cuda")) == 0


def _unregister(memory: torch.Tensor) -> None:
    # A copy may be under way still.
    torch.cuda.synchronize()
    unpin(memory.data_ptr())


class _Call:
    """One call of a block in a forward: what of it was moved to the host, in order."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.away: list[weakref.ref[_Away]] = []


class _Away:
    """A storage that is on the host, or on its way there or back. It and its host memory last as long as the graph that saved it."""

    def __init__(self, lane: _Lane, piece: Piece, size: int) -> None:
        self.lane, self.piece, self.size = lane, piece, size
        # The storage on the device, as bytes: while it leaves, and again from when it is fetched.
        self.present: torch.Tensor | None = None
        # What was saved, to see that it does not change while it is copied.
        self.watched: tuple[torch.Tensor, int] | None = None
        self.changed = False
        # The end of the copy to the host; and of the copy back, with the stream that does not wait for it yet.
        self.gone: torch.cuda.Event | None = None
        self.fetched: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None
        lane.living += 1

    def __del__(self) -> None:
        self.forget()
        self.lane.living -= 1
        self.lane.memory.give(self.piece)

    def forget(self) -> None:
        """Frees the memory on the device; where it came back unused, the computing stream first waits for the copy into it."""
        self.lane.settle(self)
        self.present = None

    def check(self) -> None:
        if self.watched is not None:
            tensor, version = self.watched
            self.changed = self.changed or tensor._version != version


class _Lane:
    """The way between one device and the host: its memory there, and its streams."""

    def __init__(self, device: torch.device, limit: int | None, rehearse: bool) -> None:
        self.device = device
        self.living = 0
        self._copies = not rehearse
        self._is_cuda = device.type == "cuda"
        self.memory = HostMemory(self._is_cuda and not rehearse, limit)
        if self._is_cuda:
            self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def send(self, storage: torch.UntypedStorage, tensor: torch.Tensor) -> _Away | None:
        """Starts a copy to the host; None if there is no room."""
        piece = self.memory.take(storage.nbytes())
        if piece is None:
            return None
        away = _Away(self, piece, storage.nbytes())
        there = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
        if not self._is_cuda:
            piece.memory.copy_(there)
            return away
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        # The piece may be one that a copy back has yet to be read from.
        self._out.wait_stream(self._back)
        if self._copies:
            with torch.cuda.stream(self._out):
                piece.memory.copy_(there, non_blocking=True)
        away.gone = self._out.record_event()
        away.present, away.watched = there, (tensor.detach(), tensor._version)
        return away

    def leave(self, away: _Away) -> None:
        """Frees the memory on the device that a copy is made from: what comes next on the computing stream waits for the copy."""
        if away.watched is not None and away.gone is not None:
            torch.cuda.current_stream(self.device).wait_event(away.gone)
            away.check()
            away.watched = away.present = None

    def fetch(self, away: _Away) -> None:
        """Starts a copy back, unless the storage is there."""
        if away.present is not None:
            return
        # Allocated for the computing stream: memory of a stream of its own would not be used for anything else afterwards.
        back = torch.empty(away.size, dtype=torch.uint8, device=self.device)
        if not self._is_cuda:
            back.copy_(away.piece.memory)
        else:
            computing = torch.cuda.current_stream(self.device)
            self._back.wait_stream(computing)
            if away.gone is not None:
                self._back.wait_event(away.gone)
            if self._copies:
                with torch.cuda.stream(self._back):
                    back.copy_(away.piece.memory, non_blocking=True)
            away.fetched = (computing, self._back.record_event())
        away.present = back

    def settle(self, away: _Away) -> None:
        """Has the computing stream wait for the copy back."""
        if away.fetched is not None:
            stream, done = away.fetched
            stream.wait_event(done)
            away.fetched = None


class _Saved:
    """What the graph holds in place of a tensor that was moved to the host."""

    def __init__(self, away: _Away, call: _Call, tensor: torch.Tensor) -> None:
        self.away, self.call = away, call
        self.dtype, self.offset, self.shape, self.stride = tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()


class _Transfer:
    """The hooks around the blocks, and the order of their calls: who leaves when, and who is fetched ahead."""

    def __init__(self, limit: int | None, rehearse: bool) -> None:
        self._limit, self._rehearse = limit, rehearse
        self._lanes: dict[torch.device, _Lane] = {}
        self._calls: list[_Call] = []
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, weakref.ref[_Away]]] = {}
        self._in_backward: _Call | None = None
        self.sent = self.kept = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> _Transfer:
        return self

    def held(self) -> int:
        return sum(lane.memory.size for lane in self._lanes.values())

    def release_memory(self) -> None:
        for lane in self._lanes.values():
            lane.memory.release_memory()

    def around(self, block: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        call = self._begin()
        held = {tensor.untyped_storage()._cdata for tensor in (*block.parameters(), *block.buffers()) if _plain(tensor)}
        with taking(lambda tensor: self._pack(tensor, call, held), self._unpack):
            result = forward(*args, **kwargs)
        self._behind(call)
        return result

    def _begin(self) -> _Call:
        if not any(lane.living for lane in self._lanes.values()):
            # The graph of the step before is gone, whether it was used or an error ended it: this is a new step.
            self._calls, self._known, self.sent, self.kept = [], {}, 0, 0
        self._in_backward = None
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call

    def _behind(self, call: _Call) -> None:
        """Frees what the blocks before this one have sent."""
        for earlier in self._calls[max(0, call.index - 2) : call.index]:
            for away in _alive(earlier):
                away.lane.leave(away)

    def _pack(self, tensor: torch.Tensor, call: _Call, held: set[int]) -> _Saved | Stayed:
        away = self._away(tensor, held)
        if away is None:
            return Stayed(tensor)
        call.away.append(weakref.ref(away))
        return _Saved(away, call, tensor)

    def _away(self, tensor: torch.Tensor, held: set[int]) -> _Away | None:
        if not _plain(tensor) or (tensor.is_leaf and tensor.requires_grad):
            return None
        storage = tensor.untyped_storage()
        if storage.nbytes() < SMALLEST or storage._cdata in held:
            return None
        known = self._known.get((storage._cdata, tensor._version))
        if known is not None and not known[0].expired() and (away := known[1]()) is not None:
            return away
        if tensor.numel() * tensor.element_size() * _LEAST_PART < storage.nbytes():
            return None
        lane = self._lanes.get(tensor.device)
        if lane is None:
            lane = self._lanes[tensor.device] = _Lane(tensor.device, self._limit, self._rehearse)
        sent = lane.send(storage, tensor)
        if sent is None:
            self.kept += storage.nbytes()
            return None
        self.sent += sent.size
        self._known[storage._cdata, tensor._version] = (StorageWeakRef(storage), weakref.ref(sent))
        return sent

    def _unpack(self, saved: _Saved | Stayed) -> torch.Tensor:
        if isinstance(saved, Stayed):
            return saved()
        away = saved.away
        away.check()
        if away.changed:
            raise changed(saved.shape)
        looked_at = not in_backward()
        if not looked_at and saved.call is not self._in_backward:
            self._arrive(saved.call)
        was_away = away.present is None
        away.lane.fetch(away)
        away.lane.settle(away)
        assert away.present is not None
        with torch.no_grad():
            empty = torch.empty(0, dtype=saved.dtype, device=away.present.device)
            tensor = empty.set_(away.present.untyped_storage(), saved.offset, saved.shape, saved.stride)
        if was_away and looked_at:
            # It was looked at, in a forward pass, and waits for its backward pass where it was.
            away.present = None
        return tensor

    def _arrive(self, call: _Call) -> None:
        """The backward has come to a block: all of it is fetched, and then what the block before it saved, which is needed next."""
        self._in_backward = call
        needed = _alive(call)
        ahead = _alive(self._calls[call.index - 1]) if 0 < call.index <= len(self._calls) else []
        if call.index + 1 < len(self._calls):
            # Only what a graph that is kept for another backward still holds.
            for away in _alive(self._calls[call.index + 1]):
                if away.watched is None and away not in needed:
                    away.forget()
        for away in [*reversed(needed), *reversed(ahead)]:
            away.lane.fetch(away)


def _alive(call: _Call) -> list[_Away]:
    return [away for reference in call.away if (away := reference()) is not None]


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its storage and nothing else, on a device that copies can be made from."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
        return False
    return not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


OFFLOADED_ACTIVATIONS = Technique(
    "offload",
    lambda names, _, blocks: f"activations of {some_of(len(names), blocks)} in host memory",
    "same numbers; copies run beside the work",
    apply=lambda step: offload_blocks(step.model, step.plan.offload, rehearse=step.rehearse),
    is_new=differs_in_length,
)
