"""The recorder of RAM in this process, as Python calls it: the crate ``oomph-ram``.

There is one recording at a time. What a recording says is ``_ram_held``'s to read.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

from oomph._recorders import RecordingError, library, live

# A recording does not fill the disk.
MOST_BYTES = 2 << 30

_library: Any = None
# The process in which a recording was begun here: a forked child has none.
_recording_in: int | None = None
_stop_watching: Callable[[], None] = lambda: None
_stop_hearing: Callable[[], None] = lambda: None


class RecordingUnderWay(RecordingError):
    """The RAM of this process is being recorded already, and there is one recording at a time."""


def is_of_run() -> bool:
    """Whether ``oomph run --ram`` has started this process: all of it is recorded."""
    return "OOMPH_RAM" in os.environ


def path_of_run() -> str:
    """Where ``oomph run --ram`` has the recording of this process."""
    starter, _, stem = os.environ["OOMPH_RAM"].split(":", 2)
    return f"{stem}.oomph" if os.getppid() == int(starter) else f"{stem}-{os.getpid()}.oomph"


def is_recording() -> bool:
    """Whether a recording that was begun here is under way."""
    return _recording_in == os.getpid()


def prepare() -> None:
    """Puts the recorder under this process; under what was loaded since, if it is there. Raises RecordingError where that is not possible."""
    global _library
    if _library is None:
        _library = _loaded()
    if _library.oomph_ram_attach() != 0:
        raise RecordingError(f"RAM cannot be recorded in this process: {live('ram_library').NOT_HERE}")


def _loaded() -> Any:
    """The library that ``oomph run --ram`` has put here, else the command's."""
    try:
        return live("ram_library").loaded(lambda: library("ram"))
    except OSError as error:
        raise RecordingError(f"the recorder of RAM cannot be loaded: {error}") from error


def start(path: str) -> None:
    """Begins a recording. RecordingUnderWay if there is one; OSError if the file cannot be written."""
    global _recording_in, _stop_watching, _stop_hearing
    if is_recording():
        raise RecordingUnderWay("the RAM of this process is being recorded already")
    prepare()
    failed = _library.oomph_ram_start(os.fsencode(os.path.abspath(path)), MOST_BYTES)
    if failed == errno.EBUSY and is_of_run():
        raise RecordingUnderWay("oomph run --ram records the RAM of this process already")
    live("native").raise_if(failed, path)
    _recording_in = os.getpid()
    _stop_watching, _stop_hearing = live("ram_library").watch_loading(_library), _hear_steps()


def flush() -> None:
    """Writes what is known by now, so that the file can be read."""
    if _library is not None:
        _library.oomph_ram_flush()


def stop() -> None:
    """Ends the recording: the file is complete. In a forked child there is none to end."""
    global _recording_in
    if is_recording():
        _recording_in = None
        _library.oomph_ram_stop()
        _stop_watching()
        _stop_hearing()


def _hear_steps() -> Callable[[], None]:
    """Steps of PyTorch's optimizers are noted, of a PyTorch that is imported later too. Gives what ends this."""
    ends: list[Callable[[], None]] = []

    def torch_is_here(torch: Any) -> None:
        end = live("ram").hear_steps(_library)
        if end is not None:
            ends.append(end)

    waiting = live("imports").AfterImport("torch", torch_is_here)
    if "torch" in sys.modules:
        torch_is_here(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, waiting)

    def stop_hearing() -> None:
        if waiting in sys.meta_path:
            sys.meta_path.remove(waiting)
        for end in ends:
            end()

    return stop_hearing


def peak() -> int:
    """The most bytes that were asked for and not given back at once, since the start."""
    return int(_library.oomph_ram_peak()) if _library is not None else 0
