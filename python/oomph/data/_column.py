"""A column of a table that Rust holds, as NumPy, pandas and torch have columns."""

from __future__ import annotations

import datetime
import importlib.util
import re
import warnings
import zoneinfo
from typing import Any

_BITS = {f"{kind}{bits}": bits for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64) if (kind, bits) != ("float", 8)}


class Column:
    """One column. What it gives shares its memory, where the taker keeps values in the same way.

    Numbers that were made smaller are handed to NumPy, pandas and torch as wide as they were, for small ones overflow without a word where people compute with them;
    ``compact=True`` gives them as they are held. Arrow data is always as it is held.
    """

    def __init__(self, native: Any, name: str, usual: str | None = None) -> None:
        self._native = native
        self.name = name
        # The type that the column had, or is usually loaded with, where another was chosen for it.
        self._usual = usual

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return f"<oomph.data column {self.name!r}: {self._native.arrow_type}, {len(self):,} rows>"

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self._native.__arrow_c_array__(requested_schema)

    @property
    def is_text(self) -> bool:
        """Whether it is text, not codes of text."""
        return "Utf8" in self._native.arrow_type and self._native.values is None

    @property
    def is_empty(self) -> bool:
        """Whether no row has a value."""
        return bool(self._native.arrow_type == "Null")

    def parts(self, *, writable: bool = False, compact: bool = True) -> tuple[Any, Any]:
        """Numbers, booleans or codes, and which rows have none; both None where it is none of these, the second where all rows have one.

        ``writable`` numbers are a copy, unless only the table refers to them.
        """
        if self._native.values is None:
            return None, None
        import numpy

        valid = self._native.valid
        missing = None if valid is None else ~numpy.asarray(valid)
        values = numpy.asarray(self._native.values)
        wide = self._wide(values.dtype, compact)
        if wide != values.dtype:
            return values.astype(wide), missing
        if writable:
            del values
            alone = self._native.values_to_write
            values = numpy.asarray(alone) if alone is not None else numpy.array(self._native.values)
        return values, missing

    def _wide(self, dtype: Any, compact: bool) -> Any:
        """The type in which a number is given to whoever computes with it."""
        if compact or not self._is_widened:
            return dtype
        import numpy

        return numpy.dtype(usual_type(dtype.name, str(self._usual)))

    @property
    def _is_widened(self) -> bool:
        """Whether it is numbers that were made smaller, and are given wider than they are held."""
        held = self._native.arrow_type.lower()
        return self._usual is not None and usual_type(held, self._usual) != held

    def to_numpy(self, *, compact: bool = False) -> Any:
        """An array: read-only, because the table's memory is shared. Text becomes objects; rows without a value are masked (None among objects).

        Numbers that were made smaller are a copy, as wide as they were; ``compact=True`` gives them as they are held.
        """
        import numpy

        elements = self._native.elements
        if elements is not None:
            return self._as_rows(Column(elements, self.name).to_numpy())
        dictionary, codes = self._native.dictionary, self._native.values
        if codes is None:
            return numpy.array(self._native.to_list(), dtype=object)
        values = numpy.asarray(codes)
        valid = self._native.valid
        wide = self._wide(values.dtype, compact)
        if wide != values.dtype:
            values = values.astype(wide)
            values.flags.writeable = False
        if dictionary is not None:
            # One object more, for rows without a value, whose code may be anything.
            words = numpy.array([*Column(dictionary, self.name).to_list(), None], dtype=object)
            return words[numpy.where(numpy.asarray(valid), values, -1) if valid is not None else values]
        time = self._native.time
        if time is not None:
            values = values.view(time) if values.itemsize == 8 else values.astype(time)
        return values if valid is None else numpy.ma.masked_array(values, mask=~numpy.asarray(valid))

    def _as_rows(self, values: Any) -> Any:
        """The values of all rows, one after the other, as an array of rows; rows without a value are masked whole."""
        import numpy

        values = values.reshape(len(self), *self._native.shape)
        valid = self._native.valid
        if valid is None:
            return values
        whole = numpy.broadcast_to(~numpy.asarray(valid).reshape(-1, *[1] * (values.ndim - 1)), values.shape)
        return numpy.ma.masked_array(values, mask=whole | numpy.ma.getmaskarray(values))

    def to_list(self) -> list[Any]:
        """Python's own objects, None where there is no value.

        Times are what ``datetime`` has for them, in their zone where they have one. What it cannot hold (nanoseconds, years outside 1 to 9999) comes as a whole
        number: the count of the column's unit since 1970 in UTC, or of a duration.
        """
        if self._native.values is None:
            listed: list[Any] = self._native.to_list() if not self._needs_pyarrow else self.to_pyarrow().to_pylist()
            return listed
        listed = self.to_numpy().tolist()
        zone = self._native.zone
        if zone is None:
            return listed
        there = _zone(zone)
        return [one.replace(tzinfo=datetime.timezone.utc).astimezone(there) if isinstance(one, datetime.datetime) else one for one in listed]

    def to_pyarrow(self) -> Any:
        """A ``pyarrow.Array`` of the same memory."""
        import pyarrow

        return pyarrow.array(self)

    @property
    def _needs_pyarrow(self) -> bool:
        """Whether its values are neither numbers nor text nor bytes, and pyarrow is there to make objects of them."""
        simple = ("Utf8", "LargeUtf8", "Utf8View", "Binary", "LargeBinary", "BinaryView", "Null")
        return self._native.values is None and self._native.arrow_type not in simple and importlib.util.find_spec("pyarrow") is not None

    def to_torch(self, nulls: Any = None, *, compact: bool = False) -> Any:
        """A tensor on the CPU: of codes, where the column has a dictionary (``categories`` names them).

        It shares the table's memory, unless numbers were made smaller: those are a copy, as wide as they were, and codes have the 64 bits that torch wants of an
        index. ``compact=True`` gives them as they are held. ``nulls`` is what stands for rows without a value; a column that has such rows is refused without it.
        """
        return self._as_tensor(nulls, "to_torch(nulls=0)", compact=compact)

    def _as_tensor(self, nulls: Any, said_by: str, *, compact: bool) -> Any:
        """As ``to_torch``. ``said_by`` is how its caller is told what stands for rows without a value."""
        import numpy
        import torch

        elements = self._native.elements
        if elements is not None:
            return self._rows_as_tensor(Column(elements, self.name), nulls, said_by, compact=compact)
        codes = self._native.values
        if codes is None:
            raise TypeError(f"column {self.name!r} is {self._native.arrow_type}, which torch has no tensors of; take it with to_numpy() or to_pyarrow()")
        values, valid = numpy.asarray(codes), self._native.valid
        is_index = self._usual is not None and self._native.dictionary is not None and not compact
        values = values.astype("int64" if is_index else self._wide(values.dtype, compact), copy=False)
        if valid is not None:
            missing = ~numpy.asarray(valid)
            if nulls is None:
                raise self._without_values(missing, said_by)
            values = numpy.where(missing, _of_type(nulls, values.dtype, self.name), values)
        with warnings.catch_warnings():
            # Torch has no read-only tensors. Whoever writes to this one changes the table, as documented.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(values)

    def _rows_as_tensor(self, elements: Column, nulls: Any, said_by: str, *, compact: bool) -> Any:
        """Rows that are arrays: a tensor with a dimension for each of theirs, and one for the rows."""
        import numpy
        import torch

        tensor = elements._as_tensor(nulls, said_by, compact=compact).reshape(len(self), *self._native.shape)
        if self._native.valid is None:
            return tensor
        missing = ~numpy.asarray(self._native.valid)
        if nulls is None:
            raise self._without_values(missing, said_by)
        tensor = tensor.clone()
        tensor[torch.from_numpy(missing)] = _of_type(nulls, elements.to_numpy().dtype, self.name).item()
        return tensor

    def _without_values(self, missing: Any, said_by: str) -> ValueError:
        return ValueError(f"column {self.name!r} has {int(missing.sum()):,} rows without a value, which a tensor cannot have; say what stands for them: {said_by}")

    @property
    def categories(self) -> list[Any] | None:
        """What the codes of ``to_torch`` stand for; None where values are no codes."""
        dictionary = self._native.dictionary
        return None if dictionary is None else Column(dictionary, self.name).to_list()

    def to_pandas(self, *, writable: bool = False, compact: bool = False) -> Any:
        """What a column of a frame of pandas is made of: nullable integers where rows have no value, floats with NaN there, categories for codes.

        It shares the table's memory where it can, and is then read-only; ``writable``: what others have too is copied. Numbers that were made smaller are a copy, as
        wide as they were; ``compact=True`` gives them as they are held.
        """
        import pandas

        if self._needs_pyarrow:
            return self.to_pyarrow().to_pandas().array
        values, missing = self.parts(writable=writable, compact=compact)
        if values is None:
            return _pandas_text(self)
        if self._native.dictionary is not None:
            return self._pandas_categories(values, missing)
        if self._native.time is not None:
            return self._pandas_times(values, missing)
        if missing is None:
            return values
        if values.dtype.kind == "f":
            return _pandas_floats(values, missing)
        kind = pandas.arrays.BooleanArray if values.dtype.kind == "b" else pandas.arrays.IntegerArray
        return kind(values, missing)

    def _pandas_categories(self, codes: Any, missing: Any) -> Any:
        """Categories as pandas takes them: none of them missing, and none twice, which a dictionary that came from elsewhere may have."""
        import numpy
        import pandas

        words = pandas.Index(Column(self._native.dictionary, self.name).to_pandas())
        if words.hasnans or not words.is_unique:
            listed = words.tolist()
            # Neither None nor NaN; pandas.NA, which nullable integers and booleans have, cannot even be compared.
            there = [word for word, lacks in zip(listed, words.isna()) if not lacks]
            known = {word: place for place, word in enumerate(dict.fromkeys(there))}
            table = numpy.array([known.get(word, -1) for word in listed], dtype=numpy.int64)
            codes = table[codes if missing is None else numpy.where(missing, 0, codes)]
            words = pandas.Index(list(known))
        if missing is not None:
            codes = numpy.where(missing, -1, codes.astype(numpy.min_scalar_type(-int(codes.max(initial=0)) - 1)))
        return pandas.Categorical.from_codes(codes, categories=words)

    def _pandas_times(self, values: Any, missing: Any) -> Any:
        import numpy
        import pandas

        time: str = self._native.time
        # Pandas has no days: seconds are its longest unit.
        kind, unit = time.rstrip("]").split("[")
        times = values.astype(f"{kind}[{unit}]").astype(f"{kind}[s]") if unit == "D" else values.view(time) if values.itemsize == 8 else values.astype(time)
        if missing is not None:
            times = numpy.where(missing, numpy.array("NaT", dtype=times.dtype), times)
        if self._native.zone is not None:
            return pandas.DatetimeIndex(times).tz_localize("UTC").tz_convert(self._native.zone).array
        return times


