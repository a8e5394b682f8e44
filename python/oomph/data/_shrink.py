"""``oomph.data.load`` and ``oomph.data.shrink``: the same data in the smallest types that hold it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oomph._measure import text
from oomph.data._input import Taken, take
from oomph.data._matrix import Csr
from oomph.data._native import native
from oomph.data._progress import Progress, shown
from oomph.data._table import Table


def load(
    data: Any,
    policy: str = "exact",
    *,
    columns: Sequence[str] | None = None,
    on_error: str = "fail",
    sparse: str = "auto",
    delimiter: str | None = None,
    header: bool = True,
    nulls: Sequence[str] | None = None,
    progress: Progress | bool | None = None,
) -> Any:
    """Loads ``data`` in the smallest types that hold it, and takes little more than the result while it does: it is read twice, and never held twice.

    ``policy="exact"`` keeps every value. ``policy="rel:1e-6"`` lets floats change by at most that part of themselves; the result's ``lossy`` names each column
    in which any did, with the worst change. Of a table it gives a :class:`Table`, or a :class:`Csr` where all columns are numbers and that is smaller
    (``sparse="never"`` and ``"always"`` decide otherwise); of ``.npy`` a NumPy array or a :class:`Csr`; of ``.npz`` one for each name.

    >>> frame = oomph.data.load("flights.csv").to_pandas()  # doctest: +SKIP
    """
    taken = take(data, delimiter=delimiter, header=header, nulls=nulls)
    with shown(progress) as told:
        made = taken.input.load(policy, list(columns) if columns is not None else None, on_error, sparse, told)
    return {name: _given(one, policy) for name, one in made} if isinstance(made, list) else _given(made, policy)


def _given(made: Any, policy: str) -> Any:
    if isinstance(made, native.Table):
        return Table(made)
    if isinstance(made, native.Matrix):
        return Csr(made, exact=policy == "exact")
    import numpy

    values = numpy.asarray(made.take())
    return values.reshape(made.shape, order="F" if made.fortran else "C")


@dataclass(frozen=True)
class Shrunk:
    """A file that was written: its bytes, those of what was read, and every column in which values changed, with the worst change."""

    path: str
    rows: int
    bytes: int
    bytes_before: int | None
    lossy: dict[str, float]
    broken_rows: int

    def __str__(self) -> str:
        before = f" (was {text(self.bytes_before)})" if self.bytes_before is not None else ""
        changed = f"changed: {', '.join(f'{name} by at most {error:.1e}' for name, error in self.lossy.items())}" if self.lossy else "every value kept"
        return f"{self.path}: {self.rows:,} rows, {text(self.bytes)}{before}, {changed}"


def shrink(
    data: Any,
    out: str | os.PathLike[str] | None = None,
    policy: str = "exact",
    *,
    columns: Sequence[str] | None = None,
    on_error: str = "fail",
    sparse: str = "auto",
    delimiter: str | None = None,
    header: bool = True,
    nulls: Sequence[str] | None = None,
    progress: Progress | bool | None = None,
) -> Any:
    """The same data in the smallest types that hold it.

    An array gives a smaller array, or a SciPy matrix where that is smaller (a :class:`Csr` without SciPy); a frame gives a frame of the same kind; with
    ``out`` a table is written as Parquet, whole or not at all. See :func:`load` for ``policy``.

    >>> frame = oomph.data.shrink(frame)  # doctest: +SKIP
    """
    taken = take(data, delimiter=delimiter, header=header, nulls=nulls)
    chosen = list(columns) if columns is not None else None
    if out is not None:
        with shown(progress) as told:
            written = json.loads(taken.input.write(os.fspath(out), policy, chosen, on_error, told))
        lossy = {column["name"]: column["worst_relative_error"] for column in written["columns"] if column["worst_relative_error"]}
        return Shrunk(os.fspath(out), written["rows"], written["bytes"], written["bytes_before"], lossy, written["broken_rows"]["count"])
    if taken.kind == "location":
        raise ValueError("shrink() writes a file as a smaller one: say where with out=, or take it into memory with load()")
    # A frame stays a frame; who wants a matrix of one loads it.
    sparse = "never" if taken.kind in ("pandas", "polars", "arrow") else sparse
    with shown(progress) as told:
        made = taken.input.load(policy, chosen, on_error, sparse, told)
    return _as_it_came(taken, _given(made, policy))


def _as_it_came(taken: Taken, made: Any) -> Any:
    """A result of the kind that the data had."""
    if taken.kind == "pandas":
        frame = made.to_pandas()
        frame.index = taken.original.index
        return frame
    if taken.kind == "polars":
        return made.to_polars()
    if taken.kind == "arrow":
        return made.to_pyarrow() if type(taken.original).__module__.startswith("pyarrow") else made
    if taken.kind == "tensor":
        import torch

        return made.to_torch() if isinstance(made, Csr) else torch.from_numpy(made)
    if isinstance(made, Csr):
        try:
            return made.to_scipy()
        except ImportError:
            return made
    return made
