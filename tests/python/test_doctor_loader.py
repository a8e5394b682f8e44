"""What oomph.doctor predicts of a DataLoader, held against real loaders; and that looking changes nothing.

The loaders run in a child, and their workers' memory and /dev/shm are read from /proc.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import textwrap
import time

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, Subset, TensorDataset, get_worker_info

ROOT = pathlib.Path(__file__).resolve().parents[2]

import oomph  # noqa: E402
from oomph import _doctor  # noqa: E402
from oomph._doctor import needs  # noqa: E402
from oomph._doctor.diagnosis import Room, fits  # noqa: E402
from oomph._doctor.objects import weigh  # noqa: E402
from oomph.data.share import share  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30

pytestmark = [pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'pin_memory' argument"), pytest.mark.usefixtures("one_thread")]


# Datasets as people write them


class Images(Dataset):
    """An array in memory, a new tensor for each item."""

    def __init__(self, count=400, size=96):
        self.data = numpy.zeros((count, 3, size, size), numpy.float32)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return torch.from_numpy(self.data[index] + 1)


class Listed(Dataset):
    """A list of dicts, all of which are read."""

    def __init__(self, count=60_000):
        self.items = [{"path": f"/images/{n:08}.jpg", "label": n, "width": n * 3 % 4096, "split": "train"} for n in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        path, label, width, split = self.items[index].values()
        return label


class Numbers(Dataset):
    """Items of many small objects: each worker meets only those that it reads."""

    def __init__(self, count=3000):
        chance = random.Random(1)
        self.rows = [[chance.random() for _ in range(400)] for _ in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor(self.rows[index])


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for n in range(first, 400, step):
            yield torch.full((50_000,), float(n))


class Words(Dataset):
    """Dicts of tensors, numbers and text."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return {"ids": torch.arange(20_000), "mask": torch.ones(20_000, dtype=torch.bool), "label": index, "name": f"text {index}"}


class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right


def nested(samples):
    """What people write as collate_fn: lists of different lengths, objects, a tensor twice."""
    stacked = torch.stack(samples)
    return {"all": (stacked, stacked), "each": [sample[: 1000 * (n + 1)].clone() for n, sample in enumerate(samples)], "pair": Pair(stacked.half(), "text")}


class Rows(Dataset):
    """Parts of one tensor, without batches."""

    def __init__(self):
        self.data = torch.zeros(1000, 10_000)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


CASES = {
    "arrays, far ahead": (Images, {"batch_size": 8, "num_workers": 3, "prefetch_factor": 4}),
    "list, shuffled": (Listed, {"batch_size": 64, "num_workers": 4, "shuffle": True}),
    "list, in order": (Listed, {"batch_size": 64, "num_workers": 4}),
    "numbers, shuffled": (Numbers, {"batch_size": 50, "num_workers": 4, "shuffle": True}),
    "numbers, workers kept": (Numbers, {"batch_size": 50, "num_workers": 2, "shuffle": True, "persistent_workers": True}),
    "stream": (Stream, {"batch_size": 10, "num_workers": 2}),
    "dicts": (Words, {"batch_size": 20, "num_workers": 2}),
    "nested": (Stream, {"batch_size": 10, "num_workers": 2, "collate_fn": nested}),
    "parts of a tensor": (Rows, {"batch_size": None, "num_workers": 2}),
    "shared list": (lambda: Shared(Listed()), {"batch_size": 64, "num_workers": 4, "shuffle": True}),
    "spawned": (Images, {"batch_size": 16, "num_workers": 2, "multiprocessing_context": "spawn"}),
}


class Shared(Listed):
    def __init__(self, listed):
        self.items = share(listed.items)


