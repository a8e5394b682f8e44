"""What is worth saying about a loader: one function a finding, each gives a finding or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from oomph._doctor import needs
from oomph._doctor.diagnosis import Finding, Room
from oomph._doctor.drawing import as_it_was, items_of
from oomph._doctor.needs import MIB, Facts, Need
from oomph._sizes import text

# Less is not worth a change.
_MATTERS = 32 * MIB
# Items that two workers are compared by.
_HEAD = 4


def all_findings(loader: Any, facts: Facts, need: Need, room: Room, batch_views: list[Any], plainly_pinned: int) -> list[Finding]:
    workers = need.workers
    found = [
        _shared_memory(need, room) if workers else None,
        _ram(need, room),
        _copies(facts, workers) if workers else None,
        _views(facts, need, batch_views) if workers else None,
        _pinned_rounding(need, plainly_pinned),
        _same_from_every_worker(loader),
    ]
    return [finding for finding in found if finding is not None]


def _shared_memory(need: Need, room: Room) -> Finding | None:
    wanted = need.shm + need.shm_error
    lacking = wanted - room.shm_free
    if lacking <= 0:
        return None
    return Finding(
        f"/dev/shm is too small by {text(lacking)}",
        f"workers hand batches over through /dev/shm, which has {text(room.shm_size)}, {text(room.shm_free)} of it free; "
        'a worker that finds it full ends with "Bus error" or "unable to allocate shared memory(shm)"',
        f"docker run --shm-size={_next_size(wanted)} (or --ipc=host), fewer workers, or a lower prefetch_factor",
    )


def _next_size(size: int) -> str:
    return f"{max(-(-size // (1 << 30)), 1)}g"


def _ram(need: Need, room: Room) -> Finding | None:
    lacking = need.total + need.error - room.ram_left
    if lacking <= 0:
        return None
    return Finding(
        f"RAM lacks {text(lacking)}",
        f"{text(room.ram_left)} of {text(room.ram_limit)} are left ({room.ram_source}); the kernel kills a worker, or all of the program, when it is full",
        "oomph.doctor(loader, fix=True) gives a loader with as many workers as fit",
    )


def _copies(facts: Facts, workers: int) -> Finding | None:
    copied = needs.private_copy(facts, workers)
    if copied < _MATTERS:
        return None
    name, size = max(facts.dataset.containers.items(), key=lambda container: container[1], default=("", 0))
    if facts.is_forked:
        why = "reading a Python object counts a reference to it, which writes to its page, which copies the page (pytorch#13246)"
    else:
        why = "a worker that is not forked gets the dataset as a copy"
        if facts.dataset.arrays > facts.dataset.objects:
            fix = "arrays as tensors (torch.from_numpy), or mapped from a file (numpy.load(..., mmap_mode='r')), which workers share"
            return Finding(f"Each worker gets {text(copied)} of the dataset as its own copy", why, fix)
    if size * 2 > facts.dataset.objects:
        fix = f"{name} = oomph.data.share({name})"
    else:
        fix = "oomph.data.share(...) for the dataset's lists and dicts, or arrays instead of them"
    return Finding(f"Each worker copies {text(copied)} of the dataset, {text(workers * copied)} in all", why, fix)


def _views(facts: Facts, need: Need, batch_views: list[Any]) -> Finding | None:
    seen = sum(view.numel() * view.element_size() for view in batch_views)
    travelling = facts.batch + facts.whole
    if travelling < 2 * seen or need.shm < _MATTERS:
        return None
    return Finding(
        f"A batch of {text(seen)} takes {text(travelling)} along",
        "a tensor that is a part of a larger one goes through /dev/shm with all of it",
        ".clone() the part before it is returned",
    )


def _pinned_rounding(need: Need, plainly_pinned: int) -> Finding | None:
    wasted = need.pinned.bytes - plainly_pinned
    if wasted < _MATTERS:
        return None
    return Finding(
        f"{text(wasted)} of pinned memory is rounding",
        "PyTorch rounds each pinned tensor up to a power of two, and keeps it for good",
        "a batch_size with which the tensors come to just below a power of two",
    )


def _same_from_every_worker(loader: Any) -> Finding | None:
    """Said only if it is seen: the first items that two workers would give, drawn here. What worker_init_fn changes cannot be seen."""
    if loader.num_workers < 2 or not isinstance(loader.dataset, IterableDataset) or loader.worker_init_fn is not None:
        return None
    try:
        first, second = (_head(loader, worker) for worker in range(2))
    except Exception:
        return None  # It cannot be run as a worker runs it.
    if not _alike(first, second) or all(_alike(item, first[0]) for item in first):
        return None
    return Finding(
        f"Each of {loader.num_workers} workers gives all of the data",
        f"the first {len(first)} items of worker 0 and of worker 1 are the same: an epoch has each item {loader.num_workers} times",
        "in __iter__, give worker w of n (torch.utils.data.get_worker_info()) every n-th item, or use oomph.data.stream",
    )


def _head(loader: Any, worker: int) -> list[Any]:
    with as_it_was(loader), _as_worker(loader, worker):
        return list(itertools.islice(items_of(loader.dataset), _HEAD))


def _alike(one: Any, other: Any) -> bool:
    """Equal, arrays and tensors in their containers included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if hasattr(one, "shape"):
        return one.shape == other.shape and bool((one == other).all())
    return bool(one == other)


@contextmanager
def _as_worker(loader: Any, worker: int) -> Iterator[None]:
    before = torch_worker._worker_info
    torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=loader.num_workers, seed=0, dataset=loader.dataset)
    try:
        yield
    finally:
        torch_worker._worker_info = before
