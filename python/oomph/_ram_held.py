"""What a recording of RAM says: bytes by line at its peak, as ``oomph explain`` has worked them out, and how that is shown beside the source.

Numbers are the command's. Who records, and what is done if it was too much, is for others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from oomph import _ram_recorder
from oomph._find import find_oomph
from oomph._recorders import RecordingError, live
from oomph._sizes import text

# Lines that are shown of those that are not in a table; of the rest, how much it is.
_TOP = 5


@dataclass(frozen=True)
class HeldLine:
    """What one line had asked for at the peak. ``file`` is None where no Python was running."""

    file: str | None
    line: int
    function: str
    bytes: int
    error: int
    blocks: int

    @property
    def place(self) -> str:
        return f"{shown(self.file)}:{self.line} {self.function}" if self.file is not None else "no Python was running"


@dataclass(frozen=True)
class Held:
    """The peak of a recording: what was asked for and not given back when that was most."""

    asked: int = 0
    error: int = 0
    lines: tuple[HeldLine, ...] = field(default=())

    @property
    def surely(self) -> int:
        """What it was at least, as far as samples of small blocks can say."""
        return max(self.asked - self.error, 0)


def explained(path: str) -> Held:
    """What is held at the peak of a recording that is complete, or flushed."""
    try:
        ran = subprocess.run([find_oomph(), "explain", "--quiet", "--format", "json", path], capture_output=True, text=True)
    except OSError as error:
        raise RecordingError(str(error)) from error
    # 1 means that there are findings.
    if ran.returncode not in (0, 1):
        raise RecordingError(ran.stderr.strip().removeprefix("error: ") or f"the command oomph failed with {ran.returncode}")
    host = json.loads(ran.stdout).get("host")
    if host is None:
        return Held()
    lines = []
    for each in host["lines"]:
        place = each["place"] or {}
        lines.append(HeldLine(place.get("file"), place.get("line", 0), place.get("function", ""), each["bytes"], each["error"], each["blocks"]))
    return Held(host["asked"], host["error"], tuple(lines))


class Measured:
    """One recording from :meth:`start` to :meth:`stop`, which gives what was held at its peak. Without a path its file is temporary."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else os.path.abspath(os.fspath(path))
        self._folder: str | None = None
        self._process = os.getpid()

    def start(self) -> None:
        """RecordingError, with the reason, where nothing can be recorded."""
        # Not in the recording.
        _ram_recorder.prepare()
        if self.path is None:
            self._folder = tempfile.mkdtemp(prefix="oomph-")
        path = self.path or os.path.join(self._folder or "", "ram.oomph")
        try:
            _ram_recorder.start(path)
        except OSError as error:
            self._clean()
            raise RecordingError(f"{path} cannot be written: {error.strerror}") from error
        except BaseException:
            self._clean()
            raise

    def stop(self) -> Held | None:
        """None in a forked child, whose parent has the recording."""
        if os.getpid() != self._process:
            return None
        _ram_recorder.stop()
        try:
            return explained(self.path or os.path.join(self._folder or "", "ram.oomph"))
        finally:
            self._clean()

    def _clean(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def shown(file: str) -> str:
    """A file as people know it: the number of a notebook's cell, or the path from here if it lies below."""
    number = dict(live("recording").cells()).get(file)
    if number is not None:
        return f"cell [{number}]"
    below = os.path.join(os.getcwd(), "")
    return file.removeprefix(below)


def size(bytes: int, error: int) -> str:
    return f"{text(bytes)} ± {text(error)}" if error else text(bytes)


def top(lines: Sequence[HeldLine]) -> list[str]:
    """The lines that held most."""
    return [f"{size(line.bytes, line.error)} at {line.place}" for line in lines[:_TOP]]


def table(held: Held, file: str, source: Sequence[tuple[int, str]], *, is_all: bool = True) -> list[str]:
    """Rows for every line of the source, those without memory blank; if this is what was measured, what else there was, and the sum."""
    numbers = {number for number, _ in source}
    here, elsewhere = _divided(held, file, numbers)
    rows = [("line", "held at the peak", "blocks", "source")]
    for number, words in source:
        line = here.get(number)
        # Of blocks that are sampled, those that were seen are not all there were.
        said = (size(line.bytes, line.error), f"{'≥ ' if line.error else ''}{line.blocks}") if line is not None else ("", "")
        rows.append((str(number), *said, words))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(cell.rjust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in rows]
    if not is_all:
        return lines
    if elsewhere:
        lines.append("In functions called from here, or in other threads:" if threading.active_count() > 1 else "In functions called from here:")
        lines += [f"  {said}" for said in top(elsewhere)]
        if rest := elsewhere[_TOP:]:
            lines.append(f"  {text(sum(line.bytes for line in rest))} at {len(rest)} more lines")
    return [*lines, f"In all: {size(held.asked, held.error)}"]


def _divided(held: Held, file: str, numbers: Iterable[int]) -> tuple[dict[int, HeldLine], list[HeldLine]]:
    """The lines of the source by their numbers, and the others, largest first."""
    wanted = set(numbers)
    here: dict[int, HeldLine] = {}
    elsewhere = []
    for line in held.lines:
        if line.file is None or line.line not in wanted or not _is_same(line.file, file):
            elsewhere.append(line)
        elif (known := here.get(line.line)) is None:
            here[line.line] = line
        else:
            # A comprehension, or a function that is made there: one line, several functions.
            error = round((known.error**2 + line.error**2) ** 0.5)
            here[line.line] = HeldLine(line.file, line.line, known.function, known.bytes + line.bytes, error, known.blocks + line.blocks)
    return here, elsewhere


def by_line(held: Held, file: str, numbers: Iterable[int]) -> dict[int, int]:
    """Bytes by the number of a line."""
    return {number: line.bytes for number, line in sorted(_divided(held, file, numbers)[0].items())}


def _is_same(one: str, other: str) -> bool:
    return one == other or os.path.abspath(one) == os.path.abspath(other)
