"""The recorder of host memory in a process that runs already: finds its library there or loads it, and leads to it what is loaded later.

Boundary: needs nothing of oomph, for it is also put into processes that have none (``ram_attached``). What each function of the library does, the crate ``oomph-ram`` says.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

NOT_HERE = "its C library or its Python is laid out in a way that oomph does not know"


def loaded(find: Callable[[], str]) -> ctypes.PyDLL:
    """The library that is in this process already, else that at the path which `find` gives. OSError if it cannot be loaded."""
    # With the interpreter's lock: the library looks at the frames that are there.
    library = ctypes.PyDLL(None)
    if not hasattr(library, "oomph_ram_start"):
        library = ctypes.PyDLL(_there() or os.path.realpath(find()))
    library.oomph_ram_start.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
    library.oomph_ram_peak.restype = ctypes.c_uint64
    return library


def _there() -> str | None:
    """A second copy would find every call led to the first. Its file may be gone: the loader knows it by its path."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            if b"/liboomph_ram.so" in line:
                return os.fsdecode(line.split(maxsplit=5)[5].rstrip(b"\n").removesuffix(b" (deleted)"))
    return None


def watch_loading(library: ctypes.PyDLL) -> Callable[[], None]:
    """Libraries that are loaded during a recording call the C library by tables of their own: they too are led to the recorder. Gives what ends this."""
    # Both are Any: functions of Python's own are replaced.
    loader: Any = importlib.machinery.ExtensionFileLoader
    foreign: Any = ctypes
    execute, load = loader.exec_module, foreign._dlopen
    if hasattr(execute, "of_oomph"):
        # Whoever has begun it ends it, or nobody: to be led to a recorder that does not record does no harm.
        return lambda: None

    def exec_module(self: importlib.machinery.ExtensionFileLoader, module: ModuleType) -> None:
        library.oomph_ram_attach()
        execute(self, module)

    def dlopen(*args: Any) -> Any:
        handle = load(*args)
        library.oomph_ram_attach()
        return handle

    def stop_watching() -> None:
        # Where others have put something around ours, it stays within, and does no harm.
        if loader.exec_module is exec_module:
            loader.exec_module = execute
        if foreign._dlopen is dlopen:
            foreign._dlopen = load

    exec_module.of_oomph = True  # type: ignore[attr-defined]  # a mark on the function
    loader.exec_module, foreign._dlopen = exec_module, dlopen
    return stop_watching
