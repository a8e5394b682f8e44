"""Read a file as batches of tensors in one way, and print rows and seconds.

    python bench/data_streams.py METHOD FILE BUDGET

Says "ready" when everything is imported, and begins when it reads a line: whoever started it measures memory between the two.
"""

import json
import sys
import time

BATCH = 65_536
COLUMNS = ["user_id", "age", "clicks", "price", "score", "flag", "time"]


def oomph_stream(path, budget):

    import oomph.data

    def batches():
        for batch in oomph.data.stream(path, batch=BATCH, budget=budget, columns=COLUMNS, as_="torch"):
            yield len(batch["user_id"])

    return batches


def data_loader(path, _):
    import pyarrow.csv
    import pyarrow.parquet
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Rows(IterableDataset):
        """Every worker reads the row groups, or of a CSV the blocks, that are its turn."""

        def __iter__(self):
            worker = get_worker_info()
            if path.endswith(".parquet"):
                file = pyarrow.parquet.ParquetFile(path)
                groups = range(worker.id, file.num_row_groups, worker.num_workers)
                batches = file.iter_batches(BATCH, row_groups=list(groups), columns=COLUMNS)
            else:
                options = pyarrow.csv.ConvertOptions(include_columns=COLUMNS)
                blocks = enumerate(pyarrow.csv.open_csv(path, convert_options=options))
                batches = (block for index, block in blocks if index % worker.num_workers == worker.id)
            for batch in batches:
                yield {name: torch.from_numpy(batch[name].to_numpy().copy()) for name in COLUMNS}

    def batches():
        for batch in DataLoader(Rows(), batch_size=None, num_workers=2):
            yield len(batch["user_id"])

    return batches


def hugging_face(path, _):
    """As Arrow data, from which tensors are made here: with_format("torch") goes through Python's objects, and takes ten times as long."""
    import datasets
    import torch

    def batches():
        kind, columns = ("parquet", {"columns": COLUMNS}) if path.endswith(".parquet") else ("csv", {"usecols": COLUMNS})
        rows = datasets.load_dataset(kind, data_files=path, split="train", streaming=True, **columns)
        for table in rows.with_format("arrow").iter(BATCH):
            batch = {name: torch.from_numpy(table[name].to_numpy().copy()) for name in COLUMNS}
            yield len(batch["user_id"])

    return batches


METHODS = {
    "oomph.data.stream": oomph_stream,
    "torch DataLoader, 2 workers": data_loader,
    "datasets, streaming": hugging_face,
}


def main():
    method, path, budget = sys.argv[1:]
    batches = METHODS[method](path, int(budget))
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    rows = sum(batches())
    print(json.dumps({"rows": rows, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
