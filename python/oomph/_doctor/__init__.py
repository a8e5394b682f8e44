"""``oomph.doctor(loader)``: what a DataLoader will take of the host's memory, before it does, and a loader that fits. ``oomph.doctor()``: what is
true of this machine, as ``oomph doctor`` says it (``checkup``).

``objects`` weighs the dataset, ``drawing`` draws one batch, ``needs`` has the model, ``findings`` what is worth saying, ``diagnosis`` how it
is said. No worker is started. Without a loader torch is not imported: who has one has imported it.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from oomph import _ram
from oomph._doctor.needs import Facts, need
from oomph._doctor.objects import PAGE, weigh

if TYPE_CHECKING:
    from oomph._doctor.checkup import Checkup
    from oomph._doctor.diagnosis import Diagnosis, Room

_SHARED_MEMORY = "/dev/shm"


def doctor(loader: Any = None, *, fix: bool = False, batch: Any = None) -> Checkup | Diagnosis | Any:
    """What ``loader``, a torch DataLoader, will take of RAM and /dev/shm, and whether that fits; ``fix=True`` gives a loader that does.

    Without a loader, what is true of this machine: what the command ``oomph doctor`` says, for this interpreter.

    One batch is drawn in this process, unless one is given as ``batch``. Random numbers, samplers and the loader stay as they are.
    """
    if loader is None and not fix and batch is None:
        from oomph._doctor.checkup import check_up

        return check_up()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError("oomph.doctor looks at a torch DataLoader: oomph.doctor(loader)")
    diagnosis = _examine(loader, batch, torch)
    return diagnosis.limit(loader) if fix else diagnosis


def _examine(loader: Any, batch: Any, torch: Any) -> Diagnosis:
    from oomph._doctor.diagnosis import Diagnosis, most_workers
    from oomph._doctor.drawing import draw
    from oomph._doctor.findings import all_findings

    data = torch.utils.data
    dataset = weigh(loader.dataset, "loader.dataset")
    samples, batch = draw(loader) if batch is None else (batch, batch)
    sampled, batched = weigh(samples, but=dataset.buffers), weigh(batch)
    tensors = [view for view in batched.views if isinstance(view, torch.Tensor)]
    own = [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() not in dataset.buffers]
    theirs = [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() in dataset.buffers and not tensor.is_shared()]
    is_pinned = loader.pin_memory and _has_accelerator(torch)
    pinned = [view.numel() * view.element_size() for view in tensors] if is_pinned else []
    facts = Facts(
        dataset=dataset,
        items=_items(loader, data),
        is_forked=_start_method(loader) == "fork",
        is_sequential=_is_sequential(loader, data),
        keeps_workers=loader.persistent_workers,
        batch_items=len(samples) if isinstance(samples, list) else 1,
        batch=_pages(own),
        whole=_pages(theirs),
        piped=int(batched.arrays + batched.objects),
        pinned=sum(map(_rounded_when_pinned, pinned)),
        # PyTorch's own collate_fn writes to /dev/shm; others make batches in the worker, from where they are moved.
        made=int(sampled.fresh) + (0 if loader.collate_fn is data.default_collate else _pages(own)),
    )
    workers, prefetch = loader.num_workers, loader.prefetch_factor or 2
    needed, room = need(facts, workers, prefetch), _room()
    most, ahead = most_workers(facts, room, workers, prefetch)
    plainly_pinned = (workers * prefetch + 1) * sum(pinned)
    return Diagnosis(
        num_workers=workers,
        prefetch_factor=prefetch,
        dataset_objects=int(dataset.objects),
        dataset_buffers=int(dataset.arrays + dataset.tensors),
        dataset_shared=int(dataset.shared),
        batch=facts.batch,
        batch_pinned=facts.pinned,
        need=needed,
        room=room,
        workers=most,
        prefetch=ahead,
        facts=facts,
        findings=all_findings(loader, facts, needed, room, tensors, plainly_pinned),
    )


def _pages(tensors: list[Any]) -> int:
    """What tensors take in /dev/shm: each memory once, all of it, in whole pages."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(-(-size // PAGE) * PAGE for size in storages.values())


def _rounded_when_pinned(size: int) -> int:
    """To a power of two, unless the program's settings say from what size on not to."""
    settings = ",".join(os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    limits = [int(found) << 20 for found in re.findall(r"pinned_max_(?:round_threshold|cached_size)_mb:(\d+)", settings)]
    if not size or any(size > limit for limit in limits):
        return size
    return 1 << (size - 1).bit_length()


def _has_accelerator(torch: Any) -> bool:
    return torch.accelerator.is_available() if hasattr(torch, "accelerator") else torch.cuda.is_available()


def _items(loader: Any, data: Any) -> int | None:
    if isinstance(loader.dataset, data.IterableDataset):
        return None
    try:
        return len(loader.dataset)
    except (TypeError, NotImplementedError):
        return None


def _start_method(loader: Any) -> str:
    context = loader.multiprocessing_context or multiprocessing
    # Asking without allow_none would settle it, for the whole program.
    return context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _is_sequential(loader: Any, data: Any) -> bool:
    return type(loader.sampler) is data.SequentialSampler and type(loader.batch_sampler) in (data.BatchSampler, type(None))


def _room() -> Room:
    from oomph._doctor.diagnosis import Room

    limit = _ram.limit()
    try:
        there = os.statvfs(_SHARED_MEMORY)
        size, free = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
    except OSError:
        size = free = limit.bytes  # A machine without it shares memory otherwise.
    source = "the control group's limit" if os.path.isabs(limit.source) else limit.source
    return Room(_ram.left(), limit.bytes, source, size, free)