def measured(name):
    """One loader, run in this process: what was predicted, and what its workers and batches took."""
    make, settings = CASES[name]
    loader = DataLoader(make(), **settings)
    reported = oomph.doctor(loader)
    batches = iter(loader)
    workers = [worker.pid for worker in batches._workers]
    epochs = 4 if loader.persistent_workers else 1
    most_shm, used = 0, 0
    for epoch in range(epochs):
        for turn, _batch in enumerate(batches):
            if turn == 6:
                # Until all workers are as far ahead as they may be.
                most_shm = max(most_shm, settled(lambda: shared_memory([os.getpid(), *workers])))
            if turn == 10 or turn > len_of(loader) - 3:
                used = max(used, *map(private, workers))
        if epoch + 1 < epochs:
            batches = iter(loader)
    expected = {"worker": reported.worker, "worker_error": reported.need.worker.error, "shm": reported.shm, "shm_error": reported.need.shm_error}
    return {**expected, "measured_worker": used, "measured_shm": most_shm, "text": str(reported)}


def len_of(loader):
    return 20 if isinstance(loader.dataset, IterableDataset) else len(loader)


def private(process):
    """What a process has for itself, without batches that nobody else has mapped yet."""
    try:
        with open(f"/proc/{process}/smaps_rollup") as file:
            sizes = {words[0]: int(words[1]) << 10 for words in map(str.split, file) if words[-1] == "kB"}
    except OSError:
        return 0  # Ended: all that it had to give is here.
    return sizes["Private_Clean:"] + sizes["Private_Dirty:"] - sizes["Pss_Shmem:"]


def shared_memory(processes):
    """Bytes of /dev/shm that these have open or mapped, each file once. Those of others do not count."""
    device, found = os.stat("/dev/shm").st_dev, {}
    for process in processes:
        for folder in ("fd", "map_files"):
            try:
                names = os.listdir(f"/proc/{process}/{folder}")
            except OSError:
                continue
            for name in names:
                try:
                    file = os.stat(f"/proc/{process}/{folder}/{name}")
                except OSError:
                    continue
                if file.st_dev == device:
                    found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def settled(look):
    last, end = -1, time.monotonic() + 5
    while (now := look()) != last and time.monotonic() < end:
        last = now
        time.sleep(0.2)
    return now


@pytest.fixture(scope="module")
def truths(request):
    """All cases that are asked for in one process, one after the other."""
    from conftest import chosen  # here: the child runs this file too, and is no test

    names = chosen(request, "name")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{pathlib.Path(__file__).parent}", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, __file__, *names], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_real_loaders_take_what_was_predicted_within_the_stated_error(truths, name):
    truth = truths[name]
    print({key: value / MIB for key, value in truth.items() if key != "text"})
    assert abs(truth["measured_worker"] - truth["worker"]) <= truth["worker_error"]
    # Small files of the program's own queues are in /dev/shm as well.
    assert abs(truth["measured_shm"] - truth["shm"]) <= truth["shm_error"] + MIB // 4


# What is said


@pytest.fixture
def room(monkeypatch):
    """A machine with so much room."""

    def set_room(ram=100 * GIB, shm=100 * GIB):
        monkeypatch.setattr(_doctor, "_room", lambda: Room(ram, 128 * GIB, "the machine's memory", shm, shm))

    set_room()
    return set_room


def test_the_answer_comes_first_and_what_to_do_last(room):
    loader = DataLoader(Listed(300_000), batch_size=64, num_workers=4, shuffle=True)
    reported = oomph.doctor(loader)
    lines = str(reported).splitlines()
    assert lines[0].startswith("Fits: 4 workers and their batches take ") and lines[0].endswith("and 100 GiB of RAM are left")
    assert reported.fits and reported.workers == 4 and reported.findings[0].what.startswith("Each worker copies ")
    assert lines[-1] == "Next: loader.dataset.items = oomph.data.share(loader.dataset.items)"
    assert str(reported) == repr(reported)
    page = reported._repr_html_()
    assert lines[0] in page and "oomph.data.share(loader.dataset.items)" in page
    loader.dataset.items = share(loader.dataset.items)
    reported = oomph.doctor(loader)
    assert reported.findings == [] and reported.worker < 20 * MIB and reported.dataset_shared == loader.dataset.items.nbytes
    for number in (
        reported.total,
        reported.error,
        reported.worker,
        reported.shm,
        reported.pinned,
        reported.batch,
        reported.dataset_objects,
        reported.dataset_buffers,
        reported.dataset_shared,
    ):
        assert type(number) is int


