"""How sizes are written and read: 3.96 GiB, "8GiB", <1 %. The same rules as the command's own, and a table that both are held to.

Numbers in, words out: what is measured is in ``_measure``.
"""

from __future__ import annotations

import re

MIB = 1 << 20


def text(size: int) -> str:
    """Bytes with three digits, as all of oomph writes them: 3.96 GiB, 98.4 MiB, 696 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            number = size / unit
            return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f} {name}"
    return f"{size} B"


_UNITS = {"": 1, "b": 1} | {name: base**power for power, letter in enumerate("kmgt", 1) for name, base in ((letter, 1024), (letter + "ib", 1024), (letter + "b", 1000))}


def size_in_bytes(size: int | str) -> int:
    """The bytes of 8 * 2**30, "8GiB", "8G" (both 2**30) or "1.5 GB" (10**9): as the command reads them."""
    typed, unit = size, 1
    if isinstance(size, str):
        found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", size, re.IGNORECASE | re.ASCII)
        if not found:
            raise ValueError(f'a size is a number of bytes, or "14GiB" or "14000MB", not {size!r}')
        if found[2].lower() not in _UNITS:
            raise ValueError(f"{found[2]!r} is not a unit; use KiB, MiB, GiB or KB, MB, GB")
        unit = _UNITS[found[2].lower()]
        size = int(min(float(found[1]) * unit, 1 << 60))
    # budget=14 is a slip, not fourteen bytes.
    if unit == 1 and 0 < size < MIB:
        raise ValueError(f'{typed} bytes? write "{size}GiB" or "{size}MiB"')
    if not 0 < size <= 1 << 56:
        raise ValueError(f"{typed!r} is not a size that a machine can have")
    return size


def signed(size: int) -> str:
    """A change: +1.02 GiB, -310 MiB, 0 B."""
    return "0 B" if size == 0 else f"{'+' if size > 0 else '-'}{text(abs(size))}"


def percent(part: int, whole: int) -> str:
    """A share; never 0 % for something, never 100 % for less than all."""
    if part <= 0 or whole <= 0:
        return "0 %"
    share = 100 * part / whole
    if share < 1:
        return "<1 %"
    return ">99 %" if part < whole and share > 99 else f"{share:.0f} %"
