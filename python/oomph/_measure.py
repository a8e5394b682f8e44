"""How much memory this process has now.

Only looks: PyTorch is asked if the program has imported it and uses CUDA already, and never made to start it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


def torch_on_gpu() -> Any | None:
    """The module torch, if the program has imported it and CUDA is in use."""
    torch = sys.modules.get("torch")
    try:
        return torch if torch is not None and torch.cuda.is_initialized() else None
    except Exception:
        return None  # Half imported, or without CUDA.


@dataclass(frozen=True)
class Gpu:
    """One device: what tensors hold, what PyTorch took for them, what anybody took, and what there is."""

    allocated: int
    reserved: int
    used: int
    total: int


def gpus() -> list[Gpu]:
    """Every device that PyTorch has memory of; empty without CUDA."""
    torch = torch_on_gpu()
    if torch is None:
        return []
    found = []
    for device in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(device)
        # Asking a device that the program does not use would make a context there, which takes memory.
        if reserved == 0 and device != torch.cuda.current_device():
            found.append(Gpu(0, 0, 0, torch.cuda.get_device_properties(device).total_memory))
            continue
        free, total = torch.cuda.mem_get_info(device)
        found.append(Gpu(torch.cuda.memory_allocated(device), reserved, total - free, total))
    return found


@dataclass(frozen=True)
class Ram:
    """What this process has in RAM of its own, and the most that it had. Pages of files do not count: the machine can drop them."""

    used: int
    highest: int


def ram() -> Ram:
    """Zeros where the machine has no /proc."""
    sizes = {}
    try:
        with open("/proc/self/status") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("RssAnon", "RssShmem", "VmHWM", "VmRSS"):
                    sizes[name] = int(rest.split()[0]) << 10
    except OSError:
        return Ram(0, 0)
    files = sizes.get("VmRSS", 0) - sizes.get("RssAnon", 0) - sizes.get("RssShmem", 0)
    return Ram(sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0), sizes.get("VmHWM", 0) - max(files, 0))
