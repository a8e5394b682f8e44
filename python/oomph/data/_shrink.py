"""``oomph.data.load`` and ``oomph.data.shrink``: the same data in the smallest types that hold it."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oomph._sizes import text
from oomph.data._column import capital
from oomph.data._frames import shrink_pandas, shrink_polars
from oomph.data._input import Taken, check_policy, frame_of, names_of, take
from oomph.data._matrix import Csr
from oomph.data._native import native
from oomph.data._out import place_to_write, write_npy
from oomph.data._profile import Profile, of_native
from oomph.data._progress import Progress, shown
from oomph.data._table import Table


class LossyWarning(UserWarning):
    """Values changed, within the policy that was asked for, and the result has no place to say so: names what changed, with the worst change."""


def load(
    data: Any,
    policy: str = "exact",
    *,
    columns: str | Sequence[str] | None = None,
    on_error: str = "fail",
    sparse: str = "auto",
    delimiter: str | None = None,
    header: bool = True,
    nulls: Sequence[str] | None = None,
    progress: Progress | bool | None = None,
) -> Any:
    """Loads ``data`` in the smallest types that hold it, and takes little more than the result while it does: it is read twice, and never held twice.

    ``policy="exact"`` keeps every value. ``policy="rel:1e-6"`` lets floats change by at most that part of themselves; the result's ``lossy`` names each column
    in which any did, with the worst change; of a NumPy array, which has no such attribute, a :class:`LossyWarning` says it. Of a table it gives a :class:`Table`, or
    a :class:`Csr` where all columns are numbers and that is smaller (``sparse="never"`` and ``"always"`` decide otherwise); of ``.npy`` a NumPy array or a
    :class:`Csr`; of ``.npz`` one for each name.

    The smallest types hold, they do not compute: ``column * 100`` of an int8 overflows without a word. Therefore ``to_pandas()``, ``to_polars()``, ``to_numpy()``,
    ``to_scipy()`` and ``to_torch()`` of what this gives have the types that the data had (64 bits for numbers of text files; 32 for floats that the policy let change), and
    the smallest with ``compact=True``. Arrow data has the smallest.
    An array of a ``.npy`` file comes in its smallest type: widen it before you compute with it (``array.astype("float64")``).

    >>> frame = oomph.data.load("flights.csv").to_pandas()  # doctest: +SKIP
    """
    check_policy(policy)
    taken = take(data, delimiter=delimiter, header=header, nulls=nulls)
    with shown(progress) as on_progress:
        made = taken.input.load(policy, names_of(columns), on_error, sparse, on_progress)
    several = made if isinstance(made, list) else [("", made)]
    changed = {name or "the array": error for name, one in several if isinstance(one, native.Array) for error in _lossy(one, policy).values()}
    _warn(changed)
    given = {name: _given(one, policy) for name, one in several}
    return given if isinstance(made, list) else given[""]


def _given(made: Any, policy: str) -> Any:
    if isinstance(made, native.Table):
        return Table(made)
    if isinstance(made, native.Matrix):
        return Csr(made, exact=policy == "exact")
    import numpy

    values = numpy.asarray(made.take())
    return values.reshape(made.shape, order="F" if made.fortran else "C")


def _lossy(array: Any, policy: str) -> dict[str, float]:
    """The worst change of an array's values, if any changed."""
    error = None if policy == "exact" else of_native(array.profile).columns[0].within.worst_relative_error
    return {"data": error} if error else {}


def _changes_in_words(lossy: dict[str, float]) -> str:
    return ", ".join(f"{name} by at most {error:.1e}" for name, error in lossy.items())


def _warn(lossy: dict[str, float]) -> None:
    if lossy:
        # Of the caller of load() or shrink().
        warnings.warn(f"values changed, as parts of themselves: {_changes_in_words(lossy)}", LossyWarning, stacklevel=3)


# How many columns are named where there are many.
_NAMED = 3
# Types that a product of two ordinary numbers is too large for.
_NARROW = ("int8", "uint8", "int16", "uint16", "float16")


def _narrowed(profile: Profile, policy: str) -> dict[str, str]:
    """The columns that were made so small that computing with them overflows, each with the type that it had, as pandas names it."""
    made = ((column, (column.exact if policy == "exact" else column.within).type) for column in profile.columns)
    return {column.name: _in_pandas(column.now.type, column.nulls) for column, small in made if small in _NARROW and small != column.now.type}


def _in_pandas(kind: str, nulls: int) -> str:
    """Only its nullable integers can be without a value."""
    return capital(kind) if nulls and "int" in kind else kind


