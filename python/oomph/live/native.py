"""The recorder's library, as Python calls it. See the crate ``oomph-record`` for what each function does."""

from __future__ import annotations

import array
import ctypes
import errno
import os

from .utf8 import encoded

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .generated import Frame

# Why a file is not begun, where the operating system's words say something else.
REFUSED = {
    errno.EEXIST: "exists already, and is no recording of oomph's",
    errno.EINVAL: "this is no file, but a pipe or a device",
    errno.ELOOP: "this is a link, and a recording is not written through one",
    errno.EBUSY: "another program writes it",
}

PARAMETER, GRADIENT, OPTIMIZER_STATE, FROZEN, ADAPTER = 1, 2, 3, 4, 5

_loaded: Native | None = None


def raise_if(error: int, path: str) -> None:
    if error:
        raise OSError(error, REFUSED.get(error) or os.strerror(error), path)


def loaded() -> Native | None:
    """The recorder if it has been put under PyTorch in this process, else None."""
    return _loaded


class Native:
    """The library. Made once a process: it stays where it is."""

    def __init__(self, path: str) -> None:
        # With the interpreter's lock: the library looks at the frames that are there.
        library = ctypes.PyDLL(path)
        library.oomph_record_start.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_int]
        library.oomph_record_check.argtypes = [ctypes.c_char_p]
        library.oomph_record_leave_out.argtypes = [ctypes.c_char_p]
        library.oomph_record_made_from.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        library.oomph_record_forward.argtypes = [ctypes.c_int64]
        library.oomph_record_forward.restype = None
        library.oomph_record_backward.argtypes = [ctypes.c_uint64, ctypes.c_char_p]
        library.oomph_record_backward.restype = None
        library.oomph_record_state.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        library.oomph_record_kinds.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        library.oomph_record_card.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int]
        library.oomph_record_settings.argtypes = [ctypes.c_char_p]
        library.oomph_record_step.argtypes = [ctypes.c_char_p, ctypes.c_int]
        library.oomph_record_range.argtypes = [ctypes.c_char_p, ctypes.c_int]
        library.oomph_record_mark.argtypes = [ctypes.c_char_p]
        library.oomph_record_oom.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]
        library.oomph_record_census.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.oomph_record_counts.argtypes = [ctypes.c_void_p]
        library.oomph_record_peak.argtypes = [ctypes.c_uint32]
        library.oomph_record_peak.restype = ctypes.c_uint64
        self.library = library
        self.knows_lines = False
        # Called for every operation of a prediction.
        self.forward = library.oomph_record_forward
        self.backward = library.oomph_record_backward

    def attach(self) -> bool:
        """Puts the recorder under PyTorch's allocator. False if there is none that it knows."""
        global _loaded
        outcome = self.library.oomph_record_attach()
        self.knows_lines = outcome == 0
        if outcome != 1:
            _loaded = self
        return outcome != 1

    def start(self, path: str, most_bytes: int, whole: bool, claimed: bool) -> None:
        """``claimed``: `oomph run` has looked at the file, and keeps it for this process."""
        raise_if(self.library.oomph_record_start(os.fsencode(path), most_bytes, whole, claimed), path)

    def check(self, path: str) -> None:
        """Raises what would keep a recording from being begun there."""
        raise_if(self.library.oomph_record_check(os.fsencode(path)), path)

    def leave_out(self, files: str) -> None:
        """Files that begin like this are oomph's own, and in no stack."""
        self.library.oomph_record_leave_out(files.encode())

    def made_from(self, file: str, lines: Iterable[tuple[int, list[Frame]]]) -> None:
        """``lines``: first lines of a generated file, each with the frames that it stands for, innermost first (line, function, file)."""
        rows = []
        for first, frames in lines:
            rows.append(str(first))
            rows.extend(f"\t{line}\t{function}\t{place}" for line, function, place in frames)
        self.library.oomph_record_made_from(encoded(file), encoded("\n".join(rows)))

    def state(self, device: int, segments: Iterable[dict[str, Any]], at_the_end: bool) -> None:
        """Tells what PyTorch's snapshot says of a device's segments."""
        numbers = array.array("Q")
        for segment in segments:
            flags = (segment.get("segment_type") == "small") + 2 * bool(segment.get("is_expandable"))
            pool = segment.get("segment_pool_id") or (0, 0)
            blocks = segment["blocks"]
            numbers.extend((segment["address"], segment["total_size"], flags, *pool, segment.get("stream", 0) & (1 << 64) - 1, len(blocks)))
            for block in blocks:
                state = {"active_allocated": 1, "inactive": 0}.get(block["state"], 2)
                numbers.extend((block["size"], block.get("requested_size", block["size"]), state))
        address, count = numbers.buffer_info()
        self.library.oomph_record_state(device, address, count, at_the_end)

    def kinds(self, addresses: dict[int, list[int]], kind: int) -> None:
        """``addresses``: by device, where blocks begin."""
        for device, places in addresses.items():
            numbers = array.array("Q", places)
            address, count = numbers.buffer_info()
            self.library.oomph_record_kinds(device, address, count, kind)

    def card(self, device: int, name: str, total: int, is_virtual: bool) -> None:
        self.library.oomph_record_card(device, name.encode(), total, is_virtual)

    def settings(self, text: str) -> None:
        self.library.oomph_record_settings(text.encode())

    def step(self, name: bytes, ended: bool) -> bool:
        """True if a step has ended that was not the same as one before."""
        return bool(self.library.oomph_record_step(name, ended))

    def range(self, name: bytes, ended: bool) -> None:
        self.library.oomph_record_range(name, ended)

    def mark(self, name: bytes) -> None:
        self.library.oomph_record_mark(name)

    def out_of_memory(self, device: int, asked: int, free: int, skip: int) -> None:
        self.library.oomph_record_oom(device, asked, free, skip)

    def census(self, json: bytes) -> None:
        self.library.oomph_record_census(json, len(json))

    def flush(self) -> None:
        self.library.oomph_record_flush()

    def stop(self) -> bool:
        """Whether the file is whole."""
        return self.library.oomph_record_stop() == 0

    def counts(self) -> tuple[int, ...]:
        """Events, events in repeated steps, repeated steps, whether the file could not be written to its end."""
        numbers = array.array("Q", [0] * 4)
        self.library.oomph_record_counts(numbers.buffer_info()[0])
        return tuple(numbers)

    def mark_peak(self) -> None:
        self.library.oomph_record_mark_peak()

    def peak(self, device: int) -> int:
        """The most bytes allocated on a device since the mark."""
        return int(self.library.oomph_record_peak(device))
