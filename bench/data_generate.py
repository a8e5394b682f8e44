"""Write a CSV of mixed columns, the same bytes for the same number of rows, with little memory.

    python bench/data_generate.py FILE --rows 4000000

A row is what a shop's log has: user, age, clicks, price with cents, a normal score, a flag, country, device, a small integer that a fifth of the rows
lack, and Unix time: about 60 bytes. Rows are made in chunks, each from its own seed.
"""

import argparse
import os

import numpy as np
import pyarrow as pa
import pyarrow.csv

CHUNK = 250_000
COLUMNS = ("user_id", "age", "clicks", "price", "score", "flag", "country", "device", "rating", "time")
COUNTRIES = np.array("AR AT AU BE BR CA CH CN CZ DE DK ES FI FR GB GR IE IN IT JP KR MX NL NO NZ PL PT SE TR US".split())
DEVICES = np.array(["phone", "tablet", "desktop", "console", "television", "watch"])


def chunk(index, rows):
    random = np.random.default_rng([1, index])
    columns = [
        random.integers(1, 3_000_000, rows),
        random.integers(18, 90, rows),
        random.geometric(0.08, rows) - 1,
        random.gamma(2.0, 24.0, rows).round(2),
        random.standard_normal(rows).round(13),
        random.integers(0, 2, rows),
        COUNTRIES[random.integers(0, len(COUNTRIES), rows)],
        DEVICES[random.choice(len(DEVICES), rows, p=[0.5, 0.12, 0.3, 0.04, 0.03, 0.01])],
        pa.array(random.integers(0, 50, rows), mask=random.random(rows) < 0.2),
        1_700_000_000 + CHUNK * index * 3 + random.integers(0, 3 * CHUNK, rows),
    ]
    return pa.record_batch(columns, names=list(COLUMNS))


def generate(path, rows):
    """Beside its place, moved when it is whole."""
    partial = f"{path}.part"
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    with open(partial, "wb") as out:
        out.write((",".join(COLUMNS) + "\n").encode())
        for index, start in enumerate(range(0, rows, CHUNK)):
            pyarrow.csv.write_csv(chunk(index, min(CHUNK, rows - start)), out, options)
    os.replace(partial, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, default=4_000_000)
    args = parser.parse_args()
    generate(args.file, args.rows)
