"""``oomph.guard_ram``: a MemoryError instead of a killed process, and the limits that it is sized on.

``limit``, ``used`` and ``left`` only read. The guard does two things, each where the other cannot. The *reserve* is what lies between
``stop`` and the limit, and at least 256 MiB (a quarter of a limit below 1 GiB).

- *The floor* is the soft limit RLIMIT_DATA, kept at what this process has mapped (VmData) plus what is left, less a quarter of the reserve.
  A request that is too large fails inside malloc, even in the middle of one call into C, and Python makes a MemoryError of it. It is
  relative to what is mapped, so reservations that exist (CUDA's, thread stacks, arrays never touched) do not matter; mappings that are
  shared, read-only or without access do not count in the kernel; and it is set again at every look, so what others give back, and what a
  library mapped meanwhile, is not held against the program for long. Private writable mappings of *files* count too, though they take no
  memory: PyTorch maps checkpoints so, and the floor is lifted while it does. Until PyTorch has its CUDA context there is room for that
  besides: a context that fails stays lost.
- *The watchdog*, a thread, looks at the limits, warns once, and raises RamLimit in the main thread when ``stop`` is passed: by memory that
  was mapped before and is touched only now, by shared or pinned memory, by other processes. It lands between two bytecodes, as Ctrl-C does.
  A program that has less than the reserve is a bystander: it could not mend it, and is left alone. So is a notebook between cells.

The floor is only for this process: forks (DataLoader's workers) and programs that are started get back the limit that was there before,
since they would inherit it without a thread that moves it. Their memory counts where they share a cgroup with the guard. RLIMIT_AS is not used:
CUDA reserves more addresses than any machine has memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import sys
import threading
import time
from dataclasses import dataclass

from oomph import _black_box, _cgroups, _heap
from oomph._cgroups import Level, Process
from oomph._environment import on_virtual_gpu
from oomph._floor import Detours, Floor
from oomph._sizes import percent, size_in_bytes, text

# The watchdog sleeps longer where what is left cannot be used up in that time: no machine fills memory faster than this.
_FASTEST = 8 << 30
_LONGEST_PAUSE = 0.25
# Past the stop, small requests still pass, or the MemoryError could not even be handled: a notebook needs megabytes to show one.
_SMALL = 32 << 20
_SMALLEST_RESERVE = 256 << 20
# What a CUDA context maps when it starts.
_CUDA_START = 4 << 30
_GROUPS_STAY = 10.0
_TRIM_EVERY = 1.0
_GIVEN = "the limit given to guard_ram"


@dataclass(frozen=True)
class Limit:
    """The smallest limit on this process's memory, and who sets it."""

    bytes: int
    source: str


class RamLimit(MemoryError):
    """Raised in the main thread before the machine's kernel kills the process. Made without arguments, it says how things stand."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(arguments or (_last_excess,)))

    def _render_traceback_(self) -> list[str]:
        """What IPython asks first. Its version 7, which Colab has, fails on Python 3.11 with a TypeError of its own where an exception arrives between two lines;
        what later versions draw is better than this, and what they draw when it raises."""
        if getattr(sys.modules.get("IPython"), "version_info", (8,))[0] > 7:
            raise AttributeError("_render_traceback_")
        import traceback

        return "".join(traceback.format_exception(type(self), self, self.__traceback__)).splitlines()


# As its users know it, in tracebacks.
RamLimit.__module__ = "oomph"

_last_excess = "the limit of RAM is reached"
_guard: RamGuard | None = None


def limit(root: str = "/") -> Limit:
    """The smallest limit: of the cgroups above this process, the machine's memory, and rlimits that others set."""
    smallest = min(_all_levels(root), key=lambda level: level.limit)
    return Limit(smallest.limit, smallest.source)


def limit_if_known() -> int | None:
    """The smallest limit in bytes; None if there is none."""
    try:
        return limit().bytes
    except Exception:
        return None


def used(root: str = "/") -> int:
    """What this process has in RAM and swap of its own; pages of files do not count."""
    return Process.now(root).own


def left(root: str = "/") -> int:
    """What can still be taken before the kernel kills or refuses; other processes under the same limits are counted."""
    return max(min(level.left for level in _all_levels(root)), 0)


