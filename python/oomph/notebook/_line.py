"""The line after a cell: whether a change of memory is worth saying, and how it is said.

GPU is what tensors hold (allocated), of what the card has. What PyTorch keeps beyond that (reserved) is named where it is much, since it is
returned when the card runs full, but other programs cannot have it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from oomph._measure import Gpu, Ram, gpus, ram, torch_on_gpu
from oomph._ram import limit_if_known
from oomph._record import live
from oomph._sizes import MIB, signed, text

# Worth saying: these bytes, or this share of what there is.
_GPU_CHANGE, _GPU_SHARE = 16 * MIB, 0.01
_RAM_CHANGE, _RAM_SHARE = 64 * MIB, 0.02
# Above this share, every rise is worth saying.
_FULL = 0.8
# A cell that only runs changes RAM by this much.
_NOISE = MIB
# A cache of this share of the card is named.
_MUCH_CACHE = 0.1


@dataclass(frozen=True)
class Mark:
    """Memory at a moment."""

    seconds: float
    gpus: list[Gpu]
    highest: list[int]
    ram: Ram
    native: Any = field(repr=False, default=None)  # The recorder inside the process, if it is there: it knows the peak of a cell.

    @classmethod
    def now(cls) -> Mark:
        torch, devices = torch_on_gpu(), gpus()
        highest = [torch.cuda.max_memory_allocated(device) for device in range(len(devices))] if torch is not None else []
        return cls(time.monotonic(), devices, highest, ram())

    @classmethod
    def before_a_cell(cls) -> Mark:
        mark, native = cls.now(), live("native").loaded()
        if native is not None:
            native.mark_peak()
        return cls(mark.seconds, mark.gpus, mark.highest, mark.ram, native)


def line(before: Mark, after: Mark) -> str | None:
    """What to say about a cell, if anything is worth it."""
    limit = limit_if_known()
    worth = _is_worth(before.ram.used, after.ram.used, limit, _RAM_CHANGE, _RAM_SHARE)
    parts = []
    several = sum(device.reserved > 0 for device in after.gpus) > 1
    for device, now in enumerate(after.gpus):
        was = before.gpus[device] if device < len(before.gpus) else Gpu(0, 0, 0, now.total)
        # What is said is what tensors hold; the card is full when everything on it fills it.
        here = _is_worth(was.allocated, now.allocated, now.total, _GPU_CHANGE, _GPU_SHARE) or _fills(was.used, now.used, now.total)
        worth |= here
        if here or (now.reserved > 0 and not several):
            parts.append(_gpu(device if several else None, was, now, _gpu_peak(before, after, device)))
    if not worth:
        return None
    parts.append(_ram(before.ram, after.ram, limit))
    return f"oomph: {' · '.join(parts)} · {_seconds(after.seconds - before.seconds)}"


def _is_worth(was: int, now: int, whole: int | None, change: int, share: float) -> bool:
    return abs(now - was) >= min(change, share * whole if whole else change) or _fills(was, now, whole)


def _fills(was: int, now: int, whole: int | None) -> bool:
    return bool(whole and now > _FULL * whole and now - was >= _NOISE)


def _gpu_peak(before: Mark, after: Mark, device: int) -> int | None:
    if before.native is not None:
        return before.native.peak(device)
    was = before.highest[device] if device < len(before.highest) else 0
    # PyTorch's own statistics are the program's: they are read, never set back, so an older, higher peak hides this cell's.
    return after.highest[device] if after.highest[device] > was else None


def _gpu(device: int | None, was: Gpu, now: Gpu, peak: int | None) -> str:
    said = [signed(now.allocated - was.allocated)]
    if peak is not None:
        said.append(f"peak {text(peak)}")
    if now.reserved - now.allocated >= _MUCH_CACHE * now.total:
        said.append(f"{text(now.reserved)} reserved")
    return f"GPU{'' if device is None else f' {device}'} {text(now.allocated)} of {text(now.total)} ({', '.join(said)})"


def _ram(was: Ram, now: Ram, limit: int | None) -> str:
    said = [signed(now.used - was.used)]
    if now.highest > was.highest:
        said.append(f"peak {text(max(now.highest, now.used))}")
    return f"RAM {text(now.used)}{f' of {text(limit)}' if limit else ''} ({', '.join(said)})"


def _seconds(value: float) -> str:
    return f"{value // 60:.0f} min {value % 60:.0f} s" if value >= 120 else f"{value:.1f} s"
