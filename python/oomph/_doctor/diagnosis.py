"""What ``oomph.doctor(loader)`` found: numbers, findings, and a loader that fits. Text and HTML come from the same lines."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import IterableDataset

from oomph._doctor import needs
from oomph._doctor.needs import Facts, Need
from oomph._sizes import text

# Smaller parts are counted, and not listed.
_LISTED = 1 << 20


@dataclass(frozen=True)
class Finding:
    """What is wrong, why, and what to do."""

    what: str
    why: str
    fix: str


@dataclass(frozen=True)
class Room:
    """What there is: RAM that can still be taken, under which limit, and /dev/shm."""

    ram_left: int
    ram_limit: int
    ram_source: str
    shm_size: int
    shm_free: int


@dataclass(frozen=True)
class Diagnosis:
    """What a DataLoader takes. Bytes are whole numbers; ``need`` says of each how it came about and by how much it may be wrong."""

    num_workers: int
    prefetch_factor: int
    # Of the dataset, in this process: Python's objects, buffers, and what is in shared memory.
    dataset_objects: int
    dataset_buffers: int
    dataset_shared: int
    # One batch: in tensors, and what each takes when it is pinned.
    batch: int
    batch_pinned: int
    need: Need
    room: Room
    # The largest number of workers that fits, and how far ahead each may be then.
    workers: int
    prefetch: int
    facts: Facts
    findings: list[Finding] = field(default_factory=list)

    @property
    def total(self) -> int:
        """What workers and batches take, besides what this process has already."""
        return self.need.total

    @property
    def error(self) -> int:
        """By how many bytes the total may be wrong."""
        return self.need.error

    @property
    def worker(self) -> int:
        """What each worker takes for itself."""
        return self.need.worker.bytes

    @property
    def shm(self) -> int:
        """What lies in /dev/shm at the most."""
        return self.need.shm

    @property
    def pinned(self) -> int:
        return self.need.pinned.bytes

    @property
    def fits(self) -> bool:
        """Whether it fits even if the estimates are too low by all of their error."""
        return fits(self.need, self.room)

    def limit(self, loader: Any) -> Any:
        """A loader like this one with as many workers as fit; the same one if it fits."""
        if (self.workers, self.prefetch) == (self.num_workers, self.prefetch_factor):
            return loader
        return limited(loader, self.workers, self.prefetch)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        yield self._answer()
        for size, name, how in self._rows():
            yield f"  {size:>9}  {name}{f': {how}' if how else ''}"
        for finding in self.findings:
            yield f"{finding.what}"
            yield f"  why: {finding.why}"
            yield f"  fix: {finding.fix}"
        yield f"Next: {self._next()}"

    def _answer(self) -> str:
        room = self.room
        workers = f"{self.num_workers} worker{'' if self.num_workers == 1 else 's'}"
        words = f"{workers} and their batches take {text(self.total)} ± {text(self.error)} more" if self.num_workers else f"Batches take {text(self.total)} more"
        if self.fits:
            return f"Fits: {words}, and {text(room.ram_left)} of RAM are left"
        if self.num_workers and self.shm + self.need.shm_error > room.shm_free:
            return f"Does not fit: batches take {text(self.shm)} of /dev/shm, where {text(room.shm_free)} of {text(room.shm_size)} are free"
        return f"Does not fit: {words}, and {text(room.ram_left)} of {text(room.ram_limit)} are left ({room.ram_source})"

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        if self.dataset_objects >= _LISTED:
            yield text(self.dataset_objects), "dataset, Python objects", "estimated from a sample, in this process already"
        if self.dataset_buffers:
            yield text(self.dataset_buffers), "dataset, arrays and tensors", "measured, in this process already"
        if self.dataset_shared:
            yield text(self.dataset_shared), "dataset, shared", "measured, once for all processes"
        if self.num_workers:
            copied = needs.private_copy(self.facts, self.num_workers)
            how = f"estimated ± {text(self.need.worker.error)}"
            yield text(self.worker), f"each of {self.num_workers} workers", f"{how}; {text(copied)} of it is a copy of the dataset" if copied >= _LISTED else how
        batches = self.need.batches
        yield text(batches.bytes), batches.name, batches.how.format(text(self.batch))
        for part in (self.need.moved, self.need.pinned, self.need.piped):
            if part.bytes >= _LISTED:
                yield text(part.bytes), part.name, part.how

    def _next(self) -> str:
        if not self.fits:
            if not fits(needs.need(self.facts, self.workers, self.prefetch), self.room):
                return "a smaller batch_size: not even one batch, in this process, fits"
            ahead = f" and prefetch_factor={self.prefetch}" if self.workers and self.prefetch != self.prefetch_factor else ""
            return f"loader = oomph.doctor(loader, fix=True), the same with num_workers={self.workers}{ahead}, which fits"
        return self.findings[0].fix if self.findings else "nothing to do; oomph.guard_ram() warns if it comes otherwise"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="text-align:right">{html.escape(size)}</td><td style="text-align:left">{html.escape(name)}</td><td style="text-align:left">{html.escape(how)}</td></tr>'
            for size, name, how in self._rows()
        )
        findings = "".join(f"<li><b>{html.escape(one.what)}</b><br>{html.escape(one.why)}<br>{html.escape(one.fix)}</li>" for one in self.findings)
        return (
            f"<p>{html.escape(self._answer())}</p><table><thead><tr><th>bytes</th><th>what</th><th>how it is known</th></tr></thead><tbody>{rows}</tbody></table>"
            f"{f'<ul>{findings}</ul>' if findings else ''}<p>Next: {html.escape(self._next())}</p>"
        )


def fits(need: Need, room: Room) -> bool:
    return need.total + need.error <= room.ram_left and (need.workers == 0 or need.shm + need.shm_error <= room.shm_free)


def most_workers(facts: Facts, room: Room, workers: int, prefetch: int) -> tuple[int, int]:
    """As many workers as fit, each as far ahead as fits then. Workers first: one ahead by one batch already works while the program does."""
    for count in range(workers, 0, -1):
        for ahead in range(prefetch, 0, -1):
            if fits(needs.need(facts, count, ahead), room):
                return count, ahead
    return 0, prefetch


_KEPT = ("pin_memory", "timeout", "worker_init_fn", "collate_fn", "generator", "in_order")


def limited(loader: Any, workers: int, prefetch: int) -> Any:
    """A new loader with these, and all else as it is."""
    settings = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if getattr(loader, "pin_memory_device", ""):  # PyTorch warns of it where it is given.
        settings["pin_memory_device"] = loader.pin_memory_device
    if loader.batch_sampler is None:
        settings.update(batch_size=None, sampler=loader.sampler)
    elif loader.batch_size is None:
        settings.update(batch_sampler=loader.batch_sampler)
    else:
        settings.update(batch_size=loader.batch_size, drop_last=loader.drop_last, sampler=loader.sampler)
    if isinstance(loader.dataset, IterableDataset):
        settings.pop("sampler", None)
    if workers:
        settings.update(prefetch_factor=prefetch, persistent_workers=loader.persistent_workers, multiprocessing_context=loader.multiprocessing_context)
    else:
        settings["timeout"] = 0
    try:
        return type(loader)(loader.dataset, num_workers=workers, **settings)
    except TypeError as error:
        kind = type(loader).__name__
        raise TypeError(f"a {kind} cannot be made again as a DataLoader can; make it with num_workers={workers}, prefetch_factor={prefetch}") from error
