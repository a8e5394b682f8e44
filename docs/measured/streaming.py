"""Streaming to a real GPU: do copies run beside kernels? Beside plain ``.to("cuda")`` and beside DataLoader(pin_memory=True).

    python docs/measured/streaming.py [--rows 4000000] [--columns 32] [--batch 65536] [--work 8] [--out streaming.json]

Builds nothing: needs oomph installed (or PYTHONPATH=python and OOMPH_COMMAND), a GPU, torch, NumPy and pyarrow. A Parquet file of random floats is read by each
method, and every batch worked on with matrix products that take about as long as its copy (``--work`` of them). Measured with CUDA events and the clock:

* seconds: the whole epoch, the file in the page cache
* GPU busy: the share of them in which the matrix products ran
* waited: the share in which the stream that works stood still between two batches
* pinned: host memory that CUDA holds at the end, beyond what it held before

The first epoch of each is not counted. Every method's sum over all values is held against the others': none may lose or repeat a row.
"""

import argparse
import json
import os
import pathlib
import resource
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "python"))
MIB = 1 << 20


def make(folder, rows, columns):
    import numpy
    import pyarrow
    import pyarrow.parquet

    path = folder / "table.parquet"
    rng = numpy.random.default_rng(0)
    writer = None
    for begin in range(0, rows, 1 << 18):
        count = min(1 << 18, rows - begin)
        batch = pyarrow.table({f"c{number}": rng.random(count, dtype="f4") for number in range(columns)})
        writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema, compression="none")
        writer.write_table(batch)
    writer.close()
    return path


# -- the ways to the GPU: each gives dicts of tensors there


def oomph_ring(path, batch):
    import oomph.data

    return oomph.data.stream(path, batch=batch, as_="torch", device="cuda", budget="1GiB")


def oomph_plain(path, batch):
    import oomph.data

    return oomph.data.stream(path, batch=batch, as_="torch", device="cuda", budget="1GiB", pin=False)


def loader_pinned(path, batch):
    """What people write: a DataLoader that reads with pyarrow in two workers and pins in a thread."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Parquet(IterableDataset):
        def __iter__(self):
            import pyarrow.parquet

            file = pyarrow.parquet.ParquetFile(path)
            worker = get_worker_info()
            groups = range(worker.id, file.num_row_groups, worker.num_workers)
            for rows in file.iter_batches(batch_size=batch, row_groups=list(groups)):
                yield {name: torch.from_numpy(column.to_numpy(zero_copy_only=True).copy()) for name, column in zip(rows.schema.names, rows.columns)}

    loader = DataLoader(Parquet(), batch_size=None, num_workers=2, pin_memory=True, prefetch_factor=2)
    return ({name: tensor.to("cuda", non_blocking=True) for name, tensor in rows.items()} for rows in loader)


METHODS = {"oomph.data.stream, ring": oomph_ring, "oomph.data.stream, pin=False": oomph_plain, "DataLoader(pin_memory=True)": loader_pinned}


def work(batch, weights, times):
    """Keeps the GPU busy with what came, and gives a number that depends on every value."""
    import torch

    table = torch.stack(list(batch.values()), dim=1)
    made = table
    for _ in range(times):
        made = torch.tanh(made @ weights)
    return table.double().sum() + 0 * made.sum().double()


def epoch(method, path, arguments, weights):
    import torch

    begun = time.monotonic()
    total, marks = torch.zeros((), dtype=torch.float64, device="cuda"), []
    batches = iter(method(path, arguments.batch))
    while True:
        waited = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            break
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        total += work(batch, weights, arguments.work)
        end.record()
        marks.append((start, end, waited))
    torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    busy = sum(start.elapsed_time(end) for start, end, _ in marks) / 1000
    gaps = sum(earlier[1].elapsed_time(later[0]) for earlier, later in zip(marks, marks[1:])) / 1000
    return {"seconds": seconds, "gpu_busy": busy / seconds, "waited": gaps / seconds, "batches": len(marks), "sum": total.item()}


def pinned():
    """Host memory that is locked, as the kernel counts it."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmPin:"):
            return int(line.split()[1]) * 1024
    return 0


def copies_overlap(arguments):
    """Directly: the time of copies through the ring and of kernels, alone and together."""
    import torch

    from oomph.data._ring import Ring

    batch = {f"c{number}": torch.rand(arguments.batch) for number in range(arguments.columns)}
    size = sum(tensor.numel() * 4 for tensor in batch.values())
    weights = torch.rand(2048, 2048, device="cuda")
    ring = Ring(torch.device("cuda"), size, size * 4)

    def seconds(copy, compute):
        torch.cuda.synchronize()
        begun = time.monotonic()
        made = weights
        for _ in range(50):
            if compute:
                for _ in range(arguments.work):
                    made = torch.tanh(made @ weights)
            if copy:
                # The buffers' content does not matter here, nor the time that filling them takes.
                slot = ring.slots[ring._next]
                ring._next = (ring._next + 1) % len(ring.slots)
                with torch.cuda.stream(ring._copies):
                    slot.memory[:size].to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        return time.monotonic() - begun

    seconds(True, True)
    told = {"copies": seconds(True, False), "kernels": seconds(False, True), "together": seconds(True, True)}
    ring.close()
    told["gib_per_second"] = 50 * size / told["copies"] / (1 << 30)
    # 1: all of the shorter one was hidden behind the longer one; 0: one after the other.
    told["overlap"] = (told["copies"] + told["kernels"] - told["together"]) / min(told["copies"], told["kernels"])
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=32)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--work", type=int, default=8, help="matrix products a batch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()

    import torch

    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cpus": os.cpu_count(), "arguments": {name: str(value) for name, value in vars(arguments).items()}}
    result["overlap"] = copies_overlap(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = make(pathlib.Path(folder), arguments.rows, arguments.columns)
        result["file_bytes"] = path.stat().st_size
        weights = torch.rand(arguments.columns, arguments.columns, device="cuda")
        result["methods"] = {}
        for name, method in METHODS.items():
            before = pinned()
            epoch(method, path, arguments, weights)
            runs = [epoch(method, path, arguments, weights) for _ in range(arguments.epochs)]
            best = min(runs, key=lambda run: run["seconds"])
            result["methods"][name] = {**best, "pinned": pinned() - before}
        result["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sums = {name: told["sum"] for name, told in result["methods"].items()}
    assert max(sums.values()) - min(sums.values()) < 1e-6 * max(sums.values()), sums

    overlap = result["overlap"]
    print(f"{result['gpu']}, torch {result['torch']}, {result['cpus']} CPUs")
    print(f"copies {overlap['copies']:.3f} s ({overlap['gib_per_second']:.1f} GiB/s), kernels {overlap['kernels']:.3f} s, together {overlap['together']:.3f} s: {overlap['overlap']:.0%} of the shorter hidden\n")
    print(f"| {'method':<30} | seconds | MiB/s | GPU busy | waited | pinned |\n|---|---:|---:|---:|---:|---:|")
    for name, told in result["methods"].items():
        print(f"| {name:<30} | {told['seconds']:7.2f} | {result['file_bytes'] / told['seconds'] / MIB:5.0f} | {told['gpu_busy']:8.0%} | {told['waited']:6.0%} | {told['pinned'] / MIB:.0f} MiB |")
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
