"""Frames of pandas and polars, column by column: numbers, booleans and text become smaller, every other column stays what it is.

Boundary: says which columns are whose, and puts a frame together again; what a column becomes is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oomph.data._column import Column
from oomph.data._input import check_labels
from oomph.data._table import Table

# Makes a table of Arrow data small.
Shrinking = Callable[[Any], Table]

# Integers of 128 bits are not among what Arrow has.
_POLARS_NUMBERS = {f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)} | {"Float16", "Float32", "Float64"}
_NULLABLE = {f"{sign}{kind}" for kind in ("Int8", "Int16", "Int32", "Int64") for sign in ("", "U")} | {"Float32", "Float64", "boolean"}


def shrink_pandas(frame: Any, columns: Sequence[Any] | None, shrink: Shrinking) -> tuple[Any, Table | None]:
    """The frame with smaller columns, and the table that they are of, if there was any to make smaller. Index, labels and attributes are those of the frame."""
    import pandas

    try:
        import pyarrow
    except ImportError:
        raise ImportError("pandas gives its data to others only where pyarrow is installed: pip install pyarrow") from None
    check_labels(frame)
    if columns is not None:
        missing = [label for label in columns if label not in frame.columns]
        if missing:
            raise ValueError(f"no column {missing[0]!r}; there are {', '.join(map(repr, frame.columns))}")
        frame = frame[list(columns)]
    places = [place for place in range(frame.shape[1]) if _is_pandas_s_to_shrink(frame.iloc[:, place])]
    given = [pyarrow.array(frame.iloc[:, place], from_pandas=True) for place in places]
    table = shrink(pyarrow.table(given, names=[str(frame.columns[place]) for place in places])) if places else None
    smaller = {} if table is None else {place: table._at(number) for number, place in enumerate(places)}
    made = [_kept(frame.iloc[:, place]) if _stays(smaller.get(place)) else _smaller(smaller[place], dtype) for place, dtype in enumerate(frame.dtypes)]
    small = pandas.DataFrame(dict(enumerate(made)), index=pandas.RangeIndex(len(frame)), copy=False)
    small.index, small.columns = frame.index, frame.columns
    # Of the class that it was, with its attributes.
    return frame._constructor(small).__finalize__(frame), table


def _is_pandas_s_to_shrink(series: Any) -> bool:
    import numpy
    import pandas

    dtype = series.dtype
    if isinstance(dtype, numpy.dtype) and dtype.kind != "O":
        # Only NumPy has long doubles.
        return dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8)
    if isinstance(dtype, numpy.dtype):
        return set(map(type, series)) == {str}
    return isinstance(dtype, pandas.StringDtype) or (isinstance(dtype, pandas.api.extensions.ExtensionDtype) and dtype.name in _NULLABLE)


def _stays(column: Column | None) -> bool:
    """Whether a column is not oomph's, or text that did not become codes, or has no value that a type could be chosen for."""
    return column is None or column.is_text or column.is_empty


def _kept(series: Any) -> Any:
    import pandas

    # A row number for an index, as all have while the frame is put together: nothing is aligned. Columns of NumPy's lie together in blocks, which one that
    # is not copied would keep whole.
    return series.reset_index(drop=True).copy(deep=not pandas.api.types.is_extension_array_dtype(series.dtype))


def _smaller(column: Column, dtype: Any) -> Any:
    """As a series: what could hold ``pandas.NA`` still can."""
    import numpy
    import pandas

    if str(dtype) not in _NULLABLE:
        return pandas.Series(column.to_pandas(writable=True, compact=True), copy=False)
    values, missing = column.parts(writable=True)
    if values.dtype == "float16":
        # Pandas' nullable floats have 32 or 64 bits.
        values = values.astype("float32")
    kind = {"b": pandas.arrays.BooleanArray, "f": pandas.arrays.FloatingArray}.get(values.dtype.kind, pandas.arrays.IntegerArray)
    return pandas.Series(kind(values, missing if missing is not None else numpy.zeros(len(values), dtype=bool)), copy=False)


def shrink_polars(frame: Any, columns: Sequence[str] | None, shrink: Shrinking) -> tuple[Any, Table | None]:
    """As :func:`shrink_pandas`, for a frame of polars."""
    import polars

    if columns is not None:
        missing = [name for name in columns if name not in frame.columns]
        if missing:
            raise ValueError(f"no column {missing[0]!r}; there are {', '.join(map(repr, frame.columns))}")
        frame = frame.select(list(columns))
    ours = [name for name, kind in frame.schema.items() if kind in (polars.Boolean, polars.String) or str(kind) in _POLARS_NUMBERS]
    if not ours:
        return frame.clone(), None
    table = shrink(frame.select(ours))
    smaller = [column for column in table.to_polars(compact=True).get_columns() if column.dtype != polars.Null]
    return frame.with_columns(smaller), table
