"""One batch, drawn in this process as a worker would draw it, with nothing changed for the program: its random numbers, its samplers.

What the dataset itself keeps (a cache, a counter) it keeps.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset


class NotDrawable(ValueError):
    """A dataset of which nothing can be drawn without taking it from the program."""


def draw(loader: Any) -> tuple[Any, Any]:
    """The samples of one batch, and the batch."""
    with as_it_was(loader):
        samples = next(_samples(loader), None)
        if samples is None:
            raise NotDrawable("the loader has no batch: its dataset or sampler is empty")
        return samples, loader.collate_fn(samples)


def _samples(loader: Any) -> Iterator[Any]:
    """The samples of each batch: lists, or single ones where the loader makes no batches."""
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        stream = items_of(dataset)
        if loader.batch_size is None:
            return stream
        batches = iter(lambda: list(itertools.islice(stream, loader.batch_size)), [])
        return batches
    if loader.batch_sampler is None:
        return (dataset[index] for index in _copied(loader.sampler, loader))
    indices = _copied(loader.batch_sampler, loader)
    if getattr(dataset, "__getitems__", None):
        return (dataset.__getitems__(chosen) for chosen in indices)
    return ([dataset[index] for index in chosen] for chosen in indices)


def items_of(dataset: Any) -> Iterator[Any]:
    """A new run through an iterable dataset. One that always gives the same iterator has only one run, which is the program's."""
    # One that says how it is copied has a place of its own, which stays where it is.
    dataset = copy.copy(dataset) if hasattr(type(dataset), "__copy__") else dataset
    first, second = iter(dataset), iter(dataset)
    if first is second:
        raise NotDrawable("the dataset can be run through only once; give one of its batches: oomph.doctor(loader, batch=...)")
    # A dataset that has one run at a time has ended the first.
    return second


def _copied(sampler: Any, loader: Any) -> Iterator[Any]:
    """A run of a copy of a sampler: one that counts its epochs goes on from where it was. The dataset is not copied."""
    same = [loader.dataset, loader.generator, getattr(loader.sampler, "generator", None), getattr(loader.sampler, "data_source", None)]
    try:
        sampler = copy.deepcopy(sampler, {id(thing): thing for thing in same if thing is not None})
    except Exception:
        pass  # One that cannot be copied is asked itself: a run of it is a new one, as in every epoch.
    return iter(sampler)


@contextlib.contextmanager
def as_it_was(loader: Any) -> Iterator[None]:
    """Puts random numbers back, of Python, NumPy, PyTorch and the loader."""
    generators = [loader.generator, getattr(loader.sampler, "generator", None)]
    states = [(generator, generator.get_state()) for generator in generators if isinstance(generator, torch.Generator)]
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    python_state, torch_state = random.getstate(), torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        for generator, state in states:
            generator.set_state(state)
