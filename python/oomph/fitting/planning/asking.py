"""Asks a child process on the virtual GPU: sends it a model, waits with patience, and brings its answer back."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from oomph._find import find_oomph
from oomph._progress import on_terminal
from oomph.fitting.errors import FitError

_START = """\
import sys
sys.path.append({place!r})
from oomph.fitting.planning.child import answer
answer({entry!r}, {folder!r})
"""


class NoAnswer(FitError):
    """The child could not say; the message is why."""


def ask(entry: str, payload: bytes, options: dict[str, Any], *, gpu: str, what: str = "planning") -> dict[str, Any]:
    """Calls ``entry`` ("module:function") in a child with what was packed and the options; it returns what json can hold."""
    package = str(pathlib.Path(__file__).resolve().parents[3])
    with tempfile.TemporaryDirectory(prefix="oomph-fit-") as folder:
        with open(os.path.join(folder, "payload"), "wb") as file:
            file.write(payload)
        with open(os.path.join(folder, "options.json"), "w") as file:
            json.dump(options, file)
        script = os.path.join(folder, "fit.py")
        with open(script, "w") as file:
            file.write(_START.format(place=package, entry=entry, folder=folder))
        # Its memory is unlimited: the child must be able to hold every candidate, to say what it takes.
        command = [find_oomph(), "on-virtual-gpu", "--quiet", "--python", sys.executable, "--gpu", gpu, script]
        log = os.path.join(folder, "log")
        with open(log, "wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=_environment())
            try:
                _wait(process, os.path.join(folder, "progress"), what)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        try:
            with open(os.path.join(folder, "answer.json")) as file:
                answer = json.load(file)
        except (OSError, ValueError):
            with open(log, errors="replace") as file:
                said = file.read().strip().splitlines()
            raise NoAnswer("the virtual GPU could not run it: " + ("\n".join(said[-12:]) or f"exit code {process.returncode}")) from None
    if "error" in answer:
        raise (FitError if answer["ours"] else NoAnswer)(answer["error"])
    return answer


def _environment() -> dict[str, str]:
    """The child is one process, whatever this one is a rank of; and it is not one of a recorded program's."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")
    recorders = ("OOMPH_RUN", "OOMPH_GUARD")
    return {name: value for name, value in os.environ.items() if name not in (*ranks, *recorders) and not name.startswith("TORCHELASTIC")}


def _wait(process: subprocess.Popen[bytes], progress: str, what: str) -> None:
    """Says on a terminal how far it is."""
    line = on_terminal()
    try:
        while True:
            try:
                process.wait(0.2)
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
