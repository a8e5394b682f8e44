"""oomph.data.profile, load and shrink: every value of every type comes back, in everybody's hands, and nothing is copied that need not be."""

import array
import csv
import datetime
import decimal
import json
import math
import mmap
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import warnings

import duckdb
import numpy as np
import oomph.data as data
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import scipy.sparse
import torch
from conftest import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python")}

# -- every type


HARD_FLOATS = [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, -2.2e-308, 1.0, 0.1, 16777217.0, 9007199254740993.0, 65504.0, 65520.0, 1e300, 3.5]
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
WORDS = ["", "a", "Zürich", "日本", 'say "no"', "two\nlines", "a,b", " spaced ", "NA", "null", "0012", "nan", "\u202e", "x" * 300, "true", "1e5"]


def integers(rng, bits, signed):
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    hard = [low, high, 0, 1, 127, 128, 255, 256, (1 << 24) + 1, (1 << 53) + 1, -1, -129]
    hard = [value for value in hard if low <= value <= high]
    return lambda: rng.choice(hard) if rng.random() < 0.3 else rng.randint(low, high)


def makers(rng):
    """Arrow's type, and how to make a value of it."""
    made = []
    for name, bits in INTEGERS.items():
        made += [(getattr(pa, name)(), integers(rng, bits, True)), (getattr(pa, f"u{name}")(), integers(rng, bits, False))]
        # Most numbers are small.
        made.append((getattr(pa, name)(), lambda: rng.randint(0, 100)))
    floats = lambda: rng.choice(HARD_FLOATS) if rng.random() < 0.3 else rng.uniform(-1e9, 1e9)
    whole = lambda: float(rng.randint(-300, 300))
    halves = lambda: np.float16(rng.choice([0.0, -0.0, math.nan, math.inf, 6e-8, 65504.0]) if rng.random() < 0.5 else rng.uniform(-100, 100))
    made += [
        (pa.float64(), floats),
        (pa.float32(), lambda: float(np.float32(min(max(floats(), -3e38), 3e38)))),
        (pa.float64(), whole),
        (pa.float32(), whole),
        (pa.float16(), halves),
    ]
    made += [(pa.bool_(), lambda: rng.random() < 0.5), (pa.null(), lambda: None)]
    made += [(kind, lambda: rng.choice(WORDS)) for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()))]
    made += [(pa.string(), lambda: f"row {rng.random()}")]
    day = lambda: datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.randint(-200_000, 200_000))
    made += [(pa.date32(), day), (pa.date64(), day)]
    for unit, most in (("s", 10**11), ("ms", 10**14), ("us", 10**17), ("ns", 9 * 10**18)):
        counts = lambda most=most: rng.randint(-most, most)
        made += [(pa.timestamp(unit), counts), (pa.timestamp(unit, "Europe/Berlin"), counts), (pa.duration(unit), counts)]
    made += [(pa.time32("ms"), lambda: rng.randrange(86_400_000)), (pa.time64("ns"), lambda: rng.randrange(86_400 * 10**9))]
    made += [(pa.binary(), lambda: rng.randbytes(rng.randrange(5))), (pa.decimal128(30, 4), lambda: decimal.Decimal(rng.randint(-(10**25), 10**25)).scaleb(-4))]
    made += [(pa.list_(pa.int64()), lambda: [rng.randint(0, 9) for _ in range(rng.randrange(3))])]
    made += [(pa.struct([("a", pa.int64())]), lambda: {"a": rng.randint(0, 9)})]
    return made


def random_table(seed):
    rng = random.Random(seed)
    rows = rng.choice([0, 1, 7, 8, 9, 100, 1000])
    columns, fields = [], []
    for number, (kind, make) in enumerate(makers(rng)):
        missing = rng.choice([0.0, 0.1, 0.5, 1.0])
        values = [None if rng.random() < missing else make() for _ in range(rows)]
        columns.append(pa.array(values, type=kind))
        fields.append(pa.field(f"{number} {kind}", kind))
    return pa.table(columns, schema=pa.schema(fields))


def bits(column):
    """What a column says, floats by their bits (one NaN for all), whatever type holds it."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return [None if value is None else numeric(value) for value in column.to_pylist()]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return moments(column)
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        wide = column.cast(pa.int64() if column.type.bit_width == 64 else pa.int32()).to_pylist()
        return [None if value is None else value * NANOSECONDS[kind.unit] for value in wide]
    return column.to_pylist()


NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def numeric(value):
    if value != value:
        return "nan"
    if math.isinf(value):
        return value
    # An integer stands for the float that it equals; zero has a sign.
    return "-0" if value == 0 and math.copysign(1, value) < 0 else int(value) if value == int(value) else float(value)


def moments(column):
    if pa.types.is_date32(column.type):
        return [None if value is None else value * 86_400 * 10**9 for value in column.cast(pa.int32()).to_pylist()]
    scale = NANOSECONDS["ms"] if pa.types.is_date64(column.type) else NANOSECONDS[column.type.unit]
    return [None if value is None else value * scale for value in column.cast(pa.int64()).to_pylist()]


def assert_same(table, original):
    assert table.column_names == original.column_names
    for name in original.column_names:
        assert bits(table[name]) == bits(original[name]), (name, table[name].type)


@pytest.mark.parametrize("seed", range(12))
def test_every_value_of_every_type_comes_back(seed):
    original = random_table(seed)
    loaded = data.load(original, sparse="never")
    assert len(loaded) == len(original) and loaded.lossy == {}
    assert loaded.columns == tuple(original.column_names)
    assert_same(loaded.to_pyarrow(), original)
    assert loaded.nbytes <= loaded.profile.bytes.now


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("write", [pyarrow.parquet.write_table, pyarrow.feather.write_feather, None], ids=["parquet", "feather", "ipc stream"])
def test_every_value_in_a_file_comes_back(seed, write, tmp_path):
    original = random_table(100 + seed)
    if write is not None:
        # Parquet has no seconds, and neither of them string views before long.
        kept = [name for name in original.column_names if not any(word in name for word in ("string_view", "[s", "struct"))]
        original = original.select(kept)
        write(original, tmp_path / "table")
        if write is pyarrow.parquet.write_table:
            original = pyarrow.parquet.read_table(tmp_path / "table")
    else:
        with pa.ipc.new_stream(tmp_path / "table", original.schema) as out:
            out.write_table(original)
    loaded = data.load(tmp_path / "table", sparse="never")
    assert_same(loaded.to_pyarrow(), original)
    # And again through a smaller file.
    written = data.shrink(tmp_path / "table", tmp_path / "small.parquet")
    assert written.rows == len(original) and written.lossy == {}
    assert_same(pyarrow.parquet.read_table(tmp_path / "small.parquet"), original)


@pytest.mark.parametrize("seed", range(6))
def test_every_value_in_a_csv_comes_back(seed, tmp_path):
    """Against Python's own writer: what it quotes, and what it leaves empty."""
    rng = random.Random(seed)
    kinds = {
        "small": lambda: rng.randint(0, 200),
        "large": lambda: rng.choice([2**53 + 1, -(2**63), 2**63 - 1, 0]),
        "unsigned": lambda: rng.choice([2**64 - 1, 0, 5]),
        "float": lambda: rng.choice([value for value in HARD_FLOATS if math.isfinite(value)]) if rng.random() < 0.5 else rng.random(),
        "whole": lambda: float(rng.randint(0, 99)),
        "word": lambda: rng.choice(WORDS[1:]),
        "text": lambda: f"{rng.choice(WORDS)} {rng.random()}",
        "day": lambda: (datetime.date(2000, 1, 1) + datetime.timedelta(days=rng.randint(-9999, 9999))).isoformat(),
        "truth": lambda: rng.choice(["true", "false"]),
    }
    rows = [{name: None if rng.random() < 0.1 else make() for name, make in kinds.items()} for _ in range(700)]
    path = tmp_path / "table.csv"
    with open(path, "w", newline="") as out:
        writer = csv.DictWriter(out, kinds, lineterminator=rng.choice(["\n", "\r\n"]))
        writer.writeheader()
        writer.writerows({name: repr(value) if isinstance(value, float) else value for name, value in row.items()} for row in rows)
    loaded = data.load(path).to_pyarrow()
    for name in ("small", "large", "unsigned", "float", "whole"):
        assert bits(loaded[name]) == [None if row[name] is None else numeric(row[name]) for row in rows], name
    for name in ("word", "text"):
        assert loaded[name].to_pylist() == [row[name] for row in rows]
    assert [None if day is None else day.isoformat() for day in loaded["day"].to_pylist()] == [row["day"] for row in rows]
    assert loaded["truth"].to_pylist() == [None if row["truth"] is None else row["truth"] == "true" for row in rows]