def test_shared_memory_that_is_too_small_is_named_before_the_bus_error(room):
    room(shm=64 * MIB)
    loader = DataLoader(Images(200, 256), batch_size=32, num_workers=4)
    reported = oomph.doctor(loader)
    batch = 32 * 3 * 256 * 256 * 4
    assert reported.batch == batch and reported.shm == 9 * batch and not reported.fits
    assert str(reported).startswith("Does not fit: batches take 216 MiB of /dev/shm, where 64.0 MiB of 64.0 MiB are free")
    assert reported.findings[0].what == "/dev/shm is too small by 176 MiB"
    assert "Bus error" in reported.findings[0].why and "--shm-size=1g" in reported.findings[0].fix
    # 24 MiB a batch, of which one in use and one of error: one ahead is 24 MiB + 48.
    assert (reported.workers, reported.prefetch) == (0, 2)
    room(shm=128 * MIB)
    reported = oomph.doctor(loader)
    assert (reported.workers, reported.prefetch) == (3, 1)
    assert str(reported).splitlines()[-1].endswith("the same with num_workers=3 and prefetch_factor=1, which fits")


def test_a_loader_that_fills_a_real_shared_memory_runs_when_it_is_fixed():
    code = """
        import os, time, oomph
        from test_doctor_loader import DataLoader, Images
        loader = DataLoader(Images(300, 128), batch_size=32, num_workers=3)
        reported = oomph.doctor(loader)
        print(reported.fits, reported.shm > reported.room.shm_size == 32 << 20)
        fixed = reported.limit(loader)
        print(fixed.num_workers, fixed.prefetch_factor, sum(len(batch) for batch in fixed))
        try:
            batches = iter(loader)
            first = next(batches)
            time.sleep(1)  # Workers are ahead by then.
            for batch in batches: pass
        except RuntimeError as error:
            print("Bus error" in str(error) or "unable to allocate shared memory" in str(error), flush=True)
        os._exit(0)
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{pathlib.Path(__file__).parent}", "PYTHONWARNINGS": "ignore"}
    mounted = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=32m tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*mounted, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a /dev/shm of its own")
    done = subprocess.run([*mounted, sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["False True", "3 1 300", "True"], done.stderr


def test_ram_that_is_too_little_lowers_workers_to_what_fits(room):
    loader = DataLoader(Listed(300_000), batch_size=64, num_workers=8, shuffle=True)
    room(ram=500 * MIB)
    reported = oomph.doctor(loader)
    assert not reported.fits and 1 <= reported.workers < 8
    assert fits(needs.need(reported.facts, reported.workers, reported.prefetch), reported.room)
    assert not fits(needs.need(reported.facts, reported.workers + 1, 1), reported.room)
    assert str(reported).startswith("Does not fit: 8 workers") and any(finding.what.startswith("RAM lacks ") for finding in reported.findings)
    fixed = oomph.doctor(loader, fix=True)
    assert fixed.num_workers == reported.workers and loader.num_workers == 8 and oomph.doctor(fixed).fits
    room(ram=1000)
    reported = oomph.doctor(loader)
    assert reported.workers == 0 and str(reported).splitlines()[-1] == "Next: a smaller batch_size: not even one batch, in this process, fits"


def test_a_loader_that_fits_is_given_back_itself(room):
    loader = DataLoader(Words(), batch_size=4, num_workers=2)
    assert oomph.doctor(loader, fix=True) is loader


class Numbered(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index


def collate(samples):
    return torch.tensor(samples)


def prepare(worker):
    pass


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 3, "shuffle": True, "drop_last": True},
        {"batch_size": 3, "sampler": [5, 2, 7, 1]},
        {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
        {"batch_size": None, "sampler": [3, 1]},
        {"batch_size": None},
        {"batch_size": 4, "timeout": 7, "worker_init_fn": prepare, "collate_fn": collate, "persistent_workers": True, "pin_memory": True},
        {"batch_size": 4, "multiprocessing_context": "spawn", "in_order": False, "prefetch_factor": 5},
    ],
    # Names of settings alone: addresses of functions are others in every process.
    ids=lambda settings: " ".join(settings),
)
@pytest.mark.parametrize("workers", [0, 1])
def test_all_other_settings_are_kept(settings, workers):
    from oomph._doctor.diagnosis import limited

    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Numbered(), num_workers=4, generator=generator, **settings)
    new = limited(loader, workers, 1)
    assert (new.num_workers, new.prefetch_factor) == ((1, 1) if workers else (0, None)) and loader.num_workers == 4
    kept = {
        "dataset",
        "batch_size",
        "drop_last",
        "batch_sampler" if "batch_sampler" in settings else "sampler",
        "collate_fn",
        "pin_memory",
        "worker_init_fn",
        "generator",
        "in_order",
    }
    kept |= {"timeout", "persistent_workers", "multiprocessing_context"} if workers else set()
    for name in kept:
        assert getattr(new, name) is getattr(loader, name) or getattr(new, name) == getattr(loader, name), name
    if workers == 0:
        of_order = {"batch_size", "shuffle", "drop_last", "sampler", "batch_sampler", "collate_fn"}
        plain = DataLoader(Numbered(), generator=torch.Generator().manual_seed(3), **{name: settings[name] for name in of_order & settings.keys()})
        assert [torch.as_tensor(batch).tolist() for batch in new] == [torch.as_tensor(batch).tolist() for batch in plain]
    assert limited(DataLoader(Stream(), batch_size=5, num_workers=2), 1, 1).batch_size == 5


class Counting(Sampler):
    """A sampler that goes on from epoch to epoch."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 4

    def __iter__(self):
        self.epoch += 1
        return iter(range(4 * self.epoch, 4 * self.epoch + 4))


