"""What Python tells the recorder of host memory, which was there before Python: the crate ``oomph-ram``. Nothing, in a process without it."""

from __future__ import annotations

import contextlib
import ctypes
import os

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch.optim import Optimizer


def learn_lines() -> None:
    """It learns how this Python lays out its frames, and stands before Python's own allocators."""
    _tell("oomph_ram_learn")


def leave_out(files: str) -> None:
    """Frames of files that begin with this are not the program's."""
    _tell("oomph_ram_leave_out", files.encode(errors="surrogateescape"))


def learn_pinned() -> None:
    """It learns where the PyTorch that is loaded asks CUDA for pinned memory."""
    _tell("oomph_ram_pinned")


def hear_steps(library: ctypes.CDLL | None = None) -> Callable[[], None] | None:
    """It hears of the steps of PyTorch's optimizers: that of the process, or another. Gives what ends this; None, in a process without it."""
    if library is None and "OOMPH_RAM" not in os.environ:
        return None
    with contextlib.suppress(AttributeError, ImportError, OSError):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        step = (library or ctypes.PyDLL(None)).oomph_ram_step

        def ended(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            step()

        return register_optimizer_step_post_hook(ended).remove
    return None


def _tell(name: str, *arguments: bytes) -> None:
    if "OOMPH_RAM" in os.environ:
        with contextlib.suppress(AttributeError, OSError):
            getattr(ctypes.PyDLL(None), name)(*arguments)
