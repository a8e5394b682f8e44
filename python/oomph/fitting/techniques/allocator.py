"""PyTorch's allocator in the running process: segments that grow, and a share of the card that it is held to."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch

from oomph.fitting.techniques.technique import Technique


def allocator_setter() -> Callable[[str], None] | None:
    """What changes the allocator's settings in the running process, where this PyTorch has it."""
    return getattr(torch._C, "_accelerator_setAllocatorSettings", None) or getattr(torch.cuda.memory, "_set_allocator_settings", None)


def use_expandable_segments() -> Callable[[], None] | None:
    """Tells the allocator of the running process. What undoes it, or None where it is so already or this PyTorch cannot.

    The program's other settings are said again each time: what is not said goes back to its default.
    """
    setter = allocator_setter()
    settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
    if setter is None or settings.get("expandable_segments"):
        return None
    others = re.sub(r"\bexpandable_segments\s*:\s*\w+\s*,?", "", settings.get("PYTORCH_CUDA_ALLOC_CONF", "")).strip(", ")
    others += "," if others else ""
    try:
        setter(others + "expandable_segments:True")
    except (RuntimeError, ValueError):
        return None
    return lambda: setter(others + "expandable_segments:False")


def hold_to(fraction: float, device: torch.device) -> Callable[[], None]:
    """Holds the allocator to a share of the card. What undoes it: the share that was there before."""
    before = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)(device)
    torch.cuda.set_per_process_memory_fraction(fraction, device)
    return lambda: torch.cuda.set_per_process_memory_fraction(before, device)


# Of the process, not of a step: whoever makes a step says it to the allocator.
EXPANDABLE = Technique("expandable", lambda *_: "expandable segments", "same numbers; no holes that nothing fits into")
