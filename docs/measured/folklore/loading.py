"""Tips about data on its way: RAM, workers, pinned memory. Those that need no GPU are measured by the process's resident set."""

import gc

from folklore.measure import MIB, allocated, fresh, milliseconds, pinned_ram, ram, ram_begin, ram_of, ram_peak, used, warm
from folklore.tip import tip

GROUP = "Data and RAM"


@tip(
    group=GROUP,
    says="Pinned memory ties up the GPU: unpin it",
    done="A tensor of 65 MiB is pinned, and deleted.",
    shows="allocated on the GPU {gpu}, in use on the card +{used}; pinned RAM {pinned}, after `del` still {pinned_after}",
    verdict="false",
    holds=lambda n: n["gpu"] == 0 and n["used"] < 16 * MIB and n["pinned"] == 128 * MIB == n["pinned_after"],
    why="It is RAM that may not be swapped out. It takes none of the GPU, but PyTorch rounds it up to a power of two and keeps it when it is freed.",
    oomph="`oomph.doctor(loader)` counts it; `oomph.free()` and `oomph.host.trim()` give it back; `oomph.data.stream` uses a ring of fixed size.",
)
def pinned_memory():
    import torch

    torch.cuda.init()
    tensor = torch.randn(65 * MIB // 4)
    before = used()
    pinned = tensor.pin_memory()
    numbers = {"gpu": allocated(), "used": max(used() - before, 0), "pinned": pinned_ram()}
    del pinned
    return numbers | {"pinned_after": pinned_ram()}


@tip(
    group=GROUP,
    says="`non_blocking=True` with pinned memory, to save memory and time",
    done="64 MiB are copied to the GPU: pageable, pageable with `non_blocking=True`, pinned with it.",
    shows="peak allocated {pageable}, {pageable_non_blocking}, {pinned_non_blocking}",
    times="the call takes {pageable_ms:.2f} ms, {pageable_non_blocking_ms:.2f} ms, {pinned_non_blocking_ms:.2f} ms, copy included",
    verdict="true, but",
    holds=lambda n: n["pageable"] == n["pageable_non_blocking"] == n["pinned_non_blocking"] == 64 * MIB
    and n.get("pinned_non_blocking_ms", 0) <= n.get("pageable_ms", 1),
    why="It is about time only. Without pinned memory `non_blocking` has nothing to work with. Batches that run ahead are more batches on the GPU.",
    oomph="`oomph.data.stream(device=\"cuda\")` copies through pinned buffers beside the work, and holds its budget.",
)
def non_blocking():
    import torch

    warm()
    numbers = {}
    pageable = torch.randn(64 * MIB // 4)
    pinned = torch.randn(64 * MIB // 4).pin_memory()
    for name, source, flag in (("pageable", pageable, False), ("pageable_non_blocking", pageable, True), ("pinned_non_blocking", pinned, True)):
        before = fresh()
        made = source.to("cuda", non_blocking=flag)
        torch.cuda.synchronize()
        numbers[name] = torch.cuda.max_memory_allocated() - before[0]
        del made
        numbers[f"{name}_ms"] = milliseconds(lambda source=source, flag=flag: source.to("cuda", non_blocking=flag))
    return numbers


@tip(
    group=GROUP,
    says="More DataLoader workers need no more memory: they share the dataset",
    done="A list of 400,000 dicts is read through by two workers; PSS of parent and workers together before and at the end.",
    shows="the list {items}, the parent {alone} without workers; together {first} after the first batches, {last} at the end",
    verdict="false",
    # Each worker reads half of the list: both together end with a copy of most of it, and get there as they read.
    holds=lambda n: n["last"] - n["alone"] > n["items"] / 2 and n["last"] - n["first"] > n["items"] / 4,
    why="Reading a Python object counts a reference to it, which writes to its page, which copies the page into that worker.",
    oomph="`dataset.items = oomph.data.share(dataset.items)`; `oomph.doctor(loader)`: what workers will take.",
    needs="host",
)
def dataloader_workers():
    import multiprocessing
    import os

    import torch
    from torch.utils.data import DataLoader, Dataset

    class Items(Dataset):
        def __init__(self):
            self.items = [{"path": f"images/{number:07d}.jpg", "label": number % 1000, "weight": number / 7} for number in range(400_000)]

        def __len__(self):
            return len(self.items)

        def __getitem__(self, place):
            item = self.items[place]
            return len(item["path"]) + item["label"] + item["weight"]

    def together():
        workers = multiprocessing.active_children()
        return sum(ram_of(process) for process in (os.getpid(), *(worker.pid for worker in workers)))

    torch.set_num_threads(1)
    empty = ram_of(os.getpid())
    data = Items()
    gc.collect()
    alone = ram_of(os.getpid())
    first = last = 0
    # The workers are measured while they live: after the first batches, and before the last.
    loader = DataLoader(data, batch_size=2000, num_workers=2, multiprocessing_context="fork")
    for number, _ in enumerate(loader):
        if number == 2:
            first = together()
        if number == len(loader) - 2:
            last = together()
    return {"items": alone - empty, "alone": alone, "first": first, "last": last}


@tip(
    group=GROUP,
    says="Use a generator: only one batch is in memory",
    done="200 MiB of random floats in batches of 2 MiB: from an array that is already made, from a generator that makes each batch, from a file by `numpy.memmap`.",
    shows="most RAM on top: {sliced}, {made}, {mapped}",
    verdict="true, but",
    holds=lambda n: n["sliced"] > 190 * MIB and n["made"] < 40 * MIB,
    why="Only if the generator makes or reads the batch: a slice of an array that is there is a view. Pages of a mapped file count while they are read, and the machine takes them back.",
    oomph="`oomph.data.stream` reads files and object storage under a budget.",
    needs="host",
    settings={"sliced": {}, "made": {}, "mapped": {}},
)
def generators(how):
    import tempfile

    import numpy

    rows, batch = 100, 2 * MIB // 8
    random = numpy.random.default_rng(0)
    random.random(batch).mean()

    def sliced():
        data = random.random((rows, batch))
        yield from data

    def made():
        for _ in range(rows):
            yield random.random(batch)

    def mapped():
        with tempfile.NamedTemporaryFile() as file:
            for _ in range(rows):
                file.write(random.random(batch).tobytes())
            file.flush()
            yield from numpy.memmap(file.name, dtype="f8", mode="r", shape=(rows, batch))

    before, total = ram_begin(), 0.0
    for one in {"sliced": sliced, "made": made, "mapped": mapped}[how]():
        total += float(one.mean())
    return {"": max(ram_peak() - before, 0)}


@tip(
    group=GROUP,
    says="NumPy arrays instead of lists",
    done="Four million random floats, as a list and as an array.",
    shows="RAM {listed} and {array}",
    verdict="true",
    holds=lambda n: 3.5 < n["listed"] / n["array"] < 4.6,
    why="A list has 8 bytes for each place and an object of 24 for each float; an array has the 8 bytes of the number.",
    oomph="`oomph.data.share` keeps them as arrays.",
    needs="host",
    settings={"listed": {}, "array": {}},
)
def lists(how):
    import random

    import numpy

    gc.disable()
    before = ram()
    kept = [random.random() for _ in range(4_000_000)] if how == "listed" else numpy.random.default_rng(0).random(4_000_000)
    return {"": ram() - before + 0 * len(kept)}


@tip(
    group=GROUP,
    says="`torch.from_numpy` makes a copy, so delete the array",
    done="`from_numpy`, `torch.tensor` and `clone()` of 256 MiB; then `del` of the array while the tensor of `from_numpy` lives.",
    shows="RAM on top: {from_numpy}, {tensor}, {clone}; given back by `del` of the array: {given_back}",
    verdict="false",
    holds=lambda n: n["from_numpy"] < 8 * MIB and n["tensor"] > 250 * MIB and n["clone"] > 250 * MIB and n["given_back"] < 8 * MIB,
    why="`from_numpy` shares the array's memory, and the last of the two holds it. `torch.tensor` and `clone()` copy.",
    oomph="`oomph.data` hands data over without a copy.",
    needs="host",
)
def from_numpy():
    import numpy
    import torch

    array = numpy.random.default_rng(0).random(32 * MIB)
    torch.tensor([1.0]).clone()
    sizes = []
    for work in (torch.from_numpy, torch.tensor, lambda a: torch.from_numpy(a).clone()):
        before = ram()
        made = work(array)
        sizes.append(ram() - before)
        del made
    shared = torch.from_numpy(array)
    before = ram()
    del array
    names = ("from_numpy", "tensor", "clone")
    return dict(zip(names, sizes, strict=True)) | {"given_back": max(before - ram(), 0), "shared": shared.numel() * 8}


@tip(
    group=GROUP,
    says="`gc.collect()` gives RAM back",
    done="A NumPy array of 256 MiB is deleted. Then a list of two million small dicts is deleted, of which every thousandth lives on. `gc.collect()` after each; then `malloc_trim`.",
    shows="array: {array_del} by `del`, {array_gc} by `gc.collect()`; dicts, {objects} in all: {objects_del} by `del`, {objects_gc} by `gc.collect()`, {objects_trim} by `malloc_trim`",
    verdict="does nothing",
    holds=lambda n: n["array_del"] > 250 * MIB and n["array_gc"] < 4 * MIB and n["objects_gc"] < n["objects"] // 10,
    why="What stays resident is held by allocators, for pieces of pages that live on or for later.",
    oomph="`oomph.host.trim()` asks each allocator, and measures.",
    needs="host",
)
def gc_collect_ram():
    import ctypes

    import numpy

    gc.collect()
    array = numpy.random.default_rng(0).random(32 * MIB)
    before = ram()
    del array
    after = ram()
    gc.collect()
    numbers = {"array_del": before - after, "array_gc": max(after - ram(), 0)}
    start = ram()
    objects = [{"number": number, "text": f"item {number}"} for number in range(2_000_000)]
    numbers["objects"] = ram() - start
    kept = objects[::1000]
    before = ram()
    del objects
    after = ram()
    gc.collect()
    collected = ram()
    ctypes.CDLL(None).malloc_trim(0)
    return numbers | {"objects_del": before - after, "objects_gc": max(after - collected, 0), "objects_trim": max(collected - ram(), 0), "kept_count": len(kept)}


@tip(
    group=GROUP,
    says="Fewer threads, less memory",
    done="64 threads are started that only wait: none of them allocates or computes.",
    shows="RAM on top {threads} while they wait, which is {each} a thread",
    verdict="true, but",
    holds=lambda n: n["each"] < 256 * 1024,
    why="A thread that waits costs next to nothing: its stack of 8 MiB is only reserved. Threads that work take more, which was not measured: each its temporaries, and glibc keeps an arena for each of many. Each DataLoader worker is a process with its own memory.",
    oomph="`oomph.host.arenas(2)` for programs whose many threads allocate; `oomph.doctor(loader)` for workers.",
    needs="host",
)
def threads():
    import threading

    done = threading.Event()
    before = ram()
    all_of_them = [threading.Thread(target=done.wait) for _ in range(64)]
    for thread in all_of_them:
        thread.start()
    taken = max(ram() - before, 0)
    done.set()
    for thread in all_of_them:
        thread.join()
    return {"threads": taken, "each": taken // 64}