def usual_type(held: str, usual: str) -> str:
    """The type of numbers that were made smaller, for whoever computes with them: ``usual``, which they had or are usually loaded with, if it holds them all."""
    if held not in _BITS or usual not in _BITS or _BITS[usual] <= _BITS[held]:
        return held
    # Only whole numbers are held as integers; a float has room for those of fewer bits than its own. What was unsigned has no negative values, whatever it is held in.
    return held if held.startswith("float") and not usual.startswith("float") else usual


def capital(kind: str) -> str:
    """The name of a type of numbers as polars has it, and as pandas has it where values may be missing: Int64, UInt64, Float64."""
    return kind.replace("uint", "UInt").replace("int", "Int").replace("float", "Float")


def _of_type(nulls: Any, dtype: Any, column: str) -> Any:
    """What stands for rows without a value, in the type of the column; refused where it would become something else there."""
    import numpy

    kinds = {
        "b": ("True or False", lambda: nulls in (False, True)),
        "f": (f"a number that {dtype} holds, or NaN", lambda: nulls != nulls or dtype.type(nulls) == nulls),
    }
    if dtype.kind in "iu":
        least, most = int(numpy.iinfo(dtype).min), int(numpy.iinfo(dtype).max)
        kinds[dtype.kind] = (f"a whole number from {least} to {most}", lambda: least <= nulls <= most and nulls == int(nulls))
    may_be, holds = kinds[dtype.kind]
    try:
        with numpy.errstate(over="ignore"):
            fits = bool(holds())
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(f"column {column!r}: {nulls!r} is no {dtype}; what stands for rows without a value may be {may_be}")
    return dtype.type(nulls)


