"""oomph.data.stream: every row once, within the budget, in whatever hands: iterators, DataLoader, torch.distributed, Ray, a GPU."""

import contextlib
import gc
import http.server
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import oomph
import oomph.data as data
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest
import torch
from conftest import ROOT
from torch.utils.data import DataLoader, IterableDataset

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


def test_a_state_may_be_a_token_as_text_or_bytes_and_nothing_else(folder):
    epoch = iter(numbers(folder))
    next(epoch)
    for token in (epoch.token, epoch.token.encode()):
        assert ids(numbers(folder, resume=token)) == list(range(999, ROWS))
    for nonsense in (7, 7.0, ["token"], {"epoch": 0}, {"token": epoch.token}):
        with pytest.raises(TypeError, match=r"as state_dict\(\) gave them"):
            numbers(folder, resume=nonsense)
    with pytest.raises(TypeError, match="the token of a stream is text"):
        numbers(folder, resume={"epoch": 0, "token": 5})


def test_an_epoch_that_gave_nothing_takes_nothing_away(folder):
    begun = iter(numbers(folder))
    next(begun)
    stream = numbers(folder, resume=begun.token)
    iter(stream)
    assert ids(stream) == list(range(999, ROWS))
    assert ids(stream) == list(range(ROWS))


def test_a_state_that_is_loaded_ends_the_epoch_that_was_begun(folder):
    stream = numbers(folder, shuffle=1)
    first = [ids([batch]) for batch in stream]
    second = [ids([batch]) for batch in stream]
    stream = numbers(folder, shuffle=1)
    epoch = iter(stream)
    begun = [next(epoch), next(epoch)]
    state = stream.state_dict()
    next(epoch)
    stream.load_state_dict(state)
    with pytest.raises(ValueError, match="closed"):
        next(epoch)
    assert stream.state_dict() == state
    assert [ids([batch]) for batch in begun] + [ids([batch]) for batch in stream] == first
    assert [ids([batch]) for batch in stream] == second
    # The number of the next epoch is not that of the one that runs.
    epoch = iter(stream)
    next(epoch)
    stream.set_epoch(9)
    assert stream.state_dict() == {"epoch": 2, "token": epoch.token}


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted as Linux lists them")
def test_whoever_stops_early_leaves_nothing_behind(folder):
    def threads():
        names = []
        for task in pathlib.Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it may end meanwhile
                names.append((task / "comm").read_text())
        return [name for name in names if name.startswith("oomph")]

    deadline = time.monotonic() + 10
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    gc.disable()
    try:
        for _ in numbers(folder, budget="32MiB", batch=10):
            assert threads()
            break
        kept = numbers(folder)
        epoch = iter(kept)
        next(epoch)
        del kept, epoch
        while threads() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not threads()
    finally:
        gc.enable()


def test_threads_share_an_epoch(folder):
    epoch, seen, errors = iter(numbers(folder, batch=50)), [], []

    def take():
        try:
            seen.extend(ids(epoch))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and sorted(seen) == list(range(ROWS))


def test_closing_ends_a_wait():
    Slow.content = b"id\n" + b"1\n" * 10**6
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stream = data.stream(f"http://127.0.0.1:{server.server_port}/table.csv", batch=10**6, as_="numpy", budget="32MiB")
        epoch = iter(stream)
        Slow.thinking.set()
        threading.Timer(0.3, stream.close).start()
        begun = time.monotonic()
        with pytest.raises(ValueError, match="the stream is closed"):
            list(epoch)
        assert time.monotonic() - begun < 1.5
        Slow.thinking.clear()
        server.shutdown()


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
        (lambda folder: data.stream(folder, device="cuda"), ValueError, "device='cuda' is for as_=\"torch\""),
        (lambda folder: data.stream(folder, rank=0), ValueError, "rank= and world= come together"),
        (lambda folder: data.stream(folder, rank=-1, world=2), ValueError, "rank=-1 is not from 0 to 1"),
        (lambda folder: data.stream(folder, rank=2, world=2), ValueError, "rank=2 is not from 0 to 1"),
        (lambda folder: data.stream(folder, rank=0, world=0), ValueError, "world=0 is not from 1"),
        (lambda folder: data.stream(folder, batch=0), ValueError, "batch=0 is not from 1"),
        (lambda folder: data.stream(folder, batch=1.5), TypeError, "batch=1.5 is no whole number"),
        (lambda folder: data.stream(folder, shuffle=-1), ValueError, "shuffle=-1 is not from 0"),
        (lambda folder: data.stream(folder, shuffle="yes"), TypeError, "shuffle='yes' is no whole number"),
        (lambda folder: data.stream(folder).set_epoch(-1), ValueError, "epoch=-1 is not from 0"),
        (lambda folder: data.stream(folder, columns="id"), TypeError, "columns=['id']"),
        (lambda folder: data.stream(folder, columns=["id", "id"]), ValueError, "columns= names 'id' twice"),
        (lambda folder: data.stream(folder, columns=[1]), TypeError, "1 is none"),
        (lambda folder: data.stream(pd.DataFrame({"a": [1]})), TypeError, "a stream reads files: a path, a pattern, a folder, an address, or a list of them, not pandas.DataFrame"),
        (lambda folder: data.stream(np.arange(3)), TypeError, "not numpy.ndarray"),
        (lambda folder: data.stream([folder, 3]), TypeError, "not int"),
        (lambda folder: data.stream({folder}), TypeError, "not set"),
        (lambda folder: data.stream(None), TypeError, "not NoneType"),
        (lambda folder: data.stream(folder, as_="torch", device="nowhere"), ValueError, "device='nowhere'"),
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