def guard_ram(limit: int | str | None = None, warn: float = 0.85, stop: float = 0.95, interval: float = 0.05, quiet: bool = False) -> RamGuard:
    """Warns, then raises MemoryError, before the machine kills this process for its RAM.

    ``limit``: what this process may have, in bytes or as "8GiB", if that is less than the machine allows. ``warn`` and ``stop``: shares of
    the limit; under a small one, both come earlier, to leave Python 256 MiB for the error. ``interval``: seconds between two looks when
    memory is scarce and taken (less while it is being filled, more while there is plenty). ``quiet``: raises without a warning. The guard
    lasts until ``unguard_ram()``, or the end of a ``with`` block; a second call replaces the first.
    """
    global _guard
    if not 0 < warn <= stop <= 1:
        raise ValueError(f"warn and stop are shares of the limit, 0 < warn <= stop <= 1, not {warn} and {stop}")
    if interval <= 0:
        raise ValueError(f"interval is in seconds and more than 0, not {interval}")
    own_limit = None if limit is None else size_in_bytes(limit)
    unguard_ram()
    guard = RamGuard(own_limit, warn, stop, interval, quiet)
    if not quiet:
        _black_box.last_words()
    guard._start()
    _guard = guard
    return guard


def unguard_ram() -> None:
    """Ends the guard, if there is one, and puts back what it changed."""
    if _guard is not None:
        _guard.stop()


