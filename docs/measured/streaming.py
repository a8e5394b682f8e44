"""Streaming to a real GPU: do copies run beside kernels? Beside plain ``.to("cuda")`` and beside DataLoader(pin_memory=True).

    python docs/measured/streaming.py [--format npy] [--rows 4000000] [--columns 32] [--batch 65536] [--work 8,100] [--out streaming.json]

Builds nothing: needs oomph installed (or PYTHONPATH=python and OOMPH_COMMAND), a GPU, torch and NumPy; pyarrow for Parquet.

First directly: copies through the ring and matrix products that take about as long, each alone and both together, by CUDA's events, medians of several runs.

Then a file of random floats (Parquet, or one array) is read by each method, and every batch worked on with ``--work`` matrix products: few, so that all wait for
the file, and more. Each also with ``loss.item()`` at the end of every batch, as most programs have it: the program then waits for the GPU.

* seconds: the whole epoch, the file in the page cache; the fastest of ``--epochs``
* GPU busy: the share of them in which the matrix products ran
* waited: the share in which the stream that works stood still between two batches
* pinned: host memory that is pinned: the ring's, and the most that PyTorch's allocator of pinned memory held

The first epoch of each is not counted: in it, the bits of every value are added up as integers and held against what was written. Rows are counted in all of them.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "python"))
MIB = 1 << 20


def make(folder, rows, columns, format):
    """The file, and the sum of the bits of its values."""
    import numpy

    rng = numpy.random.default_rng(0)
    path = folder / f"table.{format}"
    if format == "npy":
        whole = rng.random((rows, columns), dtype="f4")
        numpy.save(path, whole)
        return path, int(whole.view("i4").sum(dtype="i8"))

    import pyarrow
    import pyarrow.parquet

    writer, checksum = None, 0
    for begin in range(0, rows, 1 << 18):
        count = min(1 << 18, rows - begin)
        batch = pyarrow.table({f"c{number}": rng.random(count, dtype="f4") for number in range(columns)})
        checksum += sum(int(column.to_numpy().view("i4").sum(dtype="i8")) for column in batch.columns)
        writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema, compression="none")
        writer.write_table(batch)
    writer.close()
    return path, checksum


# -- the ways to the GPU: each gives dicts of tensors there


def oomph_ring(path, batch):
    import oomph.data

    return oomph.data.stream(path, batch=batch, as_="torch", device="cuda", budget="1GiB")


def oomph_plain(path, batch):
    import oomph.data

    return oomph.data.stream(path, batch=batch, as_="torch", device="cuda", budget="1GiB", pin=False)


class Parquet(IterableDataset):
    """What people write: each worker reads its row groups with pyarrow."""

    def __init__(self, path, batch):
        self.path, self.batch = path, batch

    def __iter__(self):
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(self.path)
        worker = get_worker_info()
        groups = range(worker.id, file.num_row_groups, worker.num_workers)
        for rows in file.iter_batches(batch_size=self.batch, row_groups=list(groups)):
            yield {name: torch.from_numpy(column.to_numpy(zero_copy_only=True).copy()) for name, column in zip(rows.schema.names, rows.columns)}


class Array(IterableDataset):
    """What people write: each worker copies every so manieth batch out of the mapped file."""

    def __init__(self, path, batch):
        self.path, self.batch = path, batch

    def __iter__(self):
        import numpy

        values = numpy.load(self.path, mmap_mode="r")
        worker = get_worker_info()
        for begin in range(worker.id * self.batch, len(values), worker.num_workers * self.batch):
            yield {"values": torch.from_numpy(values[begin : begin + self.batch].copy())}


def loader_pinned(path, batch):
    """Two workers, and a thread that pins."""
    source = Array if path.suffix == ".npy" else Parquet
    loader = DataLoader(source(path, batch), batch_size=None, num_workers=2, pin_memory=True, prefetch_factor=2)
    return ({name: tensor.to("cuda", non_blocking=True) for name, tensor in rows.items()} for rows in loader)


METHODS = {"oomph.data.stream, ring": oomph_ring, "oomph.data.stream, pin=False": oomph_plain, "DataLoader(pin_memory=True)": loader_pinned}


def work(batch, weights, times):
    """Keeps the GPU busy with what came."""
    columns = list(batch.values())
    made = columns[0] if len(columns) == 1 else torch.stack(columns, dim=1)
    for _ in range(times):
        made = torch.tanh(made @ weights)
    return made.mean()


def bits(batch):
    """A sum that any lost, repeated or changed value changes, and no order of adding up."""
    return sum(tensor.view(torch.int32).sum(dtype=torch.int64) for tensor in batch.values())


def checked_epoch(method, path, arguments, checksum):
    """Everything that was written came, once. Gives the most that was pinned meanwhile."""
    rows, total, ring = 0, torch.zeros((), dtype=torch.int64, device="cuda"), 0
    torch.cuda.reset_peak_host_memory_stats()
    source = method(path, arguments.batch)
    for batch in source:
        rows += len(next(iter(batch.values())))
        total += bits(batch)
        ring = max(ring, ring_bytes(source))
    assert (rows, total.item()) == (arguments.rows, checksum), (rows, total.item(), checksum)
    return ring + torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)


def epoch(method, path, arguments, weights, times, reads_loss):
    begun = time.monotonic()
    rows, marks = 0, []
    for batch in method(path, arguments.batch):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        loss = work(batch, weights, times)
        end.record()
        marks.append((start, end))
        if reads_loss:
            loss.item()
        rows += len(next(iter(batch.values())))
    torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    assert rows == arguments.rows, rows
    busy = sum(start.elapsed_time(end) for start, end in marks) / 1000
    gaps = sum(earlier[1].elapsed_time(later[0]) for earlier, later in zip(marks, marks[1:])) / 1000
    return {"seconds": seconds, "gpu_busy": busy / seconds, "waited": gaps / seconds, "batches": len(marks)}


def ring_bytes(source):
    """What the buffers of a stream's ring take."""
    ring = getattr(getattr(getattr(source, "_current", None), "_batches", None), "_ring", None)
    return sum(slot.memory.numel() for slot in ring.slots) if ring is not None else 0


