"""The recorders that the command carries, as the package reaches them: where their libraries are, and the copy of ``oomph.live`` that is in this process.

What is done with them is in ``_record`` and ``_ram_recorder``.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from typing import Any

from oomph._find import find_oomph


class RecordingError(RuntimeError):
    """Nothing can be recorded; the message says why."""


def live(name: str) -> Any:
    """A module of ``oomph.live``: the copy that ``oomph run`` or ``oomph predict`` has put into this process, if it has."""
    copies = (sys.modules.get(f"{package}.{name}") for package in ("_oomph_live", "_oomph_virtual"))
    return next(filter(None, copies), None) or importlib.import_module(f"oomph.live.{name}")


@functools.cache
def library(of: str = "gpu") -> str:
    """Where the recorder's library is, of GPU memory or of ``"ram"``. The command carries it."""
    options = ["--ram"] if of == "ram" else []
    found = subprocess.run([find_oomph(), "run", *options, "--library"], capture_output=True, text=True)
    if found.returncode != 0:
        raise RecordingError(found.stderr.strip().removeprefix("error: ") or "the command oomph failed")
    return found.stdout.strip()
