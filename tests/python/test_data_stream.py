"""oomph.data.stream: every row once, within the budget, in whatever hands: iterators, DataLoader, torch.distributed, Ray, a GPU."""

import http.server
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from conftest import ROOT

sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("OOMPH_COMMAND", os.environ.get("OOMPH", str(ROOT / "target" / "debug" / "oomph")))

import oomph.data as data  # noqa: E402

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
ROWS = 20_000


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    return pa.table({"id": np.arange(ROWS), "x": rng.random(ROWS, dtype="f4"), "flag": rng.random(ROWS) < 0.5, "name": [f"n{i % 7}" for i in range(ROWS)]})


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    """Three Parquet files of several row groups."""
    folder = tmp_path_factory.mktemp("parquet")
    for number, begin in enumerate(range(0, ROWS, 7000)):
        pyarrow.parquet.write_table(table.slice(begin, 7000), folder / f"part-{number}.parquet", row_group_size=1500)
    return folder


def ids(batches):
    return [int(row) for batch in batches for row in batch["id"]]


def numbers(folder, **options):
    return data.stream(folder, **{"batch": 999, "columns": ["id", "x"], "as_": "numpy", "budget": "64MiB", **options})


def test_every_row_comes_once_and_in_order(table, folder):
    batches = list(data.stream(folder, batch=999, budget="64MiB"))
    assert [len(batch) for batch in batches] == [999] * 20 + [20]
    assert pa.concat_tables(batch.to_pyarrow() for batch in batches).cast(table.schema).equals(table)
    assert ids(numbers(str(folder / "*.parquet"))) == list(range(ROWS))
    assert sum(len(batch["id"]) for batch in numbers(folder, drop_last=True)) == 999 * 20


def test_batches_come_as_what_was_asked_for(table, folder):
    rows = next(iter(data.stream(folder, batch=100)))
    assert rows.columns == ("id", "x", "flag", "name") and rows.to_pandas()["name"][8] == "n1" and rows["id"].to_numpy()[99] == 99
    arrays = next(iter(data.stream(folder, batch=100, as_="numpy")))
    assert arrays["x"].dtype == "f4" and arrays["flag"].dtype == bool and arrays["name"][6] == "n6"
    tensors = next(iter(data.stream(folder, batch=100, as_="torch", columns=["x", "id"])))
    assert list(tensors) == ["x", "id"] and torch.equal(tensors["id"], torch.arange(100)) and tensors["x"].dtype == torch.float32


def test_csv_and_pandas_agree(table, tmp_path):
    table.to_pandas().to_csv(tmp_path / "table.csv", index=False)
    read = pd.concat([rows.to_pandas() for rows in data.stream(tmp_path / "table.csv", batch=3000, budget="64MiB")], ignore_index=True)
    theirs = pd.read_csv(tmp_path / "table.csv")
    assert (read["id"] == theirs["id"]).all() and (read["x"] == theirs["x"]).all() and (read["name"] == theirs["name"]).all() and (read["flag"] == theirs["flag"]).all()


def test_a_shuffle_is_repeatable_and_another_every_epoch(folder):
    stream = numbers(folder, shuffle=5)
    first, second = ids(stream), ids(stream)
    assert sorted(first) == sorted(second) == list(range(ROWS)) and first != second
    assert ids(numbers(folder, shuffle=5)) == first and ids(numbers(folder, shuffle=6)) != first
    again = numbers(folder, shuffle=5)
    again.set_epoch(1)
    assert ids(again) == second
    moved = sum(abs(place - row) > 50 for place, row in enumerate(first))
    assert moved > ROWS * 0.9


@pytest.mark.parametrize("shuffle", [False, 3])
def test_a_stream_goes_on_where_it_was_left(folder, shuffle):
    whole = ids(numbers(folder, shuffle=shuffle))
    for batches in (0, 1, 7, 20, 21):
        stream = numbers(folder, shuffle=shuffle)
        epoch = iter(stream)
        begun = [next(epoch) for _ in range(batches)]
        state = pickle.loads(pickle.dumps(stream.state_dict()))
        stream.close()
        rest = numbers(folder, shuffle=shuffle, resume=state)
        assert ids(begun) + ids(rest) == whole
        # And only once: the next epoch is whole.
        assert sorted(ids(rest)) == list(range(ROWS))


