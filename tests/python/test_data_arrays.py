"""Arrays and matrices beside NumPy, SciPy and torch: whatever they write is read, and every value comes back as they hold it."""

import io
import itertools
import os
import subprocess
import sys
import zipfile

import numpy as np
import oomph.data as data
import pytest
import scipy.sparse
import torch
from conftest import ROOT

NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
BORDERS = [0, 1, 127, 128, 255, 256, 32767, 32768, 65504, 65535, 2**24 - 1, 2**24 + 1, 2**31 - 1, 2**31, 2**53 - 1, 2**53 + 1, 2**63 - 1, 2**64 - 1]
FRACTIONS = [-0.0, np.nan, np.inf, -np.inf, 5e-324, 1e-310, 1e-45, 2.0**-24, 2.0**-25, 6e-8, 65519.99, 65520.0, 3.4028235e38, 3.5e38, 0.1, 0.5, 1e300]
SHAPES = [(), (0,), (1,), (24,), (4, 6), (0, 5), (5, 0), (2, 3, 4)]


def some(rng, dtype, count):
    """Numbers of one kind, drawn so that every smaller type is sometimes enough and sometimes not."""
    dtype = np.dtype(dtype)
    kind = rng.integers(4)
    if dtype.kind == "f":
        drawn = {
            0: rng.choice(np.array(BORDERS + FRACTIONS, dtype=np.float64), count),
            1: rng.integers(-200, 200, count),
            2: rng.standard_normal(count).astype("f4") if rng.random() < 0.5 else rng.standard_normal(count).astype("f2"),
            3: rng.integers(0, 2**63, count, dtype="u8").view("f8"),
        }[kind]
        with np.errstate(over="ignore"):
            return np.asarray(drawn).astype(dtype)
    limits = np.iinfo(dtype)
    borders = [sign * value for sign in (1, -1) for value in BORDERS if limits.min <= sign * value <= limits.max] + [limits.min, limits.max]
    if kind == 0:
        return np.array(rng.choice(np.array(borders, dtype=object), count), dtype=dtype)
    return rng.integers(max(limits.min, -(2 ** int(rng.integers(1, 8)))), min(limits.max, 2 ** int(rng.integers(1, 8))), count, dtype=dtype)


def same(left, right):
    """The same numbers, whatever types hold them: bits of floats, but any NaN is NaN."""
    left, right = np.asarray(left), np.asarray(right)
    if left.shape != right.shape:
        return False
    if left.dtype.kind in "iu" and right.dtype.kind in "iu":
        return left.astype(object).tolist() == right.astype(object).tolist()
    if left.dtype.kind in "iu":
        left, right = right, left
    # An integer that stands for a float must be that float, and not only be rounded to it.
    if right.dtype.kind in "iu" and [int(value) for value in left.ravel().tolist()] != right.ravel().tolist():
        return False
    left, right = left.astype("f8"), right.astype("f8")
    return bool(np.all((left.view("u8") == right.view("u8")) | (np.isnan(left) & np.isnan(right))))


def dense(result):
    """As a NumPy array, −0.0 kept: SciPy adds to zero, which would take its sign."""
    if not isinstance(result, data.Csr):
        return result
    full = np.zeros(result.shape, dtype=result.data.dtype)
    lines = np.repeat(np.arange(len(result.indptr) - 1), np.diff(result.indptr))
    full[(lines, result.indices) if result.format == "csr" else (result.indices, lines)] = result.data
    return full


def saved(folder, array, how):
    path = folder / ("a.npy" if how == "npy" else "a.npz")
    if how == "npy":
        np.save(path, array)
    elif how == "npz":
        np.savez(path, x=array)
    elif how == "compressed":
        np.savez_compressed(path, x=array)
    return path


