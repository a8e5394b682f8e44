"""``oomph.find_batch``: the largest micro-batch that runs, by running it, with the effective batch kept.

For loops that `oomph.fit` cannot take over. It needs the real GPU and real steps; `oomph.predict` answers without either.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from oomph._progress import ProgressLine, on_terminal
from oomph.fitting.errors import FitError
from oomph.fitting.running import ranks
from oomph.live.frames import release
from oomph.live.out_of_memory import is_out_of_memory
from oomph.sharding.blocks import talk_by_nccl


class Batch(NamedTuple):
    """Samples of one micro-batch, and how many of them make one step of the optimizer."""

    size: int
    accumulate: int


def find_batch(step: Callable[[int], Any], *, effective: int, largest: int | None = None, tries: int = 2) -> Batch:
    """Finds the largest micro-batch that runs without out-of-memory, for a step of `effective` samples in all.

        found = oomph.find_batch(train_some, effective=256)       # Batch(size=32, accumulate=8)

    ``step(size)`` runs forward, backward and optimizer for so many samples on the GPU, as training will: with the longest samples, and with
    the optimizer's state. It is called `tries` times for each size, as the first step has no state before it. Sizes are tried from
    `largest` (the effective batch, if not given) downwards, and are divisors of the effective batch wherever one is near; otherwise the
    last of the `accumulate` parts is smaller, and ``oomph.micro_batches(batch, found.accumulate)`` makes them even. The effective batch
    stays what it is, and so do learning rate and result, where accelerate's find_executable_batch_size gives the loop a smaller batch.

    What a failed attempt held is freed before the next. Any other error than out-of-memory is raised. On several ranks the least
    counts; a step that waits for other ranks would hang when one of them fails, so let it run without averaging gradients (``no_sync``).
    """
    if effective < 1 or tries < 1 or largest is not None and largest < 1:
        raise ValueError("effective, largest and tries are at least 1")
    sizes = _sizes(effective, min(largest or effective, effective))
    progress = on_terminal()
    try:
        best = _search(sizes, lambda size: _runs(step, size, tries, progress))
    finally:
        progress.close()
    if best is None:
        raise FitError(
            "a step with one sample runs out of memory: a smaller batch does not help. "
            "Let oomph.fit choose what else there is (checkpointing, offloading), or see what holds the memory with oomph.who()"
        )
    return Batch(best, -(-effective // best))


def _sizes(effective: int, largest: int) -> list[int]:
    """What to try, the largest first: divisors, and where the next one is less than half, the sizes of almost even parts."""
    even = {size for size in range(1, largest + 1) if effective % size == 0}
    sizes: list[int] = []
    parts = -(-effective // largest)
    while True:
        size = -(-effective // parts)
        near = max((one for one in even if one <= size and 2 * one > size), default=size)
        if not sizes or near < sizes[-1]:
            sizes.append(near)
        if near == 1:
            return sizes
        parts = max(parts + 1, -(-effective // (near - 1)))


def _search(sizes: list[int], runs: Callable[[int], bool]) -> int | None:
    """The first of falling sizes that runs: halving until one does, then between it and the last that did not."""
    failed, place = -1, 0
    while not runs(sizes[place]):
        failed = place
        if place == len(sizes) - 1:
            return None
        half = sizes[place] // 2
        place = next((at for at in range(place + 1, len(sizes)) if sizes[at] <= half), len(sizes) - 1)
    while place - failed > 1:
        middle = (failed + place) // 2
        if runs(sizes[middle]):
            place = middle
        else:
            failed = middle
    return sizes[place]


def _runs(step: Callable[[int], Any], size: int, tries: int, progress: ProgressLine) -> bool:
    ran = True
    for number in range(tries):
        progress.say(f"oomph: trying a batch of {size} ({number + 1} of {tries})")
        ran = not ranks.any_of(not _attempt(step, size), _device_of_ranks())
        if not ran:
            break
    gc.collect()  # What this size left in cycles is no part of the next.
    if not ran and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return ran


def _attempt(step: Callable[[int], Any], size: int) -> bool:
    try:
        step(size)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return True
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        release(error)
        return False


def _device_of_ranks() -> torch.device:
    """Where ranks talk to each other; no model says it here."""
    return torch.device("cuda" if ranks.several() and talk_by_nccl() else "cpu")
