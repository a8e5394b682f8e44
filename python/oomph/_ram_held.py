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
class Piece:
    """Lines of a file, from the first to the last."""

    file: str
    first: int
    last: int

    @classmethod
    def of(cls, file: str, numbers: Iterable[int]) -> Piece:
        known = sorted(numbers)
        return cls(file, known[0], known[-1]) if known else cls(file, 0, (1 << 32) - 1)

    def has(self, line: HeldLine) -> bool:
        return line.file is not None and self.first <= line.line <= self.last and _is_same(line.file, self.file)


@dataclass(frozen=True)
class Held:
    """The peak of a recording: what was asked for and not given back when that was most, by line, and by line of pieces of source, which have what they called."""

    asked: int = 0
    error: int = 0
    lines: tuple[HeldLine, ...] = field(default=())
    within: dict[Piece, dict[int, HeldLine]] = field(default_factory=dict)

    @property
    def surely(self) -> int:
        """What it was at least, as far as samples of small blocks can say."""
        return max(self.asked - self.error, 0)


def explained(path: str, pieces: Sequence[Piece] = ()) -> Held:
    """What is held at the peak of a recording that is complete, or flushed."""
    within = [f"--within={piece.file}:{piece.first}-{piece.last}" for piece in pieces]
    try:
        ran = subprocess.run([find_oomph(), "explain", "--quiet", "--format", "json", *within, path], capture_output=True, text=True)
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
    held = {
        piece: {line["line"]: HeldLine(piece.file, line["line"], "", line["bytes"], line["error"], line["blocks"]) for line in each["lines"]}
        for piece, each in zip(pieces, host["within"], strict=True)
    }
    return Held(host["asked"], host["error"], tuple(lines), held)


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

    def stop(self, pieces: Sequence[Piece] = ()) -> Held | None:
        """None in a forked child, whose parent has the recording."""
        if os.getpid() != self._process:
            return None
        _ram_recorder.stop()
        try:
            return explained(self.path or os.path.join(self._folder or "", "ram.oomph"), pieces)
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


def table(held: Held, piece: Piece, source: Sequence[tuple[int, str]], *, is_all: bool = True) -> list[str]:
    """Rows for every line of the source, those without memory blank; if this is what was measured, where what they called held it, and the sum."""
    here = held.within.get(piece, {})
    # Where there is no source, the lines that hold something are numbers alone.
    source = source or [(number, "") for number in here]
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
    if elsewhere := [line for line in held.lines if not piece.has(line)]:
        lines.append("Where functions called from here held it, and other threads:" if threading.active_count() > 1 else "Where functions called from here held it:")
        lines += [f"  {said}" for said in top(elsewhere)]
        if rest := elsewhere[_TOP:]:
            lines.append(f"  {text(sum(line.bytes for line in rest))} at {len(rest)} more lines")
    return [*lines, f"In all: {size(held.asked, held.error)}"]


def _is_same(one: str, other: str) -> bool:
    return one == other or os.path.abspath(one) == os.path.abspath(other)