def _widening(narrow: dict[str, str], kind: str) -> str:
    """How what came as this kind gets back the types that its columns had; some of them, where there are many."""
    some = dict(list(narrow.items())[:_NAMED])
    if not some:
        return ""
    had = next(iter(some.values()))
    if kind == "polars":
        return f".cast({{{', '.join(f'{name!r}: polars.{capital(had)}' for name, had in some.items())}}})"
    ways = {"array": f".astype({had!r})", "scipy": f".astype({had!r})", "tensor": f".to(torch.{had})", "arrow": f".to_pandas().astype({some!r})"}
    return ways.get(kind, f".astype({some!r})")


def _how_to_widen(narrow: tuple[str, ...], widening: str) -> str:
    """What is to be known of them, in a sentence."""
    if not narrow:
        return ""
    named = ", ".join(map(repr, narrow[:_NAMED])) + (f" and {len(narrow) - _NAMED} more" if len(narrow) > _NAMED else "")
    return f"; small types overflow without a word where they are computed with ({named}): widen them first, as with {widening}"


@dataclass(frozen=True)
class Shrunk:
    """A file that was written: its bytes, those of what was read, and every column in which values changed, with the worst change.

    ``narrow`` names the columns that are so small now (under 32 bits) that arithmetic overflows without a word: widen them before you compute with them.
    """

    path: str
    rows: int
    bytes: int
    bytes_before: int | None
    lossy: dict[str, float]
    broken_rows: int
    narrow: tuple[str, ...] = ()
    _widening: str = field(default="", repr=False)

    def __str__(self) -> str:
        before = f" (was {text(self.bytes_before)})" if self.bytes_before is not None else ""
        changed = f"changed: {_changes_in_words(self.lossy)}" if self.lossy else "every value kept"
        return f"{self.path}: {self.rows:,} rows, {text(self.bytes)}{before}, {changed}{_how_to_widen(self.narrow, self._widening)}"


@dataclass(frozen=True)
class Report:
    """What was done to what is in memory: every column in which values changed, with the worst change, and the profile of the input.

    ``profile`` is None where there was nothing to make smaller. ``narrow`` names the columns that are so small now (under 32 bits) that arithmetic overflows without a
    word: widen them before you compute with them. ``print`` says it.
    """

    lossy: dict[str, float]
    profile: Profile | None
    narrow: tuple[str, ...] = ()
    _widening: str = field(default="", repr=False)

    def __str__(self) -> str:
        changed = f"changed: {_changes_in_words(self.lossy)}" if self.lossy else "every value kept"
        return f"{changed}{_how_to_widen(self.narrow, self._widening)}"


def shrink(
    data: Any,
    out: str | os.PathLike[str] | None = None,
    policy: str = "exact",
    *,
    columns: str | Sequence[str] | None = None,
    on_error: str = "fail",
    sparse: str = "auto",
    delimiter: str | None = None,
    header: bool = True,
    nulls: Sequence[str] | None = None,
    force: bool = False,
    report: bool = False,
    progress: Progress | bool | None = None,
) -> Any:
    """The same data in the smallest types that hold it.

    An array gives a smaller array, or a SciPy matrix where that is smaller (a :class:`Csr` without SciPy); a frame gives a frame of the same kind, with the same
    index and labels. In frames of pandas and polars only numbers, booleans and text become smaller; every other column stays as it is.

    Small types hold, they do not compute: of an int8, ``column * 100`` overflows without a word. Widen what you compute with first (``frame.astype({"age": "int64"})``,
    ``array.astype("float64")``); ``report=True`` and what is given with ``out`` name the columns, in ``narrow``.

    With ``out`` a table is written as Parquet and an array as ``.npy``, whole or not at all, and a :class:`Shrunk` says what was; a file that is there is written
    over with ``force=True`` only, and what is read never.

    See :func:`load` for ``policy``. Where it lets values change, a :class:`LossyWarning` names the columns; ``report=True`` gives a pair instead: the result, and a
    :class:`Report` that says it.

    >>> frame = oomph.data.shrink(frame)  # doctest: +SKIP
    """
    check_policy(policy)
    chosen = names_of(columns)
    if out is not None:
        if report:
            raise ValueError("report=True is for what stays in memory: with out=, what is given is the report")
        _check_index(data)
        taken = take(data, delimiter=delimiter, header=header, nulls=nulls)
        arrays = taken.input.holds_arrays()
        place = place_to_write(out, data, arrays=arrays, force=force)
        with shown(progress) as on_progress:
            write = _write_array if arrays else _write_table
            return write(taken, os.fsdecode(os.fspath(out)), place, policy, chosen, on_error, on_progress)
    if isinstance(data, (str, os.PathLike)):
        raise ValueError("shrink() writes a file as a smaller one: say where with out=, or take it into memory with load()")
    if force:
        raise ValueError("force=True is for out=, where a file may be written over")
    with shown(progress) as on_progress:
        made, said = _in_memory(data, policy, chosen, on_error, sparse, on_progress)
    if report:
        return made, said
    _warn(said.lossy)
    return made


