"""Begins a recording in a process of a program that ``oomph run`` has started, as soon as it uses CUDA.

``OOMPH_RUN`` (JSON) says where the library is, where the recording goes, and in which folder to leave word of it. Paths are written there,
and in the word that is left, with a letter for each byte: the crate ``oomph-stage`` says why (``handed.rs``).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time

from . import frames, handlers, native, ram, recording  # noqa: F401  all of it now: later the folder is not on the path
from .imports import AfterImport
from .utf8 import as_json

TYPE_CHECKING = False

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

# On a virtual GPU a backward pass is over at once, and a program that ends with one ends while autograd's thread still frees it: PyTorch then aborts
# (exit code 134, one time in three). So that thread gets a moment, in which Python is not yet ending.
EXIT_DELAY_SECONDS = 0.1


def wait() -> None:
    """Waits for PyTorch."""
    task = os.environ.get("OOMPH_RUN")
    ram.learn_lines()
    if task:
        startup = Startup(json.loads(task))
        startup.enter()
        sys.meta_path.insert(0, AfterImport("torch", startup.torch_is_here))


class Startup:
    """The beginning of one process."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.library, self.folder = path_of(task["library"]), path_of(task["folder"])
        self.output = path_of(task["output"]) if task["output"] is not None else None
        self.most_bytes, self.starter, self.processes = task["most_bytes"], task["starter"], task["processes"]
        self.begun = False

    def enter(self) -> None:
        """Leaves a mark: `oomph run` knows then that the recorder came in. The folder is gone if the process outlives it."""
        with contextlib.suppress(OSError):
            os.close(os.open(os.path.join(self.folder, "entered"), os.O_CREAT | os.O_WRONLY))

    def torch_is_here(self, torch: ModuleType) -> None:
        ram.learn_pinned()
        ram.hear_steps()
        if torch.version.cuda is None:
            self.leave(notes=[f"this PyTorch ({torch.__version__}) is built without CUDA: nothing was recorded"])
            return
        try:
            self.attachment = recording.attachment(torch, self.library, guard())
            torch.cuda._lazy_call(self.begin)
        except Exception as error:
            # A folder from which nothing may be loaded, a PyTorch without these insides: the program goes on.
            self.leave(notes=[f"nothing was recorded: {error}"])

    def begin(self) -> None:
        # A forked child can use CUDA only if its parent has not: then it begins here, for itself.
        if self.begun:
            return
        self.begun = True
        if "OOMPH_VIRTUAL_GPU" in os.environ:
            atexit.register(time.sleep, EXIT_DELAY_SECONDS)
        if self.output is None:
            self.attachment.watch()
            return
        path, rank = self.choose_path(self.output)
        try:
            claimed = path == self.output and self.is_run_here()
            begun = recording.Recording(path, self.most_bytes, claimed=claimed)
            self.attachment.begin(begun)
            self.attachment.is_of_run = True
        except Exception as error:
            self.leave(notes=[f"nothing was recorded: {error}"])
            return
        notes = [] if self.attachment.recorder.knows_lines else ["lines are not known: this Python is laid out in a way that oomph does not know"]
        if begun.taken is not None:
            notes.append(f"{begun.taken} is being written by another run; this one goes to {begun.path}")
        path = begun.path
        self.leave(path, rank, notes)
        cut = "the recording became as large as it may (--recording-limit), or the disk is full: of what came later only the end is in it"
        begun.on_cut = lambda: self.leave(path, rank, [*notes, cut])

    def is_run_here(self) -> bool:
        """Whether `oomph run` still is: once it is gone, another may have the file. A container does not see its process, only its folder."""
        try:
            if os.readlink("/proc/self/ns/pid") != self.processes:
                return os.path.isdir(self.folder)
        except OSError:
            return os.path.isdir(self.folder)
        return os.path.exists(f"/proc/{self.starter}")

    def choose_path(self, path: str) -> tuple[str, int | None]:
        """Each rank has its own file; of other processes the first has the name that was asked for."""
        stem, end = os.path.splitext(path)
        rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_PROCID")
        several = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or "1"
        if rank is not None and rank.isdigit() and several != "1":
            return f"{stem}-rank{rank}{end}", int(rank)
        try:
            os.close(os.open(os.path.join(self.folder, "taken"), os.O_CREAT | os.O_EXCL))
            return path, None
        except FileExistsError:
            return f"{stem}-{os.getpid()}{end}", None

    def leave(self, path: str | None = None, rank: int | None = None, notes: Sequence[str] = ()) -> None:
        """Leaves word for ``oomph run``."""
        recording = None if path is None else os.fsencode(path).decode("latin-1")
        word = {"pid": os.getpid(), "rank": rank, "recording": recording, "notes": list(notes)}
        place = os.path.join(self.folder, "left", f"{os.getpid()}.json")
        # The folder is gone if the process outlives `oomph run`.
        with contextlib.suppress(OSError):
            with open(place + ".part", "wb") as file:
                file.write(as_json(word))
            os.replace(place + ".part", place)


def path_of(text: str) -> str:
    """A path of ``OOMPH_RUN``."""
    return os.fsdecode(text.encode("latin-1"))


def guard() -> ctypes.PyDLL | None:
    """The guard's functions, if it is under this process."""
    if "OOMPH_GUARD" not in os.environ:
        return None
    import ctypes

    library = ctypes.PyDLL(None)
    try:
        library.oomph_guard_phase.argtypes = [ctypes.c_int]
        library.oomph_guard_kind.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]
    except AttributeError:
        return None
    return library
