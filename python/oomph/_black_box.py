"""The black box: what a process's memory did, in a file that survives the process, and what the next one says about it.

A box is a small file of fixed size, mapped, so that writing it is a copy in memory and the kernel keeps it when the process is killed. It
has a header (who), slots of text (what was running, the last warning), and a ring of samples. Each carries a checksum: a kill in the middle
of a write costs that one and no more. It is deleted at a proper exit; one that is found without its process is read, reported and deleted by
the next start.

Nothing here raises, and nothing is said where no folder can be written. It holds no arguments of the program and nothing of its
environment. What a file says is a stranger's: sizes are fixed, numbers checked, text shown without control characters. Who samples, and
when, is for others.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import stat
import struct
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Any

from oomph import _cgroups
from oomph._sizes import signed, text

_MAGIC = b"oomphbox1\n"
_CHECK = struct.Struct("<I")
# Process: start, id, wall time of opening, the kernel's kills for memory until then (-1: not known).
_HEADER = struct.Struct("<10sQQdq")
# Sample: its number, wall time, own memory, used and limit of the tightest limit, GPU allocated and reserved.
_SAMPLE = struct.Struct("<QdQQQQQ")
_NOT_KNOWN = (1 << 64) - 1
_SAMPLES = 512
# Name, room for its text.
_SLOTS = {"place": 120, "program": 80, "counter": 400, "note": 200, "warning": 300}


def _layout() -> tuple[dict[str, int], int, int]:
    """Where each slot begins, where the ring begins, and where the box ends."""
    at, slots = _HEADER.size + _CHECK.size, {}
    for name, room in _SLOTS.items():
        slots[name] = at
        at += 2 + room + _CHECK.size
    return slots, at, at + _SAMPLES * (_SAMPLE.size + _CHECK.size)


_SLOT_AT, _RING_AT, _SIZE = _layout()
_GPU_EVERY = 0.5
# A box of another machine, or of a container that shares the folder, is dead if nothing was written for so long.
_SILENT = 120.0
_MOST_REPORTED = 3
_NEAR = 0.9


class _Box:
    """The box of this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._number = 0
        self._gpu, self._gpu_read = (_NOT_KNOWN, _NOT_KNOWN), -_GPU_EVERY
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Really written: a mapped page for which the disk has no room later is a bus error.
            os.write(file, bytes(_SIZE))
            self._map: mmap.mmap | None = mmap.mmap(file, _SIZE)
        except (OSError, ValueError):
            self._map = None  # Some filesystems refuse to share a mapping; then it is written as files are.
        finally:
            os.close(file)
        kills = _oom_kills()
        place, count = next(iter(kills.items()), ("", -1))
        self.put("place", _place())
        self.put("program", _program())
        self.put("counter", place)
        self._write(0, _checked(_HEADER.pack(_MAGIC, _start_of(os.getpid()) or 0, os.getpid(), time.time(), count)))

    def put(self, name: str, words: str) -> None:
        encoded = words.encode("utf-8", "replace")[: _SLOTS[name]]
        self._write(_SLOT_AT[name], _checked(struct.pack("<H", len(encoded)) + encoded.ljust(_SLOTS[name], b"\0")))

    def sample(self, own: int, used: int, limit: int) -> None:
        now = time.monotonic()
        if now - self._gpu_read >= _GPU_EVERY:
            self._gpu, self._gpu_read = _gpu(), now
        at = _RING_AT + self._number % _SAMPLES * (_SAMPLE.size + _CHECK.size)
        self._number += 1
        self._write(at, _checked(_SAMPLE.pack(self._number, time.time(), own, used, limit, *self._gpu)))

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _write(self, at: int, data: bytes) -> None:
        if self._map is not None:
            self._map[at : at + len(data)] = data
            return
        # By name each time: a descriptor that was closed elsewhere may be another file by now.
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(file, data, at)
        finally:
            os.close(file)


_box: _Box | None = None


def open_box() -> None:
    """Begins to record; does nothing if it does already."""
    global _box
    if _box is None:
        with contextlib.suppress(OSError, ValueError):
            folder = _folder()
            os.makedirs(folder, mode=0o700, exist_ok=True)
            path = os.path.join(folder, f"{os.getpid()}-{_start_of(os.getpid()) or 0}.box")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            _box = _Box(path)


