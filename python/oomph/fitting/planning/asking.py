"""Asks a child process on the virtual GPU: sends it a model, waits with patience, and brings its answer back."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

from oomph._find import find_oomph
from oomph._progress import on_terminal
from oomph.fitting.errors import FitError

# Collections while hundreds of modules are imported find nothing.
_START = """\
import gc, sys
gc.disable()
sys.path.append({place!r})
from oomph.fitting.planning.child import answer
answer({entry!r}, {folder!r}, {modules!r}, {paths!r})
"""


class NoAnswer(FitError):
    """The child could not say; the message is why."""


def ask(entry: str, payload: bytes, options: dict[str, Any], *, gpu: str, what: str = "planning") -> dict[str, Any]:
    """Calls ``entry`` ("module:function") in a child with what was packed and the options; it returns what json can hold."""
    with Asking(entry, gpu=gpu, what=what) as asked:
        asked.send(payload, options)
        return asked.next()


class Asking:
    """A child that is started at once, so that it can import ``modules`` while what it will be asked is made, and sent what it needs later. It answers once, or several times where the
    function of ``entry`` is a generator: ``next`` waits for the next answer. It ends with ``close``, with the ``with``, and with this process. In a ``world`` (ranks, and how many a machine
    has) it is the first rank, and the others are made believe."""

    def __init__(self, entry: str, *, gpu: str, what: str = "planning", modules: Sequence[str] = (), world: tuple[int, int] | None = None) -> None:
        self._what = what
        self._answers = 0
        self._folder = tempfile.TemporaryDirectory(prefix="oomph-fit-")
        package = str(pathlib.Path(__file__).resolve().parents[3])
        with open(self._path("fit.py"), "w") as file:
            file.write(_START.format(place=package, entry=entry, folder=self._folder.name, modules=list(modules), paths=list(sys.path)))
        # Its memory is unlimited: the child must be able to hold every candidate, to say what it takes.
        command = [find_oomph(), "on-virtual-gpu", "--quiet", "--python", sys.executable, "--gpu", gpu]
        if world is not None:
            command += ["--ranks", str(world[0]), "--per-node", str(world[1])]
        command.append(self._path("fit.py"))
        with open(self._path("log"), "wb") as binary:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=binary, stderr=binary, env=_environment())
        self.close = weakref.finalize(self, _end, self._process, self._folder)

    def send(self, payload: bytes, options: dict[str, Any]) -> None:
        with open(self._path("payload"), "wb") as binary:
            binary.write(payload)
        # The child waits for this one, and takes it whole.
        with open(self._path("options.json.part"), "w") as file:
            json.dump(options, file)
        os.replace(self._path("options.json.part"), self._path("options.json"))

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next(self) -> dict[str, Any]:
        if not self.close.alive:
            raise NoAnswer("the child that was asked has been ended")
        name = self._path(f"answer-{self._answers}.json")
        _wait(self._process, name, self._path("progress"), self._what)
        try:
            with open(name) as file:
                answer: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            with open(self._path("log"), errors="replace") as file:
                said = file.read().strip().splitlines()
            raise NoAnswer("the virtual GPU could not run it: " + ("\n".join(said[-12:]) or f"exit code {self._process.returncode}")) from None
        self._answers += 1
        if "error" in answer:
            raise (FitError if answer["ours"] else NoAnswer)(answer["error"])
        return answer

    def _path(self, name: str) -> str:
        return os.path.join(self._folder.name, name)


def _end(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()
    folder.cleanup()


def _environment() -> dict[str, str]:
    """The child is one process, whatever this one is a rank of; and it is not one of a recorded program's."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
    recorders = ("OOMPH_RUN", "OOMPH_GUARD")
    return {name: value for name, value in os.environ.items() if name not in (*ranks, *recorders) and not name.startswith("TORCHELASTIC")}


def _wait(process: subprocess.Popen[bytes], answer: str, progress: str, what: str) -> None:
    """Until the answer is there or the child has ended. Says on a terminal how far it is."""
    line = on_terminal()
    try:
        while not os.path.exists(answer):
            try:
                process.wait(0.1)
                return
            except subprocess.TimeoutExpired:
                pass
            try:
                tried = os.path.getsize(progress)
            except OSError:
                tried = 0
            line.say(f"oomph: {what} on a virtual GPU, {tried} tried, {line.seconds:.0f} s")
    finally:
        line.close()