def test_a_token_of_something_else_is_refused(folder, tmp_path):
    epoch = iter(numbers(folder))
    next(epoch)
    pyarrow.parquet.write_table(pa.table({"id": [1], "x": [2.0]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError):
        ids(numbers(tmp_path / "other.parquet", resume=epoch.token))
    with pytest.raises(ValueError):
        ids(numbers(folder, resume="nonsense"))


@pytest.mark.parametrize("world", [2, 3, 16])
def test_shards_are_disjoint_and_complete(folder, world):
    shards = [ids(numbers(folder, rank=rank, world=world, shuffle=1)) for rank in range(world)]
    assert sorted(row for shard in shards for row in shard) == list(range(ROWS))
    equal = [len(list(numbers(folder, batch=100, rank=rank, world=world, equal=True))) for rank in range(world)]
    assert len(set(equal)) == 1


def test_the_budget_is_kept(folder):
    stream = numbers(folder, budget="24MiB", batch=100)
    for _ in stream:
        assert stream.progress.held <= 24 << 20
    assert 0 < stream.progress.peak <= 24 << 20 and stream.progress.rows == ROWS


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda folder: data.stream(folder, as_="pandas"), ValueError, "as_='pandas' is none of 'arrow', 'numpy', 'torch'"),
        (lambda folder: data.stream(folder, device="cuda"), ValueError, 'device=\'cuda\' is for as_="torch"'),
        (lambda folder: data.stream(folder, rank=0), ValueError, "rank= and world= come together"),
        (lambda folder: data.stream(folder, batch=0), ValueError, "at least 1"),
        (lambda folder: data.stream(folder, budget="much"), ValueError, "a size is a number of bytes"),
        (lambda folder: next(iter(data.stream(folder, columns=["nowhere"]))), ValueError, "nowhere"),
        (lambda folder: next(iter(data.stream(folder / "nothing.parquet"))), OSError, "nothing.parquet"),
        (lambda folder: next(iter(data.stream(folder, as_="torch"))), TypeError, "column 'name' is Utf8"),
    ],
)
def test_wrong_use_gives_a_sentence(folder, call, error, sentence):
    with pytest.raises(error) as raised:
        call(folder)
    assert sentence in str(raised.value)


def test_a_broken_row_is_named_by_its_line(tmp_path):
    (tmp_path / "broken.csv").write_text("a,b\n" + "1,2\n" * 500 + "1,2,3\n" + "1,2\n" * 500)
    with pytest.raises(data.DataError, match=r"broken\.csv: line 502"):
        list(data.stream(tmp_path / "broken.csv", batch=10))
    stream = data.stream(tmp_path / "broken.csv", batch=10, on_error="skip")
    assert sum(map(len, stream)) == 1000
    count, first = stream.broken_rows
    assert count == 1 and first[0][0] == 502


class Slow(http.server.BaseHTTPRequestHandler):
    """A web server that thinks for two seconds once it is told to."""

    content, thinking = b"", threading.Event()

    def do_HEAD(self):
        self.answer(b"")

    def do_GET(self):
        if self.thinking.is_set():
            time.sleep(2)
        begin, end = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")
        self.answer(self.content[int(begin) : int(end) + 1 if end else None], int(begin))

    def answer(self, piece, begin=0):
        self.send_response(206 if piece else 200)
        self.send_header("Content-Length", str(len(piece) or len(self.content)))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Sun, 15 Nov 2026 00:00:00 GMT")
        if piece:
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(piece) - 1}/{len(self.content)}")
        self.end_headers()
        self.wfile.write(piece)

    def log_message(self, *_):
        pass


def test_ctrl_c_is_heard_and_no_batch_is_lost():
    """It is heard while the network is waited for, and the batch that was being made is the next one."""
    Slow.content = b"id\n" + b"".join(b"%d\n" % row for row in range(10**6, 2 * 10**6))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        epoch = iter(data.stream(f"http://127.0.0.1:{server.server_port}/table.csv", batch=50_000, as_="numpy", budget="32MiB"))
        seen = [next(epoch)]
        Slow.thinking.set()
        pressed = []

        def press():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.7, press)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                seen.append(next(epoch))
        assert time.monotonic() - pressed[0] < 0.5
        Slow.thinking.clear()
        seen.extend(epoch)
        server.shutdown()
    assert np.array_equal(np.concatenate([batch["id"] for batch in seen]), np.arange(10**6, 2 * 10**6))