def test_an_empty_string_is_not_a_missing_one(tmp_path):
    (tmp_path / "table.csv").write_text('text,number\n"",1\n,2\nx,\n')
    loaded = data.load(tmp_path / "table.csv").to_pyarrow()
    assert loaded["text"].to_pylist() == ["", None, "x"] and loaded["number"].to_pylist() == [1, 2, None]
    (tmp_path / "table.jsonl").write_text('{"text": "", "number": 1}\n{"text": null, "number": 2.5}\n{"number": 18446744073709551615}\n')
    lines = data.load(tmp_path / "table.jsonl").to_pyarrow()
    assert lines["text"].to_pylist() == ["", None, None]
    assert lines["number"][2].as_py() == 18446744073709551615 or lines["number"].type == pa.string()


def test_a_relative_policy_names_what_it_changed(tmp_path):
    (tmp_path / "table.csv").write_text("kept,changed\n" + "".join(f"{i},{i / 3}\n" for i in range(1, 1000)))
    loaded = data.load(tmp_path / "table.csv", "rel:1e-6")
    exact = np.array([i / 3 for i in range(1, 1000)])
    changed = loaded["changed"].to_numpy()
    worst = float(np.max(np.abs(changed.astype("f8") - exact) / exact))
    assert changed.dtype == "f4" and 0 < worst <= loaded.lossy["changed"] <= 1e-6 and list(loaded.lossy) == ["changed"]
    assert "changed by at most" in repr(loaded)
    written = data.shrink(tmp_path / "table.csv", tmp_path / "small.parquet", "rel:1e-6")
    assert written.lossy == loaded.lossy and "changed by at most" in str(written)


def test_what_has_no_place_to_say_what_changed_warns(tmp_path):
    thirds = np.array([1 / 3, 2 / 3, 1e6 / 3])
    worst = float(np.max(np.abs(thirds.astype("f4") - thirds) / thirds))
    frame = pd.DataFrame({"kept": [1, 2, 3], "changed": thirds})
    np.save(tmp_path / "a.npy", thirds)
    for call, name in (
        (lambda: data.shrink(frame, policy="rel:1e-6"), "changed"),
        (lambda: data.shrink(pl.DataFrame(frame), policy="rel:1e-6"), "changed"),
        (lambda: data.shrink(thirds, policy="rel:1e-6"), "data"),
        (lambda: data.shrink(torch.from_numpy(thirds), policy="rel:1e-6"), "data"),
        (lambda: data.load(tmp_path / "a.npy", "rel:1e-6"), "the array"),
    ):
        with pytest.warns(data.LossyWarning) as warned:
            call()
        assert [str(one.message) for one in warned] == [f"values changed, as parts of themselves: {name} by at most {worst:.1e}"] and warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small, report = data.shrink(frame, policy="rel:1e-6", report=True)
        assert list(report.lossy) == ["changed"] and worst <= report.lossy["changed"] <= 1.01 * worst and small["changed"].dtype == "float32"
        assert report.profile["kept"].exact.type == str(small["kept"].dtype)
        small, report = data.shrink(frame, report=True)
        assert report.lossy == {} and (small["changed"] == thirds).all()
        assert list(data.load(frame, "rel:1e-6").lossy) == ["changed"]


# -- what is written over


def test_nothing_is_written_over_unasked(tmp_path):
    table, other = tmp_path / "table.parquet", tmp_path / "other.parquet"
    pa.parquet.write_table(pa.table({"a": [1.0, 2.0, 300.0]}), table)
    other.write_text("precious")
    before = table.read_bytes()
    with pytest.raises(FileExistsError, match=r"other\.parquet: exists already \(force=True writes over it\)"):
        data.shrink(table, other)
    assert other.read_text() == "precious"
    (tmp_path / "link.parquet").symlink_to(table)
    os.link(table, tmp_path / "hard.parquet")
    for same in (table, tmp_path / "link.parquet", tmp_path / "hard.parquet", f"{tmp_path}/../{tmp_path.name}/table.parquet"):
        for read in (table, f"file://{table}"):
            with pytest.raises(ValueError, match="this is what is read"):
                data.shrink(read, same, force=True)
    (tmp_path / "nowhere.parquet").symlink_to(tmp_path / "gone.parquet")
    with pytest.raises(FileExistsError):
        data.shrink(table, tmp_path / "nowhere.parquet")
    with pytest.raises(IsADirectoryError):
        data.shrink(table, (tmp_path / "folder.parquet").mkdir() or tmp_path / "folder.parquet", force=True)
    assert table.read_bytes() == before
    # By force, what a link leads to is written, and the link stays.
    (tmp_path / "to other.parquet").symlink_to(other)
    written = data.shrink(table, tmp_path / "to other.parquet", force=True)
    assert (tmp_path / "to other.parquet").is_symlink() and pa.parquet.read_table(other)["a"].to_pylist() == [1, 2, 300]
    assert written.path == str(tmp_path / "to other.parquet") and written.bytes == other.stat().st_size
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_name_says_what_is_in_the_file(tmp_path):
    for name in ("out.csv", "out.npy", "out"):
        with pytest.raises(ValueError, match=f"{name}: a table is written as .parquet; end the name so"):
            data.shrink(pa.table({"a": [1]}), tmp_path / name)
    with pytest.raises(ValueError, match="an array is written as .npy"):
        data.shrink(np.arange(3.0), tmp_path / "out.parquet")
    values = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    np.save(tmp_path / "a.npy", values)
    for given, out in ((values, "b.npy"), (tmp_path / "a.npy", "c.npy"), (torch.from_numpy(values), "d.npy")):
        written = data.shrink(given, tmp_path / out)
        saved = np.load(tmp_path / out)
        assert saved.tolist() == values.tolist() and saved.dtype == "int8" and written.bytes == (tmp_path / out).stat().st_size and written.rows == 3
    np.savez(tmp_path / "two.npz", first=np.arange(3), second=np.arange(2))
    with pytest.raises(ValueError, match=r"holds one array, and this is 2 arrays \(first, second\)"):
        data.shrink(tmp_path / "two.npz", tmp_path / "two.npy")
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npy", "c.npy", "d.npy", "two.npz"]


def test_an_index_is_not_left_out_of_a_file_unsaid(tmp_path):
    frame = pd.DataFrame({"a": [1, 2]}, index=["x", "y"])
    with pytest.raises(ValueError, match=r"would not have the index of the frame: reset_index\(\) first"):
        data.shrink(frame, tmp_path / "out.parquet")
    data.shrink(frame.reset_index(), tmp_path / "out.parquet")
    assert pd.read_parquet(tmp_path / "out.parquet").to_dict("list") == {"index": ["x", "y"], "a": [1, 2]}


# -- everybody's hands


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "mixed.csv"
    rows = ["whole,gap,price,hole,city,text,flag,day,moment"]
    for i in range(300):
        city = "" if i % 9 == 0 else ("Oslo", "Rome")[i % 2]
        rows.append(
            f"{i},{'' if i % 7 == 0 else i % 90},{i / 3},{'' if i % 5 == 0 else i / 7},{city},t {i * 7919},{'true' if i % 3 else 'false'},2024-02-{i % 28 + 1:02d},2024-01-01T00:{i % 60:02d}:00.5"
        )
    path.write_text("\n".join(rows) + "\n")
    return path


