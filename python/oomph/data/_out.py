"""Files that are whole or not there: what may be written over, and how an array is written. Tables are written by the native side."""

from __future__ import annotations

import os
import secrets
import urllib.parse
from typing import Any

_ENDINGS = {"array": (".npy",), "table": (".parquet", ".pq")}


def place_to_write(out: str | os.PathLike[str], data: Any, *, arrays: bool, force: bool) -> str:
    """Where ``out`` is written: what a link leads to, not the link. Raises where that must not be.

    ``data`` may be a path: what is read is never written over, whatever the name it has.
    """
    path = os.fsdecode(os.fspath(out))
    what = "array" if arrays else "table"
    if not path.lower().endswith(_ENDINGS[what]):
        raise ValueError(f"{path}: {'an' if arrays else 'a'} {what} is written as {_ENDINGS[what][0]}; end the name so")
    if isinstance(data, (str, os.PathLike)) and _same_file(path, os.fsdecode(os.fspath(data))):
        raise ValueError(f"{path}: this is what is read; name another file to write to")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path}: is a folder; name a file in it")
    if os.path.lexists(path) and not force:
        raise FileExistsError(f"{path}: exists already (force=True writes over it)")
    return os.path.realpath(path)


def _same_file(one: str, other: str) -> bool:
    if other.startswith("file://"):
        other = urllib.parse.unquote(other[len("file://") :])
    try:
        return os.path.samefile(one, other)
    except OSError:
        # One of them is not there, or is an address.
        return False


def write_npy(path: str, array: Any) -> int:
    """Writes an array beside its place, and moves it there when it is whole. Gives the bytes of the file."""
    import numpy

    part = os.path.join(os.path.dirname(path), f".oomph-{secrets.token_hex(6)}.part")
    try:
        with open(part, "xb") as file:
            numpy.lib.format.write_array(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        os.replace(part, path)
    except BaseException:
        if os.path.lexists(part):
            os.unlink(part)
        raise
    return size
