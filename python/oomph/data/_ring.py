"""Batches onto a GPU beside its work: a ring of pinned buffers, made once, and copies on a stream of their own.

Pinning is slow, and PyTorch rounds pinned memory up to a power of two and keeps it. So each buffer is a mapping of exactly the size of a batch, registered with
CUDA once, and used again as soon as the event behind its last copy has passed. A batch crosses in one piece and is cut into tensors on the other side.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from oomph._pinned import pin, unpin
from oomph._sizes import text

# Where tensors begin in a batch: what CUDA's own allocations are aligned to, so that kernels may use vectors.
_ALIGNMENT = 256
# One that is filled, one that is copied, one that may be late. More only take memory.
_MOST_SLOTS = 3

Batch = dict[str, torch.Tensor]


class Source(Protocol):
    """Batches, each with the token that leads behind it."""

    def __next__(self) -> tuple[Batch, str]: ...

    def ready(self) -> bool:
        """Whether ``next`` has something to say at once."""
        ...


class Copied:
    """Plainly: every tensor waits for its copy."""

    def __init__(self, batches: Iterator[tuple[Batch, str]], device: str) -> None:
        self._batches, self._device = batches, device

    def __iter__(self) -> Copied:
        return self

    def __next__(self) -> tuple[Batch, str]:
        batch, token = next(self._batches)
        return {name: tensor.to(self._device) for name, tensor in batch.items()}, token

    def close(self) -> None:
        """Holds nothing."""


class ThroughRing:
    """Through pinned buffers that together take no more than ``room``. The next batches are on their way while one is worked on.

    No generator: that would be over, and seem to be at its end, when Ctrl-C is pressed in it. Here whatever was taken is kept until it is given.
    """

    def __init__(self, batches: Source, device: str, rows: int, room: int) -> None:
        self._batches, self._device, self._rows, self._room = batches, torch.device(device), rows, room
        self._ring: Ring | None = None
        self._taken: tuple[Batch, str] | None = None
        self._waiting: deque[tuple[Crossing, str]] = deque()
        # The end or an error: it comes behind what is on its way.
        self._last: Exception | None = None
        # Passed once the GPU begins with a batch that was given, the last ones'.
        self._begun: deque[Any] = deque()

    def __iter__(self) -> ThroughRing:
        return self

    def __next__(self) -> tuple[Batch, str]:
        if not self._waiting and self._last is None:
            self._send()
        while self._last is None and self._ring is not None and len(self._waiting) < len(self._ring.slots) and self._is_ready():
            self._send()
        if not self._waiting:
            last, self._last = self._last, None
            assert last is not None  # nothing was sent
            try:
                raise last
            finally:
                # The exception leads to this frame, and must not be led to by it.
                del last
        # A program that never waits for the GPU gives it work faster than it is done. Without this, batches would pile up there, one for each that is yet to be worked on.
        while len(self._begun) >= _MOST_SLOTS:
            self._begun[0].synchronize()
            self._begun.popleft()
        crossing, token = self._waiting[0]
        batch = crossing.arrive()
        self._begun.append(crossing.begin())
        self._waiting.popleft()
        return batch, token

    def _is_ready(self) -> bool:
        """Whether another batch can set out now. None is waited for: of a source that is slower than the work, every batch would be given later by that wait."""
        return self._taken is not None or self._batches.ready()

    def _send(self) -> None:
        try:
            self._taken = self._taken or next(self._batches)
            batch, token = self._taken
            self._ring = self._ring or Ring(self._device, _batch_bytes(batch, self._rows), self._room)
            self._waiting.append((self._ring.send(batch), token))
            self._taken = None
        except Exception as last:
            # Where it happened leads to all frames that asked for the batch before, and to what they hold: batches on the GPU. In a cycle those would stay until
            # a collection; if that comes in a process that was forked meanwhile (a DataLoader's worker), PyTorch ends it: CUDA is not there.
            self._last = last.with_traceback(None)

    def close(self) -> None:
        """Unpins everything."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
            self._waiting.clear()


