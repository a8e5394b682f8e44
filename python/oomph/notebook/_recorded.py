"""Recordings for the notebook: of one cell, and the one that may be running already."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def recorded(number: int) -> Iterator[str]:
    """Records what is run inside. Gives the path, where afterwards the recording is, unless CUDA was not used."""
    from oomph._record import record

    path = os.path.join(tempfile.mkdtemp(prefix="oomph-"), f"cell{number}.oomph")
    recording = record(path, quiet=True)
    try:
        yield path
    finally:
        recording.stop()


def running_recording() -> str | None:
    """The path of the recording that runs in this process, if one does."""
    from oomph._record import live

    attached = live("recording")._attached
    if attached is None or attached.current is None or not attached.current.active:
        return None
    attached.current.recorder.flush()
    return attached.current.path