# -- PyTorch


def test_a_dataset_is_one_of_pytorch_s(folder):
    dataset = numbers(folder, as_="torch").dataset()
    assert isinstance(dataset, IterableDataset) and isinstance(pickle.loads(pickle.dumps(dataset)), IterableDataset)
    assert ids(DataLoader(dataset, batch_size=None)) == list(range(ROWS))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_their_own_shards(folder, context):
    dataset = numbers(folder, as_="torch", shuffle=2).dataset()
    assert sorted(ids(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context))) == list(range(ROWS))


def test_a_stateful_loader_goes_on_where_it_was_left(folder):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        return stateful.StatefulDataLoader(numbers(folder, as_="torch", shuffle=2).dataset(), batch_size=None, num_workers=2)

    whole = [ids([batch]) for batch in loader()]
    begun = loader()
    epoch = iter(begun)
    first = [ids([next(epoch)]) for _ in range(5)]
    state = begun.state_dict()
    del epoch, begun
    resumed = loader()
    resumed.load_state_dict(state)
    assert first + [ids([batch]) for batch in resumed] == whole


def test_ranks_of_torch_distributed_read_their_own_shards(folder, tmp_path):
    program = textwrap.dedent("""
        import os, sys
        import torch.distributed
        import oomph.data as data
        torch.distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/rendezvous", rank=int(sys.argv[2]), world_size=2)
        mine = [int(row) for batch in data.stream(sys.argv[3], batch=500, columns=["id"], as_="numpy", shuffle=4) for row in batch["id"]]
        open(f"{sys.argv[1]}/{sys.argv[2]}", "w").write(" ".join(map(str, mine)))
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        os._exit(0)
    """)
    ranks = [subprocess.Popen([sys.executable, "-c", program, tmp_path, str(rank), folder], env=ENVIRONMENT, stderr=subprocess.PIPE) for rank in range(2)]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors.decode()
    shards = [{int(row) for row in (tmp_path / str(rank)).read_text().split()} for rank in range(2)]
    assert shards[0].isdisjoint(shards[1]) and shards[0] | shards[1] == set(range(ROWS)) and all(shards)


# -- a GPU


GPU = """
import sys, torch
import oomph.data as data
stream = data.stream(sys.argv[1], batch=999, columns=["id", "x", "flag"], as_="torch", device="cuda", budget="64MiB")
rows, slots = 0, set()
from oomph.data import _ring
send = _ring.Ring.send
def watched(ring, batch):
    slots.update(slot.memory.data_ptr() for slot in ring.slots)
    assert all(slot.memory.is_pinned() for slot in ring.slots)
    assert sum(slot.memory.numel() for slot in ring.slots) <= 16 << 20
    return send(ring, batch)
_ring.Ring.send = watched
for batch in stream:
    assert all(tensor.is_cuda for tensor in batch.values())
    assert batch["id"].dtype == torch.int64 and batch["x"].dtype == torch.float32 and batch["flag"].dtype == torch.bool
    assert all(tensor.data_ptr() % 256 == 0 for tensor in batch.values())
    rows += len(batch["id"])
    (batch["x"] * 2).sum()
assert rows == 20000 and len(slots) == 3, (rows, slots)
print("whole")
"""


def test_batches_cross_to_a_gpu_through_a_ring(folder, predict, tmp_path):
    (tmp_path / "train.py").write_text(GPU)
    predicted = predict(tmp_path / "train.py", folder, gpu="t4", env={"PYTHONPATH": str(ROOT / "python")}, format="text")
    assert predicted.code == 0 and "whole" in predicted.out + predicted.err, predicted.err


def test_a_ring_that_does_not_fit_its_budget_says_what_would(folder, predict, tmp_path):
    (tmp_path / "train.py").write_text(GPU.replace("batch=999", "batch=20000").replace('"64MiB"', '"1MiB"'))
    predicted = predict(tmp_path / "train.py", folder, gpu="t4", env={"PYTHONPATH": str(ROOT / "python")}, format="text")
    assert predicted.code != 0 and "budget" in predicted.out + predicted.err


# -- larger than one machine


def test_ray_reads_every_row_once(folder, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        dataset = data.stream(folder, batch=1000, columns=["id"], budget="64MiB").ray(shards=2)
        assert sorted(row["id"] for row in dataset.take_all()) == list(range(ROWS))
    finally:
        ray.shutdown()