def _batch_bytes(batch: Batch, rows: int) -> int:
    """What a batch of so many rows takes: every column has as many bytes a row as in this one."""
    return sum(_aligned(rows * math.prod(tensor.shape[1:]) * tensor.element_size()) for tensor in batch.values())


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _pages(size: int) -> mmap.mmap:
    """Memory of its own, in large pages where the machine gives them: CUDA pins page by page."""
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):  # The second: a process that is forked has no part in what the GPU reads.
        if number := getattr(mmap, advice, None):
            with contextlib.suppress(OSError):
                pages.madvise(number)
    return pages


class Slot:
    """One pinned buffer."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._mapping = _pages(size)
        self.memory = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self.free = torch.cuda.Event()
        if code := pin(self.memory, device):
            raise RuntimeError(f"{text(size)} of memory cannot be pinned (CUDA's error {code}); use a smaller batch, or pin=False")

    def put(self, tensor: torch.Tensor, place: int) -> int:
        """Copies a tensor there; gives its bytes."""
        size = tensor.numel() * tensor.element_size()
        if place + size > self.memory.numel():
            raise ValueError(f"a batch of more than the {text(self.memory.numel())} that the first one took")
        if tensor.is_contiguous() and not tensor.is_cuda:
            # By one thread: PyTorch's copy wakes others, which the reading needs.
            ctypes.memmove(self.memory.data_ptr() + place, tensor.data_ptr(), size)
        else:
            self.memory[place : place + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return size

    def close(self) -> None:
        """Gives the memory back, once nothing is copied from it."""
        self.free.synchronize()
        unpin(self.memory.data_ptr())


class Crossing:
    """A batch on its way."""

    def __init__(self, batch: Batch, whole: torch.Tensor, event: Any) -> None:
        self._batch, self._whole, self._event = batch, whole, event

    def arrive(self) -> Batch:
        """The tensors, safe to use on the stream that is current now: it waits for the copy, the program does not."""
        current = torch.cuda.current_stream(self._whole.device)
        current.wait_event(self._event)
        # Allocated on the stream of copies: not to be given to the next batch while this one is worked on.
        self._whole.record_stream(current)
        return self._batch

    def begin(self) -> Any:
        """An event that has passed when the stream that is current now is done with all before this batch."""
        with torch.cuda.device(self._whole.device):
            event = torch.cuda.Event()
            event.record()
        return event


class Ring:
    """Pinned buffers in turn, and the stream that copies from them."""

    def __init__(self, device: torch.device, size: int, room: int) -> None:
        count = min(_MOST_SLOTS, room // max(size, 1))
        if count < 2:
            raise ValueError(
                f"two pinned buffers for batches of {text(size)} take more than the {text(room)} that the budget leaves them; use a budget of at least {text(8 * size)}"
            )
        self._device = device
        with torch.cuda.device(device):
            self._copies = torch.cuda.Stream(device)
            self.slots: list[Slot] = []
            try:
                for _ in range(count):
                    self.slots.append(Slot(max(_aligned(size), mmap.PAGESIZE), device))
            except BaseException:
                self.close()
                raise
        self._next = 0

    def send(self, batch: Batch) -> Crossing:
        """Copies a batch into the next buffer, once that is free, and from there to the GPU."""
        slot = self.slots[self._next]
        self._next = (self._next + 1) % len(self.slots)
        slot.free.synchronize()
        pieces, end = [], 0
        for tensor in batch.values():
            size = slot.put(tensor, end)
            pieces.append((end, size))
            end += _aligned(size)
        with torch.cuda.device(self._device), torch.cuda.stream(self._copies):
            whole = torch.empty(end, dtype=torch.uint8, device=self._device)
            whole.copy_(slot.memory[:end], non_blocking=True)
            slot.free.record(self._copies)
        cut = {name: whole[begin : begin + size].view(tensor.dtype).view(tensor.shape) for (name, tensor), (begin, size) in zip(batch.items(), pieces)}
        return Crossing(cut, whole, slot.free)

    def close(self) -> None:
        """Unpins everything."""
        for slot in self.slots:
            slot.close()
