"""What people have data in, and how the native side takes each: by path, as Arrow data, or where it lies in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oomph.data._memory import Described, described
from oomph.data._native import native

_WHAT_IS_TAKEN = (
    "a path or address, a frame of pandas, polars, pyarrow or whatever gives Arrow data, an array of NumPy or of the buffer protocol, "
    "a tensor of torch on the CPU, or a matrix of SciPy"
)

# Streams of Arrow data by pyarrow and nanoarrow.
_READ_ONCE = ("RecordBatchReader", "ArrayStream", "CArrayStream")


@dataclass(frozen=True)
class Taken:
    """Data, as the native side takes it, and what kind it was."""

    input: Any
    # "location", "pandas", "polars", "arrow", "array", "tensor", "scipy"
    kind: str
    original: Any


def names_of(columns: Any) -> list[str] | None:
    """The columns that were asked for: one name is one column, not one for each of its letters."""
    return None if columns is None else [columns] if isinstance(columns, str) else list(columns)


def check_policy(policy: Any, name: str = "policy") -> None:
    """The native side says which texts make sense."""
    if not isinstance(policy, str):
        raise TypeError(f'{name}={policy!r} is not text: "exact" keeps every value, and "rel:1e-3" lets floats change by at most that part of themselves')


def frame_of(data: Any) -> str | None:
    """Whose data frame it is, if it is one: also a frame of a package that made its own of theirs, as geopandas does."""
    makers = (kind.__module__.partition(".")[0] for kind in type(data).__mro__ if kind.__name__ == "DataFrame")
    return next((maker for maker in makers if maker in ("pandas", "polars")), None)


def take(data: Any, *, delimiter: str | None = None, header: bool = True, nulls: Sequence[str] | None = None) -> Taken:
    """Finds out what ``data`` is. Nothing is read, and nothing copied."""
    if isinstance(data, (str, os.PathLike)):
        location = os.fspath(data)
        location = location if isinstance(location, str) else os.fsdecode(location)
        return Taken(native.Input.location(location, delimiter, header, list(nulls) if nulls is not None else None), "location", data)
    if delimiter is not None or not header or nulls is not None:
        raise ValueError("delimiter=, header= and nulls= are for text files")
    module = frame_of(data) or type(data).__module__.partition(".")[0]
    if module == "torch":
        return Taken(_array(_of_tensor(data), "a torch tensor"), "tensor", data)
    if module == "scipy" and hasattr(data, "tocsr"):
        return Taken(_sparse(data), "scipy", data)
    if module == "numpy" and hasattr(data, "mask"):
        raise TypeError("a masked array cannot be taken: its masked values would count as values; fill them, or take it as a frame")
    if module == "polars" and type(data).__name__ == "Series":
        raise TypeError("polars.Series is a column, not a table; .to_frame() makes it one")
    if hasattr(data, "__arrow_c_stream__") and (hasattr(data, "__next__") or type(data).__name__ in _READ_ONCE):
        raise TypeError(f"{module}.{type(data).__name__} can be read only once, and data is read twice; give a table (read_all() makes one) or a path")
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        frame = _arrow_of_pandas(data) if module == "pandas" else data
        return Taken(native.Input.frame(frame, f"{module}.{type(data).__name__}"), module if module in ("pandas", "polars") else "arrow", data)
    found = described(data)
    if found is None:
        raise TypeError(f"{type(data).__module__}.{type(data).__qualname__} cannot be taken; what can: {_WHAT_IS_TAKEN}")
    return Taken(_array(found, f"a {module} array" if module != "builtins" else f"{type(data).__name__}"), "array", data)


def _array(found: Described, what: str) -> Any:
    return native.Input.array(what, found.as_arguments())


def _of_tensor(tensor: Any) -> Described:
    import torch

    if tensor.layout is not torch.strided:
        raise TypeError("a sparse tensor cannot be taken; a strided one can")
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device} cannot be taken: call .cpu() on it first")
    try:
        array = tensor.detach().numpy()
    except TypeError as error:
        raise TypeError(f"a tensor of {tensor.dtype} has no kin among numbers: {error}") from None
    found = described(array)
    assert found is not None  # NumPy's own
    return found


def _sparse(matrix: Any) -> Any:
    """Compressed as it is; other forms become rows, by SciPy, which adds up duplicate entries."""
    if matrix.ndim != 2:
        raise TypeError(f"a sparse array of {matrix.ndim} dimensions cannot be taken; one of two can")
    compressed = matrix if matrix.format in ("csr", "csc") else matrix.tocsr()
    parts = [described(part) for part in (compressed.indptr, compressed.indices, compressed.data)]
    arguments = [part.as_arguments() for part in parts if part is not None]
    return native.Input.sparse("a SciPy matrix", compressed.shape, compressed.format == "csr", *arguments)


def _arrow_of_pandas(frame: Any) -> Any:
    """The columns of a frame of pandas as Arrow data, made once: each pass would make them anew. The index is not one of them."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError("pandas gives its data to others only where pyarrow is installed: pip install pyarrow") from None
    import pandas

    if not isinstance(frame, pandas.DataFrame):
        raise TypeError(f"pandas.{type(frame).__name__} is a column, not a table; .to_frame() makes it one")
    check_labels(frame)
    for label, dtype in frame.dtypes.items():
        if getattr(dtype, "kind", None) == "c":
            raise TypeError(f"column {label!r} is of complex numbers, which tables of Arrow data do not have; leave it out, or take it as an array")
    try:
        return pyarrow.Table.from_pandas(frame, preserve_index=False)
    except pyarrow.ArrowException as error:
        # Its arguments are what is wrong, and then where.
        raise TypeError(f"a frame of pandas that cannot be made Arrow data: {'; '.join(map(str, error.args))}") from None


def check_labels(frame: Any) -> None:
    """Refuses a frame of pandas in which two columns have one label."""
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise ValueError(f"two columns are named {twice[0]!r}; rename one of them, so that names are unique")