def test_pandas_has_the_same_values(mixed):
    frame, read = data.load(mixed).to_pandas(), pd.read_csv(mixed, parse_dates=["day", "moment"])
    assert list(frame) == list(read)
    kinds = {name: str(kind) for name, kind in frame.dtypes.items()}
    assert kinds["whole"] == "int64" and kinds["gap"] == "Int64" and kinds["price"] == kinds["hole"] == "float64" and kinds["city"] == "category" and kinds["flag"] == "bool"
    assert kinds["day"] == "datetime64[s]" and kinds["text"] == "str"
    for name in read:
        ours, theirs = frame[name], read[name]
        assert (ours.isna() == theirs.isna()).all(), name
        there = theirs.notna()
        assert (ours[there].astype(theirs.dtype) == theirs[there]).all(), name
    small = data.load(mixed).to_pandas(compact=True)
    assert small["whole"].dtype == "int16" and str(small["gap"].dtype) == "Int8"
    assert small.astype(frame.dtypes).equals(frame) and small.memory_usage(deep=True).sum() < read.memory_usage(deep=True).sum()


def test_polars_has_the_same_values(mixed):
    frame, read = data.load(mixed).to_polars(), pl.read_csv(mixed, try_parse_dates=True)
    for name in ("whole", "gap", "price", "hole", "text", "flag", "day"):
        assert frame[name].cast(read[name].dtype).equals(read[name]), name
    assert frame["city"].cast(pl.String).equals(read["city"])
    assert all(frame[name].dtype == read[name].dtype for name in ("whole", "gap", "price", "hole", "text", "flag", "day"))
    small = data.load(mixed).to_polars(compact=True)
    assert small["gap"].dtype == pl.Int8 and small["whole"].dtype == pl.Int16 and pl.DataFrame(data.load(mixed)).equals(small)


def test_numpy_and_torch_have_the_same_values(mixed):
    loaded, read = data.load(mixed), pd.read_csv(mixed)
    arrays = loaded.to_numpy()
    assert (arrays["whole"] == read["whole"]).all() and (arrays["price"] == read["price"]).all()
    assert (arrays["gap"].mask == read["gap"].isna()).all() and (arrays["gap"].compressed() == read["gap"].dropna()).all()
    assert arrays["city"][:4].tolist() == [None, "Rome", "Oslo", "Rome"]
    assert arrays["day"].dtype == "datetime64[D]" and str(arrays["moment"][1]).startswith("2024-01-01T00:01:00.5")
    chosen = data.load(mixed, columns=["gap", "city", "flag", "price"])
    tensors = chosen.to_torch(nulls={"gap": -1, "city": 100})
    # As an index of torch's is.
    assert tensors["gap"].dtype == tensors["city"].dtype == torch.int64 and tensors["gap"][:3].tolist() == [-1, 1, 2]
    small = chosen.to_torch(nulls={"gap": -1, "city": 100}, compact=True)
    assert small["gap"].dtype == small["city"].dtype == torch.int8 and torch.equal(small["city"].long(), tensors["city"])
    categories = loaded["city"].categories
    assert [categories[code] if code != 100 else None for code in tensors["city"].tolist()] == arrays["city"].tolist()
    assert tensors["flag"].dtype == torch.bool and torch.equal(tensors["price"], torch.tensor(read["price"]))


def test_a_tensor_is_not_made_of_what_it_cannot_hold(mixed):
    loaded = data.load(mixed)
    with pytest.raises(ValueError, match=r"column 'gap' has 43 rows without a value.*to_torch\(nulls=0\)"):
        loaded["gap"].to_torch()
    assert loaded["gap"].to_torch(nulls=1000)[0] == 1000
    with pytest.raises(ValueError, match="column 'gap': 1000 is no int8"):
        loaded["gap"].to_torch(nulls=1000, compact=True)
    for nulls in (math.nan, 0.5, math.inf, "x"):
        with pytest.raises(ValueError, match="column 'gap': .* is no int8; .* may be a whole number from -128 to 127"):
            loaded["gap"].to_torch(nulls=nulls, compact=True)
        with pytest.raises(ValueError, match=f"column 'gap': .* is no int64; .* may be a whole number from {-(2**63)} to {2**63 - 1}"):
            loaded["gap"].to_torch(nulls=nulls)
    truths = data.load(pa.table({"t": [True, None]}))
    with pytest.raises(ValueError, match="column 't': nan is no bool; .* may be True or False"):
        truths.to_torch(nulls=math.nan)
    assert truths["t"].to_torch(nulls=False).tolist() == [True, False]
    filled = loaded["hole"].to_torch(nulls=math.nan)
    assert filled.isnan().sum() == 60 and filled[1] == 1 / 7
    with pytest.raises(TypeError, match="column 'text' is Utf8, which torch has no tensors of"):
        loaded["text"].to_torch()
    with pytest.raises(KeyError, match="no column 'nowhere'; there are 'whole', 'gap'"):
        loaded["nowhere"]


def test_numbers_are_not_copied(mixed):
    # Those that have their type already, and with compact=True all.
    for name, how in (("price", {}), ("whole", {"compact": True})):
        loaded = data.load(mixed)
        where = loaded[name].to_numpy(**how).ctypes.data
        assert loaded[name].to_numpy(**how).ctypes.data == where
        assert loaded.to_pandas(**how)[name].to_numpy().ctypes.data == where
        assert loaded.to_pyarrow()[name].chunk(0).buffers()[1].address == where
        assert pa.table(loaded.to_polars(**how))[name].chunk(0).buffers()[1].address == where
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tensor = loaded[name].to_torch(**how)
        assert tensor.data_ptr() == where
        # The table may go: what was given keeps its memory.
        array, expected = loaded[name].to_numpy(**how), loaded[name].to_list()
        del loaded, tensor
        assert array.tolist() == expected and not array.flags.writeable
    assert not data.load(mixed)["whole"].to_numpy().flags.writeable


def test_text_is_not_copied_to_pandas(mixed):
    """Nor made objects of, which took nine tenths of the time that a table of text took."""
    loaded = data.load(mixed)
    held, given = loaded.to_pyarrow()["text"].chunk(0), pa.array(loaded.to_pandas()["text"].array)
    given = given.chunk(0) if isinstance(given, pa.ChunkedArray) else given
    assert given.buffers()[2].address == held.buffers()[2].address and given.to_pylist() == held.to_pylist()
    frame = loaded.to_pandas()
    frame.loc[0, "text"] = "another"
    assert frame.loc[0, "text"] == "another" and loaded.to_pandas().loc[0, "text"] == held[0].as_py()


def test_numbers_compute_as_pandas_computes(tmp_path):
    """Small types overflow without a word: whoever computes is given what they would have had."""
    rng = np.random.default_rng(3)
    columns = {
        "quantity": rng.integers(1, 20, 300),
        "byte": rng.integers(0, 256, 300),
        "short": rng.integers(0, 65_536, 300),
        "word": rng.integers(0, 2**32, 300),
        "whole": rng.integers(0, 9, 300).astype("f8"),
        "half": rng.integers(0, 2048, 300) / 8,
        "exact": rng.integers(0, 2**20, 300) / 64,
        "share": rng.random(300),
    }
    pd.DataFrame(columns).to_csv(tmp_path / "table.csv", index=False)
    read, loaded = pd.read_csv(tmp_path / "table.csv"), data.load(tmp_path / "table.csv")
    held = {"quantity": "int8", "byte": "uint8", "short": "uint16", "word": "uint32", "whole": "int8", "half": "float16", "exact": "float32", "share": "float64"}
    assert loaded.dtypes == held
    frame, arrays, tensors, polars = loaded.to_pandas(), loaded.to_numpy(), loaded.to_torch(), loaded.to_polars()
    assert frame.dtypes.equals(read.dtypes) and frame.equals(read)
    assert (frame.quantity * 100).max() == 100 * read.quantity.max() == 1900
    for name, column in read.items():
        expected = ((column - column.max()) * 100 * column).tolist()
        for given in (frame[name], arrays[name], tensors[name], polars[name], loaded[name].to_numpy(), pd.Series(loaded[name].to_pandas()), loaded[name].to_torch()):
            assert np.asarray((given - given.max()) * 100 * given).tolist() == expected, (name, type(given))
            assert float(given.sum()) == pytest.approx(float(column.sum()), rel=1e-12)
    small = loaded.to_pandas(compact=True)
    assert {name: str(kind) for name, kind in small.dtypes.items()} == held and small.astype(read.dtypes).equals(read)
    assert {name: str(array.dtype) for name, array in loaded.to_numpy(compact=True).items()} == held
    # Arrow data is as it is held.
    assert str(pa.table(loaded).schema.field("quantity").type) == "int8"