def close() -> None:
    """Ends properly: nothing is reported later."""
    global _box
    box, _box = _box, None
    if box is not None:
        box.remove()


def forget() -> None:
    """In a child of a fork: the box is the parent's."""
    global _box
    _box = None


def note(words: str) -> None:
    """What is running from now on, in a few words; "" for nothing."""
    _put("note", words)


def warned(words: str) -> None:
    """The last warning that was given."""
    _put("warning", words)


def sample(own: int, used: int, limit: int) -> None:
    """One sample: this process's memory, and the limit that is nearest."""
    box = _box
    if box is not None:
        with contextlib.suppress(OSError, ValueError):
            box.sample(own, used, limit)


def _put(name: str, words: str) -> None:
    box = _box
    if box is not None:
        with contextlib.suppress(OSError, ValueError):
            box.put(name, words)


def last_words(tell: bool = True) -> list[str]:
    """What processes recorded that ended without closing their box, one to three lines each; on stderr too if ``tell``. Deletes them."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        dead = [found for name in os.listdir(_folder()) if (found := _taken(os.path.join(_folder(), name))) is not None]
        dead.sort(key=lambda found: found.ended, reverse=True)
        for found in dead[:_MOST_REPORTED]:
            with contextlib.suppress(ValueError, OverflowError, OSError):
                lines += found.lines()
        if len(dead) > _MOST_REPORTED:
            lines.append(f"{len(dead) - _MOST_REPORTED} more ended before that without closing")
    if tell and lines:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print("\n".join(f"oomph: {line}" for line in lines), file=sys.stderr, flush=True)
    return lines


@dataclass(frozen=True)
class _Sample:
    number: int
    time: float
    own: int
    used: int
    limit: int
    gpu_allocated: int
    gpu_reserved: int


@dataclass(frozen=True)
class _Found:
    """What a box says."""

    start: int
    pid: int
    opened: float
    kills: int
    slots: dict[str, str]
    samples: list[_Sample]

    @property
    def ended(self) -> float:
        return self.samples[-1].time if self.samples else self.opened

    @property
    def dead(self) -> bool:
        if self.slots["place"] == _place():
            return _start_of(self.pid) != self.start
        return time.time() - self.ended > _SILENT

    def lines(self) -> list[str]:
        when = time.strftime("%H:%M:%S", time.localtime(self.ended))
        if time.time() - self.ended > 12 * 3600:
            when = time.strftime("%Y-%m-%d ", time.localtime(self.ended)) + when
        running = f" while running {_harmless(self.slots['note'])}" if self.slots["note"] else ""
        lines = [f"{_harmless(self.slots['program']) or 'a program'} (process {self.pid}) ended at {when}{running}: {self._cause()}"]
        if self.samples:
            lines.append(self._memory())
        if self.slots["warning"]:
            lines.append(f"it had been warned: {_harmless(self.slots['warning'])}")
        return lines

    def _cause(self) -> str:
        # The path is only compared: a box does not choose what is read.
        now = _oom_kills().get(self.slots["counter"], -1) if self.slots["place"] == _place() else -1
        if 0 <= self.kills < now:
            return "probably killed by the machine's kernel for its memory, as its count of kills says"
        nearly_full = bool(self.samples) and self.samples[-1].used >= _NEAR * self.samples[-1].limit
        if nearly_full and min(self.kills, now) < 0:
            return "probably killed by the machine's kernel for its memory"
        return "stopped from outside, or crashed" + (", with RAM nearly full" if nearly_full else "")

    def _memory(self) -> str:
        last = self.samples[-1]
        words = f"its last sample: RAM {text(last.used)} of {text(last.limit)}, {text(last.own)} of it that process"
        recent = next(sample for sample in self.samples if last.time - sample.time <= 10)
        if last.time > recent.time and abs(last.own - recent.own) >= 1 << 20:
            words += f" ({signed(last.own - recent.own)} in {last.time - recent.time:.1f} s)"
        if last.gpu_reserved != _NOT_KNOWN:
            words += f"; GPU {text(last.gpu_allocated)} allocated, {text(last.gpu_reserved)} reserved"
        return words


def _taken(path: str) -> _Found | None:
    """The box of a dead process, which is deleted; None if it lives, makes no sense (deleted too), is no box, or another was quicker."""
    if not re.fullmatch(r"\d{1,20}-\d{1,20}\.box", os.path.basename(path)):
        return None
    try:
        # A link is not followed, and a pipe not waited for.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        if os.path.islink(path):
            _unlinked(path)
        return None
    try:
        about = os.fstat(file)
        if about.st_uid != os.geteuid() or stat.S_ISDIR(about.st_mode):
            return None
        data = os.read(file, _SIZE) if stat.S_ISREG(about.st_mode) and about.st_size == _SIZE else b""
    except OSError:
        return None
    finally:
        os.close(file)
    found = _parsed(data)
    if found is None and time.time() - about.st_mtime < 5:
        return None  # Its process may be about to write it.
    if found is not None and not found.dead:
        return None
    return found if _unlinked(path) else None


def _parsed(data: bytes) -> _Found | None:
    header = _unchecked(data, 0, _HEADER.size)
    if header is None:
        return None
    magic, start, pid, opened, kills = _HEADER.unpack(header)
    if magic != _MAGIC or not _sensible(opened):
        return None
    slots = dict.fromkeys(_SLOTS, "")
    for name, room in _SLOTS.items():
        slot = _unchecked(data, _SLOT_AT[name], 2 + room)
        if slot is not None:
            length = min(int.from_bytes(slot[:2], "little"), room)
            slots[name] = slot[2 : 2 + length].decode("utf-8", "ignore")
    size = _SAMPLE.size + _CHECK.size
    read = (_unchecked(data, at, _SAMPLE.size) for at in range(_RING_AT, _SIZE, size))
    samples = [_Sample(*_SAMPLE.unpack(sample)) for sample in read if sample is not None]
    samples = sorted((sample for sample in samples if _sensible(sample.time)), key=lambda sample: sample.number)
    return _Found(start, pid, opened, kills, slots, samples)


def _sensible(moment: float) -> bool:
    return math.isfinite(moment) and 0 < moment < 1 << 34


def _checked(data: bytes) -> bytes:
    return data + _CHECK.pack(zlib.crc32(data) or 1)


def _unchecked(data: bytes, at: int, size: int) -> bytes | None:
    part, check = data[at : at + size], data[at + size : at + size + _CHECK.size]
    return part if len(check) == _CHECK.size and (zlib.crc32(part) or 1,) == _CHECK.unpack(check) else None


def _unlinked(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _harmless(words: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in words)


def _folder() -> str:
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = state if os.path.isabs(state) else os.path.expanduser("~/.cache")
    if not os.path.isabs(folder):
        raise FileNotFoundError("the home folder is unknown")
    return os.path.join(folder, "oomph", "flight")


def _start_of(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None if there is no such process."""
    # The name of the program, in brackets, may hold anything.
    fields = _cgroups.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def _place() -> str:
    """Where process ids mean the same: one boot of one machine, one namespace."""
    with contextlib.suppress(OSError):
        return f"{_cgroups.read('/proc/sys/kernel/random/boot_id').decode().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _program() -> str:
    """The program's name, without its folder and its arguments."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return "python" if name in ("", "-c", "-m") else "a notebook" if name.endswith("kernel_launcher.py") else name


def _oom_kills() -> dict[str, int]:
    """How many processes the kernel killed for memory, by who counts them, the nearest first."""
    kills = dict(counted for group in _cgroups.groups() if (counted := group.oom_kills()) is not None)
    everywhere = _cgroups.field(_cgroups.read("/proc/vmstat"), b"oom_kill")
    return kills if everywhere is None else {**kills, "/proc/vmstat": everywhere}


def _gpu() -> tuple[int, int]:
    """What PyTorch has allocated and reserved on all devices, if it uses CUDA already.

    Its nested statistics are read without the public functions around them, which take ten times as long.
    """
    torch: Any = sys.modules.get("torch")
    try:
        if not torch.cuda.is_initialized():
            return _NOT_KNOWN, _NOT_KNOWN
        read = [torch._C._cuda_memoryStats(device) for device in range(torch.cuda.device_count())]
        allocated, reserved = (sum(one[name]["all"]["current"] for one in read) for name in ("allocated_bytes", "reserved_bytes"))
        return allocated, reserved
    except Exception:
        return _NOT_KNOWN, _NOT_KNOWN  # Not imported, half imported, without CUDA, or another allocator.
