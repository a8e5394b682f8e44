"""Giving back to the machine what this process has freed and keeps: the steps, one function each.

A step does nothing where there is nothing of its kind, and says so: True if it was made. What each gave is for the callers to measure
(``_free``, ``host``, ``_ram``).
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from typing import Any

from oomph._measure import torch_on_gpu

# A collection can free what kept other cycles from being found; more rounds than this have never given anything.
_MOST_ROUNDS = 5
# glibc's malloc.h.
_M_ARENA_MAX = -8
# jemalloc's MALLCTL_ARENAS_ALL.
_ALL_ARENAS = b"arena.4096.purge"


def collect() -> bool:
    """Garbage in cycles, and with the last round the free lists of Python's types."""
    for _ in range(_MOST_ROUNDS):
        if gc.collect() == 0:
            break
    return True


def clear_internal_caches() -> bool:
    """What Python keeps to be faster: its cache of attributes of types, and what its compiler made."""
    for name in ("_clear_internal_caches", "_clear_type_cache"):  # From 3.13 on, and before.
        if hasattr(sys, name):
            getattr(sys, name)()
            return True
    return False


def empty_pinned_cache() -> bool:
    torch = torch_on_gpu()
    if torch is None or not hasattr(torch._C, "_host_emptyCache"):  # From 2.5 on.
        return False
    torch._C._host_emptyCache()
    return True


def release_arrow() -> bool:
    """What pyarrow's pool keeps, if the program uses pyarrow."""
    pyarrow: Any = sys.modules.get("pyarrow")
    pool = getattr(pyarrow, "default_memory_pool", None)
    if pool is None or not hasattr(pyarrow.MemoryPool, "release_unused"):
        return False
    pool().release_unused()
    return True


def purge_other_allocators() -> bool:
    """jemalloc and mimalloc, where one of them was put before the C library's malloc."""
    library = _c_library()
    if hasattr(library, "mallctl"):
        return library.mallctl(_ALL_ARENAS, None, None, None, ctypes.c_size_t(0)) == 0
    if hasattr(library, "mi_collect"):
        library.mi_collect(ctypes.c_bool(True))
        return True
    return False


def trim() -> bool:
    """Pages of the C library's heap that hold nothing, in the middle of it too."""
    if not is_glibc():
        return False
    _c_library().malloc_trim(ctypes.c_size_t(0))
    return True


def limit_arenas(count: int) -> bool:
    """False where the C library has none, or refuses."""
    return is_glibc() and _c_library().mallopt(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(count)) == 1


def is_glibc() -> bool:
    library = _c_library()
    return hasattr(library, "gnu_get_libc_version") and hasattr(library, "malloc_trim")


@functools.cache
def _c_library() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None  # Not a machine of this kind.
