"""A word to who watches a run of several ranks: one of them has run out of memory, and the others will wait for it.

They wait in a collective until a launcher or a time-out ends them, which takes up to half an hour, and then report that, not the cause. So it is said at once, on
stderr, by the rank itself. It runs in other people's processes: nothing is raised, and what PyTorch is not asked for already is not imported.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types

from .library_code import is_library

_OURS = os.path.dirname(os.path.abspath(__file__))
_GIB = 1 << 30


def tell(asked: int, free: int, frame: types.FrameType | None) -> bool:
    """Says which rank it was, at which line; nothing where there are no others. Whether it was said."""
    with contextlib.suppress(Exception):
        rank, ranks = rank_of_many()
        if ranks > 1:
            line = f"oomph: rank {rank} of {ranks} ran out of memory: it asked for {asked / _GIB:#.3g} GiB, {free / _GIB:#.3g} GiB of the card were free{place(frame)}"
            # In one piece: other ranks write to the same place.
            sys.stderr.write(f"{line}. Unless it goes on as before, the others wait for it at their next collective\n")
            sys.stderr.flush()
            return True
    return False


def rank_of_many() -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def place(frame: types.FrameType | None) -> str:
    """The innermost line that the user wrote."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file) and not os.path.abspath(file).startswith(_OURS):
            return f", at {os.path.basename(file)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