def test_tensors_are_wide_or_as_they_are_held():
    table = data.load(pa.table({"n": [1, 2, 3], "word": pa.array(["x", "y", "x"]).dictionary_encode(), "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2))}))
    assert table.dtypes["n"] == "int8"
    wide, small = table.to_torch(), table.to_torch(compact=True)
    assert (wide["n"].dtype, small["n"].dtype, table["n"].to_torch().dtype, table["n"].to_torch(compact=True).dtype) == (torch.int64, torch.int8, torch.int64, torch.int8)
    assert wide["word"].dtype == torch.int64 and small["word"].dtype in (torch.int8, torch.int32)
    assert wide["n"].tolist() == small["n"].tolist() == [1, 2, 3] and wide["pair"].tolist() == small["pair"].tolist() == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("wide_first", [True, False])
def test_a_table_keeps_no_wide_numbers_and_gives_small_ones_without_a_copy(wide_first):
    rows = 400_000
    source = pa.table({"small": np.arange(rows) % 100, "gap": pa.array([None, *range(rows - 1)], pa.int64()), "real": np.arange(rows) / 3})
    table = data.load(source)
    assert table.dtypes == {"small": "int8", "gap": "int32", "real": "float64"}
    kinds = [False, True] if wide_first else [True, False]
    frames = {compact: table.to_pandas(compact=compact) for compact in kinds}
    assert [str(kind) for kind in frames[False].dtypes] == ["int64", "Int64", "float64"] and [str(kind) for kind in frames[True].dtypes] == ["int8", "Int32", "float64"]
    assert frames[False].equals(source.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get).astype({"small": "int64"}))
    again = table.to_pandas(compact=True)
    for name in ("small", "real"):
        held = table[name].to_numpy(compact=True)
        assert np.shares_memory(again[name].to_numpy(), held) and np.shares_memory(frames[True][name].to_numpy(), held)
    assert np.shares_memory(frames[False]["real"].to_numpy(), again["real"].to_numpy())
    # Each frame changes alone.
    for frame in frames.values():
        frame.loc[1, ["small", "gap", "real"]] = [7, 8, 9]
    assert again.loc[1].tolist() == [1, 0, 1 / 3] == table.to_pandas().loc[1].tolist() and [column.to_list()[1] for column in map(table.__getitem__, table)] == [1, 0, 1 / 3]
    # Wide numbers go with their frame.
    tracemalloc.start()
    try:
        again = table.to_pandas()
        with_frame = tracemalloc.get_traced_memory()[0]
        del again
        without = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert with_frame > 16 * rows and without < rows


@pytest.mark.parametrize("words", [[1, None], [True, None], [0.5, None], ["x", None], [1, 1, None]])
def test_a_dictionary_may_have_a_null_among_its_values(words):
    source = pa.DictionaryArray.from_arrays([0, 1, None, 0, len(words) - 1], pa.array(words))
    frame = data.load(pa.table({"a": source})).to_pandas()
    assert [None if pd.isna(one) else one for one in frame["a"]] == source.to_pylist() and frame["a"].cat.categories.tolist() == words[:1]


def test_numbers_are_given_in_the_types_that_they_had():
    table = pa.table(
        {
            "mine": pa.array([1, 2, 3], pa.int8()),
            "narrowed": pa.array([1, 2, 3], pa.uint16()),
            "half": pa.array([0.5, 1.5, 2.5], pa.float32()),
            "far": pa.array([2**64 - 1, 0, 1], pa.uint64()),
            "gap": pa.array([1, None, 3], pa.int32()),
        }
    )
    loaded = data.load(table)
    assert loaded.dtypes == {"mine": "int8", "narrowed": "int8", "half": "float16", "far": "uint64", "gap": "int8"}
    assert [str(kind) for kind in loaded.to_pandas().dtypes] == ["int8", "uint16", "float32", "uint64", "Int32"]
    assert loaded.to_polars().dtypes == [pl.Int8, pl.UInt16, pl.Float32, pl.UInt64, pl.Int32]
    assert loaded.to_pandas()["far"].tolist() == [2**64 - 1, 0, 1]
    # A policy that lets floats change was asked for small ones, but for none that overflow at 65,504.
    thirds = data.load(pa.table({"third": [1 / 3, 2 / 3]}), "rel:1e-3")
    assert thirds.dtypes == {"third": "float16"} and thirds.to_pandas()["third"].dtype == "float32" and thirds.to_pandas(compact=True)["third"].dtype == "float16"


def test_a_matrix_computes_as_its_table_would():
    dense = np.zeros((100, 20))
    dense[::7, ::3] = 100
    matrix = data.load(dense)
    assert isinstance(matrix, data.Csr) and matrix.data.dtype == "int8"
    ours = matrix.to_scipy()
    assert ours.dtype == "float64" and ((ours.T @ ours).toarray() == dense.T @ dense).all() and (matrix.to_pandas() * 100).to_numpy().max() == 10_000
    assert (matrix.to_torch().to_dense() * 100).max() == 10_000
    small = matrix.to_scipy(compact=True)
    assert small.dtype == "int8" and small.data.ctypes.data == matrix.data.ctypes.data and (small.toarray() == dense).all()


def test_shrink_says_that_small_types_overflow_and_which_they_were(tmp_path, oomph):
    frame = pd.DataFrame({"ratio": [0.5, 1.5, 2.5], "age": [1, 2, 3], "gap": pd.array([1, None, 3], "Int64"), "place": [1, 2, 70_000], "name": ["x", "y", "z"]})
    small, report = data.shrink(frame, report=True)
    assert [str(small[name].dtype) for name in report.narrow] == ["float16", "int8", "Int8"] and report.narrow == ("ratio", "age", "gap")
    overflow = "small types overflow without a word where they are computed with"
    assert str(report) == f"every value kept; {overflow} ('ratio', 'age', 'gap'): widen them first, as with .astype({{'ratio': 'float64', 'age': 'int64', 'gap': 'Int64'}})"
    # What it says brings everything back.
    assert small.astype({"ratio": "float64", "age": "int64", "gap": "Int64"})[["ratio", "age", "gap"]].equals(frame[["ratio", "age", "gap"]])
    frame[["ratio", "age", "place"]].to_csv(tmp_path / "table.csv", index=False)
    written = data.shrink(tmp_path / "table.csv", tmp_path / "small.parquet")
    assert written.narrow == ("ratio", "age") and str(written).endswith(f"; {overflow} ('ratio', 'age'): widen them first, as with .astype({{'ratio': 'float64', 'age': 'int64'}})")
    code, _, said = oomph("data", "shrink", tmp_path / "table.csv", tmp_path / "small.parquet", "--force")
    assert code == 0 and f'note: {overflow} (ratio, age); widen them first: frame.astype({{"ratio": "float64", "age": "int64"}})\n' in said
    wide, report = data.shrink(frame[["place", "name"]], report=True)
    assert report.narrow == () and str(report) == "every value kept" and wide["place"].dtype == "int32"


def test_each_kind_is_told_how_it_is_widened(tmp_path):
    halves = np.array([[0.5, 1.5], [2.5, 3.5]], "f4")
    sparse = scipy.sparse.csr_array(np.diag(np.arange(1.0, 9)))
    cases = [
        (halves, ".astype('float32')"),
        (sparse, ".astype('float64')"),
        (torch.from_numpy(halves), ".to(torch.float32)"),
        (pl.DataFrame({"ratio": [0.5, 1.5], "age": [1, 2]}), ".cast({'ratio': polars.Float64, 'age': polars.Int64})"),
        (pa.table({"ratio": [0.5, 1.5], "mine": pa.array([1, 2], pa.int8())}), ".to_pandas().astype({'ratio': 'float64'})"),
    ]
    for given, said in cases:
        _, report = data.shrink(given, report=True)
        assert str(report).endswith(f": widen them first, as with {said}"), (type(given), str(report))
    np.save(tmp_path / "halves.npy", halves)
    assert str(data.shrink(tmp_path / "halves.npy", tmp_path / "small.npy")).endswith(": widen them first, as with .astype('float32')")


def test_a_day_is_a_datetime_to_whoever_reads_the_file(tmp_path):
    (tmp_path / "table.csv").write_text("day,n\n2024-02-29,1\n,2\n0001-01-01,3\n9999-12-31,4\n")
    data.shrink(tmp_path / "table.csv", tmp_path / "small.parquet")
    days = pd.read_parquet(tmp_path / "small.parquet")["day"]
    assert str(days.dtype) == "datetime64[ms]"
    assert [None if pd.isna(day) else day.date().isoformat() for day in days] == ["2024-02-29", None, "0001-01-01", "9999-12-31"]
    assert (days.dropna() + pd.Timedelta(days=1)).iloc[0] == pd.Timestamp("2024-03-01")
    # A column that was days already stays one.
    pa.parquet.write_table(pa.table({"day": pa.array([1, 2], pa.date32())}), tmp_path / "days.parquet")
    data.shrink(tmp_path / "days.parquet", tmp_path / "small.parquet", force=True)
    assert pa.parquet.read_schema(tmp_path / "small.parquet").field("day").type == pa.date32()


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow", "duckdb", "reader"])
def test_a_frame_gives_a_frame(kind, mixed):
    table = pa.table({"a": pa.array([1.0, 2.0, 250.0]), "b": ["x", "y", None]})
    frames = {
        "pandas": lambda: table.to_pandas().set_index(pd.Index([7, 8, 9])),
        "polars": lambda: pl.DataFrame(table),
        "pyarrow": lambda: table,
        "duckdb": lambda: duckdb.sql("select * from (values (1.0::double, 'x'), (2, 'y'), (250, null)) t(a, b)"),
        "reader": lambda: table.to_batches()[0],
    }
    frame = frames[kind]()
    small = data.shrink(frame)
    reported = data.profile(frame)
    assert (reported.rows, reported["a"].exact.type, reported["b"].nulls) == (3, "uint8", 1)
    if kind == "pandas":
        assert isinstance(small, pd.DataFrame) and small.index.tolist() == [7, 8, 9] and small["a"].dtype == "uint8" and small["b"].dtype == "category"
        assert frame["a"].equals(small["a"].astype("float64"))
    elif kind == "polars":
        assert isinstance(small, pl.DataFrame) and small["a"].dtype == pl.UInt8
    else:
        made = pa.table(small)
        assert made["a"].type == pa.uint8() and made["a"].to_pylist() == [1, 2, 250] and made["b"].to_pylist() == ["x", "y", None]


def test_what_can_be_read_only_once_says_so():
    table = pa.table({"a": [1, 2]})
    with pytest.raises(TypeError, match=r"pyarrow.RecordBatchReader can be read only once.*read_all\(\)"):
        data.load(table.to_reader())


def test_a_frame_of_pandas_keeps_what_is_no_number_and_no_text():
    day = datetime.date(2024, 2, 29)
    kept = {
        ("of", "period"): pd.period_range("2024-01", periods=3, freq="M"),
        ("of", "size"): pd.Categorical(["s", "l", "s"], categories=["s", "m", "l"], ordered=True),
        ("of", "time"): pd.Series([datetime.time(1, 2), None, datetime.time(3)], dtype=object),
        ("of", "date"): pd.Series([day, day, None], dtype=object),
        ("of", "mixed"): pd.Series(["a", 1, None], dtype=object),
        ("of", "moment"): pd.to_datetime(["2024-01-01", None, "2024-01-03"]),
        ("of", "zone"): pd.to_datetime(["2024-01-01", None, "2024-01-03"], utc=True).tz_convert("Europe/Berlin"),
        ("of", "length"): pd.to_timedelta([1, 2, 3], unit="h"),
        ("of", "interval"): pd.interval_range(0, 3),
        ("of", "complex"): np.array([1j, 2, 3]),
        ("of", "arrow"): pd.array([1, 2, None], dtype="int64[pyarrow]"),
        ("of", "sparse"): pd.arrays.SparseArray([0, 0, 1]),
    }
    numbers = {(0, "whole"): [1, 2, 300], (0, "nullable"): pd.array([1, None, 3], dtype="Int64"), (0, "full"): pd.array([1.0, 2.0, 3.0], dtype="Float64")}
    numbers[(0, "none")] = pd.array([None] * 3, dtype="Int64")
    texts = {(1, "nan"): [math.nan] * 3, (1, "text"): pd.array(["x", "x", None], dtype="str"), (1, "truth"): pd.array([True, None, False], dtype="boolean")}
    frame = pd.DataFrame({**numbers, **kept, **texts})
    frame.index = pd.Index([5, 5, 7], name="twice")
    frame.columns.names = ["level", "name"]
    frame.attrs["source"] = {"of": "somewhere"}
    before = frame.copy(deep=True)
    small = data.shrink(frame)
    assert small.index.equals(frame.index) and small.index.name == "twice"
    assert small.columns.equals(frame.columns) and list(small.columns.names) == ["level", "name"] and small.attrs == {"source": {"of": "somewhere"}}
    for label in kept:
        pd.testing.assert_series_equal(small[label], before[label])
    assert [type(value) for value in small[("of", "time")]] == [type(value) for value in before[("of", "time")]]
    kinds = {label: str(small[label].dtype) for label in (*numbers, *texts)}
    assert kinds == {
        (0, "whole"): "int16",
        (0, "nullable"): "Int8",
        (0, "full"): "Int8",
        (0, "none"): "Int64",
        (1, "nan"): "float64",
        (1, "text"): "category",
        (1, "truth"): "boolean",
    }
    for label in (*numbers, *texts):
        assert small[label].astype(frame[label].dtype).equals(frame[label]), label
    # Neither frame changes with the other.
    small.iloc[0, 0] = 9
    small.iloc[0, small.columns.get_loc(("of", "mixed"))] = "changed"
    pd.testing.assert_frame_equal(frame, before)
    assert small.iloc[0, 0] == 9


def test_a_frame_of_pandas_keeps_its_labels():
    frame = pd.DataFrame({0: [1.0, 2.0], "b": [1, 2], 2.5: ["x", "y"]}).rename_axis(columns="axis")
    small = data.shrink(frame)
    assert list(small.columns) == [0, "b", 2.5] and small.columns.name == "axis" and small[0].dtype == "int8"
    assert list(data.shrink(frame, columns=["b", 0]).columns) == ["b", 0] and list(data.shrink(frame, columns="b").columns) == ["b"]
    assert data.shrink(pd.DataFrame(index=[3, 4])).index.tolist() == [3, 4]

    class Own(pd.DataFrame):
        _constructor = property(lambda self: Own)

    small = data.shrink(Own(frame))
    assert isinstance(small, Own) and list(small.columns) == [0, "b", 2.5] and small[0].tolist() == [1, 2]
    small.loc[0, 0] = 5
    assert small.loc[0, 0] == 5 and frame.loc[0, 0] == 1


def test_a_frame_of_polars_keeps_what_is_no_number_and_no_text():
    kept = {
        "enum": pl.Series(["a", "b", None], dtype=pl.Enum(["c", "b", "a"])),
        "category": pl.Series(["a", "b", "a"], dtype=pl.Categorical),
        "decimal": pl.Series([decimal.Decimal("1.50"), None, decimal.Decimal("2.25")], dtype=pl.Decimal(10, 2)),
        "list": pl.Series([[1], [], None], dtype=pl.List(pl.Int64)),
        "struct": pl.Series([{"a": 1}, {"a": 2}, None]),
        "date": pl.Series([datetime.date(2024, 1, 1), None, None]),
        "time": pl.Series([datetime.time(1), None, None]),
        "moment": pl.Series([datetime.datetime(2024, 1, 1), None, None], dtype=pl.Datetime("us", "Europe/Berlin")),
        "huge": pl.Series([2**100, 1, None], dtype=pl.Int128),
    }
    kept["none"] = pl.Series([None] * 3, dtype=pl.Float64)
    frame = pl.DataFrame({"n": [1.0, 2.0, 300.0], **kept, "text": ["x", "x", None]})
    small = data.shrink(frame)
    assert small.columns == frame.columns and small["n"].dtype == pl.Int16 and small["n"].to_list() == [1, 2, 300]
    assert small.select(list(kept)).equals(frame.select(list(kept))) and small.select(list(kept)).schema == frame.select(list(kept)).schema
    assert small["text"].to_list() == ["x", "x", None]


@pytest.mark.parametrize("compact", [False, True])
def test_a_frame_can_be_written_to_and_the_table_stays(mixed, compact):
    frame = data.load(mixed).to_pandas(compact=compact)
    where = frame["whole"].to_numpy().ctypes.data
    for name, value in (("whole", 7), ("gap", 8), ("price", 0.5), ("flag", True), ("city", "Rome"), ("day", pd.Timestamp("2020-01-01"))):
        frame.loc[0, name] = value
        assert frame.loc[0, name] == value and frame[name].dtype == data.load(mixed).to_pandas(compact=compact)[name].dtype
    # In place: nobody else has the memory.
    assert frame["whole"].to_numpy().ctypes.data == where

    # Whoever else looks at it sees what was loaded, in whatever order they were made and went.
    loaded = data.load(mixed)
    array = loaded["whole"].to_numpy(compact=compact)
    first = loaded.to_pandas(compact=compact)
    first.loc[0, "whole"] = 7
    assert array[0] == 0 and loaded.to_pandas().loc[0, "whole"] == 0 and loaded.to_pandas(compact=True).loc[0, "whole"] == 0
    loaded = data.load(mixed)
    first, second, other = loaded.to_pandas(compact=compact), loaded.to_pandas(compact=compact), loaded.to_pandas(compact=not compact)
    other.loc[:, ["whole", "price"]] = [9, 9.5]
    arrow, column, array = loaded.to_pyarrow(), loaded["price"].to_pyarrow(), loaded["whole"].to_numpy(compact=compact)
    del loaded
    first.loc[1, ["whole", "price"]] = [7, 7.5]
    assert arrow["whole"][1].as_py() == 1 and column[1].as_py() == 1 / 3 and array[1] == 1 and second.loc[1, "whole"] == 1
    del first, arrow, column, second
    assert array[1] == 1

    # What was not made by oomph is not written to: times are kept as they came.
    original = pa.table({"t": pa.array([1, 2, 3], pa.timestamp("us"))})
    frame = data.load(original).to_pandas()
    frame.loc[0, "t"] = pd.Timestamp("2020-01-01")
    assert original["t"].cast(pa.int64()).to_pylist() == [1, 2, 3] and frame.loc[0, "t"] == pd.Timestamp("2020-01-01")


def test_pandas_has_what_only_pyarrow_can_make():
    moments = [decimal.Decimal("1.50"), None]
    table = pa.table(
        {
            "decimal": pa.array(moments, pa.decimal128(10, 2)),
            "list": pa.array([[1, 2], None]),
            "struct": pa.array([{"a": 1}, None]),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "fixed": pa.array([b"ab", None], pa.binary(2)),
            "codes": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["x", None])),
        }
    )
    loaded = data.load(table, sparse="never")
    frame = loaded.to_pandas()
    assert frame["decimal"].tolist() == moments and frame["list"][0].tolist() == [1, 2] and frame["list"][1] is None
    assert frame["struct"].tolist() == [{"a": 1}, None] and frame["map"].tolist() == [[("k", 1)], None] and frame["fixed"].tolist() == [b"ab", None]
    assert frame["codes"][0] == "x" and pd.isna(frame["codes"][1])
    assert loaded["decimal"].to_list() == moments and loaded["list"].to_list() == [[1, 2], None]


