"""What pandas, polars and oomph take while they load a table, beside what `oomph data profile` estimates: the table of data.md.

    python docs/measured/data.py --oomph target/release/oomph [--only ints,logs] [--folder FOLDER]
    python docs/measured/data.py --oomph target/release/oomph --frames    what a frame of pandas takes: the table below it

Makes each table, measures every loader on it in a process of its own (bench/data_peaks.py), and removes it. Needs pandas, polars, pyarrow, and 500 MB of disk.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEAKS = ROOT / "bench" / "data_peaks.py"
LOADERS = {
    "csv": {"pandas": "pandas.read_csv", "polars": "polars.read_csv", "oomph": "oomph.data.load, exact"},
    "parquet": {"pandas": "pandas.read_parquet", "polars": "polars.read_parquet", "oomph": "oomph.data.load, exact"},
}
FRAMES = ["pandas.read_csv", "oomph.data.load, to_pandas", "oomph.data.load, to_pandas, compact", "oomph.data.load, exact"]
ROUNDS = 3

random = np.random.default_rng(7)


# -- columns


def whole(rows, most):
    return pa.array(random.integers(0, most, rows))


def cents(rows):
    return pa.array((random.random(rows) * 1000).round(2))


def normal(rows):
    return pa.array(random.standard_normal(rows))


def words(rows, count, shortest, longest):
    """Some of so many different words."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    some = ["".join(random.choice(letters, int(length))) for length in random.integers(shortest, longest + 1, count)]
    return pa.DictionaryArray.from_arrays(pa.array(random.integers(0, count, rows), pa.int32()), pa.array(some)).cast(pa.string())


def unique(rows, length):
    return pa.array(random.integers(97, 123, (rows, length), dtype=np.uint8).view(f"S{length}").ravel().astype(str))


def days(rows):
    return pa.array(random.integers(0, 20_000, rows).astype("datetime64[D]").astype(str))


def moments(rows):
    return pa.array((np.datetime64("2020-01-01T00:00:00") + random.integers(0, 10**8, rows).astype("timedelta64[s]")).astype(str))


def lacking(column, share):
    return pa.compute.if_else(pa.array(random.random(len(column)) < share), pa.scalar(None, column.type), column)


def shop(rows):
    return [whole(rows, 3_000_000), whole(rows, 90), cents(rows), normal(rows), whole(rows, 2), words(rows, 30, 2, 2), words(rows, 6, 5, 9), lacking(whole(rows, 50), 0.2)]


# -- tables: those that the rules of peaks.rs were fitted to, and those that they were not

FITTED = {
    "ints": (3_000_000, lambda n: [whole(n, 10**digits) for digits in (1, 2, 3, 5, 7, 9, 12, 15)]),
    "floats": (1_000_000, lambda n: [normal(n) for _ in range(7)]),
    "cents": (2_500_000, lambda n: [cents(n) for _ in range(10)]),
    "short text": (3_000_000, lambda n: [words(n, 10, 2, 8) for _ in range(8)]),
    "long text": (800_000, lambda n: [unique(n, 120), unique(n, 40), whole(n, 99)]),
    "nulls": (6_000_000, lambda n: [lacking(whole(n, 10**6), 0.5), lacking(normal(n), 0.5), lacking(words(n, 50, 5, 12), 0.5), lacking(whole(n, 100), 0.9)]),
    "wide": (60_000, lambda n: [whole(n, 1000) if index % 2 else cents(n) for index in range(400)]),
    "dates": (3_000_000, lambda n: [days(n), moments(n), whole(n, 100), moments(n)]),
    "flags": (4_000_000, lambda n: [pa.array(random.random(n) < 0.5) for _ in range(6)] + [whole(n, 9)]),
    "shop": (2_500_000, shop),
    "logs": (1_200_000, lambda n: [moments(n), words(n, 60_000, 9, 15), unique(n, 48), whole(n, 500), whole(n, 10**7), cents(n)]),
    "mostly zero": (400_000, lambda n: [pa.array(random.integers(0, 9, n) * (random.random(n) < 0.02)) for _ in range(150)]),
    "identifiers": (1_500_000, lambda n: [unique(n, 36), normal(n), whole(n, 10**9), words(n, 200, 4, 20), lacking(normal(n), 0.1)]),
    "gaps": (300_000, lambda n: [lacking(whole(n, 10**4) if index % 3 else words(n, 20, 3, 9), 0.3) for index in range(60)]),
    "essays": (400_000, lambda n: [whole(n, 10**6), words(n, 2000, 200, 600)]),
    "large shop": (5_000_000, shop),
}
OTHERS = {
    "sensors": (900_000, lambda n: [moments(n), *(pa.array(random.standard_normal(n).round(3)) for _ in range(14))]),
    "survey": (700_000, lambda n: [unique(n, 8), *(lacking(whole(n, 7), 0.15) for _ in range(45)), words(n, 5000, 10, 60)]),
    "messages": (600_000, lambda n: [whole(n, 10**12), unique(n, 200), days(n), words(n, 3, 4, 7), pa.array(random.random(n) < 0.1)]),
}


