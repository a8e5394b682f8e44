"""The parts `data` and `stream` of run.py: tables that are loaded, and tables that are read in batches. What is compared lies in data_peaks.py and
data_streams.py, a process for each measurement; this file starts them in turn, watches, and prints.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
MIB = 1 << 20

ROWS = 4_000_000
LARGE_ROWS = 33_000_000  # 2 GB
# What the large one needs: itself, a Parquet file beside it, and what pandas takes of it.
LARGE_DISK, LARGE_MEMORY = 6 << 30, 12 << 30
ROUNDS = 3

LOADERS = (
    "pandas.read_csv",
    "pandas, then downcast",
    "polars.read_csv",
    "polars, then shrink_dtype",
    "pyarrow.csv.read_csv",
    "duckdb, to Arrow",
    "duckdb, to Parquet",
    "oomph.data.load, exact",
    "oomph.data.load, rel:1e-6",
)
OURS = LOADERS[-2:]
# What else ends with a small table: what ours must be as fast as.
SMALL = ("pandas, then downcast", "polars, then shrink_dtype")

STREAMS = ("oomph.data.stream", "torch DataLoader, 2 workers", "datasets, streaming")
BUDGET = 64 * MIB
STREAM_ROWS = 11_000_000  # a CSV of ten times the budget


def environment(args):
    native = os.path.join(os.path.dirname(os.path.abspath(args.oomph)), "liboomph_native.so")
    return dict(os.environ, PYTHONPATH=os.path.join(ROOT, "python"), OOMPH_NATIVE=native, HF_HUB_OFFLINE="1")


def csv(args, rows):
    path = os.path.join(HERE, "data", f"table-{rows}.csv")
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        subprocess.run([args.python, os.path.join(HERE, "data_generate.py"), path, "--rows", str(rows)], check=True)
    return path


def data(args):
    bars = loading(args, csv(args, ROWS), ROUNDS)
    if not room_for_the_large_one():
        print("\nthe table of 2 GB is left out: it needs 6 GB of disk and 12 GB of memory")
        return bars
    large = csv(args, LARGE_ROWS)
    try:
        print()
        return bars + loading(args, large, 1)
    finally:
        os.remove(large)


def room_for_the_large_one():
    with open("/proc/meminfo") as meminfo:
        available = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable:"))
    return shutil.disk_usage(HERE).free >= LARGE_DISK and available >= LARGE_MEMORY


def loading(args, path, rounds):
    """Each round runs every loader once, one after the other."""
    runs = {name: [] for name in LOADERS}
    for _ in range(rounds):
        for name in LOADERS:
            command = [args.python, os.path.join(HERE, "data_peaks.py"), name, path]
            done = subprocess.run(command, capture_output=True, text=True, env=environment(args))
            if done.returncode:
                sys.exit(f"{name} failed with {done.returncode}:\n{done.stderr[-2000:]}")
            runs[name].append(json.loads(done.stdout))
    print(f"{os.path.getsize(path):,} bytes of CSV; {rounds} rounds; memory is above importing, of the round that took most")
    print(f"{'':28}{'best':>8}{'median':>9}{'peak':>11}{'private':>11}{'result':>11}{'peak/result':>13}")
    best, peaks = {}, {}
    for name, rows in runs.items():
        seconds = [row["seconds"] for row in rows]
        peak, private, result = (max(row[key] for row in rows) for key in ("peak", "private", "result"))
        best[name], peaks[name] = min(seconds), peak / result
        sizes = "".join(f"{size / MIB:>7.0f} MiB" for size in (peak, private, result))
        disk = "  on disk" if name == "duckdb, to Parquet" else ""
        print(f"{name:28}{min(seconds):>7.2f}s{statistics.median(seconds):>8.2f}s{sizes}{peak / result:>13.2f}{disk}")
    fastest = min(best[name] for name in SMALL)
    for name in OURS:
        beside = ", ".join(f"{best[other] / best[name]:.2f} times as fast as {other}" for other in SMALL)
        print(f"{name}: {beside}; peak {peaks[name]:.2f} times the result")
    size = f"{os.path.getsize(path) / 1e6:.0f} MB"
    return [(f"{name} of {size}: peak at most 1.3 times the result", peaks[name] <= 1.3) for name in OURS] + [
        (f"{name} of {size}: as fast as the fastest that ends as small", best[name] <= fastest) for name in OURS
    ]


def stream(args):
    table = csv(args, STREAM_ROWS)
    packed = table.removesuffix(".csv") + ".parquet"
    if not os.path.exists(packed):
        subprocess.run([args.oomph, "data", "shrink", "-q", table, packed, "--row-group-rows", "131072"], check=True)
    bars = []
    sizes = f"{os.path.getsize(table) / 1e6:.0f} MB of CSV, {os.path.getsize(packed) / 1e6:.0f} MB of Parquet"
    print(f"{STREAM_ROWS:,} rows, {sizes}; batches of 65,536 rows of 7 columns as tensors; budget {BUDGET // MIB} MiB")
    print(f"{'':38}{'rows a second':>14}{'of the CSV':>14}{'peak':>11}")
    for path in (table, packed):
        for name in STREAMS:
            row, peak = streaming(args, name, path)
            if row["rows"] != STREAM_ROWS:
                sys.exit(f"{name} gave {row['rows']:,} rows of {STREAM_ROWS:,}")
            ending = path.rsplit(".", 1)[1]
            rate, speed = row["rows"] / row["seconds"], os.path.getsize(table) / row["seconds"]
            print(f"{name + ', ' + ending:38}{rate:>14,.0f}{speed / 1e6:>9.0f} MB/s{peak / MIB:>7.0f} MiB")
            if name == STREAMS[0]:
                bars.append((f"{name} of {ending}: at most 100 MiB above its budget", peak <= BUDGET + 100 * MIB))
    return bars


def streaming(args, name, path):
    """What it printed, and the highest memory of its processes together above what importing took."""
    command = [args.python, os.path.join(HERE, "data_streams.py"), name, path, str(BUDGET)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(args))
    if process.stdout.readline() != "ready\n":
        sys.exit(f"{name} failed")
    before = most = proportional(process.pid)
    process.stdin.write("go\n")
    process.stdin.flush()
    while process.poll() is None:
        most = max(most, proportional(process.pid))
        time.sleep(0.02)
    output = process.stdout.read()
    if process.returncode:
        sys.exit(f"{name} failed with {process.returncode}")
    return json.loads(output), most - before


def proportional(pid):
    """Resident bytes of a process and its children, shared memory included; pages that several have are counted once. Pages of files are not counted:
    the kernel can take them back, and how many count here depends on who else has them."""
    total = 0
    for process in (pid, *descendants(pid)):
        try:
            with open(f"/proc/{process}/smaps_rollup") as rollup:
                total += sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
        except OSError:
            pass  # it has ended
    return total


def descendants(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            found = children.read().split()
    except OSError:
        return []
    return found + [below for child in found for below in descendants(child)]