def test_times_as_objects_keep_their_zone():
    berlin = pa.array([0, None, 1_700_000_000_000_000], pa.timestamp("us", "Europe/Berlin"))
    table = pa.table(
        {"berlin": berlin, "offset": berlin.cast(pa.timestamp("us", "+05:30")), "plain": berlin.cast(pa.timestamp("us")), "fine": pa.array([1, None, 3], pa.timestamp("ns"))}
    )
    loaded = data.load(table)
    for name in ("berlin", "offset", "plain"):
        listed, expected = loaded[name].to_list(), table[name].to_pylist()
        assert listed == expected and [value and value.utcoffset() for value in listed] == [value and value.utcoffset() for value in expected]
    assert loaded["fine"].to_list() == [1, None, 3]


# -- arrays


def numbers(rng, dtype):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random((5, 8)) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, (5, 8), dtype=dtype, endpoint=True)
    if dtype.kind == "c":
        return (rng.random((5, 8)) + 1j * rng.random((5, 8))).astype(dtype)
    if dtype.kind in "mM":
        return rng.integers(0, 10**9, (5, 8)).astype(dtype)
    values = rng.standard_normal((5, 8)).astype(dtype)
    values.flat[:5] = [0.0, -0.0, np.nan, np.inf, np.finfo(dtype).smallest_subnormal]
    return values


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "M8[us]", "m8[s]", "S7", "U7", ">i4", ">f8"])
def test_every_array_comes_back(dtype):
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype)
    values = numbers(rng, kind.newbyteorder("=")).astype(kind) if kind.kind not in "SU" else np.array([["a", "bb"], ["", "ccccccc"]], dtype=dtype)
    for view in (values, values.T, np.asfortranarray(values), values[::2, ::-1], values[:, 1], values[:0], values[:1, 0].reshape(())):
        small = data.shrink(view, sparse="never")
        assert small.shape == view.shape and small.nbytes <= view.nbytes
        back = small.astype(kind.newbyteorder("="))
        plain = np.ascontiguousarray(view).astype(kind.newbyteorder("="))
        assert back.tobytes() == plain.reshape(view.shape).tobytes() or np.array_equal(back, plain.reshape(view.shape), equal_nan=kind.kind in "fc")
        if kind.kind == "f":
            assert (np.signbit(back) == np.signbit(plain.reshape(view.shape))).all()


