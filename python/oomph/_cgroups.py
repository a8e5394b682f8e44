"""What this process has in memory, and what limits it: its control groups, of both versions, and the machine.

Only reads files, below a folder that tests can choose. The kernel kills when the first level of the hierarchy is full, so every level that
can be seen counts, with all the processes in it. What to do about it is for others.

*Left* is what can still be taken before the kernel kills: pages of files are counted as free, active ones too, because the kernel drops
them first (a training loop that reads its data twice has gigabytes of active ones), and so is swap that the level may use.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass

# Version 1 writes "no limit" as the largest number of pages.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Level:
    """One limit: who sets it, what it allows, how much of that is used, and what can still be taken."""

    source: str
    limit: int
    used: int
    left: int


@dataclass(frozen=True)
class Memory:
    """What the machine has."""

    total: int
    available: int
    swap_free: int


def read(path: str) -> bytes:
    """What a small file of the kernel says; nothing if it is not there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        # The kernel gives a long file page by page.
        return b"".join(iter(lambda: os.read(file, 1 << 13), b""))
    except OSError:
        return b""
    finally:
        os.close(file)


def number(path: str) -> int | None:
    """A file that holds one number; None for "max" and for a file that is not there."""
    text = read(path).strip()
    return int(text) if text.isdigit() else None


def field(text: bytes, name: bytes) -> int | None:
    """The number after a name at the beginning of a line."""
    found = _line(name).search(text)
    return int(found[1]) if found else None


@functools.cache
def _line(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"^" + re.escape(name) + rb":?\s+(\d+)", re.MULTILINE)


def machine(root: str = "/") -> Memory | None:
    """None where there is no /proc/meminfo."""
    text = read(os.path.join(root, "proc/meminfo"))
    total, available = field(text, b"MemTotal"), field(text, b"MemAvailable")
    if total is None:
        return None
    if available is None:
        available = (field(text, b"MemFree") or 0) + (field(text, b"Cached") or 0)
    return Memory(total << 10, available << 10, (field(text, b"SwapFree") or 0) << 10)


@dataclass(frozen=True)
class Process:
    """This process: what it has in memory of its own, and what it has mapped that could be."""

    own: int
    mapped: int
    addresses: int

    @classmethod
    def now(cls, root: str = "/") -> Process:
        status = read(os.path.join(root, "proc/self/status"))
        sizes = {name: field(status, name) for name in (b"RssAnon", b"RssShmem", b"VmSwap", b"VmRSS", b"VmData", b"VmSize")}
        own = sizes[b"VmRSS"] if sizes[b"RssAnon"] is None else sizes[b"RssAnon"] + (sizes[b"RssShmem"] or 0) + (sizes[b"VmSwap"] or 0)
        return cls((own or 0) << 10, (sizes[b"VmData"] or 0) << 10, (sizes[b"VmSize"] or 0) << 10)


@dataclass(frozen=True)
class Group:
    """One folder of a hierarchy that limits memory."""

    version: int
    folder: str

    def level(self, swap_free: int) -> Level | None:
        """None if it limits nothing."""
        return self._level_2(swap_free) if self.version == 2 else self._level_1(swap_free)

    def oom_kills(self) -> tuple[str, int] | None:
        """The file that counts the kernel's kills for memory here, and its count."""
        path = os.path.join(self.folder, "memory.events" if self.version == 2 else "memory.oom_control")
        count = field(read(path), b"oom_kill")
        return None if count is None else (path, count)

    def _level_2(self, swap_free: int) -> Level | None:
        limits = [(number(path), path) for path in (os.path.join(self.folder, name) for name in ("memory.max", "memory.high"))]
        set_limits = [(limit, path) for limit, path in limits if limit is not None]
        if not set_limits:
            return None
        limit, source = min(set_limits)
        current = number(os.path.join(self.folder, "memory.current")) or 0
        stat = read(os.path.join(self.folder, "memory.stat"))
        droppable = sum(field(stat, name) or 0 for name in (b"active_file", b"inactive_file", b"slab_reclaimable"))
        used = max(current - droppable, 0)
        swap_limit = number(os.path.join(self.folder, "memory.swap.max"))
        if swap_limit is not None:
            swap_used = number(os.path.join(self.folder, "memory.swap.current")) or 0
            swap_free = min(swap_free, max(swap_limit - swap_used, 0))
        return Level(source, limit, used, limit - used + swap_free)

    def _level_1(self, swap_free: int) -> Level | None:
        source = os.path.join(self.folder, "memory.limit_in_bytes")
        limit = number(source)
        if limit is None:
            return None
        stat = read(os.path.join(self.folder, "memory.stat"))
        # A level above, which a container does not see, may allow less; only here the kernel says so.
        above = field(stat, b"hierarchical_memory_limit")
        if above is not None and above < limit:
            limit, source = above, f"{os.path.join(self.folder, 'memory.stat')}, hierarchical_memory_limit"
        if limit >= _NO_LIMIT:
            return None
        droppable = sum(field(stat, name) or 0 for name in (b"total_active_file", b"total_inactive_file"))
        used = max((number(os.path.join(self.folder, "memory.usage_in_bytes")) or 0) - droppable, 0)
        left = limit - used + swap_free
        both_limit = number(os.path.join(self.folder, "memory.memsw.limit_in_bytes"))
        both_used = number(os.path.join(self.folder, "memory.memsw.usage_in_bytes"))
        if both_limit is not None and both_used is not None:
            left = min(left, both_limit - max(both_used - droppable, 0))
        return Level(source, limit, used, left)


def groups(root: str = "/") -> list[Group]:
    """The groups of this process that can be seen, the innermost first, with a limit or without."""
    memberships = _memberships(read(os.path.join(root, "proc/self/cgroup")).decode(errors="replace"))
    found: list[Group] = []
    for line in read(os.path.join(root, "proc/self/mountinfo")).decode(errors="replace").splitlines():
        before, dash, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if not dash or len(place) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            version = 2
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            version = 1
        else:
            continue
        if version in memberships:
            mount = os.path.join(root, _unescaped(place[4]).lstrip("/"))
            found += (Group(version, folder) for folder in _chain(mount, _below(_unescaped(place[3]), memberships[version])))
    return list(dict.fromkeys(found))


def levels(found: list[Group], memory: Memory | None) -> list[Level]:
    """Every limit of these groups and of the machine."""
    swap_free = memory.swap_free if memory else 0
    all_levels = [level for group in found if (level := group.level(swap_free)) is not None]
    if memory is not None:
        used = max(memory.total - memory.available, 0)
        all_levels.append(Level("the machine's memory", memory.total, used, memory.available + swap_free))
    return all_levels


def _memberships(text: str) -> dict[int, str]:
    """The path of this process's group in each version's hierarchy."""
    found = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            if parts[0] == "0" and not parts[1]:
                found[2] = parts[2]
            elif "memory" in parts[1].split(","):
                found[1] = parts[2]
    return found


def _below(mounted: str, group: str) -> str:
    """Where the group is below the mount point. Where a namespace hides that, the mount point is the most that can be seen."""
    if ".." in group.split("/") or ".." in mounted.split("/"):
        return ""
    if mounted == "/":
        return group.strip("/")
    return group[len(mounted) :].strip("/") if (group + "/").startswith(mounted + "/") else ""


def _chain(mount: str, below: str) -> list[str]:
    """The folders from the group up to the mount point. One that is not there is a path of outside the container."""
    parts = below.split("/") if below else []
    folders = [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if os.path.isdir(folder)]


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), text)
