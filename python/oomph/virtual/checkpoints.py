"""Weights that transformers reads from a checkpoint, and copies to the card in threads of its own.

Nobody follows values in these threads, so that what is copied is not known to anyone afterwards. Memory is taken on the card as it would be, and files of tens of gigabytes are not read: experts come in thousands
of small tensors, which the virtual card would hold for real.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _python_dispatch

from .imports import after_import

# Smaller ones cost nothing, and are followed by their bytes where they are.
LEAST = 64 << 10


def leave_copies_out() -> None:
    after_import("transformers.core_model_loading", _patch)


def _patch(module: Any) -> None:
    copy = getattr(module, "_materialize_copy", None)
    if copy is None:
        return

    @functools.wraps(copy)
    def materialize(tensor: Any, device: torch.device | str | int | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda" or _python_dispatch._get_current_dispatch_mode_stack():
            return copy(tensor, device, dtype)
        # Of a file this is a view, and nothing is read by it.
        here = tensor[...]
        if not (isinstance(here, torch.Tensor) and here.device.type == "cpu" and here.is_floating_point() and here.numel() * here.element_size() >= LEAST):
            return copy(tensor, device, dtype)
        return torch.empty_like(here, device=device, dtype=dtype)

    module._materialize_copy = materialize
