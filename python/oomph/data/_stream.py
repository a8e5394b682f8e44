"""``oomph.data.stream``: batches of a table that does not fit, within a budget.

Boundary: what is read, in which order and by whom; threads, memory and decoding are Rust's. How batches reach a GPU is in ``_ring.py``, how PyTorch and Ray take a
stream in ``_torch.py`` and ``_ray.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oomph._measure import size_in_bytes
from oomph.data._native import native
from oomph.data._table import Rows

if TYPE_CHECKING:
    from oomph.data._torch import StreamDataset

_FORMS = ("arrow", "numpy", "torch")
# What the pinned buffers of a GPU's ring may take of the budget.
_RING_PART = 4


@dataclass(frozen=True)
class StreamProgress:
    """How far an epoch is: batches and rows that were given, pieces of the input behind and of how many (None: not known yet), bytes held now and at most."""

    batches: int
    rows: int
    pieces: int
    all_pieces: int | None
    held: int
    peak: int
    # How often nothing was read ahead, because the machine or its control group had little memory left.
    backed_off: int


@dataclass(frozen=True)
class _Options:
    """All that decides which rows come in which order: a stream is made of it anew in every process."""

    locations: tuple[str, ...]
    batch: int
    budget: int
    shuffle: int | None
    columns: tuple[str, ...] | None
    form: str
    nulls_as: Any
    device: str | None
    pin: bool
    rank: int | None
    world: int | None
    equal: bool
    drop_last: bool
    on_error: str
    delimiter: str | None
    header: bool
    nulls: tuple[str, ...]


class Stream:
    """Batches of a table, within a budget. Every ``iter()`` is an epoch, from the beginning or from where ``resume`` leads.

    The order is decided by the input and the options alone: the same seed, epoch, rank, world and budget give the same batches.
    """

    def __init__(self, options: _Options, resume: str | None) -> None:
        self._options = options
        self._resume = resume
        self._epoch = 0
        self._current: Epoch | None = None

    def __iter__(self) -> Epoch:
        rank, world = self._shard()
        return self._begin(rank, world, 1)

    def _shard(self) -> tuple[int, int]:
        """Which part is this process's: as it was told, as torch.distributed says where that was begun, or all."""
        options = self._options
        if options.rank is not None and options.world is not None:
            return options.rank, options.world
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1

    def _begin(self, rank: int, world: int, sharers: int) -> Epoch:
        """An epoch of one shard, within its part of the budget."""
        if self._current is not None:
            self._current.close()
        self._current = Epoch(self, self._options, self._resume, self._epoch, rank, world, self._options.budget // sharers)
        self._resume = None
        return self._current

    def _ended(self) -> None:
        """An epoch is over: the next one is shuffled otherwise."""
        self._epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch, which decides how it is shuffled. Epochs that are read to their end count themselves; call this where workers of a
        DataLoader do the reading, as with a ``DistributedSampler``."""
        self._epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: behind the last batch that was given."""
        return {"epoch": self._epoch, "token": self._current.token if self._current is not None and not self._current.ended else self._resume}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter()`` goes on where ``state`` was taken."""
        self._epoch, self._resume = state["epoch"], state["token"]

    @property
    def progress(self) -> StreamProgress | None:
        """How far the epoch is that was begun last."""
        return self._current.progress if self._current is not None else None

    @property
    def broken_rows(self) -> tuple[int, list[tuple[int, str]]]:
        """Rows that were left out: how many, and line and reason of the first of them."""
        return self._current.broken_rows if self._current is not None else (0, [])

    def dataset(self) -> StreamDataset:
        """The same as a ``torch.utils.data.IterableDataset``, for ``DataLoader(stream.dataset(), batch_size=None)``; each worker reads its shard."""
        from oomph.data._torch import StreamDataset

        return StreamDataset(self)

    def ray(self, shards: int | None = None) -> Any:
        """The same as a ``ray.data.Dataset``: each read task reads its shard of the pieces. How many there are is Ray's to say, or ``shards``."""
        from oomph.data._ray import dataset

        return dataset(self, shards)

    def close(self) -> None:
        """Lets go of what was read ahead."""
        if self._current is not None:
            self._current.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # Another process begins its own epoch.
        return {**self.__dict__, "_current": None}

    def __repr__(self) -> str:
        names = ", ".join(self._options.locations[:3]) + (", …" if len(self._options.locations) > 3 else "")
        return f"<oomph.data.stream of {names}: {self._options.batch:,} rows a batch>"

    def _sharded(self, rank: int, world: int) -> Stream:
        """One shard of the same."""
        return Stream(replace(self._options, rank=rank, world=world), None)


class _Formed:
    """Batches in their form, each with the token that leads behind it. A batch that Ctrl-C keeps from being given is the next one."""

    def __init__(self, native_stream: Any, options: _Options) -> None:
        self._native = native_stream
        self._taken: Rows | None = None
        self._form: Callable[[Rows], Any] = {
            "arrow": lambda rows: rows,
            "numpy": Rows.to_numpy,
            "torch": lambda rows: rows.to_torch(nulls=options.nulls_as),
        }[options.form]

    def __iter__(self) -> _Formed:
        return self

    def __next__(self) -> tuple[Any, str]:
        if self._taken is None:
            rows = self._native.next()
            if rows is None:
                raise StopIteration
            self._taken = Rows(rows)
        batch = self._form(self._taken)
        self._taken = None
        return batch, self._native.token()

    def close(self) -> None:
        """Holds nothing."""


class Epoch:
    """One pass over a shard: an iterator of batches."""

    def __init__(self, stream: Stream, options: _Options, resume: str | None, epoch: int, rank: int, world: int, budget: int) -> None:
        self._stream = stream
        self.ended = False
        on_gpu = options.device is not None and options.pin
        ring = budget // _RING_PART if on_gpu else 0
        self._native = native.Stream.open(
            list(options.locations),
            batch=options.batch,
            budget=budget - ring,
            shuffle=options.shuffle,
            epoch=epoch,
            columns=list(options.columns) if options.columns is not None else None,
            rank=rank,
            world=world,
            equal=options.equal,
            on_error=options.on_error,
            delimiter=options.delimiter,
            header=options.header,
            nulls=list(options.nulls),
            drop_last=options.drop_last,
            resume=resume,
        )
        self.token: str = self._native.token()
        self._batches: Any = _Formed(self._native, options)
        if options.device is not None:
            from oomph.data._ring import Copied, ThroughRing

            self._batches = ThroughRing(self._batches, options.device, options.batch, ring) if on_gpu else Copied(self._batches, options.device)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            batch, self.token = next(self._batches)
        except StopIteration:
            self.ended = True
            self._stream._ended()
            self.close()
            raise
        return batch

    @property
    def progress(self) -> StreamProgress:
        return StreamProgress(*self._native.progress())

    @property
    def broken_rows(self) -> tuple[int, list[tuple[int, str]]]:
        broken: tuple[int, list[tuple[int, str]]] = self._native.broken_rows()
        return broken

    def state_dict(self) -> dict[str, Any]:
        """As the stream's; where StatefulDataLoader looks."""
        return self._stream.state_dict()

    def close(self) -> None:
        """Lets go of what was read ahead, pinned buffers included."""
        self._native.close()
        self._batches.close()


def _location(location: str | os.PathLike[str]) -> str:
    """As the native side takes it, to which a folder is all files in it only where it ends with a slash."""
    path = os.fsdecode(os.fspath(location))
    return os.path.join(path, "") if os.path.isdir(path) else path


def stream(
    locations: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    batch: int = 1 << 16,
    *,
    budget: int | str = "2GiB",
    shuffle: bool | int = False,
    columns: Sequence[str] | None = None,
    as_: str = "arrow",
    device: str | None = None,
    pin: bool = True,
    nulls_as: Any = None,
    rank: int | None = None,
    world: int | None = None,
    equal: bool = False,
    resume: str | Mapping[str, Any] | None = None,
    drop_last: bool = False,
    on_error: str = "fail",
    delimiter: str | None = None,
    header: bool = True,
    nulls: Sequence[str] | None = None,
) -> Stream:
    """Reads files of any size batch by batch, in threads, and never holds more than ``budget``.

    ``locations`` are paths, patterns, folders or addresses (s3://, gs://, az://, https://). Batches are Arrow data (``as_="arrow"``), or a dict of NumPy arrays or torch
    tensors; ``device="cuda"`` copies them to the GPU beside its work, through a ring of pinned buffers that the budget includes (``pin=False``: plainly). ``shuffle``
    is a seed (True is 0): pieces come in random order, and rows at random within a window of almost half the budget. ``rank`` and ``world`` choose a shard, by
    themselves those of torch.distributed where it runs; ``equal=True`` gives every rank as many batches. ``resume`` is a ``state_dict()`` or a token.
    ``nulls_as`` is what stands for missing values in tensors.

    >>> for batch in oomph.data.stream("s3://bucket/*.parquet", batch=4096, shuffle=7, as_="torch", device="cuda"):  # doctest: +SKIP
    ...     train(batch)
    """
    several = [locations] if isinstance(locations, (str, os.PathLike)) else list(locations)
    if as_ not in _FORMS:
        raise ValueError(f"as_={as_!r} is none of {', '.join(map(repr, _FORMS))}")
    if device is not None and as_ != "torch":
        raise ValueError(f'device={device!r} is for as_="torch": {as_} data stays in host memory')
    if (rank is None) != (world is None):
        raise ValueError("rank= and world= come together: which shard, and of how many")
    if batch < 1:
        raise ValueError(f"batch={batch} is the number of rows of a batch, and at least 1")
    options = _Options(
        locations=tuple(map(_location, several)),
        batch=batch,
        budget=size_in_bytes(budget),
        shuffle=None if shuffle is False else int(shuffle) if shuffle is not True else 0,
        columns=tuple(columns) if columns is not None else None,
        form=as_,
        nulls_as=nulls_as,
        device=device,
        pin=pin,
        rank=rank,
        world=world,
        equal=equal,
        drop_last=drop_last,
        on_error=on_error,
        delimiter=delimiter,
        header=header,
        nulls=tuple(nulls or ()),
    )
    made = Stream(options, resume if isinstance(resume, str) else None)
    if isinstance(resume, Mapping):
        made.load_state_dict(resume)
    return made