class RamGuard:
    """A running guard. ``stop()`` ends it, and so does the end of a ``with`` block."""

    def __init__(self, own_limit: int | None, warn: float, stop: float, interval: float, quiet: bool) -> None:
        self._own_limit, self._warn, self._stop, self._interval, self._quiet = own_limit, warn, stop, interval, quiet
        self._floor = Floor()
        self._detours = Detours(self._floor.lifted)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._pause = interval
        self._last = (0.0, 0)
        self._groups: list[_cgroups.Group] = []
        self._groups_read = -_GROUPS_STAY
        self._warned = False
        # What is left when it is raised again, after once: not in the handler, but if memory is filled further.
        self._again_at: int | None = None
        self._trimmed = 0.0

    def __enter__(self) -> RamGuard:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the guard and puts back what it changed. Does nothing the second time."""
        global _guard
        if _guard is self:
            _guard = None
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        self._detours.undo()
        self._floor.remove()
        _black_box.close()

    def _start(self) -> None:
        _once()
        _black_box.open_box()
        # Too much already: nothing is raised for that, only for more.
        levels = self._levels(Process.now())
        if any(level.left <= self._reserve(level) for level in levels):
            tightest = self._tightest(levels)
            self._again_at = tightest.left - self._reserve(tightest) // 4
        self._look()
        self._thread = threading.Thread(target=self._watch, name="oomph-ram", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(self._pause):
            # A look that fails (no memory for it, a group that is going away) is made again.
            with contextlib.suppress(OSError, MemoryError, ValueError):
                self._look()

    def _look(self) -> None:
        process = Process.now()
        levels = self._levels(process)
        if not levels:
            return
        _black_box.sample(process.own, *self._deadly(levels))
        tightest = self._tightest(levels)
        growth = min(self._growth(level, process.own) for level in levels)
        # The virtual GPU's memory is mapped as the program's own, and takes none: no floor under that.
        if process.mapped and not on_virtual_gpu():
            self._floor.set(process.mapped + growth + _cuda_start())
        self._detours.make()
        self._pause = self._pause_for(tightest.left - self._reserve(tightest))
        self._warn_once(tightest, process.own)
        self._raise_past_the_stop(tightest, process.own)

    def _trim(self) -> None:
        """What the program freed is given back to the machine, which the C library does not do by itself."""
        now = time.monotonic()
        if now - self._trimmed >= _TRIM_EVERY:
            self._trimmed = now
            _heap.trim()

    def _pause_for(self, headroom: int) -> float:
        """Until the next look: long where what is left cannot be used up, short where it would be gone by then at the last pace."""
        now = time.monotonic()
        (then, had), self._last = self._last, (now, headroom)
        plenty = min(_LONGEST_PAUSE, headroom / _FASTEST)
        if headroom >= had:
            return max(2 * self._interval, plenty)
        gone = headroom * (now - then) / (had - headroom)
        return min(max(self._interval, plenty), max(self._interval / 10, gone / 2))

    def _levels(self, process: Process) -> list[Level]:
        now = time.monotonic()
        memory = _cgroups.machine()
        if now - self._groups_read >= _GROUPS_STAY:
            self._groups = [group for group in _cgroups.groups() if group.level(0) is not None]
            self._groups_read = now
        levels = _cgroups.levels(self._groups, memory)
        if self._own_limit is not None:
            levels.append(Level(_GIVEN, self._own_limit, process.own, self._own_limit - process.own))
        return levels

    def _tightest(self, levels: list[Level]) -> Level:
        return min(levels, key=lambda level: level.left - self._reserve(level))

    def _deadly(self, levels: list[Level]) -> tuple[int, int]:
        """Used and limit where the kernel would kill first."""
        level = min((level for level in levels if level.source != _GIVEN), key=lambda level: level.left, default=levels[0])
        return level.used, level.limit

    def _reserve(self, level: Level) -> int:
        return max(int((1 - self._stop) * level.limit), min(_SMALLEST_RESERVE, level.limit // 4))

    def _growth(self, level: Level, own: int) -> int:
        """What this process may map more. Most of the reserve lies above the floor, so that a program that grows in small pieces meets the
        watchdog first: it says more than malloc can, and leaves room for whoever handles the error."""
        reserve = self._reserve(level)
        below = level.left - reserve // 4
        return max(below, reserve) if own < reserve else max(below, min(_SMALL, level.left // 4), 0)

    def _warn_once(self, level: Level, own: int) -> None:
        reserve = self._reserve(level)
        enough = max((1 - self._warn) * level.limit, 1.5 * reserve)
        if level.left > enough + level.limit // 20:
            self._warned = False
        # Past the stop, the error says it.
        if self._warned or not reserve < level.left <= enough or own < reserve:
            return
        self._warned = True
        words = (
            f"RAM {text(level.used)} of {text(level.limit)} ({percent(level.used, level.limit)}), {text(own)} of it this process; "
            f"at {text(level.limit - reserve)} a MemoryError is raised: free memory with del and oomph.free()"
        )
        _black_box.warned(words)
        if not self._quiet:
            _say(words)

    def _raise_past_the_stop(self, level: Level, own: int) -> None:
        global _last_excess
        reserve = self._reserve(level)
        if level.left > reserve + level.limit // 50:
            self._again_at = None
        elif self._again_at is not None:
            self._again_at = max(self._again_at, level.left - reserve // 4)
            self._trim()
        if level.left > (reserve if self._again_at is None else self._again_at) or own < reserve or self._ended.is_set():
            return
        self._again_at = level.left - reserve // 4
        if not _in_the_program() or _handling_a_memory_error():
            return
        main = ctypes.c_ulong(threading.main_thread().ident or 0)
        # A path of a control group is long, and says nothing to most.
        whose = "the control group's limit" if os.path.isabs(level.source) else level.source
        _last_excess = (
            f"RAM {text(level.used)} of {text(level.limit)} ({whose}), {text(own)} of it this process: stopped before the machine kills it; free memory with del and oomph.free()"
        )
        _black_box.warned(_last_excess)
        # Writing the box released the interpreter's lock: the program may have met the floor meanwhile.
        if _handling_a_memory_error():
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(RamLimit))


def _all_levels(root: str) -> list[Level]:
    levels = _cgroups.levels(_cgroups.groups(root), _cgroups.machine(root))
    process = Process.now(root)
    for name, kind, taken in (("RLIMIT_DATA", resource.RLIMIT_DATA, process.mapped), ("RLIMIT_AS", resource.RLIMIT_AS, process.addresses)):
        soft = resource.getrlimit(kind)[0]
        if kind == resource.RLIMIT_DATA and _guard is not None:
            soft = _guard._floor.taken_for(soft)
        if soft != resource.RLIM_INFINITY:
            levels.append(Level(name, soft, taken, soft - taken))
    if not levels:
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        levels.append(Level("the machine's memory", pages, process.own, pages - process.own))
    return levels


def _cuda_start() -> int:
    """Room for a CUDA context that PyTorch may be about to make."""
    torch = sys.modules.get("torch")
    if torch is None or not os.path.exists("/dev/nvidiactl"):
        return 0
    try:
        if torch.cuda.is_initialized() and any(map(torch._C._cuda_hasPrimaryContext, range(torch.cuda.device_count()))):
            return 0
    except Exception:
        pass  # Half imported, or a version without that call.
    return _CUDA_START


def _in_the_program() -> bool:
    """False in a notebook between two cells: an exception there would end the kernel and not the program."""
    shell = sys.modules.get("IPython.core.interactiveshell")
    if shell is None or not shell.InteractiveShell.initialized():
        return True
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "run_code" and frame.f_code.co_filename.endswith("interactiveshell.py"):
            return True
        frame = frame.f_back
    return False


def _handling_a_memory_error() -> bool:
    """Whether the main thread is in an except block for one that the floor made. The program knows then; its handler is left in peace."""
    error = sys._current_exceptions().get(threading.main_thread().ident or 0)
    # Until Python 3.11, what sys.exc_info() gives.
    return isinstance(error[1] if isinstance(error, tuple) else error, MemoryError)


def _say(words: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"oomph: {words}", file=sys.stderr, flush=True)


def _forget_after_fork() -> None:
    global _guard
    guard, _guard = _guard, None
    _black_box.forget()
    if guard is not None:
        # A new one: the thread that is not here may have held the lock of the old one.
        guard._ended = threading.Event()
        guard._ended.set()
        guard._detours.undo()
        guard._floor.forget_after_fork()


@functools.cache
def _once() -> None:
    """What cannot be taken back, and does nothing without a guard."""
    import atexit

    os.register_at_fork(after_in_child=_forget_after_fork)
    atexit.register(unguard_ram)