@pytest.mark.parametrize("how", ["npy", "npz", "compressed"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_what_numpy_writes_comes_back(how, dtype, tmp_path):
    rng = np.random.default_rng(NUMBERS.index(dtype))
    for shape, order, endian in itertools.product(SHAPES, "CF", "<>"):
        array = np.asarray(some(rng, dtype, int(np.prod(shape))).reshape(shape, order=order), dtype=endian + dtype)
        for sparse in ("auto", "never", "always") if array.ndim == 2 else ("auto",):
            result = data.load(saved(tmp_path, array, how), sparse=sparse)
            result = dense(result if how == "npy" else result["x"])
            assert same(result, array), (shape, order, endian, sparse)
            assert result.itemsize <= array.itemsize


@pytest.mark.parametrize("dtype", NUMBERS)
def test_arrays_in_memory_come_back_however_they_lie(dtype):
    rng = np.random.default_rng(100 + NUMBERS.index(dtype))
    whole = some(rng, dtype, 7 * 8 * 3).reshape(7, 8, 3)
    views = [whole, whole[::2, ::-3], whole[3], whole[:, :, 1], whole[:, 2, ::-1].T, whole[1:1], np.broadcast_to(whole[0, 0], (4, 3)), whole.astype(">" + dtype)[::-1]]
    views.append(np.frombuffer(b"\0" + whole.tobytes(), dtype="u1")[1:].view(dtype).reshape(7, 24))
    for view in views:
        for sparse in ("never", "always") if view.ndim == 2 else ("auto",):
            assert same(dense(data.load(view, sparse=sparse)), view)


@pytest.mark.parametrize("error", [1e-3, 1e-6])
def test_a_relative_error_is_kept_and_told(error):
    rng = np.random.default_rng(7)
    for scale in (1.0, 1e-6, 1e5, 1e-39, 1e39, 1e-300):
        for drawn in (rng.standard_normal(500) * scale, np.abs(rng.standard_normal(500).astype("f4")) + np.float32(0.1), np.array([0.0, -0.0, np.nan, np.inf, 1 / 3])):
            result = data.load(drawn, policy=f"rel:{error}")
            reported = data.profile(drawn, within=f"rel:{error}")["array"].within
            there = np.isfinite(drawn) & (drawn != 0)
            with np.errstate(over="ignore", invalid="ignore"):
                changes = np.abs(result.astype("f8") - drawn)[there] / np.abs(drawn[there].astype("f8"))
                singles = np.abs(drawn.astype("f4").astype("f8") - drawn)[there] / np.abs(drawn[there].astype("f8"))
            assert result.dtype.name == reported.type
            assert changes.max() == (reported.worst_relative_error or 0.0) <= error
            assert same(result[~there], drawn[~there])
            assert result.itemsize <= 4 or singles.max() > error


def test_integers_never_change():
    array = np.array([2**53 + 1, 5])
    assert data.load(array, policy="rel:0.5").tolist() == array.tolist()


@pytest.mark.parametrize("value", ["2024-02-29", "NaT"])
@pytest.mark.parametrize("unit", ["D", "ms", "ns", "25s"])
def test_times_stay_times(unit, value, tmp_path):
    for array in (np.array([value, "1970-01-01"], dtype=f"M8[{unit}]"), np.array([3, -4], dtype=f">m8[{unit}]")):
        np.save(tmp_path / "a.npy", array)
        result = data.load(tmp_path / "a.npy")
        assert result.dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize("dtype", ["<U5", ">U5", "S4", "?", "<c8", ">c8", ">c16"])
def test_other_plain_types_come_back(dtype, tmp_path):
    array = np.array([["1", "0", "1"], ["0", "1", "1"]]).astype("?" if dtype == "?" else "U").astype(dtype) if "c" not in dtype else np.array([[1 + 2j, 0.5j, np.nan]], dtype=dtype)
    for how in ("npy", "npz", "compressed"):
        result = data.load(saved(tmp_path, array, how))
        result = result if how == "npy" else result["x"]
        np.testing.assert_array_equal(result, array)
        assert result.itemsize == (8 if "c" in dtype else array.itemsize)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([{}, None], dtype=object), "pickled"),
        (np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]), "structured"),
        (np.zeros(2, dtype="V5"), "void"),
        (np.zeros(2, dtype=np.longdouble), "extended"),
    ],
)
def test_what_is_not_plain_is_refused_with_a_reason(array, words, tmp_path):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    np.savez(tmp_path / "a.npz", x=array)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(data.DataError, match=f"(?s){name}.*{words}"):
            data.load(tmp_path / name)


