"""``oomph.host``: RAM that this process has freed and not given back, and what keeps forked workers from copying.

``trim()`` gives back and measures what it gave; ``arenas(n)`` and ``freeze_for_fork()`` are for the beginning of a program. Nothing here
touches the program's objects: for those see ``oomph.free`` and ``oomph.who``.
"""

from __future__ import annotations

import gc
import html
from collections.abc import Callable
from dataclasses import dataclass

from oomph import _heap
from oomph._measure import ram
from oomph._sizes import signed, text

__all__ = ["Done", "Trimmed", "arenas", "freeze_for_fork", "trim"]

_STEPS: dict[str, Callable[[], bool]] = {
    "garbage in cycles": _heap.collect,
    "Python's own caches": _heap.clear_internal_caches,
    "cache of pinned memory": _heap.empty_pinned_cache,
    "pyarrow's pool": _heap.release_arrow,
    "jemalloc or mimalloc": _heap.purge_other_allocators,
    "the C library's heap": _heap.trim,
}


@dataclass(frozen=True)
class Trimmed:
    """RAM of this process before and after, and what each step gave back, in bytes as measured. A step that had nothing to do is not in ``by``."""

    before: int
    after: int
    returned: int
    by: dict[str, int]

    def __str__(self) -> str:
        lines = [f"{_returned(self.returned)} of RAM given back: {text(self.before)} before, {text(self.after)} now (measured)"]
        lines += (f"  {_returned(size):>9}  {name}" for name, size in self.by.items())
        if "the C library's heap" not in self.by:
            lines.append("  the C library's heap is left as it is: only glibc can give back parts of it")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True)
class Done:
    """Whether something was done, and what."""

    done: bool
    what: str

    def __bool__(self) -> bool:
        return self.done

    def __str__(self) -> str:
        return self.what

    __repr__ = __str__


def trim() -> Trimmed:
    """Gives back to the machine what the program has freed and Python, its libraries and the C library keep for later.

    The program's objects stay. Takes about a second for each 10 GiB or 10 million objects, so not in a loop.
    """
    before = now = ram().used
    by = {}
    for name, step in _STEPS.items():
        if step():
            was, now = now, ram().used
            by[name] = was - now
    return Trimmed(before, now, before - now, by)


def arenas(count: int) -> Done:
    """Keeps glibc's malloc to so many arenas; it makes up to 8 for each core, and each keeps what its threads freed.

    For programs of many threads, at the beginning: arenas that exist stay. One or two cost time where many threads allocate at once.
    """
    if count < 1:
        raise ValueError(f"there is at least one arena, not {count}")
    if not _heap.is_glibc():
        return Done(False, "nothing is changed: the C library is not glibc, and has no arenas")
    if not _heap.limit_arenas(count):
        return Done(False, f"nothing is changed: glibc refuses a limit of {count} arenas")
    return Done(True, f"malloc makes no more than {count} {'arena' if count == 1 else 'arenas'} from now on; those that exist stay")


def freeze_for_fork() -> Done:
    """Collects garbage, then takes all objects out of the collector's sight, so that collections in forked workers do not write to, and so
    copy, the pages that they are on. Before the DataLoader starts; ``gc.unfreeze()`` takes it back.

    References are still counted: what a worker reads it copies. ``oomph.data.share`` is for that.
    """
    _heap.collect()
    gc.freeze()
    return Done(True, f"{gc.get_freeze_count():,} objects are frozen: collections in forked workers leave their pages alone; gc.unfreeze() takes it back")


def _returned(size: int) -> str:
    """More memory than before has a sign."""
    return text(size) if size >= 0 else signed(-size)