def test_arrays_become_as_small_as_they_can():
    assert data.shrink(np.arange(200.0)).dtype == "uint8"
    assert data.shrink(np.array([2.0**31 + 1, 1])).dtype == "uint32"
    assert data.shrink(np.array([0.5, 1.25])).dtype == "float16"
    assert data.shrink(np.array([0.1, 0.2])).dtype == "float64"
    with pytest.warns(data.LossyWarning):
        assert data.shrink(np.array([0.1, 0.2]), policy="rel:1e-6").dtype == "float32"
    assert data.shrink(np.array([16777217.0, 0.5])).dtype == "float64"


def test_whatever_has_memory_is_taken_without_numpy_s_help(tmp_path):
    assert data.shrink(array.array("d", [1, 2, 300])).tolist() == [1, 2, 300]
    assert data.shrink(b"abc").tolist() == [97, 98, 99]
    assert data.profile(memoryview(bytearray(10))).rows == 10
    assert data.shrink(memoryview(array.array("q", range(10)))[::-2]).tolist() == [9, 7, 5, 3, 1]
    np.save(tmp_path / "a.npy", np.arange(1000.0))
    with open(tmp_path / "a.npy", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert data.profile(mapped).rows == 8128
    memmap = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert data.shrink(memmap).dtype == "int16" and data.profile(memmap).bytes.now == 8000


def test_npy_and_npz_files(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(12.0).reshape(3, 4)))
    loaded = data.load(tmp_path / "a.npy")
    assert loaded.dtype == "int8" and loaded.flags.f_contiguous and loaded.tolist() == np.arange(12).reshape(3, 4).tolist()
    np.savez(tmp_path / "b.npz", first=np.arange(3), second=np.zeros((2, 2)))
    assert {name: one.tolist() for name, one in data.load(tmp_path / "b.npz", sparse="never").items()} == {"first": [0, 1, 2], "second": [[0, 0], [0, 0]]}
    assert set(data.profile(tmp_path / "b.npz")) == {"first", "second"}
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(data.DataError, match="objects.npy"):
        data.load(tmp_path / "objects.npy")


