"""The floor under a process: its soft limit RLIMIT_DATA, and the calls that must not meet it.

Where the floor has to be, and why a floor, is for ``_ram``; here it is set, lifted for a call, and taken away without a trace.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from oomph._cgroups import Process


class Floor:
    """The soft limit RLIMIT_DATA of this process, and what it was before. A lower one that was set elsewhere is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: int | None = None
        self._before = resource.RLIM_INFINITY
        self._lifted = 0

    def set(self, size: int) -> None:
        with self._lock:
            if not self._lifted:
                self._put(size)

    def remove(self) -> None:
        with self._lock:
            self._put_back()
            self._own = None

    def forget_after_fork(self) -> None:
        """In a child, where no thread moves the floor, and where the lock may be held by one that is not there."""
        self._lock = threading.Lock()
        self.remove()

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Without the floor; what was mapped meanwhile is added to it."""
        with self._lock:
            own = self._own
            if own is not None:
                mapped = Process.now().mapped
                self._lifted += 1
                self._put_back()
        try:
            yield
        finally:
            if own is not None:
                with self._lock:
                    self._lifted -= 1
                    if not self._lifted and self._own is not None:
                        self._put(own + max(Process.now().mapped - mapped, 0))

    def _put(self, size: int) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        # The first time, or it was set elsewhere since: that value holds, and is put back.
        if soft != self._own and not (self._own is not None and soft == self._before):
            self._before = soft
        wanted = min([size] + [bound for bound in (self._before, hard) if bound != resource.RLIM_INFINITY])
        # Where a sandbox forbids it, the watchdog is alone.
        with contextlib.suppress(OSError, ValueError):
            if wanted != soft:
                resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
            self._own = wanted

    def _put_back(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if self._own is not None and soft == self._own and soft != self._before:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_DATA, (self._before, hard))

    def taken_for(self, soft: int) -> int:
        """What the soft limit is but for the floor."""
        return self._before if soft == self._own else soft


class Detours:
    """Makes calls without the floor: programs that are started would inherit it, and files that are mapped take no memory."""

    def __init__(self, lifted: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._lifted = lifted
        self._made: list[tuple[Any, str, Any, Any]] = []
        self._storage: Any = None

    def make(self) -> None:
        """Around what starts programs, and around PyTorch's mapping of files as soon as it is imported."""
        if not self._made:
            for holder, name in _starters():
                self._put(holder, name)
        storage = getattr(sys.modules.get("torch"), "UntypedStorage", None)
        if storage is not None and storage is not self._storage and hasattr(storage, "from_file"):
            self._storage = storage
            self._put(storage, "from_file")

    def undo(self) -> None:
        for holder, name, before, detour in self._made:
            # Another hook may have been put around ours, which then leads through an ended floor.
            if _plain(vars(holder).get(name)) is _plain(detour):
                if before is None:
                    delattr(holder, name)
                else:
                    setattr(holder, name, before)
        self._made = []

    def _put(self, holder: Any, name: str) -> None:
        detour = self._around(getattr(holder, name))
        self._made.append((holder, name, vars(holder).get(name), detour))
        setattr(holder, name, detour)

    def _around(self, call: Any) -> Any:
        @functools.wraps(call, updated=())
        def lifting(*arguments: Any, **options: Any) -> Any:
            with self._lifted():
                return call(*arguments, **options)

        return staticmethod(lifting) if getattr(call, "__self__", None) is not None and isinstance(call.__self__, type) else lifting


def _starters() -> Iterator[tuple[Any, str]]:
    import _posixsubprocess
    import subprocess

    yield _posixsubprocess, "fork_exec"
    # From Python 3.11 on, subprocess has its own name for it.
    if hasattr(subprocess, "_fork_exec"):
        yield subprocess, "_fork_exec"
    for name in ("posix_spawn", "posix_spawnp", "system"):
        if hasattr(os, name):
            yield os, name


def _plain(call: Any) -> Any:
    return call.__func__ if isinstance(call, staticmethod) else call
