"""Recordings for the notebook: of one cell, and the one that may be running already."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def recorded(number: int) -> Iterator[str]:
    """Records what is run inside; gives the recording's path, which is there for reading afterwards."""
    import torch

    path = os.path.join(tempfile.mkdtemp(prefix="oomph-"), f"cell{number}.pickle")
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    try:
        yield path
    finally:
        torch.cuda.memory._dump_snapshot(path)
        torch.cuda.memory._record_memory_history(enabled=None)


def running_recording() -> str | None:
    """The path of the recording that runs in this process, if one does."""
    return None