def test_a_result_can_be_written_to():
    """It is nobody else's; in-place operations of SciPy need it."""
    small = data.shrink(np.arange(100.0))
    small += 1
    assert torch.from_numpy(small)[0] == 1
    matrix = data.shrink(scipy.sparse.random_array((50, 50), density=0.05, rng=1).tocsr())
    matrix.sort_indices()
    matrix.data[:] = 0


def test_zeros_are_left_out_where_that_is_smaller():
    dense = np.zeros((200, 300))
    dense[3, 7], dense[199, 299], dense[50, :20] = 1.5, -2, 300
    small = data.shrink(dense)
    assert scipy.sparse.issparse(small) and small.format == "csr" and (small.toarray() == dense).all()
    matrix = data.load(dense)
    assert isinstance(matrix, data.Csr) and matrix.shape == (200, 300) and "22 stored" in repr(matrix)
    ours = matrix.to_scipy()
    assert (ours.toarray() == dense).all()
    assert ours.indices.ctypes.data == matrix.indices.ctypes.data and ours.indptr.ctypes.data == matrix.indptr.ctypes.data
    tensor = matrix.to_torch(compact=True)
    assert tensor.layout == torch.sparse_csr and tensor.values().data_ptr() == matrix.data.ctypes.data
    assert tensor.crow_indices().data_ptr() == matrix.indptr.ctypes.data and tensor.col_indices().data_ptr() == matrix.indices.ctypes.data
    assert torch.equal(tensor.to_dense().double(), torch.from_numpy(dense))
    assert data.shrink(dense, sparse="never").shape == dense.shape


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok"])
def test_matrices_of_scipy(form):
    matrix = scipy.sparse.random_array((100, 80), density=0.1, rng=3, data_sampler=lambda size: np.arange(size, dtype="f8")).asformat(form)
    small = data.shrink(matrix)
    assert (small.toarray() == matrix.toarray()).all() and small.dtype.itemsize < 8
    assert small.format == ("csc" if form == "csc" else "csr") and small.indices.dtype == "int32"
    assert data.profile(matrix).format == "sparse matrix"


def test_a_matrix_of_scipy_stays_a_matrix():
    dense = np.zeros((40, 40))
    dense[3, :], dense[:, 7] = 2, 3
    for kind in (scipy.sparse.csr_matrix, scipy.sparse.csc_matrix, scipy.sparse.coo_matrix):
        small = data.shrink(kind(dense))
        assert isinstance(small, scipy.sparse.csc_matrix if kind is scipy.sparse.csc_matrix else scipy.sparse.csr_matrix)
        assert ((small.astype("f8") * small.astype("f8")).toarray() == dense @ dense).all()
    assert not isinstance(data.shrink(scipy.sparse.csr_array(dense)), scipy.sparse.spmatrix)


def test_a_table_of_zeros_becomes_a_matrix(tmp_path):
    rng = np.random.default_rng(5)
    dense = np.where(rng.random((400, 20)) < 0.02, 7.0, 0.0)
    np.savetxt(tmp_path / "table.csv", dense, delimiter=",", fmt="%g", header=",".join(f"c{i}" for i in range(20)), comments="")
    matrix = data.load(tmp_path / "table.csv")
    assert isinstance(matrix, data.Csr) and matrix.columns == tuple(f"c{i}" for i in range(20)) and (matrix.to_scipy().toarray() == dense).all()
    frame = matrix.to_pandas()
    assert list(frame) == [f"c{i}" for i in range(20)] and (frame.to_numpy() == dense).all() and isinstance(frame.dtypes.iloc[0], pd.SparseDtype)
    with pytest.raises(TypeError, match='polars has no sparse columns.*sparse="never"'):
        matrix.to_polars()
    assert isinstance(data.load(tmp_path / "table.csv", sparse="never"), data.Table)


# -- how it is reported


def test_a_profile_says_what_the_command_says(mixed, oomph):
    code, out, err = oomph("data", "profile", "--format", "json", mixed)
    assert code == 0, err
    reported = json.loads(out)
    reported.pop("schema_version")
    profile = data.profile(mixed)
    assert profile.as_dict() == reported
    assert profile["gap"].exact.type == "int8" and profile["gap"].nulls == 43 and profile.rows == 300
    shown = str(profile)
    assert "300 rows take" in shown and "\x1b" not in shown and "Next" not in shown and "dictionary[int8]" in shown
    assert profile._repr_html_().startswith("<pre>") and "dictionary[int8]" in profile._repr_html_()


def test_an_integer_beside_floats_is_kept_to_its_last_digit(tmp_path):
    """No float is 2^53 + 1: it is an integer, however it is written, or text where the column has parts of a whole."""
    (tmp_path / "table.csv").write_text(
        "whole,half,third,far\n9007199254740993,9007199254740993,9007199254740993,18446744073709551615\n9007199254740993.0,9007199254740992.5,0.25,1e3\n"
    )
    loaded = data.load(tmp_path / "table.csv")
    assert loaded.dtypes == {"whole": "int64", "half": "string", "third": "string", "far": "uint64"}
    expected = {
        "whole": [9007199254740993, 9007199254740993],
        "half": ["9007199254740993", "9007199254740992.5"],
        "third": ["9007199254740993", "0.25"],
        "far": [2**64 - 1, 1000],
    }
    assert loaded.to_pyarrow().to_pydict() == expected and loaded.to_pandas()["whole"].tolist() == expected["whole"]
    data.shrink(tmp_path / "table.csv", tmp_path / "small.parquet")
    assert pa.parquet.read_table(tmp_path / "small.parquet").to_pydict() == expected
    assert loaded.profile["whole"].range == ("9007199254740993", "9007199254740993")
    assert loaded.profile["half"].notes == loaded.profile["third"].notes == ("integers beyond 2^53 beside floats: kept as text",)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path, oomph):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    said = "is a pipe, and what comes through one cannot be read twice; write it into a file first"
    # Nobody writes to it.
    code, _, error = oomph("data", "profile", pipe, timeout=20)
    assert code == 2 and error == f"error: {pipe}: {said}\n"
    with pytest.raises(data.DataError, match=said):
        data.load(pipe)
    # Somebody does, as behind <(…) of a shell.
    read, write = os.pipe()
    os.write(write, b"a\n1\n")
    code, _, error = oomph("data", "profile", f"/dev/fd/{read}", pass_fds=[read])
    assert code == 2 and error == f"error: /dev/fd/{read}: {said}\n"
    os.close(read)
    os.close(write)


# Runs commands in order, and prints what each took: [exit code, stderr, peak resident bytes]. A child of this process, which is small, and not of the tests' own.
MEASURE = """
import json, os, subprocess, sys
for command in json.load(sys.stdin):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), error, usage.ru_maxrss * 1024]))
"""


