"""What ``@pytest.mark.ram_memory("200MiB")`` does: records what a test asks for while it is called, and fails it if that was more at once.

Fixtures are not part of it, but for what the test itself has them do. Hooks are ``oomph.pytest``'s, which imports this when a test has the mark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from oomph._ram_held import Held, Measured, size, top
from oomph._recorders import RecordingError
from oomph._sizes import size_in_bytes, text


def ram_memory(limit: int | str) -> int | str:
    """The argument of the mark, by Python's own rules and with its own errors."""
    return limit


def limit(item: Any, mark: Any) -> int:
    """What the mark allows, in bytes. ValueError with what is wrong in it, and what to write."""
    if item.get_closest_marker("gpu_memory") is not None:
        raise ValueError(f"{mark.name}: a test with gpu_memory runs on a virtual GPU, whose RAM says nothing of a run: one mark or the other")
    try:
        allowed = ram_memory(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise ValueError(f'{error}; write @pytest.mark.{mark.name}("200MiB")') from None
    if isinstance(allowed, bool) or not isinstance(allowed, (int, str)):
        raise ValueError(f'{mark.name}: the limit is a number of bytes, or "200MiB", not {allowed!r}')
    try:
        return size_in_bytes(allowed)
    except ValueError as error:
        raise ValueError(f"{mark.name}: {error}") from None


def call(item: Any, mark: Any) -> Iterator[None]:
    """Around the call of a test."""
    measured, unknown = Measured(), None
    allowed = held = None
    try:
        allowed = limit(item, mark)
        measured.start()
    except (RecordingError, ValueError) as error:
        unknown = str(error)
    outcome: Any = yield
    if unknown is None:
        try:
            held = measured.stop()
        except RecordingError as error:
            unknown = str(error)
    if held is not None and allowed is not None:
        item.user_properties += [(f"{mark.name}_bytes", held.asked), (f"{mark.name}_error_bytes", held.error), (f"{mark.name}_limit_bytes", allowed)]
        # Only what is sure: of small blocks, samples are known.
        wrong = _too_much(held, allowed) if held.surely > allowed else None
    else:
        # A limit that is not looked at is no limit.
        wrong = f"the RAM of this test is not known: {unknown}" if unknown is not None else None
    # A test that fails of itself says why.
    if wrong is not None and outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(wrong, pytrace=False))


def _too_much(held: Held, allowed: int) -> str:
    lines = [f"asked for {size(held.asked, held.error)} of RAM at once, {text(held.asked - allowed)} more than {text(allowed)}; held then:"]
    return "\n".join([*lines, *(f"  {line}" for line in top(held.lines))])
