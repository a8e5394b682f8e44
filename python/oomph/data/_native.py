"""The extension module, loaded when data is first touched: importing ``oomph.data`` costs nothing, and works where only ``share`` is wanted."""

from __future__ import annotations

from typing import Any

from oomph._extension import load_native

native: Any = load_native()
DataError: type[ValueError] = native.DataError
