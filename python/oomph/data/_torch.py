"""A stream as PyTorch's DataLoader takes it: an ``IterableDataset`` of which each rank and each worker reads its own shard."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from oomph.data._stream import Stream


class StreamDataset(IterableDataset):
    """Gives whole batches: ``DataLoader(stream.dataset(), batch_size=None, num_workers=2)``. The budget is shared by the workers."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream
        stream._read_by_workers = torch.zeros((), dtype=torch.bool).share_memory_()
        # Of the process that sent it here: a worker that is spawned has no process group to ask.
        self._shard: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shard": self._shard or self.stream._shard()}

    def __copy__(self) -> StreamDataset:
        """Another one, at the same place: what is read from it is not missing here."""
        return StreamDataset(copy.copy(self.stream))

    def __iter__(self) -> Iterator[Any]:
        rank, world = self._shard or self.stream._shard()
        worker = get_worker_info()
        if worker is None:
            return self.stream._begin(rank, world)
        if self.stream._options.device is not None:
            raise ValueError("a worker of a DataLoader cannot copy to the GPU: use num_workers=0, the stream reads in threads")
        return self.stream._begin_in_worker(rank, world, worker.id, worker.num_workers)

    def set_epoch(self, epoch: int) -> None:
        """See :meth:`Stream.set_epoch`."""
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Stream.state_dict`."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See :meth:`Stream.load_state_dict`."""
        self.stream.load_state_dict(state)
