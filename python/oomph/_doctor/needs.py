"""What a DataLoader needs in memory, for any number of workers: the model, and the facts that it is made of.

Each number says how it came about. The constants were measured on Linux with PyTorch 2.15 and Python 3.11 (``tests/python/test_doctor_loader.py``
holds the model against real loaders):

- *Batches*: each of W workers is ahead by ``prefetch_factor`` batches, and the program has one: W × prefetch + 1 lie in /dev/shm, tensor by
  tensor in whole pages. A tensor that is a part of one of the dataset's takes all of that along, once a worker. Or, with ``pin_memory``, in pinned memory, each tensor rounded up to a power of two, in a cache that is never returned.
- *A forked worker* copies the pages that it writes to. Reading an object counts a reference, which writes. Objects of a size lie together, so
  a page has many items' objects: a worker that reads every W-th item at random meets nearly all pages of small objects, and every W-th of large ones.
- *A spawned worker* imports everything again, and gets the dataset as a copy; only tensors and what ``oomph.data.share`` made are shared.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomph._doctor.objects import PAGE, Weight

MIB = 1 << 20
# A worker without data: measured 8 to 12 MiB forked, 291 to 304 MiB otherwise. A full collection in a forked worker, which is rare, copies what
# the program's modules have as well, 38 MiB with torch alone, unless oomph.host.freeze_for_fork() was called: that is not counted.
_FORKED, _FORKED_ERROR = 12 * MIB, 12 * MIB
_STARTED, _STARTED_ERROR = 300 * MIB, 100 * MIB
# The samples of a batch, and what malloc keeps of earlier ones: measured 1 to 5 times their size, the least where they are large.
_MADE, _MADE_ERROR = 3, 2
# What was found by walking and sampling, beside what workers really copied: within 15 % in all cases, and within 25 % on busy machines.
_OBJECTS_ERROR = 0.25


@dataclass(frozen=True)
class Part:
    """One number: what it is of, the bytes, by how many it may be wrong, and how it came about."""

    name: str
    bytes: int
    error: int
    how: str


@dataclass(frozen=True)
class Facts:
    """What was found out about a loader, whatever its number of workers."""

    dataset: Weight
    items: int | None
    is_forked: bool
    is_sequential: bool
    keeps_workers: bool
    batch_items: int
    # Bytes of one batch: in /dev/shm; of the dataset's own tensors that go along with it; through a pipe; pinned;
    # and what a worker makes of its own on the way to it.
    batch: int
    whole: int
    piped: int
    pinned: int
    made: int


@dataclass(frozen=True)
class Need:
    """What some number of workers needs besides what this process has already."""

    worker: Part
    batches: Part
    moved: Part
    pinned: Part
    piped: Part
    workers: int

    @property
    def total(self) -> int:
        return self.workers * self.worker.bytes + sum(part.bytes for part in self._once())

    @property
    def error(self) -> int:
        return self.workers * self.worker.error + sum(part.error for part in self._once())

    @property
    def shm(self) -> int:
        """What lies in /dev/shm at the most, without the error."""
        return self.batches.bytes + self.moved.bytes if self.workers else 0

    @property
    def shm_error(self) -> int:
        return self.batches.error + self.moved.error

    def _once(self) -> tuple[Part, ...]:
        return self.batches, self.moved, self.pinned, self.piped


def need(facts: Facts, workers: int, prefetch: int) -> Need:
    in_flight = workers * prefetch + 1
    if workers == 0:
        worker = Part("each worker", 0, 0, "none")
        batches = Part("batches", facts.batch, facts.batch, "measured: one batch, in this process")
    else:
        worker = _worker(facts, workers)
        at_most = ", at the most: those that are pinned leave it" if facts.pinned else ""
        how = f"{workers} workers × {prefetch} ahead + 1 in use = {in_flight} batches of {{}}, one measured; ± 1 batch{at_most}"
        batches = Part("batches in /dev/shm", in_flight * facts.batch, facts.batch, how)
    if facts.is_forked or not workers:
        moved = Part("tensors of the dataset in /dev/shm", workers * facts.whole, 0, "measured, once for each worker: batches are parts of them")
    else:
        size = int(facts.dataset.tensors)
        moved = Part("tensors of the dataset in /dev/shm", size, 0, "measured, once: workers that are not forked get them there")
    pinned = Part("pinned memory", in_flight * facts.pinned, facts.pinned, "measured of one batch, each tensor rounded up to a power of two")
    piped = Part("batches through pipes", in_flight * facts.piped, in_flight * facts.piped, "estimated ± 100 %: what is not a tensor is pickled")
    return Need(worker, batches, moved, pinned, piped, workers)


def _worker(facts: Facts, workers: int) -> Part:
    start, start_error = (_FORKED, _FORKED_ERROR) if facts.is_forked else (_STARTED, _STARTED_ERROR)
    copied = private_copy(facts, workers)
    error = start_error + _MADE_ERROR * facts.made + int(_OBJECTS_ERROR * copied)
    return Part("each worker", start + _MADE * facts.made + copied, error, "estimated")


def private_copy(facts: Facts, workers: int) -> int:
    """What of the dataset becomes a worker's own, in an epoch or, where workers are kept, in many."""
    if not facts.is_forked:
        return int(facts.dataset.objects + facts.dataset.arrays)  # Tensors are moved to where all can have them.
    share = 1.0 if facts.keeps_workers or not facts.items else 1 / workers
    total = 0.0
    for written, count in facts.dataset.written.values():
        if not count:
            continue
        size, an_item = written / count, written / max(facts.items or 1, 1)
        # A run of items that a worker reads at once covers so many pages for each page of its own.
        run = an_item * (facts.batch_items if facts.is_sequential else 1)
        met = (PAGE + run - size) / run
        total += written * (min(1.0, share * met) if facts.is_sequential else 1 - (1 - share) ** met)
    return int(total)