def test_tensors_for_the_cpu_stay_there(folder):
    for device in ("cpu", torch.device("cpu")):
        assert torch.equal(next(iter(numbers(folder, as_="torch", device=device)))["id"], torch.arange(999))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="finds no GPU here"):
            numbers(folder, as_="torch", device="cuda")


def test_files_come_as_they_are_listed(folder):
    parts = sorted(folder.glob("*.parquet"), reverse=True)
    assert ids(numbers(part for part in parts)) == ids(numbers(parts)) == [*range(14000, ROWS), *range(7000, 14000), *range(7000)]
    assert ids(numbers(os.fsencode(folder), shuffle=None)) == list(range(ROWS))


def test_a_line_longer_than_the_budget_is_one_broken_row(tmp_path):
    """None of it is taken for a row."""
    (tmp_path / "long.csv").write_text("a\n1\n" + "2" * (3 << 20) + "\n3\n")
    stream = data.stream(tmp_path / "long.csv", batch=10, budget="1MiB", on_error="skip", as_="numpy")
    assert [batch["a"].tolist() for batch in stream] == [[1, 3]]
    assert stream.broken_rows[0] == 1 and stream.broken_rows[1][0][0] == 3


def test_a_broken_row_is_named_by_its_line(tmp_path):
    (tmp_path / "broken.csv").write_text("a,b\n" + "1,2\n" * 500 + "1,2,3\n" + "1,2\n" * 500)
    with pytest.raises(data.DataError, match=r"broken\.csv: line 502"):
        list(data.stream(tmp_path / "broken.csv", batch=10))
    stream = data.stream(tmp_path / "broken.csv", batch=10, on_error="skip")
    assert sum(map(len, stream)) == 1000
    count, first = stream.broken_rows
    assert count == 1 and first[0][0] == 502


class Slow(http.server.BaseHTTPRequestHandler):
    """A web server that waits two seconds once it is asked to."""

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


