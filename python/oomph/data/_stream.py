"""``oomph.data.stream``: batches of a table that does not fit, within a budget.

Boundary: what is read, in which order and by whom; threads, memory and decoding are Rust's. How batches reach a GPU is in ``_ring.py``, how PyTorch and Ray take a
stream in ``_torch.py`` and ``_ray.py``.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from oomph._sizes import size_in_bytes
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

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._epoch = 0
        self._resume: str | None = None
        # The process that was given the place to resume at: its state is not that of the workers it makes.
        self._resumed_by: int | None = None
        self._current: Epoch | None = None
        # Shared with the workers of a DataLoader, who say in it that they are the ones who read; None where there is no dataset.
        self._read_by_workers: Any = None

    def __iter__(self) -> Epoch:
        rank, world = self._shard()
        return self._begin(rank, world)

    def _shard(self) -> tuple[int, int]:
        """Which part is this process's: as given, as torch.distributed says where it is initialized, or all."""
        options = self._options
        if options.rank is not None and options.world is not None:
            return options.rank, options.world
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1

    def _begin(self, rank: int, world: int) -> Epoch:
        """An epoch of one shard. Where it goes on stays known until it has given something: whoever only looks at it takes nothing away."""
        self.close()
        self._current = Epoch(self, self._options, self._resume, self._epoch, rank, world, self._options.budget)
        if self._read_by_workers is not None:
            self._read_by_workers.fill_(False)
        return self._current

    def _begin_in_worker(self, rank: int, world: int, worker: int, workers: int) -> Epoch:
        """The part of one worker of a DataLoader, within its part of the budget. Workers count what they begin, not what they end: all are in the same epoch,
        whether or not each was read to its end."""
        if self._resume is not None and self._resumed_by != os.getpid():
            raise ValueError(
                "resume= and load_state_dict() of a stream are for the process that reads it, and here workers of a DataLoader do: use torchdata's StatefulDataLoader, "
                "and give its state_dict() to one with as many workers as when it was made"
            )
        self.close()
        self._current = Epoch(self, self._options, self._resume, self._epoch, rank * workers + worker, world * workers, self._options.budget // workers)
        self._resume, self._epoch = None, self._epoch + 1
        self._read_by_workers.fill_(True)
        return self._current

    def _given(self, epoch: Epoch) -> None:
        """An epoch gave a batch, or its end: what it was begun with is behind it."""
        if epoch is self._current and _worker() is None:
            self._resume = None
            # The next one is shuffled otherwise.
            self._epoch = epoch.number + 1 if epoch.ended else self._epoch

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch, which decides how it is shuffled. Epochs that are read to their end count themselves; call this where workers of a
        DataLoader do the reading, as with a ``DistributedSampler``."""
        self._epoch = _whole("epoch", epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: behind the last batch that was given."""
        in_worker = _worker() is not None
        if self._read_by_workers is not None and bool(self._read_by_workers) and not in_worker:
            raise RuntimeError(
                "workers of a DataLoader read this stream, and only they know where they are: use torchdata's StatefulDataLoader, and its state_dict(), "
                "or num_workers=0, as the stream reads in threads"
            )
        current = self._current
        # A worker that has read its part waits for the others at the end of the same epoch.
        if current is not None and (in_worker or not current.ended):
            return {"epoch": current.number, "token": current.token}
        return {"epoch": self._epoch, "token": self._resume}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next ``iter()`` goes on where ``state`` was taken. An epoch that was begun is over."""
        if not isinstance(state, Mapping) or not {"epoch", "token"} <= set(state):
            raise TypeError(f"the state of a stream has an epoch and a token, as state_dict() gave them; {_kind(state)} is none")
        epoch, token = _whole("epoch", state["epoch"], 0), state["token"]
        if not isinstance(token, (str, type(None))):
            raise TypeError(f"the token of a stream is text, as state_dict() gave it, not {_kind(token)}")
        self.close()
        self._current = None
        self._epoch, self._resume, self._resumed_by = epoch, token, os.getpid()

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
        """Drops what was read ahead."""
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
        return Stream(replace(self._options, rank=rank, world=world))


class _Formed:
    """Batches in their form, each with the token that leads behind it. A batch that Ctrl-C keeps from being given is the next one."""

    def __init__(self, native_stream: Any, options: _Options) -> None:
        self._native = native_stream
        self._taken: Rows | None = None
        self._form: Callable[[Rows], Any] = {
            "arrow": lambda rows: rows,
            "numpy": Rows.to_numpy,
            "torch": lambda rows: rows._as_tensors(options.nulls_as, "stream(..., nulls_as=0)"),
        }[options.form]

    def __iter__(self) -> _Formed:
        return self

    def ready(self) -> bool:
        """Whether ``next`` has something to say at once."""
        is_ready: bool = self._taken is not None or self._native.ready(0.0)
        return is_ready

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
    """One pass over a shard: an iterator of batches, for any number of threads. It alone holds what it has read ahead, and frees it when it is deleted."""

    def __init__(self, stream: Stream, options: _Options, resume: str | None, epoch: int, rank: int, world: int, budget: int) -> None:
        # The stream holds its epoch. The other way round too, both would stay until a collection of cycles.
        self._stream = weakref.ref(stream)
        self._turn = threading.Lock()
        self.number = epoch
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
        self._release = weakref.finalize(self, _release, os.getpid(), self._native, self._batches)

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        with self._turn:
            if self.ended:
                raise StopIteration
            try:
                batch, self.token = next(self._batches)
            except StopIteration:
                # The token leads to the end too, where the last rows were no whole batch.
                self.ended, self.token = True, self._native.token()
                self._update_stream()
                self.close()
                raise
            self._update_stream()
            return batch

    def _update_stream(self) -> None:
        stream = self._stream()
        if stream is not None:
            stream._given(self)

    @property
    def progress(self) -> StreamProgress:
        return StreamProgress(*self._native.progress())

    @property
    def broken_rows(self) -> tuple[int, list[tuple[int, str]]]:
        broken: tuple[int, list[tuple[int, str]]] = self._native.broken_rows()
        return broken

    def close(self) -> None:
        """Frees what was read ahead, pinned buffers included."""
        self._release()


# Streams that a fork brought along. Their threads are in the other process, and a lock that one of them held is held for ever: they are never touched.
_of_another_process: list[Any] = []


def _release(process: int, native_stream: Any, batches: Any) -> None:
    if os.getpid() != process:
        _of_another_process.append((native_stream, batches))
        return
    native_stream.close()
    batches.close()


def _worker() -> Any:
    """What PyTorch says of the worker of a DataLoader that this process is; None in any other."""
    torch = sys.modules.get("torch")
    return torch.utils.data.get_worker_info() if torch is not None else None


def _kind(thing: object) -> str:
    module = type(thing).__module__
    return type(thing).__qualname__ if module == "builtins" else f"{module.partition('.')[0]}.{type(thing).__qualname__}"


def _locations(given: object) -> Iterator[str]:
    """As the native side takes them, to which a folder is all files in it only where it ends with a slash."""
    # No frame, whose items are the names of its columns, and no set, whose order is another in every process.
    several: Iterable[object] = [given] if isinstance(given, (str, bytes, os.PathLike)) else given if isinstance(given, (Sequence, Iterator)) else [None]
    for location in several:
        if not isinstance(location, (str, bytes, os.PathLike)):
            raise TypeError(
                f"a stream reads files: a path, a pattern, a folder, an address, or a list of them, not {_kind(given if location is None else location)}; "
                "what is in memory already needs no stream: oomph.data.shrink makes it smaller, oomph.data.share gives it to workers"
            )
        path = os.fsdecode(location)
        yield os.path.join(path, "") if os.path.isdir(path) else path


def _whole(name: str, value: Any, least: int, most: int = 2**63 - 1) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is no whole number") from None
    if not least <= number <= most:
        raise ValueError(f"{name}={number} is not from {least} to {most}")
    return number


def _seed(shuffle: Any) -> int | None:
    if shuffle is None or shuffle is False:
        return None
    return 0 if shuffle is True else _whole("shuffle", shuffle, 0)


def _columns(columns: Any) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, (str, bytes)):
        raise TypeError(f"columns= is a list of names: columns=[{columns!r}]")
    names = tuple(columns)
    for place, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"columns= is a list of names, and {name!r} is none")
        if name in names[:place]:
            raise ValueError(f"columns= names {name!r} twice")
    return names


def _device(device: Any, as_: str) -> str | None:
    """Where tensors go; None where they stay on the CPU."""
    if device is None:
        return None
    if as_ != "torch":
        raise ValueError(f'device={str(device)!r} is for as_="torch": {as_} data stays in host memory')
    import torch

    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r}: {error}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"device={str(device)!r}, and torch {torch.__version__} finds no GPU here (torch.cuda.is_available() is False); without device= the tensors stay on the CPU"
        )
    return None if found.type == "cpu" else str(found)


def stream(
    locations: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    batch: int = 1 << 16,
    *,
    budget: int | str = "2GiB",
    shuffle: bool | int | None = False,
    columns: str | Sequence[str] | None = None,
    as_: str = "arrow",
    device: Any = None,
    pin: bool = True,
    nulls_as: Any = None,
    rank: int | None = None,
    world: int | None = None,
    equal: bool = False,
    resume: str | bytes | Mapping[str, Any] | None = None,
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
    if as_ not in _FORMS:
        raise ValueError(f"as_={as_!r} is none of {', '.join(map(repr, _FORMS))}")
    if (rank is None) != (world is None):
        raise ValueError("rank= and world= come together: which shard, and of how many")
    if rank is not None and world is not None:
        world = _whole("world", world, 1)
        rank = _whole("rank", rank, 0, world - 1)
    to = _device(device, as_)
    options = _Options(
        locations=tuple(_locations(locations)),
        batch=_whole("batch", batch, 1),
        budget=size_in_bytes(budget),
        shuffle=_seed(shuffle),
        columns=_columns(columns),
        form=as_,
        nulls_as=nulls_as,
        device=to,
        # Only CUDA's copies run beside its work.
        pin=pin and to is not None and to.startswith("cuda"),
        rank=rank,
        world=world,
        equal=equal,
        drop_last=drop_last,
        on_error=on_error,
        delimiter=delimiter,
        header=header,
        nulls=tuple(nulls or ()),
    )
    made = Stream(options)
    if isinstance(resume, (str, bytes)):
        resume = {"epoch": 0, "token": resume if isinstance(resume, str) else resume.decode(errors="replace")}
    if resume is not None:
        made.load_state_dict(resume)
    return made