def test_a_file_that_is_cut_short_or_damaged_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000))
    (tmp_path / "short.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    with pytest.raises(data.DataError, match="cut short"):
        data.load(tmp_path / "short.npy")
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "a.npz", x=np.random.default_rng(0).standard_normal(1000))
        content = bytearray((tmp_path / "a.npz").read_bytes())
        content[len(content) // 2] ^= 1
        (tmp_path / "flipped.npz").write_bytes(content)
        with pytest.raises(data.DataError, match=r"flipped\.npz: x\.npy"):
            data.load(tmp_path / "flipped.npz")


def test_archives_of_other_writers_are_read(tmp_path):
    file = io.BytesIO()
    np.save(file, np.arange(5.0))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        # As a pipe: sizes after the data, and with 64 bits.
        with archive.open("streamed.npy", "w", force_zip64=True) as member:
            member.write(file.getvalue())
        archive.comment = b"PK\x05\x06" + bytes(100)
    assert data.load(tmp_path / "a.npz")["streamed"].tolist() == [0, 1, 2, 3, 4]
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", file.getvalue())
    with pytest.raises(data.DataError, match="method 12"):
        data.load(tmp_path / "b.npz")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("dtype", [kind for kind in NUMBERS if kind != "f2"])
def test_matrices_that_scipy_writes_come_back(form, dtype, compressed, tmp_path):
    rng = np.random.default_rng(3)
    full = np.where(rng.random((6, 10)) < 0.3, some(rng, dtype, 60).reshape(6, 10), np.zeros(1, dtype))
    matrix = scipy.sparse.coo_array(full).asformat(form)
    matrix.indices, matrix.indptr = matrix.indices.astype("i8"), matrix.indptr.astype("i8")
    scipy.sparse.save_npz(tmp_path / "a.npz", matrix, compressed=compressed)
    for result in (data.load(tmp_path / "a.npz"), data.load(matrix)):
        assert (result.format, result.indices.dtype, result.indptr.dtype) == (form, "int32", "int32")
        assert result.data.itemsize <= np.dtype(dtype).itemsize
        assert same(dense(result), matrix.toarray())
        assert result.profile.bytes.exact == result.nbytes < result.profile.bytes.now


def test_a_matrix_is_given_to_scipy_and_torch_without_a_copy():
    rng = np.random.default_rng(5)
    full = rng.standard_normal((50, 40)) * (rng.random((50, 40)) < 0.05)
    result = data.load(full)
    assert isinstance(result, data.Csr)
    matrix, tensor = result.to_scipy(), result.to_torch()
    assert np.shares_memory(matrix.data, result.data) and np.shares_memory(matrix.indices, result.indices)
    assert tensor.values().data_ptr() == result.data.ctypes.data
    np.testing.assert_array_equal(matrix.toarray(), full)
    assert torch.equal(tensor.to_dense(), torch.from_numpy(full))
    np.testing.assert_allclose(matrix @ np.ones(40), full @ np.ones(40))


def test_a_long_array_is_loaded_without_being_held(tmp_path):
    """200 MB of float64 that are small integers: 25 MB, and little besides."""
    np.save(tmp_path / "a.npy", np.arange(25_000_000, dtype="f8") % 100)
    program = """
import re, sys
import numpy, oomph.data as data
# Not getrusage: its peak is that of the process that started this one, if that was larger.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
data.load(numpy.zeros(1))
before = peak()
result = data.load(sys.argv[1], progress=False)
assert result.dtype == "int8" and result[:101].tolist() == [*range(100), 0]
print(peak() - before)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a.npy"], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 25_000_000 <= int(done.stdout) <= 45_000_000
