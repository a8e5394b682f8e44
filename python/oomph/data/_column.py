"""A column of a table that Rust holds, as NumPy, pandas and torch have columns."""

from __future__ import annotations

import warnings
from typing import Any


class Column:
    """One column. What it gives shares its memory, where the taker keeps values in the same way."""

    def __init__(self, native: Any, name: str) -> None:
        self._native = native
        self.name = name

    def __len__(self) -> int:
        return len(self._native)

    def __repr__(self) -> str:
        return f"<oomph.data column {self.name!r}: {self._native.arrow_type}, {len(self):,} rows>"

    def to_numpy(self) -> Any:
        """An array: read-only, as the table's memory is nobody's alone. Text becomes objects; rows without a value are masked (None among objects)."""
        import numpy

        dictionary, codes = self._native.dictionary, self._native.values
        if codes is None:
            return numpy.array(self._native.to_list(), dtype=object)
        values = numpy.asarray(codes)
        valid = self._native.valid
        if dictionary is not None:
            # One object more, for rows without a value, whose code may be anything.
            words = numpy.array([*Column(dictionary, self.name).to_list(), None], dtype=object)
            return words[numpy.where(numpy.asarray(valid), values, -1) if valid is not None else values]
        time = self._native.time
        if time is not None:
            values = values.view(time) if values.itemsize == 8 else values.astype(time)
        return values if valid is None else numpy.ma.masked_array(values, mask=~numpy.asarray(valid))

    def to_list(self) -> list[Any]:
        """Python's own objects, None where there is no value."""
        if self._native.values is None:
            listed: list[Any] = self._native.to_list()
            return listed
        return self.to_numpy().tolist()

    def to_torch(self, nulls: Any = None) -> Any:
        """A tensor on the CPU that shares the table's memory: of codes, where the column has a dictionary (``categories`` names them).

        ``nulls`` is what stands for rows without a value; a column that has such rows is refused without it.
        """
        import numpy
        import torch

        codes = self._native.values
        if codes is None:
            raise TypeError(f"column {self.name!r} is {self._native.arrow_type}, which torch has no tensors of; take it with to_numpy() or to_pyarrow()")
        values, valid = numpy.asarray(codes), self._native.valid
        if valid is not None:
            missing = ~numpy.asarray(valid)
            if nulls is None:
                raise ValueError(f"column {self.name!r} has {int(missing.sum()):,} rows without a value, which a tensor cannot have; say what stands for them: to_torch(nulls=0)")
            stands_for = numpy.asarray(nulls).astype(values.dtype)
            if stands_for != nulls and nulls == nulls:
                raise ValueError(f"column {self.name!r}: {nulls!r} is no {values.dtype}")
            values = numpy.where(missing, stands_for, values)
        with warnings.catch_warnings():
            # Torch has no read-only tensors. Whoever writes to this one changes the table, as documented.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(values)

    @property
    def categories(self) -> list[Any] | None:
        """What the codes of ``to_torch`` stand for; None where values are no codes."""
        dictionary = self._native.dictionary
        return None if dictionary is None else Column(dictionary, self.name).to_list()

    def to_pandas(self) -> Any:
        """What a column of a frame of pandas is made of: nullable integers where rows have no value, floats with NaN there, categories for codes."""
        import pandas

        codes, valid = self._native.values, self._native.valid
        if codes is None:
            return _pandas_text(self._native)
        import numpy

        values = numpy.asarray(codes)
        missing = None if valid is None else ~numpy.asarray(valid)
        if self._native.dictionary is not None:
            known = values if missing is None else numpy.where(missing, -1, values.astype(numpy.min_scalar_type(-int(values.max(initial=0)) - 1)))
            return pandas.Categorical.from_codes(known, categories=pandas.Index(self.categories))
        if self._native.time is not None:
            return self._pandas_times(values, missing)
        if missing is None:
            return values
        if values.dtype.kind == "f":
            return _pandas_floats(values, missing)
        kind = pandas.arrays.BooleanArray if values.dtype.kind == "b" else pandas.arrays.IntegerArray
        return kind(values, missing)

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


def _pandas_floats(values: Any, missing: Any) -> Any:
    """NaN for rows without a value, as pandas has it; where there are NaN among the values too, the two are kept apart."""
    import numpy
    import pandas

    if not numpy.isnan(values[~missing]).any():
        return numpy.where(missing, values.dtype.type("nan"), values)
    # Pandas' nullable floats have 32 or 64 bits.
    return pandas.arrays.FloatingArray(values if values.itemsize > 2 else values.astype("float32"), missing)


def _pandas_text(native: Any) -> Any:
    import pandas

    if "Utf8" in native.arrow_type:
        return pandas.array(native.to_list(), dtype="str")
    import numpy

    return numpy.array(native.to_list(), dtype=object)
