"""What goes wrong in fitting, in words for the person who called it."""

from __future__ import annotations


class FitError(RuntimeError):
    """Nothing was changed; the message says why and what to do. ``least`` is the least budget that could work, in bytes, where it is known."""

    def __init__(self, message: str, least: int | None = None) -> None:
        super().__init__(message)
        self.least = least


class NotSplittable(FitError):
    """The batch cannot be run in parts with the same result."""
