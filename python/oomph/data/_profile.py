"""``oomph.data.profile``: what is in a table or an array, and how small it could be."""

from __future__ import annotations

import html
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oomph.data._input import check_policy, names_of, take
from oomph.data._progress import Progress, shown


@dataclass(frozen=True)
class Choice:
    """A type, and what the column takes in it."""

    type: str
    bytes: int
    # The worst change of a value, as a part of it; None if every value is kept.
    worst_relative_error: float | None


@dataclass(frozen=True)
class ColumnProfile:
    """One column: the type it has, the smallest that keeps every value, and the smallest within the error that was asked for."""

    name: str
    now: Choice
    exact: Choice
    within: Choice
    nulls: int
    zeros: int
    nans: int
    infinite: int
    # Different values of a column of strings, where there are few enough to have been counted.
    distinct: int | None
    integer_valued: bool
    range: tuple[str, str] | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Sizes:
    """Bytes in memory: as it is or is usually loaded, with every value kept, and within the error that was asked for."""

    now: int
    exact: int
    within: int


@dataclass(frozen=True)
class Sparse:
    """The same as a sparse matrix."""

    stored: int
    density: float
    bytes: int
    smaller: bool


@dataclass(frozen=True)
class Peak:
    """What a loader takes at its peak, estimated: 0.15 is ± 15 %."""

    loader: str
    bytes: int
    error: float


@dataclass(frozen=True)
class BrokenRows:
    """Rows that were left out: how many, and line and reason of the first of them."""

    count: int
    first: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Profile:
    """What is in a table or an array. ``print`` shows it as ``oomph data profile`` does."""

    location: str
    format: str
    file_bytes: int | None
    rows: int
    within_policy: str
    columns: tuple[ColumnProfile, ...]
    bytes: Sizes
    sparse: Sparse | None
    peaks: tuple[Peak, ...]
    broken_rows: BrokenRows
    notes: tuple[str, ...]
    _native: Any = field(repr=False, compare=False)

    def __getitem__(self, name: str) -> ColumnProfile:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """Its fields, as ``oomph data profile --format json`` names them."""
        fields: dict[str, Any] = json.loads(self._native.json())
        return fields

    def __str__(self) -> str:
        return self._text(shutil.get_terminal_size().columns, all_columns=False)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text(160, all_columns=True))}</pre>"

    def _text(self, width: int, *, all_columns: bool) -> str:
        text: str = self._native.text(width, all_columns)
        return text.rstrip("\n")


def of_native(found: Any) -> Profile:
    """As Python's own."""
    fields = json.loads(found.json())

    def column(fields: dict[str, Any]) -> ColumnProfile:
        choices = {name: Choice(**fields[name]) for name in ("now", "exact", "within")}
        limits = tuple(fields["range"]) if fields["range"] else None
        return ColumnProfile(**{**fields, **choices, "range": limits, "notes": tuple(fields["notes"])})

    broken = fields["broken_rows"]
    made = {
        "columns": tuple(map(column, fields["columns"])),
        "bytes": Sizes(**fields["bytes"]),
        "sparse": Sparse(**fields["sparse"]) if fields["sparse"] else None,
        "peaks": tuple(Peak(**peak) for peak in fields["peaks"]),
        "broken_rows": BrokenRows(broken["count"], tuple((row["line"], row["what"]) for row in broken["first"])),
        "notes": tuple(fields["notes"]),
    }
    return Profile(**{**fields, **made}, _native=found)


def profile(
    data: Any,
    within: str = "rel:1e-6",
    *,
    columns: str | Sequence[str] | None = None,
    on_error: str = "fail",
    delimiter: str | None = None,
    header: bool = True,
    nulls: Sequence[str] | None = None,
    progress: Progress | bool | None = None,
) -> Profile | dict[str, Profile]:
    """Reads ``data`` once, and says what is in it: for each column the smallest type that keeps every value, and the smallest within a relative error.

    ``data`` is a path or address (CSV, TSV, JSON lines, Parquet, Arrow IPC, ``.npy``, ``.npz``), a frame, an array or a matrix. Of an ``.npz`` with several
    arrays it gives a profile for each name. ``on_error="skip"`` leaves broken rows of text files out and counts them; ``delimiter``, ``header`` and ``nulls``
    (what stands for no value) are for text files. ``progress`` is called with (what, done, total); False shows no bar.

    >>> print(oomph.data.profile("flights.csv"))  # doctest: +SKIP
    """
    check_policy(within, "within")
    taken = take(data, delimiter=delimiter, header=header, nulls=nulls)
    with shown(progress) as on_progress:
        found = taken.input.profile(within, names_of(columns), on_error, on_progress)
    return {name: of_native(one) for name, one in found} if isinstance(found, list) else of_native(found)