class Chance(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.rand(2) + random.random() + numpy.random.rand() + index


@pytest.mark.parametrize("own", [True, False])
def test_looking_changes_no_random_number_and_no_sampler(own):
    def batches(look):
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
        generator = torch.Generator().manual_seed(5) if own else None
        loader = DataLoader(Chance(), batch_size=4, shuffle=True, generator=generator)
        counting = Counting()
        counted = DataLoader(Chance(), batch_size=2, sampler=counting)
        if look:
            oomph.doctor(loader), oomph.doctor(counted)
        assert counting.epoch == 0
        return [batch.tolist() for batch in loader] + [batch.tolist() for batch in counted]

    assert batches(True) == batches(False)


def test_an_iterator_that_has_one_run_is_left_to_the_program():
    class Once(IterableDataset):
        def __init__(self):
            self.numbers = iter(range(10))

        def __iter__(self):
            return self.numbers

    loader = DataLoader(Once(), batch_size=2, num_workers=2)
    with pytest.raises(ValueError, match="only once; give one of its batches"):
        oomph.doctor(loader)
    assert next(loader.dataset.numbers) == 0
    assert oomph.doctor(loader, batch=torch.zeros(1000, 1024)).batch == 4_096_000


def test_every_worker_that_gives_everything_is_said_only_where_it_is_seen():
    class Everything(IterableDataset):
        def __iter__(self):
            return iter([{"x": torch.full((3,), n), "y": n} for n in range(20)])

    class Same(IterableDataset):
        def __iter__(self):
            return iter([1] * 20)

    def said(dataset, **settings):
        return [finding.what for finding in oomph.doctor(DataLoader(dataset, batch_size=2, **settings)).findings]

    assert said(Everything(), num_workers=3) == ["Each of 3 workers gives all of the data"]
    assert said(Everything(), num_workers=1) == said(Everything()) == said(Same(), num_workers=2) == []
    assert said(Stream(), num_workers=2) == said(Everything(), num_workers=2, worker_init_fn=prepare) == []
    assert get_worker_info() is None


def test_pinned_tensors_are_rounded_up_to_a_power_of_two(monkeypatch):
    monkeypatch.setattr(_doctor, "_has_accelerator", lambda torch: True)
    data = TensorDataset(torch.zeros(1000, 300_000 // 4 + 1, dtype=torch.uint8))
    loader = DataLoader(data, batch_size=200, num_workers=2, pin_memory=True)
    reported = oomph.doctor(loader)
    assert reported.batch_pinned == 16 * MIB and reported.pinned == 5 * 16 * MIB
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "pinned_max_round_threshold_mb:8")
    assert oomph.doctor(loader).batch_pinned == 200 * 75_001
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    wasteful = DataLoader(data, batch_size=250, num_workers=2, pin_memory=True)
    reported = oomph.doctor(wasteful)
    assert reported.batch_pinned == 32 * MIB and [finding.what for finding in reported.findings] == ["70.6 MiB of pinned memory is rounding"]


def test_what_is_not_a_loader_is_refused():
    for thing in ([], Numbered()):
        with pytest.raises(TypeError, match=r"torch DataLoader: oomph.doctor\(loader\)"):
            oomph.doctor(thing)
    with pytest.raises(TypeError, match=r"oomph.doctor\(loader\)"):
        oomph.doctor(fix=True)
    with pytest.raises(ValueError, match="no batch"):
        oomph.doctor(DataLoader([], batch_size=2))


# Weights


def test_a_sample_of_a_list_gives_what_all_of_it_weighs():
    items = [{"path": f"/images/{n:08}.jpg", "label": n + 1000, "tag": "train"} for n in range(20_000)]
    exact = sum(sys.getsizeof(item) + sys.getsizeof(item["path"]) + sys.getsizeof(item["label"]) for item in items) + sys.getsizeof(items)
    assert abs(weigh(items, "items").objects / exact - 1) < 0.02
    as_dict = {f"key{n:08}": float(n) for n in range(20_000)}
    exact = sum(sys.getsizeof(key) + sys.getsizeof(value) for key, value in as_dict.items()) + sys.getsizeof(as_dict)
    assert abs(weigh(as_dict).objects / exact - 1) < 0.02


def test_a_buffer_counts_once_whoever_has_parts_of_it():
    array, tensor = numpy.zeros((1000, 1000)), torch.zeros(1000, 1000)
    several = [(array, tensor, n) for n in range(5000)]
    weight = weigh({"rows": [array[n] for n in range(1000)], "parts": [tensor[n] for n in range(1000)], "several": several})
    assert weight.arrays == array.nbytes and weight.tensors == 4_000_000
    assert weigh([array], but=weight.buffers).arrays == 0
    subset = Subset(TensorDataset(tensor), list(range(1000)))
    assert weigh(subset).tensors == 4_000_000 and weigh(subset).objects > 28_000
    knot = []
    knot.append(knot)
    assert weigh(knot).objects > 0


def test_tables_weigh_what_they_say():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": numpy.arange(100_000), "b": numpy.random.default_rng(1).random(100_000)})
    assert abs(weigh(frame, "frame").arrays - frame.memory_usage(index=False).sum()) < 1000
    pyarrow = pytest.importorskip("pyarrow")
    assert weigh([pyarrow.table({"a": numpy.arange(1000)})]).arrays == 8000
    polars = pytest.importorskip("polars")
    assert weigh({"frame": polars.DataFrame({"a": numpy.arange(1000)})}).arrays == 8000


def test_a_batch_sampler_of_ones_own_is_drawn_from():
    sampler = BatchSampler(RandomSampler(Numbered()), 7, False)
    loader = DataLoader(Numbered(), batch_sampler=sampler, num_workers=1, collate_fn=lambda found: torch.zeros(len(found), 1024))
    assert oomph.doctor(loader).batch == 7 * 4096


if __name__ == "__main__":
    print(json.dumps({name: measured(name) for name in sys.argv[1:]}))
