"""Load a table in one way, and print what that took: seconds, peak memory above importing, bytes of the result.

    python bench/data_peaks.py METHOD FILE

A process of its own for each, so that nothing is left from another. The peak is the highest resident set (VmHWM, set back after importing) less the
resident set after importing; `private` is its part that is not pages of mapped files, which the kernel can take back, sampled every 2 ms. The result's bytes are what
its library says.
"""

import gc
import json
import os
import sys
import threading
import time


def pandas(path):
    import pandas as pd

    def load():
        return pd.read_csv(path)

    return load, lambda frame: frame.memory_usage(deep=True).sum()


def pandas_downcast(path):
    import pandas as pd

    def load():
        frame = pd.read_csv(path)
        for name in frame.columns:
            column = frame[name]
            if pd.api.types.is_integer_dtype(column):
                frame[name] = pd.to_numeric(column, downcast="integer")
            elif pd.api.types.is_float_dtype(column):
                frame[name] = pd.to_numeric(column, downcast="float")
            elif column.nunique() < len(column) // 2:
                frame[name] = column.astype("category")
        return frame

    return load, lambda frame: frame.memory_usage(deep=True).sum()


def polars(path):
    import polars as pl

    def load():
        return pl.read_csv(path)

    return load, lambda frame: frame.estimated_size()


def polars_shrink(path):
    import polars as pl

    def load():
        frame = pl.read_csv(path)
        small = [s.cast(pl.Categorical) if s.dtype == pl.String else s.shrink_dtype() for s in frame.get_columns()]
        return pl.DataFrame(small)

    return load, lambda frame: frame.estimated_size()


def pandas_parquet(path):
    import pandas as pd

    def load():
        return pd.read_parquet(path)

    return load, lambda frame: frame.memory_usage(deep=True).sum()


def polars_parquet(path):
    import polars as pl

    def load():
        return pl.read_parquet(path)

    return load, lambda frame: frame.estimated_size()


def pyarrow(path):
    import pyarrow.csv

    def load():
        return pyarrow.csv.read_csv(path)

    return load, lambda table: table.nbytes


def duckdb_arrow(path):
    import duckdb

    def load():
        return duckdb.sql(f"FROM read_csv('{path}')").to_arrow_table()

    return load, lambda table: table.nbytes


def duckdb_parquet(path):
    import duckdb

    out = f"{path}.duckdb.parquet"

    def load():
        duckdb.sql(f"COPY (FROM read_csv('{path}')) TO '{out}'")
        return out

    def size(out):
        size = os.path.getsize(out)
        os.remove(out)
        return size

    return load, size


def oomph_exact(path, policy="exact"):
    import oomph.data

    def load():
        return oomph.data.load(path, policy=policy)

    return load, lambda table: table.nbytes


def oomph_relative(path):
    return oomph_exact(path, "rel:1e-6")


def oomph_to_pandas(path, **how):
    import oomph.data

    def load():
        return oomph.data.load(path).to_pandas(**how)

    return load, lambda frame: frame.memory_usage(deep=True).sum()


def oomph_to_pandas_compact(path):
    return oomph_to_pandas(path, compact=True)


METHODS = {
    "pandas.read_csv": pandas,
    "pandas.read_parquet": pandas_parquet,
    "pandas, then downcast": pandas_downcast,
    "polars.read_csv": polars,
    "polars.read_parquet": polars_parquet,
    "polars, then shrink_dtype": polars_shrink,
    "pyarrow.csv.read_csv": pyarrow,
    "duckdb, to Arrow": duckdb_arrow,
    "duckdb, to Parquet": duckdb_parquet,
    "oomph.data.load, exact": oomph_exact,
    "oomph.data.load, rel:1e-6": oomph_relative,
    "oomph.data.load, to_pandas": oomph_to_pandas,
    "oomph.data.load, to_pandas, compact": oomph_to_pandas_compact,
}


def memory(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


class Sampled:
    """The highest private memory while it is entered."""

    def __enter__(self):
        self.before = self.most = memory("RssAnon:")
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.done.wait(0.002):
            self.most = max(self.most, memory("RssAnon:"))

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()


def main():
    method, path = sys.argv[1:]
    load, size = METHODS[method](path)
    gc.collect()
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = memory("VmRSS:")
    with Sampled() as sampled:
        start = time.perf_counter()
        result = load()
        seconds = time.perf_counter() - start
    peak = memory("VmHWM:") - before
    print(json.dumps({"seconds": seconds, "peak": peak, "private": sampled.most - sampled.before, "result": int(size(result))}))


if __name__ == "__main__":
    main()
