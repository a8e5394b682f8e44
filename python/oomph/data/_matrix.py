"""A sparse matrix, as SciPy and torch hold it: they take its buffers as they are."""

from __future__ import annotations

from typing import Any

from oomph.data._column import usual_type
from oomph.data._profile import Profile, of_native
from oomph.data._table import size_and_savings


class Csr:
    """A matrix of which only what is not zero is stored, row by row (or, where it came so from SciPy, column by column: ``format`` says ``"csc"``).

    ``indptr``, ``indices`` and ``data`` are NumPy arrays that nothing else refers to: they can be written to. ``data`` has the smallest type that holds it; SciPy, pandas
    and torch are given the type that the data had, because small ones overflow without a word in a product. ``compact=True`` gives the small one, of the same memory.
    """

    def __init__(self, native: Any, *, exact: bool) -> None:
        import numpy

        self.shape: tuple[int, int] = tuple(native.shape)
        self.format: str = "csr" if native.by_rows else "csc"
        # The names of the columns, where it was a table.
        self.columns: tuple[str, ...] | None = tuple(native.names) if native.names is not None else None
        self.profile: Profile = of_native(native.profile)
        self.indptr, self.indices, self.data = map(numpy.asarray, native.take())
        # A table becomes a matrix only with every value kept; the values of an array have one worst change.
        error = None if exact or self.columns is not None else self.profile.columns[0].within.worst_relative_error
        self.lossy: dict[str, float] = {"data": error} if error else {}

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return int(self.indptr.nbytes + self.indices.nbytes + self.data.nbytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        rows, columns = self.shape
        size = size_and_savings(self.nbytes, self.profile, self.lossy)
        return f"<oomph.data.Csr: {rows:,} × {columns:,} of {self.data.dtype}, {len(self.data):,} stored, {size}>"

    def _wide(self, compact: bool) -> Any:
        """The values in a type to compute with: one that holds what each column was."""
        import numpy

        usual = {"float32"} if self.lossy else {column.now.type for column in self.profile.columns}
        if compact or not usual:
            return self.data
        return self.data.astype(usual_type(self.data.dtype.name, numpy.result_type(*usual).name), copy=False)

    def to_scipy(self, *, compact: bool = False) -> Any:
        """A ``scipy.sparse.csr_array`` (or ``csc_array``), whose indices are of the same memory; half-precision values, which SciPy does not have, become float32."""
        import scipy.sparse

        kind = scipy.sparse.csr_array if self.format == "csr" else scipy.sparse.csc_array
        data = self._wide(compact)
        data = data.astype("float32") if data.dtype == "float16" else data
        return kind((data, self.indices, self.indptr), shape=self.shape, copy=False)

    def to_pandas(self, *, compact: bool = False) -> Any:
        """A ``pandas.DataFrame`` of sparse columns, made by SciPy and pandas; ``load(…, sparse="never").to_pandas()`` gives one of plain columns."""
        import pandas

        try:
            matrix = self.to_scipy(compact=compact)
        except ImportError:
            raise ImportError('pandas makes a frame of a sparse matrix only where SciPy is installed: pip install scipy, or load(…, sparse="never")') from None
        return pandas.DataFrame.sparse.from_spmatrix(matrix, columns=self.columns)

    def to_polars(self) -> Any:
        """Refused: polars has no sparse columns."""
        raise TypeError('polars has no sparse columns, and this table was mostly zeros: load(…, sparse="never").to_polars() gives plain ones')

    def to_torch(self, *, compact: bool = False) -> Any:
        """A ``torch.sparse_csr`` tensor (or ``sparse_csc``), whose indices are of the same memory."""
        import torch

        kind = torch.sparse_csr_tensor if self.format == "csr" else torch.sparse_csc_tensor
        parts = map(torch.from_numpy, (self.indptr, self.indices, self._wide(compact)))
        # They were checked when the matrix was made.
        return kind(*parts, self.shape, check_invariants=False)