# Much text, some of it different in every row, as a shop's mail has it; and what is mostly numbers.
FRAMED = {
    "much text": (
        1_135_000,
        lambda n: [unique(n, 24), unique(n, 60), unique(n, 20), words(n, 7, 4, 6), words(n, 4, 3, 8), words(n, 5000, 12, 22), whole(n, 20), cents(n), days(n)],
    ),
    "shop": FITTED["shop"],
}


def write(folder, columns):
    """The same table as CSV and as Parquet."""
    table = pa.table(dict(zip((f"c{index}" for index in range(len(columns))), columns)))
    paths = {"csv": os.path.join(folder, "table.csv"), "parquet": os.path.join(folder, "table.parquet")}
    pyarrow.csv.write_csv(table, paths["csv"], pyarrow.csv.WriteOptions(quoting_style="none"))
    pyarrow.parquet.write_table(table, paths["parquet"])
    return paths


def measure(loader, path, native):
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), OOMPH_NATIVE=native)
    done = subprocess.run([sys.executable, PEAKS, loader, path], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{loader} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def frames(folder, native):
    """What it takes to have a frame of pandas; the least of some rounds, in which each loader comes once, of each column by itself."""
    print("| table | file, MB | loader | seconds | peak, MiB | result, MiB |\n|---|---:|---|---:|---:|---:|")
    for name, (rows, make) in FRAMED.items():
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            path = write(inside, make(rows))["csv"]
            measured = [[measure(loader, path, native) for loader in FRAMES] for _ in range(ROUNDS)]
            for loader, rounds in zip(FRAMES, zip(*measured)):
                best = {key: min(row[key] for row in rounds) for key in ("seconds", "peak", "result")}
                print(f"| {name} | {os.path.getsize(path) / 1e6:.0f} | {loader} | {best['seconds']:.2f} | {best['peak'] / 2**20:.0f} | {best['result'] / 2**20:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oomph", default=str(ROOT / "target/release/oomph"))
    parser.add_argument("--only", default=",".join([*FITTED, *OTHERS]))
    parser.add_argument("--folder", default=None)
    parser.add_argument("--frames", action="store_true")
    args = parser.parse_args()
    native = os.path.join(os.path.dirname(os.path.abspath(args.oomph)), "liboomph_native.so")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pandas", "polars", "pyarrow"))
    print(f"{versions}, Python {platform.python_version()}, {os.cpu_count()} cores, {datetime.date.today()}\n")
    if args.frames:
        return frames(args.folder, native)
    print("| table | file, MB | loader | peak, MB | of it private | estimated | off |\n|---|---:|---|---:|---:|---:|---:|")
    worst = {}
    for name, (rows, make) in {**FITTED, **OTHERS}.items():
        if name not in args.only.split(","):
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            for kind, path in write(folder, make(rows)).items():
                profiled = subprocess.run([args.oomph, "data", "profile", path, "--format", "json"], capture_output=True, text=True, check=True).stdout
                for peak in json.loads(profiled)["peaks"]:
                    row = measure(LOADERS[kind][peak["loader"]], path, native)
                    off = peak["bytes"] / row["peak"] - 1
                    key = (kind, peak["loader"])
                    worst[key] = max(worst.get(key, 0), abs(off), key=abs)
                    other = "" if name in FITTED else " *"
                    sizes = " | ".join(f"{size / 1e6:.0f}" for size in (row["peak"], row["private"], peak["bytes"]))
                    print(f"| {name}{other} | {os.path.getsize(path) / 1e6:.0f} | {peak['loader']}, {kind} | {sizes} | {100 * off:+.0f} % |", flush=True)
    print()
    for (kind, loader), off in sorted(worst.items()):
        print(f"{loader}, {kind}: {100 * off:.0f} % at worst")


if __name__ == "__main__":
    main()