def test_a_text_file_is_profiled_in_bounded_memory(tmp_path, oomph):
    """Not in as much as rows times keys, lines or cells are, whatever somebody wrote."""
    different = tmp_path / "different.jsonl"
    different.write_text("".join(f'{{"k{row}": 1}}\n' for row in range(20_000)))
    many = tmp_path / "many.jsonl"
    many.write_text("".join(f'{{"k{row % 3_000}": {row}}}\n' for row in range(10_000)))
    cells = tmp_path / "cells.csv"
    cells.write_bytes(b"1," * (1 << 20) + b"\n")
    line = tmp_path / "line.csv"
    with open(line, "wb") as file:
        file.write(b"a,b\n1,2\n")
        # A hole, which takes no room on the disk: a line of 300 MiB.
        file.truncate(300 << 20)
    commands = [[oomph.binary, "data", "profile", str(path)] for path in (different, many, cells, line)]
    done = subprocess.run([sys.executable, "-S", "-c", MEASURE], input=json.dumps(commands), capture_output=True, text=True, check=True)
    (refused, of_keys, _), (fine, _, of_many), (wide, of_cells, _), (long, of_line, _) = results = [json.loads(line) for line in done.stdout.splitlines()]
    assert (refused, fine, wide, long) == (2, 0, 2, 2)
    assert f"{different}: has more than 16384 different keys, and each would be a column" in of_keys
    assert f"{cells}: the first line has 1048577 cells, and a table has at most 262144 columns" in of_cells
    assert f"{line}: line 3: the line does not end within 64 MiB" in of_line
    # The longest line that is read, and as much again while room for it is made.
    assert max(peak for _, _, peak in results) < 200 << 20, results
    assert of_many < 100 << 20
    few = tmp_path / "few.jsonl"
    few.write_text("".join(f'{{"k{row % 300}": {row}}}\n' for row in range(1_000)))
    loaded = data.load(few)
    assert len(loaded.columns) == 300 and len(loaded) == 1_000
    assert loaded["k7"].to_pyarrow().drop_null().to_pylist() == [7, 307, 607, 907] and loaded["k7"].to_list()[307:309] == [307, None]


def test_broken_rows_are_named_or_left_out(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n3\n4,5\n6,7,8\n")
    with pytest.raises(data.DataError, match=r"table\.csv: line 3: ") as raised:
        data.load(path)
    assert isinstance(raised.value, ValueError)
    loaded = data.load(path, on_error="skip")
    assert loaded.to_pyarrow().to_pydict() == {"a": [1, 4], "b": [2, 5]}
    assert loaded.broken_rows.count == 2 and [line for line, _ in loaded.broken_rows.first] == [3, 5]


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: data.load("/nowhere/at/all.csv"), FileNotFoundError, "/nowhere/at/all.csv"),
        (lambda: data.load(5), TypeError, "builtins.int cannot be taken; what can: a path or address"),
        (lambda: data.load([1, 2]), TypeError, "builtins.list cannot be taken"),
        (lambda: data.load(np.ma.masked_array([1, 2], [0, 1])), TypeError, "a masked array cannot be taken"),
        (lambda: data.load(np.array([{}])), TypeError, "Python objects are no numbers"),
        (lambda: data.load(np.zeros(2, dtype=[("a", "i4")])), TypeError, "one field at a time"),
        (lambda: data.load(torch.zeros(2, dtype=torch.bfloat16)), TypeError, "bfloat16"),
        (lambda: data.shrink("table.csv"), ValueError, "say where with out="),
        (lambda: data.load(np.zeros(3), policy="lossy"), ValueError, 'policy "lossy" is neither "exact" nor "rel:"'),
        (lambda: data.load(np.zeros(3), on_error="ignore"), ValueError, 'on_error="ignore" is neither "fail" nor "skip"'),
        (lambda: data.load(np.zeros(3), sparse="maybe"), ValueError, 'sparse="maybe" is none of'),
        (lambda: data.load(pa.table({"a": [1]}), columns=["b"]), ValueError, "b"),
        (lambda: data.load(pa.table({"a": [1]}), delimiter=";"), ValueError, "are for text files"),
        (lambda: data.shrink(np.zeros(3), "out.parquet"), ValueError, "out.parquet: an array is written as .npy"),
        (lambda: data.load(pl.Series([1, 2])), TypeError, "polars.Series is a column, not a table; .to_frame()"),
        (lambda: data.load(np.zeros(3), policy=1e-3), TypeError, 'policy=0.001 is not text: "exact"'),
        (lambda: data.shrink(np.zeros(3), policy=1e-3), TypeError, "policy=0.001 is not text"),
        (lambda: data.profile(np.zeros(3), 1e-3), TypeError, "within=0.001 is not text"),
        (lambda: data.load(pa.table({"a": [1], "b": [2]}), columns="ab"), ValueError, "ab"),
        (lambda: data.load(pd.DataFrame([[1, 2]], columns=["a", "a"])), ValueError, "two columns are named 'a'"),
        (lambda: data.shrink(pd.DataFrame([[1, 2]], columns=["a", "a"])), ValueError, "two columns are named 'a'"),
        (lambda: data.load(pd.DataFrame({"o": [[1], 2]})), TypeError, "Conversion failed for column o"),
        (lambda: data.load(pd.DataFrame({"z": [1j]})), TypeError, "column 'z' is of complex numbers"),
        (lambda: data.shrink(pd.DataFrame({"a": [1]}), columns=["b"]), ValueError, "no column 'b'; there are 'a'"),
        (lambda: data.shrink(pl.DataFrame({"a": [1]}), columns=["b"]), ValueError, "no column 'b'; there are 'a'"),
        (lambda: data.load(pd.Series([1, 2])), TypeError, "pandas.Series is a column, not a table"),
        (lambda: data.load("ftp://user:secret@example.org/x.csv"), ValueError, "ftp:// is not known"),
    ],
)
def test_wrong_use_gives_a_sentence(call, error, sentence):
    with pytest.raises(error) as raised:
        call()
    assert sentence in str(raised.value) and "secret" not in str(raised.value)


# -- long work


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Some seconds of work for a build that is not optimised."""
    path = tmp_path_factory.mktemp("large") / "large.csv"
    line = "".join(f"{i},{i / 7},word {i % 50},{i * 31 % 1009}\n" for i in range(20_000))
    path.write_text("a,b,c,d\n" + line * 30)
    return path


def test_other_threads_run_meanwhile(large):
    turns, done = 0, threading.Event()

    def work():
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    begun = time.monotonic()
    data.profile(large)
    seconds = time.monotonic() - begun
    done.set()
    thread.join()
    assert turns > seconds * 100


def test_progress_is_told_in_order(large):
    reported = []
    data.load(large, progress=lambda doing, done, total: reported.append((doing, done / total)))
    assert [doing for doing, _ in reported][-1] == "loading" and reported[-1][1] == 1
    assert [share for doing, share in reported if doing == "profiling"] == sorted(share for doing, share in reported if doing == "profiling")


def test_what_progress_raises_ends_the_work(large):
    def refuse(doing, done, total):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        data.profile(large, progress=refuse)


def test_ctrl_c_leaves_nothing_behind(large, tmp_path):
    program = textwrap.dedent("""
        import signal, sys, threading, time, os
        import oomph.data as data
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        try:
            while True:
                data.shrink(sys.argv[1], sys.argv[2])
                os.unlink(sys.argv[2])
        except KeyboardInterrupt:
            print(time.monotonic() - begun)
    """)
    done = subprocess.run([sys.executable, "-c", program, large, tmp_path / "out.parquet"], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.5
    assert os.listdir(tmp_path) == []


def test_a_bar_is_shown_on_a_terminal_only(large):
    program = "import sys, oomph.data as data\nimport oomph._progress as bar\nbar._QUIET_SECONDS = 0\ndata.profile(sys.argv[1])"
    quiet = subprocess.run([sys.executable, "-c", program, large], capture_output=True, text=True, env=ENVIRONMENT)
    assert quiet.returncode == 0 and quiet.stderr == "" and quiet.stdout == ""
    master, terminal = os.openpty()
    seen = subprocess.Popen([sys.executable, "-c", program, large], stderr=terminal, env=ENVIRONMENT)
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(master, 4096):
            shown += piece
    except OSError:
        pass
    os.close(master)
    assert seen.wait() == 0
    assert "profiling █" in shown.decode() and shown.endswith(b"\r\x1b[K")
