"""What is shared reads as it was, in every process, takes memory once, and leaves nothing behind."""

import collections
import copy
import decimal
import enum
import gc
import math
import multiprocessing
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

from oomph.data.share import SharedDict, SharedList, share, stable_hash  # noqa: E402

METHODS = ("fork", "forkserver", "spawn")
Point = collections.namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


LISTS = {
    "nothing": [],
    "small integers": [0, -1, 127, -128],
    "integers of 16 bits": [300, -300],
    "integers of 64 bits": [2**63 - 1, -(2**63)],
    "integers beyond that": [2**63, -(2**63) - 1, 0],
    "booleans": [True, False, True],
    "floats": [0.0, -0.0, 5e-324, math.inf, -math.inf, 1 / 3],
    "numbers of two kinds": [1, 2.0, True],
    "text": ["", "a", "Größe", "\U0001f600", "\ud800", "a\0b"],
    "bytes": [b"", b"\x00\xff", b"abc"],
    "nothings": [None, None],
    "dicts": [{"path": f"{n}.jpg", "label": n, "box": [n, 0.5]} for n in range(100)],
    "everything": [1, "a", None, {"b": [1, 2]}, (3, 4), {5}, Point(1, 2), Colour.RED, decimal.Decimal("1.10"), range(3)],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_reads_as_it_was(name):
    plain = LISTS[name]
    shared = share(plain)
    assert isinstance(shared, SharedList) and len(shared) == len(plain)
    assert list(shared) == plain and shared == plain and plain == shared and shared == share(plain) and not shared != plain
    assert [type(item) for item in shared] == [type(item) for item in plain]
    assert [repr(item) for item in shared] == [repr(item) for item in plain]  # -0.0 too.
    assert list(reversed(shared)) == plain[::-1]
    for index in range(-len(plain), len(plain)):
        assert shared[index] == plain[index]
    for index in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            shared[index]
    assert pickle.loads(pickle.dumps(shared)) == plain


def test_slices_are_views():
    plain = list(range(1000, 1100))
    shared = share(plain)
    chance = random.Random(1)
    for _ in range(200):
        cut = slice(*(chance.choice([None, *range(-120, 120)]) for _ in range(2)), chance.choice([None, 1, 2, 7, -1, -3]))
        assert shared[cut] == plain[cut]
        assert shared[cut][1:] == plain[cut][1:]
    assert shared[10:20]._column is shared._column
    assert shared.index(1005) == 5 and shared[5:].count(1005) == 1 and 99 not in shared and numpy.int64(1003) in shared
    assert shared[numpy.int64(3)] == 1003


def test_a_list_is_read_only_and_what_is_read_is_the_readers():
    shared = share([{"a": [1]}, {"a": [2]}])
    shared[0]["a"].append(9)
    assert shared == [{"a": [1]}, {"a": [2]}]
    with pytest.raises(TypeError):
        shared[0] = 1
    with pytest.raises(TypeError):
        hash(shared)
    arrays = share([numpy.zeros(3), numpy.ones(3)])
    arrays[0][:] = 5
    assert arrays[0].sum() == 0
    assert copy.deepcopy(shared) is shared and copy.copy(shared) is shared and share(shared) is shared


@pytest.mark.parametrize("dtype", ["float32", "float16", ">i4", "bool", "complex64", "datetime64[ns]", "S3", "U2", "i4,f8"])
def test_arrays_of_one_type_and_shape_lie_beside_each_other(dtype):
    arrays = [numpy.arange(6).reshape(2, 3).astype(dtype) for _ in range(50)]
    arrays[1] = numpy.asfortranarray(arrays[1])
    arrays[2] = arrays[2][::-1, ::-1]
    shared = share(arrays)
    assert shared._column.kind == "arrays"
    assert shared.nbytes == 50 * arrays[0].nbytes + 16
    for mine, theirs in zip(shared, arrays):
        assert mine.dtype == theirs.dtype and numpy.array_equal(mine, theirs) and mine.flags.writeable


def test_arrays_that_differ_and_scalars_come_back_as_they_were():
    arrays = [numpy.zeros(3), numpy.zeros(4), numpy.zeros(()), numpy.zeros((0, 2)), numpy.array([None, 1], object)]
    for mine, theirs in zip(share(arrays), arrays):
        assert type(mine) is type(theirs) and mine.dtype == theirs.dtype and numpy.array_equal(mine, theirs)
    for plain in ([numpy.float32(1.5), numpy.float32(-0.0)], [numpy.zeros(()), numpy.ones(())], [numpy.zeros((0, 2))] * 2):
        shared = share(plain)
        assert [(type(item), numpy.shape(item), str(item)) for item in shared] == [(type(item), numpy.shape(item), str(item)) for item in plain]


def test_a_dict_reads_as_it_was():
    plain = {f"image{n}": {"label": n} for n in range(5000)}
    plain.update({b"bytes": 1, 7: 2, 7.5: 3, None: 4, ("a", 1, None): 5, -1: 6, 2**70: 7, "": 8, frozenset({1, "b"}): 9, 1j: 10, "\ud800": 11})
    shared = share(plain)
    assert isinstance(shared, SharedDict) and len(shared) == len(plain)
    assert shared == plain and plain == shared and dict(shared) == plain
    assert list(shared) == list(plain) and list(shared.keys()) == list(plain.keys()) and list(reversed(shared)) == list(reversed(plain))
    assert list(shared.values()) == list(plain.values()) and list(shared.items()) == list(plain.items())
    for key in plain:
        assert key in shared and shared[key] == plain[key] == shared.get(key)
    for key in ("image5000", b"image1", 8, 7.25, (), ("a", 1), Colour.RED, object()):
        assert key not in shared and shared.get(key, "none") == "none"
        with pytest.raises(KeyError) as raised:
            shared[key]
        assert raised.value.args == (key,)
    with pytest.raises(TypeError, match="unhashable"):
        shared[[]]
    assert shared != {**plain, "more": 1} and shared != {**plain, 7: 3}
    assert pickle.loads(pickle.dumps(shared)) == plain
    assert share({}) == {} and len(share({})) == 0 and "a" not in share({})


def test_equal_keys_are_one_key():
    shared = share({1: "one", ("a", 2): "two"})
    assert shared[True] == shared[1.0] == shared[decimal.Decimal(1)] == shared[numpy.int8(1)] == "one"
    assert shared[("a", 2.0)] == shared[(numpy.str_("a"), 2)] == "two"


@pytest.mark.parametrize("keys", [range(0, 2**20, 1024), [n * 2**32 for n in range(1024)], [-n for n in range(1024)]], ids=["1024s", "high", "negative"])
def test_a_search_is_short_whatever_the_keys(keys):
    shared = share({key: 0 for key in keys})
    table = list(shared._table)
    steps = []
    for place, key in enumerate(keys):
        steps.append(next(step for step, slot in enumerate(shared_steps(key, len(table))) if table[slot] == place))
    assert sum(steps) / len(steps) < 3


def shared_steps(key, count):
    return sys.modules["oomph.data.share"]._slots(stable_hash(key), count)


def test_what_cannot_be_shared_is_named():
    with pytest.raises(TypeError, match="item 3 cannot be shared, because function cannot be pickled"):
        share([1, "a", None, lambda: 0, 5])
    with pytest.raises(TypeError, match="the value of 'b' cannot be shared, because generator"):
        share({"a": 1, "b": (n for n in ())})
    with pytest.raises(TypeError, match="numbers, None, .* not .*Colour: <Colour.RED: 1>"):
        share({Colour.RED: 1})
    for not_a_list in (5, "text", b"bytes", iter([]), numpy.zeros(3), {1, 2}):
        with pytest.raises(TypeError, match="a list or a dict can be shared, not"):
            share(not_a_list)


def test_a_failure_leaves_no_descriptor_open():
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(TypeError):
            share(["x" * 5_000_000, lambda: 0])
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_memory_goes_with_the_last_reference():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    shared = share(["x" * 1000] * 1000)
    view = shared[5:10]
    assert repr(shared) == "SharedList(1000 items, str, 984 KiB shared)"
    assert len(os.listdir("/proc/self/fd")) > before and mappings() == 1
    del shared
    assert mappings() == 1 and view[0] == "x" * 1000
    del view
    assert len(os.listdir("/proc/self/fd")) == before and mappings() == 0


def mappings(process="self"):
    return pathlib.Path(f"/proc/{process}/maps").read_text().count("oomph-share")


def answer(shared, pipe):
    pipe.send((len(shared), list(shared[:3]) if isinstance(shared, SharedList) else [*shared.items()][:3], mappings()))


@pytest.mark.parametrize("method", METHODS)
def test_a_process_gets_a_handle_and_not_the_data(method):
    context = multiprocessing.get_context(method)
    for plain in ([os.urandom(1000) for _ in range(1000)], {f"key{n}": n for n in range(1000)}):
        shared = share(plain)
        here, there = context.Pipe()
        process = context.Process(target=answer, args=(shared, there))
        process.start()
        head = plain[:3] if isinstance(plain, list) else [*plain.items()][:3]
        assert here.recv() == (1000, head, 1)
        process.join()
        assert process.exitcode == 0
    assert len(bytes(multiprocessing.reduction.ForkingPickler.dumps(share([os.urandom(1000) for _ in range(1000)])))) < 1000


def take(queue, pipe):
    pipe.send(list(queue.get(timeout=30)))


def test_a_queue_of_multiprocessing_carries_the_handle():
    context = multiprocessing.get_context("spawn")
    queue, (here, there) = context.Queue(), context.Pipe()
    process = context.Process(target=take, args=(queue, there))
    process.start()
    shared = share(["a", "b"])
    queue.put(shared)
    assert here.poll(30) and here.recv() == ["a", "b"]
    process.join()


class Samples:
    """A dataset as people write them."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]["label"]


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_a_data_loader_read_what_was_shared(method):
    from torch.utils.data import DataLoader

    samples = Samples(share([{"label": n * n} for n in range(100)]))
    loader = DataLoader(samples, batch_size=10, num_workers=2, shuffle=True, multiprocessing_context=method)
    assert sorted(int(label) for batch in loader for label in batch) == [n * n for n in range(100)]


# Memory of a parent and four workers of a real DataLoader that have read everything; and what is in /dev/shm.
PROGRAM = """
import os, sys, time, gc
from torch.utils.data import DataLoader
from oomph.data.share import share

def pss(process):
    with open(f"/proc/{process}/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))

class Samples:
    def __init__(self, items): self.items = items
    def __len__(self): return len(self.items)
    def __getitem__(self, index):
        path, label, width, split = self.items[index].values()  # Counts a reference to each.
        return label

def items(count):
    return [{"path": f"/images/{n:08}.jpg", "label": n, "width": n * 3 % 4096, "split": "train"} for n in range(count)]
"""


def run(code, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.Popen([sys.executable, "-c", PROGRAM + textwrap.dedent(code)], env=environment, text=True, stdout=subprocess.PIPE, **options)


def test_memory_of_four_workers_stays_flat():
    code = """
        class Every:
            # All of the items in every worker, as many epochs with persistent workers would.
            def __init__(self, samples): self.samples = samples
            def __len__(self): return 4
            def __getitem__(self, index): return sum(map(self.samples.__getitem__, range(len(self.samples))))

        def of(samples):
            loader = DataLoader(Every(samples), batch_size=1, num_workers=4, persistent_workers=True)
            batches = iter(loader)
            totals = {int(batch) for batch in batches}
            processes = [os.getpid(), *(worker.pid for worker in batches._workers)]
            return sum(map(pss, processes)), totals

        empty, _ = of(Samples(items(1)))
        plain = items(1_000_000)
        with_plain, totals = of(Samples(plain))
        shared = share(plain)
        del plain
        gc.collect()
        with_shared, same = of(Samples(shared))
        assert totals == same, (totals, same)
        print(empty, with_plain, with_shared, shared.nbytes)
    """
    out, _ = run(code).communicate(timeout=120)
    empty, plain, shared, size = map(int, out.split())
    print(f"plain {(plain - empty) >> 20} MiB, shared {(shared - empty) >> 20} MiB of {size >> 20} MiB")
    assert shared <= 0.5 * plain
    assert shared - empty <= 0.5 * (plain - empty)


def wait_until(happened):
    end = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(processes):
    return [process for process in processes if state(process) not in ("", "Z")]


def state(process):
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.parametrize("killed", ["worker", "parent"])
@pytest.mark.parametrize("method", METHODS)
def test_a_kill_leaves_nothing_behind(method, killed, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys, time
        from oomph.data.share import share

        def work(shared, pipe):
            while True:
                pipe.send(sum(map(len, shared)))
                try:
                    pipe.recv()
                except EOFError:
                    time.sleep(60)

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            shared = share(["x" * 1000] * 1000)
            workers = []
            for _ in range(2):
                here, there = context.Pipe()
                workers.append((context.Process(target=work, args=(shared, there), daemon=True), here))
                workers[-1][0].start()
            assert [pipe.recv() for _, pipe in workers] == [1000000, 1000000]
            print(*(worker.pid for worker, _ in workers), flush=True)
            sys.stdin.readline()
            workers[0][0].join()
            workers[1][1].send("again")
            assert workers[1][1].recv() == 1000000
    """)
    )
    before = set(os.listdir("/dev/shm"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    parent = subprocess.Popen([sys.executable, script], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert [mappings(pid) for pid in [parent.pid, *workers]] == [1, 1, 1]
        os.kill(workers[0] if killed == "worker" else parent.pid, signal.SIGKILL)
        if killed == "worker":
            parent.stdin.write("\n")
            parent.stdin.flush()
    assert parent.returncode == (0 if killed == "worker" else -signal.SIGKILL)
    if killed == "parent":
        assert alive(workers) == workers and [mappings(pid) for pid in workers] == [1, 1]  # It is theirs as well.
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(workers))
    assert not set(os.listdir("/dev/shm")) - before


def test_nothing_but_the_standard_library_is_needed():
    code = """
        import sys
        from oomph.data.share import share
        assert share([1, 2]) == [1, 2] and share({"a": {"b": 1}})["a"] == {"b": 1}
        assert not {"numpy", "torch"} & set(sys.modules), "imported"
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=60)
