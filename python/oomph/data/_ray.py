"""A stream as Ray Data takes it: a datasource whose read tasks each read a shard. Scheduling, spilling and back-pressure are Ray's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

if TYPE_CHECKING:
    from oomph.data._stream import Stream


class StreamDatasource(Datasource):
    """As many shards as Ray asks for."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
        nothing_known = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=self._stream._options.locations)
        return [ReadTask(_Shard(self._stream._sharded(rank, parallelism)), nothing_known) for rank in range(parallelism)]


class _Shard:
    """What a task runs: the batches of one shard, as Arrow tables."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __call__(self) -> Iterator[Any]:
        for rows in self._stream:
            yield rows.to_pyarrow()


def dataset(stream: Stream, shards: int | None) -> Any:
    """A ``ray.data.Dataset`` of so many shards, or of as many as Ray finds right."""
    if stream._options.form != "arrow":
        raise ValueError('Ray moves Arrow data: use as_="arrow", and Ray\'s iter_torch_batches() where tensors are wanted')
    return ray.data.read_datasource(StreamDatasource(stream), override_num_blocks=shards)