def copies_overlap(arguments):
    """Copies through the ring and kernels that take about as long, alone and together."""
    from oomph.data._ring import Ring

    size = arguments.batch * arguments.columns * 4
    weights = torch.rand(2048, 2048, device="cuda")
    ring = Ring(torch.device("cuda"), size, size * 4)
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    copies, kernels = ring._copies, torch.cuda.Stream()

    def seconds(copy, products):
        """From before the first to behind the last of all, by the GPU's clock. What the buffers hold does not matter here."""
        torch.cuda.synchronize()
        start, copied, computed = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record(kernels)
        copies.wait_event(start)
        for number in range(arguments.copies):
            if copy:
                with torch.cuda.stream(copies):
                    there.copy_(ring.slots[number % len(ring.slots)].memory[:size], non_blocking=True)
            with torch.cuda.stream(kernels):
                for _ in range(products):
                    torch.mm(weights, weights)
        copied.record(copies)
        computed.record(kernels)
        torch.cuda.synchronize()
        return max(start.elapsed_time(copied), start.elapsed_time(computed)) / 1000

    def median(copy, products):
        seconds(copy, products)
        return statistics.median(seconds(copy, products) for _ in range(arguments.repeats))

    alone = median(True, 0)
    # As many products as take about as long as a copy: what is hidden behind what can be seen best there.
    products = max(1, round(8 * alone / median(False, 8)))
    row = {"products": products, "copies": alone, "kernels": median(False, products), "together": median(True, products)}
    ring.close()
    row["gib_per_second"] = arguments.copies * size / row["copies"] / (1 << 30)
    # 1: all of the shorter one was hidden behind the longer one; 0: one after the other.
    row["overlap"] = (row["copies"] + row["kernels"] - row["together"]) / min(row["copies"], row["kernels"])
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("parquet", "npy"), default="parquet")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=32)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--work", type=lambda text: [int(one) for one in text.split(",")], default=[8, 100], help="matrix products a batch; several with commas")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--copies", type=int, default=50, help="of a batch, in each run of the direct measurement")
    parser.add_argument("--repeats", type=int, default=9, help="runs of the direct measurement")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()

    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cpus": os.cpu_count(), "arguments": {name: str(value) for name, value in vars(arguments).items()}}
    result["overlap"] = copies_overlap(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path, checksum = make(pathlib.Path(folder), arguments.rows, arguments.columns, arguments.format)
        result["file_bytes"] = path.stat().st_size
        weights = torch.rand(arguments.columns, arguments.columns, device="cuda")
        result["rows"] = []
        # PyTorch keeps what it has pinned: the DataLoader, which has it pin, comes last.
        pinned = {name: checked_epoch(method, path, arguments, checksum) for name, method in METHODS.items()}
        for times in arguments.work:
            for reads_loss in (False, True):
                for name, method in METHODS.items():
                    runs = [epoch(method, path, arguments, weights, times, reads_loss) for _ in range(arguments.epochs)]
                    best = min(runs, key=lambda run: run["seconds"])
                    result["rows"].append({"method": name, "work": times, "reads_loss": reads_loss, **best, "pinned": pinned[name]})
        result["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    overlap = result["overlap"]
    print(f"{result['gpu']}, torch {result['torch']}, {result['cpus']} CPUs")
    print(
        f"{arguments.copies} copies {overlap['copies']:.3f} s ({overlap['gib_per_second']:.1f} GiB/s), kernels {overlap['kernels']:.3f} s, together {overlap['together']:.3f} s: {overlap['overlap']:.0%} of the shorter hidden\n"
    )
    print("| products a batch | `loss.item()` | method | seconds | MiB/s | GPU busy | waited | pinned |\n|---:|---|---|---:|---:|---:|---:|---:|")
    for row in result["rows"]:
        speed = result["file_bytes"] / row["seconds"] / MIB
        print(
            f"| {row['work']} | {'yes' if row['reads_loss'] else 'no'} | {row['method']} | {row['seconds']:.2f} | {speed:.0f} | {row['gpu_busy']:.0%} | {row['waited']:.0%} | {row['pinned'] / MIB:.0f} MiB |"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