def _in_memory(data: Any, policy: str, columns: list[str] | None, on_error: str, sparse: str, on_progress: Any) -> tuple[Any, Report]:
    def smaller(table: Any) -> Table:
        return Table(take(table).input.load(policy, None, on_error, "never", on_progress))

    by_columns = {"pandas": shrink_pandas, "polars": shrink_polars}.get(frame_of(data) or "")
    if by_columns is not None:
        frame, table = by_columns(data, columns, smaller)
        return frame, Report({}, None) if table is None else _report(table.lossy, table.profile, policy, str(frame_of(data)))
    taken = take(data)
    # A frame stays a frame; who wants a matrix of one loads it.
    made = taken.input.load(policy, columns, on_error, "never" if taken.kind in ("pandas", "polars", "arrow") else sparse, on_progress)
    given = _given(made, policy)
    lossy = given.lossy if isinstance(given, (Table, Csr)) else _lossy(made, policy)
    return _as_it_came(taken, given), _report(lossy, of_native(made.profile), policy, taken.kind)


def _report(lossy: dict[str, float], profile: Profile, policy: str, kind: str) -> Report:
    narrow = _narrowed(profile, policy)
    return Report(lossy, profile, tuple(narrow), _widening(narrow, kind))


def _check_index(data: Any) -> None:
    """A file has columns only: an index that says something would be lost."""
    if frame_of(data) != "pandas":
        return
    import pandas

    index = data.index
    plain = isinstance(index, pandas.RangeIndex) and (index.start, index.step, index.name) == (0, 1, None)
    if not plain:
        raise ValueError("the file would not have the index of the frame: reset_index() first makes columns of it, reset_index(drop=True) leaves it out")


def _write_table(taken: Taken, name: str, place: str, policy: str, columns: list[str] | None, on_error: str, on_progress: Any) -> Shrunk:
    written = json.loads(taken.input.write(place, policy, columns, on_error, on_progress))
    lossy = {column["name"]: column["worst_relative_error"] for column in written["columns"] if column["worst_relative_error"]}
    # What is written is not said with the type that it had: what is held in each is whole in these.
    narrow = {column["name"]: "float64" if column["type"] == "float16" else "int64" for column in written["columns"] if column["type"] in _NARROW}
    return Shrunk(name, written["rows"], written["bytes"], written["bytes_before"], lossy, written["broken_rows"]["count"], tuple(narrow), _widening(narrow, "pandas"))


def _write_array(taken: Taken, name: str, place: str, policy: str, columns: list[str] | None, on_error: str, on_progress: Any) -> Shrunk:
    if taken.kind == "scipy":
        raise ValueError(f"{name}: a sparse matrix is not written as .npy; shrink it without out=, and save what that gives")
    made = taken.input.load(policy, columns, on_error, "never", on_progress)
    if isinstance(made, list) and len(made) == 1:
        ((_, made),) = made
    if not isinstance(made, native.Array):
        what = f"{len(made)} arrays ({', '.join(one for one, _ in made)})" if isinstance(made, list) else "a sparse matrix"
        raise ValueError(f"{name}: a .npy file holds one array, and this is {what}")
    profile = of_native(made.profile)
    array = _given(made, policy)
    before = profile.file_bytes if profile.file_bytes is not None else profile.bytes.now
    narrow = _narrowed(profile, policy)
    return Shrunk(name, profile.rows, write_npy(place, array), before, _lossy(made, policy), 0, tuple(narrow), _widening(narrow, "array"))


def _as_it_came(taken: Taken, made: Any) -> Any:
    """A result of the kind that the data had."""
    if taken.kind == "arrow":
        return made.to_pyarrow() if type(taken.original).__module__.startswith("pyarrow") else made
    if taken.kind == "tensor":
        import torch

        return made.to_torch(compact=True) if isinstance(made, Csr) else torch.from_numpy(made)
    if isinstance(made, Csr):
        try:
            import scipy.sparse
        except ImportError:
            return made
        matrix = made.to_scipy(compact=True)
        if not isinstance(taken.original, scipy.sparse.spmatrix):
            return matrix
        # To these, * is the product of matrices.
        kind = scipy.sparse.csr_matrix if made.format == "csr" else scipy.sparse.csc_matrix
        return kind((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape, copy=False)
    return made
