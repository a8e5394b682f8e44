"""The batch in parts, one after another. How it is cut is in ``running.batches``, how their losses are weighed in ``losses.counts``."""

from __future__ import annotations

from oomph.fitting.techniques.technique import Technique


def _words(size: int, batch: int, _: int) -> str:
    return f"{batch} samples in {-(-batch // size)} parts of {size}" if size else "the whole batch at once"


PARTS = Technique("micro", _words, "same mean, weighted by targets", is_new=lambda before, after: bool(before != after))
