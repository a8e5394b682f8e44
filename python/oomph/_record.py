"""``oomph.record``: records what this process does to GPU memory, and to RAM if that is asked for, from here on."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from oomph import _ram_recorder
from oomph._find import find_oomph
from oomph._recorders import RecordingError, library, live
from oomph._sizes import text


class Recording:
    """A recording under way: ends with the ``with`` block, with :meth:`stop`, or with the program."""

    def __init__(self, path: str | os.PathLike[str], *, quiet: bool = False, ram: bool = False) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.quiet = quiet
        self._live: Any = None
        self._started = False
        self._shared = False
        self._said = False
        self._ram = _Ram(self.path, quiet) if ram else None

    def start(self) -> Recording:
        """Begins, as soon as the program uses CUDA; of RAM at once."""
        if self._started or (self._ram is not None and self._ram.active):
            return self
        if self._ram is None:
            try:
                import torch
            except ImportError as error:
                raise RecordingError("there is no PyTorch here: nothing can be recorded") from error
            if torch.version.cuda is None:
                raise RecordingError(f"this PyTorch ({torch.__version__}) is built without CUDA: nothing can be recorded")
            self._start_gpu(torch)
            return self
        # Whoever wants to know of RAM may never want PyTorch.
        if "torch" not in sys.modules:
            self._ram.start()
            self._ram.wait_for("torch", self._torch_is_here)
            return self
        if sys.modules["torch"].version.cuda is not None:
            self._start_gpu(sys.modules["torch"])
        self._ram.start()
        return self

    def _torch_is_here(self, torch: Any) -> None:
        try:
            if torch.version.cuda is not None:
                self._start_gpu(torch)
        except Exception as error:
            # Raised in the midst of an import, it would be the end of that.
            self._say(f"oomph: GPU memory is not recorded: {error}")

    def _start_gpu(self, torch: Any) -> None:
        recording = live("recording")
        attachment = recording.attachment(torch, library())
        if attachment.is_of_run:
            # All of the program is recorded already.
            self._live, self._shared = attachment.current, True
            self.path = self._live.path
            return
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

    def stop(self) -> None:
        """Ends the recording: the file is complete."""
        self._started = False
        said = self._ram.stop() if self._ram is not None else None
        self._stop_gpu()
        if said is not None and not self.quiet:
            print(said, file=sys.stderr)

    def _stop_gpu(self) -> None:
        if self._shared:
            return
        if self._live is None:
            if self._ram is None:
                self._say("oomph: nothing was recorded: CUDA was not used")
            return
        self._live.stop()
        if self._live.whole is False:
            self._say(f"oomph: {self.path} is incomplete: the disk is full, or the recording became too large")
        self._say(f"oomph: recorded {self.steps} steps to {self.path}\nNext: oomph explain {self.path}")

    @property
    def ram_path(self) -> str | None:
        """Where the recording of RAM is; None without ``ram=True``."""
        return None if self._ram is None else self._ram.path

    @property
    def active(self) -> bool:
        """Whether events are being recorded."""
        return (self._live is not None and self._live.active) or (self._ram is not None and self._ram.active)

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
        paths = []
        if self._live is not None:
            if self._live.active:
                self._live.recorder.flush()
            paths.append(self.path)
        if self._ram is not None:
            _ram_recorder.flush()
            paths.append(self._ram.path)
        return "\n".join(subprocess.run([find_oomph(), "explain", path], capture_output=True, text=True).stdout for path in paths)

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if error is not None and (self.out_of_memories or (self._ram is not None and isinstance(error, MemoryError))):
            _explain_after(error, self)

    def _say(self, what: str) -> None:
        if not self.quiet and not self._said:
            self._said = True
            print(what, file=sys.stderr)


class _Ram:
    """The RAM of this process, in a file beside the one of GPU memory: ``train-ram.oomph`` of ``train.oomph``."""

    current: _Ram | None = None

    def __init__(self, path: str, quiet: bool) -> None:
        self.path: str = os.path.splitext(path)[0] + "-ram.oomph"
        self.quiet = quiet
        self.active = False
        self._waiting: Any = None

    def start(self) -> None:
        # One ends when another begins.
        if _Ram.current is not None:
            _Ram.current.stop()
        stem, end = os.path.splitext(self.path)
        for number in range(1, live("recording").MOST_NAMES + 1):
            path = self.path if number == 1 else f"{stem}-{number}{end}"
            try:
                _ram_recorder.start(path)
            except _ram_recorder.RecordingUnderWay:
                if not _ram_recorder.is_of_run():
                    raise
                self.path = _ram_recorder.path_of_run()
                if not self.quiet:
                    print(f"oomph: RAM is recorded by oomph run already, to {self.path}: that goes on", file=sys.stderr)
                return
            except OSError as error:
                # What another program writes is left to it.
                if error.errno != errno.EBUSY and (number == 1 or error.errno not in live("native").REFUSED):
                    raise RecordingError(f"{path} cannot be written: {error.strerror}") from error
                continue
            if number > 1 and not self.quiet:
                print(f"oomph: {self.path} is being written by another run; this one goes to {path}", file=sys.stderr)
            self.path, self.active, _Ram.current = path, True, self
            return
        raise RecordingError(f"{self.path} cannot be written: other programs write it, and all of its names with a number")

    def wait_for(self, module: str, callback: Callable[[Any], None]) -> None:
        """Calls back if the program imports the module while this is recorded."""
        self._waiting = live("imports").AfterImport(module, callback)
        sys.meta_path.insert(0, self._waiting)

    def stop(self) -> str | None:
        """What is to be said of it; nothing if it was never begun, or is over."""
        if self._waiting in sys.meta_path:
            sys.meta_path.remove(self._waiting)
        if not self.active:
            return None
        peak = _ram_recorder.peak()
        self.active = False
        if _Ram.current is self:
            _Ram.current = None
        _ram_recorder.stop()
        return f"oomph: recorded RAM to {self.path}: {text(peak)} asked for at the peak\nNext: oomph explain {self.path}"


def record(path: str | os.PathLike[str] = "recording.oomph", *, quiet: bool = False, ram: bool = False) -> Recording:
    """Records GPU memory from here on, as ``oomph run`` would: every block, from which line, which step.

    Use it as a context manager, or call ``stop()`` on what it gives. A recording that is under way in this process ends
    when another begins, unless it is that of ``oomph run``, which goes on and is the one that is given.

    Only an older recording is written over, and no link is followed. If another program writes the file, the recording goes to
    a name with a number (``recording-2.oomph``): ``path`` says which.

    ``ram=True`` records the host's memory too, by line, beside it: ``recording-ram.oomph`` (``ram_path`` says which), of what is allocated from
    here on. It needs neither a GPU nor PyTorch; GPU memory is then recorded if the program imports a PyTorch that has CUDA, and uses it.

    >>> with oomph.record("train.oomph"):  # doctest: +SKIP
    ...     train()
    """
    return Recording(path, quiet=quiet, ram=ram).start()


def _explain_after(error: BaseException, recording: Recording) -> None:
    """Lets the explanation follow PyTorch's error, if that is not caught."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        show(kind, raised, trace)
        if raised is error:
            print("\n" + recording.explain(), file=sys.stderr, end="")

    sys.excepthook = excepthook
