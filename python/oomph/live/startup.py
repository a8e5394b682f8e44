"""Begins a recording in a process of a program that ``oomph run`` has started, as soon as it uses CUDA.

``OOMPH_RUN`` (JSON) says where the library is, where the recording goes, and in which folder to leave word of it.
"""

import atexit
import contextlib
import json
import os
import sys
import time

from . import frames, handlers, native, recording  # noqa: F401  all of it now: later the folder is not on the path
from .imports import AfterImport

# On a virtual GPU a backward pass is over at once, and a program that ends with one ends while autograd's thread still frees it: PyTorch then aborts
# (exit code 134, one time in three). So that thread gets a moment, in which Python is not yet ending.
EXIT_DELAY_SECONDS = 0.1


def wait():
    """Waits for PyTorch."""
    task = os.environ.get("OOMPH_RUN")
    if task:
        startup = Startup(json.loads(task))
        sys.meta_path.insert(0, AfterImport("torch", startup.torch_is_here))


class Startup:
    """The beginning of one process."""

    def __init__(self, task):
        self.task = task
        self.begun = False

    def torch_is_here(self, torch):
        if torch.version.cuda is None:
            self.leave(notes=[f"this PyTorch ({torch.__version__}) is built without CUDA: nothing was recorded"])
            return
        try:
            self.attachment = recording.attachment(torch, self.task["library"], guard())
            torch.cuda._lazy_call(self.begin)
        except Exception as error:
            # A folder from which nothing may be loaded, a PyTorch without these insides: the program goes on.
            self.leave(notes=[f"nothing was recorded: {error}"])

    def begin(self):
        # A forked child can use CUDA only if its parent has not: then it begins here, for itself.
        if self.begun:
            return
        self.begun = True
        if "OOMPH_VIRTUAL_GPU" in os.environ:
            atexit.register(time.sleep, EXIT_DELAY_SECONDS)
        if self.task["output"] is None:
            self.attachment.watch()
            return
        path, rank = self.choose_path()
        try:
            begun = recording.Recording(path, self.task["most_bytes"])
            self.attachment.begin(begun)
            self.attachment.is_of_run = True
        except Exception as error:
            self.leave(notes=[f"nothing was recorded: {error}"])
            return
        notes = [] if self.attachment.recorder.knows_lines else ["lines are not known: this Python is laid out in a way that oomph does not know"]
        self.leave(path, rank, notes)
        cut = "the recording became as large as it may (--recording-limit), or the disk is full: of what came later only the end is in it"
        begun.on_cut = lambda: self.leave(path, rank, [*notes, cut])

    def choose_path(self):
        """Each rank has its own file; of other processes the first has the name that was asked for."""
        path = self.task["output"]
        stem, end = os.path.splitext(path)
        rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_PROCID")
        several = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS") or "1"
        if rank is not None and rank.isdigit() and several != "1":
            return f"{stem}-rank{rank}{end}", int(rank)
        try:
            os.close(os.open(os.path.join(self.task["folder"], "taken"), os.O_CREAT | os.O_EXCL))
            return path, None
        except FileExistsError:
            return f"{stem}-{os.getpid()}{end}", None

    def leave(self, path=None, rank=None, notes=()):
        """Leaves word for ``oomph run``."""
        word = {"pid": os.getpid(), "rank": rank, "recording": path, "notes": list(notes)}
        place = os.path.join(self.task["folder"], "left", f"{os.getpid()}.json")
        # The folder is gone if the process outlives `oomph run`.
        with contextlib.suppress(OSError):
            with open(place + ".part", "w") as file:
                json.dump(word, file)
            os.replace(place + ".part", place)


def guard():
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