def _zone(name: str) -> datetime.tzinfo:
    """A zone by the name that Arrow has for it: of the zone database, or an offset (+02:00)."""
    offset = re.fullmatch(r"([+-])(\d\d):?(\d\d)", name)
    if offset is None:
        return zoneinfo.ZoneInfo(name)
    sign, hours, minutes = offset.groups()
    return datetime.timezone((-1 if sign == "-" else 1) * datetime.timedelta(hours=int(hours), minutes=int(minutes)))


def _pandas_floats(values: Any, missing: Any) -> Any:
    """NaN for rows without a value, as pandas has it; where there are NaN among the values too, the two are kept apart."""
    import numpy
    import pandas

    if not numpy.isnan(values[~missing]).any():
        return numpy.where(missing, values.dtype.type("nan"), values)
    # Pandas' nullable floats have 32 or 64 bits.
    return pandas.arrays.FloatingArray(values if values.itemsize > 2 else values.astype("float32"), missing)


def _pandas_text(column: Column) -> Any:
    import numpy
    import pandas

    native = column._native
    if "Utf8" not in native.arrow_type:
        return numpy.array(native.to_list(), dtype=object)
    text = pandas.api.types.pandas_dtype("str")
    # From version 3 on pandas has text as Arrow has it: its bytes are shared, and no object is made of any.
    if getattr(text, "storage", None) == "pyarrow":
        return text.__from_arrow__(column.to_pyarrow())
    return pandas.array(native.to_list(), dtype="str")