def test_workers_leave_an_epoch_of_their_parent_alone(folder):
    dataset = numbers(folder, as_="torch", budget="32MiB", batch=100).dataset()
    epoch = iter(dataset)
    seen = [next(epoch)]
    for _ in range(5):
        assert sorted(ids(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork"))) == list(range(ROWS))
        seen.append(next(epoch))
    assert ids(seen) + ids(epoch) == list(range(ROWS))


def test_rows_cross_from_a_worker(table, folder):
    rows = [rows.to_pyarrow() for rows in DataLoader(data.stream(folder, batch=999, budget="64MiB").dataset(), batch_size=None, num_workers=2)]
    read = pa.concat_tables(rows).cast(table.schema)
    assert read.take(pa.compute.sort_indices(read["id"])).equals(table)


def test_rows_are_pickled_whole(tmp_path):
    table = pa.table({"x": [1.5, None, 3.0], "word": pa.array(["a", None, "ä"]).dictionary_encode(), "flag": [True, None, False], "list": [[1], None, []]})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    rows = next(iter(data.stream(tmp_path / "table.parquet", batch=2)))
    again = pickle.loads(pickle.dumps(rows))
    assert type(again) is type(rows) and again.columns == rows.columns and again.to_pyarrow().equals(rows.to_pyarrow()) and len(again) == 2
    with pytest.raises(ValueError, match="cannot cross"):
        type(rows._native).unpacked(b"nonsense")
    with pytest.raises(TypeError, match="a Table is not pickled"):
        pickle.dumps(data.load(tmp_path / "table.parquet", columns=["x"]))


def test_the_state_of_one_process_is_not_that_of_workers(folder):
    dataset = numbers(folder, as_="torch").dataset()
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert dataset.state_dict() == {"epoch": 0, "token": None}
    assert sorted(ids(loader)) == list(range(ROWS))
    for holder in (dataset, dataset.stream):
        with pytest.raises(RuntimeError, match="StatefulDataLoader"):
            holder.state_dict()
    # Read here, it is known here.
    epoch = iter(dataset)
    next(epoch)
    state = dataset.state_dict()
    assert state["token"] == epoch.token
    for workers in (1, 2):
        resumed = numbers(folder, as_="torch", resume=state).dataset()
        epoch = iter(DataLoader(resumed, batch_size=None, num_workers=workers))
        with pytest.raises(ValueError, match="as many workers as when it was made"):
            ids(epoch)
        # The error holds on to it, and of what the garbage collector finds PyTorch waits five seconds for each worker.
        epoch._shutdown_workers()
        # Nothing was taken from it.
        assert ids(DataLoader(resumed, batch_size=None)) == list(range(999, ROWS))
        assert ids(DataLoader(resumed, batch_size=None)) == list(range(ROWS))


def test_workers_that_stay_are_in_the_same_epoch(folder):
    """Also where one of them was at its end when the program went on, and the other was not."""
    dataset = numbers(folder, as_="torch", shuffle=2, batch=3000).dataset()
    loader = DataLoader(dataset, batch_size=None, num_workers=3, persistent_workers=True, prefetch_factor=1)
    whole = len(list(loader))
    for begun in (1, whole - 2, whole - 1):
        batches = iter(loader)
        for _ in range(begun):
            next(batches)
        assert sorted(ids(loader)) == list(range(ROWS))


def test_a_stateful_loader_goes_on_where_it_was_left(folder):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(workers=2, **options):
        return stateful.StatefulDataLoader(numbers(folder, as_="torch", shuffle=2).dataset(), batch_size=None, num_workers=workers, **options)

    def epochs(of, count):
        return [[ids([batch]) for batch in of] for _ in range(count)]

    for workers, options in ((0, {}), (2, {}), (2, {"persistent_workers": True})):
        first, second = epochs(loader(workers, **options), 2)
        assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(ROWS))
        # Workers that are made anew for an epoch are given its number.
        assert (first == second) == (options == {} and workers > 0)
        for count in (5, len(first) - 1, len(first)):
            begun = loader(workers, **options)
            epoch = iter(begun)
            assert [ids([next(epoch)]) for _ in range(count)] == first[:count]
            state = begun.state_dict()
            del epoch, begun
            resumed = loader(workers, **options)
            resumed.load_state_dict(state)
            assert epochs(resumed, 2) == [first[count:], second]


def test_the_doctor_takes_nothing_away(folder):
    begun = iter(numbers(folder, as_="torch"))
    next(begun)
    dataset = numbers(folder, as_="torch", resume=begun.token).dataset()
    loader = DataLoader(dataset, batch_size=None)
    assert "the stream is closed" not in str(oomph.doctor(loader))
    assert ids(loader) == list(range(999, ROWS))
    batches = iter(loader)
    seen = [next(batches)]
    oomph.doctor(loader)
    assert ids(seen) + ids(batches) == list(range(ROWS))


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
import gc, sys, torch, weakref
gc.disable()
import oomph.data as data
stream = data.stream(sys.argv[1], batch=999, columns=["id", "x", "flag"], as_="torch", device="cuda", budget="64MiB")
rows, slots, crossed = 0, set(), []
from oomph.data import _ring
send = _ring.Ring.send
def watched(ring, batch):
    slots.update(slot.memory.data_ptr() for slot in ring.slots)
    assert all(slot.memory.is_pinned() for slot in ring.slots)
    assert sum(slot.memory.numel() for slot in ring.slots) <= 16 << 20
    crossing = send(ring, batch)
    crossed.append(weakref.ref(crossing._whole))
    return crossing
_ring.Ring.send = watched
for batch in stream:
    assert all(tensor.is_cuda for tensor in batch.values())
    assert batch["id"].dtype == torch.int64 and batch["x"].dtype == torch.float32 and batch["flag"].dtype == torch.bool
    assert all(tensor.data_ptr() % 256 == 0 for tensor in batch.values())
    rows += len(batch["id"])
    (batch["x"] * 2).sum()
assert rows == 20000 and len(slots) == 3, (rows, slots)
# Nothing is left for a collection of cycles: in a process that is forked later, letting go of memory on the GPU is its end.
del batch
assert len(crossed) == 21 and not any(whole() is not None for whole in crossed)
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


class Sent:
    """A ring of which only the order matters."""

    interrupted = ()

    def __init__(self, *_):
        self.slots = [None] * 3
        self.sent = []
        self.waits = 0

    def send(self, batch):
        self.sent.append(batch["x"].tolist())
        return self

    def arrive(self):
        return {"x": torch.tensor(self.sent.pop(0))}

    def begin(self):
        return self

    def synchronize(self):
        self.waits += 1
        if self.waits in self.interrupted:
            raise KeyboardInterrupt

    def close(self):
        pass


class Scripted:
    """A source that gives what it was set to: batches at once, late ones (None before them), errors."""

    def __init__(self, *script):
        self.script = list(script)

    def ready(self):
        return bool(self.script) and self.script[0] is not None

    def __next__(self):
        while self.script and self.script[0] is None:
            self.script.pop(0)
        if not self.script:
            raise StopIteration
        now = self.script.pop(0)
        if isinstance(now, Exception):
            raise now
        return {"x": torch.tensor([now])}, f"behind {now}"


def test_the_ring_gives_what_is_there(monkeypatch):
    from oomph.data import _ring

    monkeypatch.setattr(_ring, "Ring", Sent)

    def through(*script):
        source = Scripted(*script)
        return source, _ring.ThroughRing(source, "cpu", 1, 1 << 20)

    # A late batch keeps nobody from the one before it.
    source, ring = through(1, 2, None, 3)
    assert next(ring) == ({"x": torch.tensor([1])}, "behind 1") and source.script == [None, 3]
    assert next(ring)[1] == "behind 2" and source.script == [None, 3]
    assert [token for _, token in ring] == ["behind 3"]
    # An error comes behind what came before it, and once: whoever can go on goes on.
    source, ring = through(1, 2, OSError("gone"), 3)
    assert next(ring)[1] == "behind 1" and next(ring)[1] == "behind 2"
    with pytest.raises(OSError, match="gone"):
        next(ring)
    assert [token for _, token in ring] == ["behind 3"]
    # Ctrl-C while the GPU is waited for takes nothing away.
    monkeypatch.setattr(Sent, "interrupted", (2, 3))
    source, ring = through(*range(9))
    given = []
    while len(given) < 9:
        with contextlib.suppress(KeyboardInterrupt):
            given.append(next(ring)[1])
    assert given == [f"behind {number}" for number in range(9)] and ring._ring.waits > 3


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


def test_rows_that_are_arrays_keep_their_shape(tmp_path):
    folder = tmp_path
    images = np.random.default_rng(5).random((1000, 3, 4), dtype=np.float32)
    np.save(folder / "images.npy", images)
    batches = list(data.stream(folder / "images.npy", batch=300, as_="torch"))
    assert [tuple(batch["values"].shape) for batch in batches] == [(300, 3, 4)] * 3 + [(100, 3, 4)]
    assert (torch.cat([batch["values"] for batch in batches]).numpy() == images).all()
    arrays = [batch["values"] for batch in data.stream(folder / "images.npy", batch=300, as_="numpy")]
    assert (np.concatenate(arrays) == images).all()
    shuffled = torch.cat([batch["values"] for batch in data.stream(folder / "images.npy", batch=300, shuffle=3, as_="torch")]).numpy()
    order = np.argsort(shuffled[:, 0, 0])
    assert not (shuffled == images).all() and (shuffled[order] == images[np.argsort(images[:, 0, 0])]).all()

    # Lists of a fixed size in Parquet, some rows without one, and a value that is missing in another.
    vectors = pa.array([[1.0, 2.0], None, [None, 4.0], [5.0, 6.0]], type=pa.list_(pa.float64(), 2))
    pa.parquet.write_table(pa.table({"vector": vectors, "label": [1, 2, 3, 4]}), folder / "vectors.parquet")
    masked = next(iter(data.stream(folder / "vectors.parquet", as_="numpy")))["vector"]
    assert masked.tolist() == [[1.0, 2.0], [None, None], [None, 4.0], [5.0, 6.0]]
    filled = next(iter(data.stream(folder / "vectors.parquet", as_="torch", nulls_as=-1)))["vector"]
    assert filled.tolist() == [[1.0, 2.0], [-1.0, -1.0], [-1.0, 4.0], [5.0, 6.0]]
    # What it says is what stream takes: its nulls= is what stands for nothing in text files.
    with pytest.raises(ValueError, match=r"column 'vector' has .* without a value, .*: stream\(\.\.\., nulls_as=0\)$"):
        next(iter(data.stream(folder / "vectors.parquet", as_="torch")))
    pa.parquet.write_table(pa.table({"label": [1, None]}), folder / "labels.parquet")
    with pytest.raises(ValueError, match=r"column 'label' has 1 rows without a value, .*: stream\(\.\.\., nulls_as=0\)$"):
        next(iter(data.stream(folder / "labels.parquet", as_="torch")))
