"""A table in memory, as small as its policy allows, and everything that takes one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from oomph._sizes import text
from oomph.data._column import Column, capital, usual_type
from oomph.data._profile import BrokenRows, Profile, of_native


class Rows:
    """Rows that Rust holds. They are Arrow data for every library that takes that: ``polars.DataFrame(rows)``, ``pyarrow.table(rows)``, DuckDB."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.columns: tuple[str, ...] = tuple(native.names)

    def __len__(self) -> int:
        return len(self._native)

    def __getitem__(self, name: str) -> Column:
        try:
            return self._at(self.columns.index(name))
        except ValueError:
            raise KeyError(f"no column {name!r}; there are {', '.join(map(repr, self.columns))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __repr__(self) -> str:
        return f"<oomph.data rows: {len(self):,}, columns {', '.join(map(repr, self.columns))}>"

    def __reduce__(self) -> Any:
        # As a worker of a DataLoader sends them.
        if type(self) is not Rows:
            raise TypeError(f"a {type(self).__name__} is not pickled: write it with `oomph data shrink`, or send to_pyarrow()")
        return _unpacked, (self._native.packed(),)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._native.__arrow_c_stream__(requested_schema)

    def to_pyarrow(self) -> Any:
        """A ``pyarrow.Table`` of the same memory."""
        import pyarrow

        return pyarrow.table(self)

    def to_polars(self) -> Any:
        """A ``polars.DataFrame``, of the same memory for what polars keeps as Arrow does."""
        import polars

        return polars.DataFrame(self)

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: categories for codes, nullable integers where rows have no value, floats with NaN there. It can be written to."""
        return self._as_frame([self._at(place).to_pandas(writable=True) for place in range(len(self.columns))], copy=False)

    def _as_frame(self, columns: list[Any], *, copy: bool) -> Any:
        import pandas

        frame = pandas.DataFrame(dict(enumerate(columns)), index=pandas.RangeIndex(len(self)), copy=copy)
        frame.columns = pandas.Index(self.columns, dtype=None if self.columns else object)
        return frame

    def _at(self, place: int) -> Column:
        return Column(self._native.column(place), self.columns[place])

    def to_numpy(self) -> dict[str, Any]:
        """An array for each column, of the same memory for numbers; see :meth:`Column.to_numpy`."""
        return {name: column.to_numpy() for name, column in self._by_name()}

    def to_torch(self, nulls: Any = None) -> dict[str, Any]:
        """A tensor for each column, of the same memory; see :meth:`Column.to_torch`. ``nulls`` is a value for all columns, or one for each by name."""
        return self._as_tensors(nulls, "to_torch(nulls=0)")

    def _as_tensors(self, nulls: Any, said_by: str) -> dict[str, Any]:
        each = nulls if isinstance(nulls, Mapping) else dict.fromkeys(self.columns, nulls)
        return {name: column._as_tensor(each.get(name), said_by, compact=True) for name, column in self._by_name()}

    def _by_name(self) -> Iterator[tuple[str, Column]]:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("two columns have the same name, and only one of them could be given; take the rows as Arrow data")
        for place, name in enumerate(self.columns):
            yield name, self._at(place)


def _unpacked(packed: bytes) -> Rows:
    from oomph.data._native import native

    return Rows(native.Table.unpacked(packed))


class Table(Rows):
    """A table in memory, in the smallest types that hold it.

    Arrow data of it (``pyarrow.table(table)``, DuckDB) has these types. NumPy, pandas, polars and torch are given numbers in the types that the data had, or is usually
    loaded with (``profile[name].now.type``: 64 bits for those of text files), because small ones overflow without a word in ``column * 100``. Floats that a relative
    policy let change stay as small as it made them, but have 32 bits. ``compact=True`` gives all of them as they are held, for whoever stores and does not compute.
    """

    def __init__(self, native: Any) -> None:
        super().__init__(native)
        described = native.described
        self.dtypes: dict[str, str] = {name: kind for name, kind, _, _ in described}
        self.nbytes: int = sum(size for _, _, size, _ in described)
        # The worst change of a value, as a part of it, of every column in which values changed.
        self.lossy: dict[str, float] = {name: error for name, _, _, error in described if error}
        self.profile: Profile = of_native(native.profile)
        self.broken_rows: BrokenRows = self.profile.broken_rows
        self._usual = ["float32" if error else column.now.type for column, (_, _, _, error) in zip(self.profile.columns, described)]
        # By place, columns that frames of pandas have in the type in which they are held.
        self._series: dict[int, Any] = {}

    def _at(self, place: int) -> Column:
        return Column(self._native.column(place), self.columns[place], self._usual[place])

    def to_pandas(self, *, compact: bool = False) -> Any:
        """A ``pandas.DataFrame``: categories for codes, nullable integers where rows have no value, floats with NaN there. It can be written to, and the table does not
        change with it.

        Numbers are as wide as pandas itself would have them; ``compact=True`` gives the smallest types, and shares their memory.
        """
        import pandas

        if int(pandas.__version__.partition(".")[0]) < 3:
            # Frames of the same memory are not independent before pandas 3.
            return self._as_frame([self._at(place).to_pandas(writable=True, compact=compact) for place in range(len(self.columns))], copy=True)
        return self._as_frame([self._in_frame(place, compact) for place in range(len(self.columns))], copy=False)

    def _in_frame(self, place: int, compact: bool) -> Any:
        """A column for a frame of pandas: one series for all frames where it is as it is held; what is wider belongs to one frame, and goes with it."""
        import pandas

        column = self._at(place)
        if column._is_widened and not compact:
            return column.to_pandas(writable=True)
        if not self._series:
            # As long as there are these, which whoever looks at the memory keeps, no frame writes there.
            self._native.keep(self._series)
        if place not in self._series:
            self._series[place] = pandas.Series(column.to_pandas(writable=True, compact=True), copy=False)
        return self._series[place]

    def to_polars(self, *, compact: bool = False) -> Any:
        """A ``polars.DataFrame``. Numbers are as wide as polars itself would have them; ``compact=True`` gives the smallest types, and shares their memory."""
        import polars

        frame = polars.DataFrame(self)
        if compact:
            return frame
        wide = {name: usual_type(str(kind).lower(), usual) for (name, kind), usual in zip(frame.schema.items(), self._usual)}
        return frame.cast({name: getattr(polars, capital(wide[name])) for name, kind in frame.schema.items() if wide[name] != str(kind).lower()})

    def to_numpy(self, *, compact: bool = False) -> dict[str, Any]:
        """An array for each column; see :meth:`Column.to_numpy`."""
        return {name: column.to_numpy(compact=compact) for name, column in self._by_name()}

    def to_torch(self, nulls: Any = None, *, compact: bool = False) -> dict[str, Any]:
        """A tensor for each column; see :meth:`Column.to_torch`. ``nulls`` is a value for all columns, or one for each by name."""
        each = nulls if isinstance(nulls, Mapping) else dict.fromkeys(self.columns, nulls)
        return {name: column.to_torch(nulls=each.get(name), compact=compact) for name, column in self._by_name()}

    def __repr__(self) -> str:
        return f"<oomph.data.Table: {len(self):,} rows, {len(self.columns)} columns, {size_and_savings(self.nbytes, self.profile, self.lossy)}>"


def size_and_savings(nbytes: int, profile: Profile, lossy: dict[str, float]) -> str:
    """Bytes, what they would be otherwise, and which columns changed."""
    size = text(nbytes)
    if profile.bytes.now > nbytes:
        size += f" ({text(profile.bytes.now - nbytes)} less than {'as usually loaded' if profile.file_bytes is not None else 'before'})"
    if not lossy:
        return f"{size}, every value kept"
    return f"{size}, changed: {', '.join(f'{name} by at most {error:.1e}' for name, error in lossy.items())}"
