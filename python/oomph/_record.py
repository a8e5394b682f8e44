"""``oomph.record``: records what this process does to GPU memory, from here on."""

from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from types import TracebackType
from typing import Any

from oomph._find import find_oomph

_library: str | None = None


class RecordingError(RuntimeError):
    """Nothing can be recorded; the message says why."""


class Recording:
    """A recording under way: ends with the ``with`` block, with :meth:`stop`, or with the program."""

    def __init__(self, path: str | os.PathLike[str], *, quiet: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.quiet = quiet
        self._live: Any = None
        self._started = False
        self._shared = False
        self._said = False

    def start(self) -> Recording:
        """Begins, as soon as the program uses CUDA."""
        if self._started:
            return self
        try:
            import torch
        except ImportError as error:
            raise RecordingError("there is no PyTorch here: nothing can be recorded") from error
        if torch.version.cuda is None:
            raise RecordingError(f"this PyTorch ({torch.__version__}) is built without CUDA: nothing can be recorded")
        recording = live("recording")
        attachment = recording.attachment(torch, library())
        if attachment.is_of_run:
            # All of the program is recorded already.
            self._live, self._shared = attachment.current, True
            self.path = self._live.path
            return self
        self._started = True
        begun = recording.Recording(self.path)

        try:
            attachment.recorder.check(self.path)
        except OSError as error:
            # Another name is found when it begins; it may be that of a recording of this process, which ends then.
            if error.errno != errno.EBUSY:
                self._started = False
                raise RecordingError(f"{self.path} cannot be written: {error.strerror}") from error

        def begin() -> None:
            # CUDA may come to life long after the recording was ended.
            if not self._started:
                return
            try:
                attachment.begin(begun)
                self._live, self.path = begun, begun.path
                if begun.taken is not None and not self.quiet:
                    print(f"oomph: {begun.taken} is being written by another run; this one goes to {begun.path}", file=sys.stderr)
            except Exception as error:
                # Raised in the midst of CUDA's beginning, it would be the end of CUDA.
                self._say(f"oomph: nothing is recorded: {error}")

        torch.cuda._lazy_call(begin)
        return self

    def stop(self) -> None:
        """Ends the recording: the file is complete."""
        self._started = False
        if self._shared:
            return
        if self._live is None:
            self._say("oomph: nothing was recorded: CUDA was not used")
            return
        self._live.stop()
        if self._live.whole is False:
            self._say(f"oomph: {self.path} is incomplete: the disk is full, or the recording became too large")
        self._say(f"oomph: recorded {self.steps} steps to {self.path}\nNext: oomph explain {self.path}")

    @property
    def active(self) -> bool:
        """Whether events are being recorded."""
        return self._live is not None and self._live.active

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._live.steps if self._live is not None else 0

    @property
    def out_of_memories(self) -> int:
        """How often PyTorch ran out of memory so far."""
        return self._live.out_of_memories if self._live is not None else 0

    def explain(self) -> str:
        """What ``oomph explain`` says of the recording so far."""
        if self._live is None:
            return ""
        if self._live.active:
            self._live.recorder.flush()
        return subprocess.run([find_oomph(), "explain", self.path], capture_output=True, text=True).stdout

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if error is not None and self.out_of_memories:
            _explain_after(error, self)

    def _say(self, text: str) -> None:
        if not self.quiet and not self._said:
            self._said = True
            print(text, file=sys.stderr)


def record(path: str | os.PathLike[str] = "recording.oomph", *, quiet: bool = False) -> Recording:
    """Records GPU memory from here on, as ``oomph run`` would: every block, from which line, which step.

    Use it as a context manager, or call ``stop()`` on what it gives. A recording that is under way in this process ends
    when another begins, unless it is that of ``oomph run``, which goes on and is the one that is given.

    Only an older recording is written over, and no link is followed. If another program writes the file, the recording goes to
    a name with a number (``recording-2.oomph``): ``path`` says which.

    >>> with oomph.record("train.oomph"):  # doctest: +SKIP
    ...     train()
    """
    return Recording(path, quiet=quiet).start()


def live(name: str) -> Any:
    """A module of ``oomph.live``: the copy that ``oomph run`` or ``oomph predict`` has put into this process, if it has."""
    copies = (sys.modules.get(f"{package}.{name}") for package in ("_oomph_live", "_oomph_virtual"))
    return next(filter(None, copies), None) or importlib.import_module(f"oomph.live.{name}")


def library() -> str:
    """Where the recorder's library is. The command carries it."""
    global _library
    if _library is None:
        found = subprocess.run([find_oomph(), "run", "--library"], capture_output=True, text=True)
        if found.returncode != 0:
            raise RecordingError(found.stderr.strip().removeprefix("error: ") or "the command oomph failed")
        _library = found.stdout.strip()
    return _library


def _explain_after(error: BaseException, recording: Recording) -> None:
    """Lets the explanation follow PyTorch's error, if that is not caught."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        show(kind, raised, trace)
        if raised is error:
            print("\n" + recording.explain(), file=sys.stderr, end="")

    sys.excepthook = excepthook
