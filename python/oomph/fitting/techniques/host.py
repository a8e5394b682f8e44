"""Host memory that a GPU copies from and to while the program goes on, and the streams for that.

What lies there, and when it travels, is for those who use it: the optimizer's state (``optimizers``) and weights (``weight_stream``).
"""

from __future__ import annotations

import mmap
import weakref
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from oomph import _ram
from oomph._pinned import pin, unpin
from oomph.fitting.errors import FitError

# What kernels that read 16 bytes at a time want, with room to spare.
_ALIGNMENT = 128
# Of the host memory that is free now, how much offloading may take.
_SHARE = 0.8


def host_room() -> int:
    """Bytes of host memory that plans may take."""
    return int(_ram.left() * _SHARE)


def size_of(tensor: Tensor) -> int:
    """Its bytes."""
    return tensor.numel() * tensor.element_size()


def aligned(size: int) -> int:
    """Where the next tensor may begin."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Slab:
    """Host memory that the GPU copies from and to while the program goes on. PyTorch rounds its pinned memory up to a power of two; this is
    not rounded.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._memory = mmap.mmap(-1, self.size)
        except OSError as error:
            raise FitError(f"no {self.size >> 20} MiB of RAM in one piece: {error}") from error
        self.tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        if device.type == "cuda":
            self._pin(device)

    def _pin(self, device: torch.device) -> None:
        # Not pinned is slower and no more.
        if pin(self.tensor, device) == 0:
            weakref.finalize(self, _unpin, self.tensor.data_ptr(), device).atexit = False


def _unpin(address: int, device: torch.device) -> None:
    torch.cuda.synchronize(device)
    unpin(address)


class Lanes:
    """One stream that brings bytes to a device and one that takes them away. On the CPU, where tests run, there are none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.coming = torch.cuda.Stream(device) if self.is_cuda else None
        self.going = torch.cuda.Stream(device) if self.is_cuda else None

    def copying(self, lane: Any) -> Any:
        """What is copied inside comes after everything that the program has asked of the GPU so far."""
        if lane is None:
            return nullcontext()
        lane.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(lane)

    def mark(self, lane: Any) -> Any:
        return None if lane is None else lane.record_event()

    def wait(self, event: Any) -> None:
        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def wait_for_all(self) -> None:
        for lane in (self.coming, self.going):
            if lane is not None:
                torch.cuda.current_stream(self.device).wait_stream(lane)
