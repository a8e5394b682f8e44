"""The changes for each cause of an out-of-memory: every cause has functions, best first, which find the code by the line and the name they are given, and edit the source.

A change that could turn the result into another one is not made: then ``NoPatch`` says why. That a change helps, and that the program still runs with it, is checked by
whoever asked, on the virtual GPU; here only the text is known, and a dict looks like a tensor. So there may be several, to be tried in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .attention import attention_scores
from .backward import backward_once
from .kept import Form, graph_kept, tensors_kept
from .no_grad import no_grad_missing, no_grad_missing_in_caller
from .precision import float64, gradients
from .reading import Request
from .source import NoPatch, Source
from .weights import copy_of_weights

Way = Callable[[Source, Request], None]

CAUSES: dict[str, tuple[Way, ...]] = {
    "no_grad_missing": (no_grad_missing, no_grad_missing_in_caller),
    "graph_kept": (
        graph_kept,
        partial(graph_kept, beside=True),
        partial(graph_kept, on_card=True),
        partial(graph_kept, form=Form.MAPPING),
        partial(graph_kept, form=Form.SEQUENCE),
    ),
    "tensors_kept": (
        tensors_kept,
        partial(tensors_kept, form=Form.MAPPING),
        partial(tensors_kept, form=Form.SEQUENCE),
        partial(tensors_kept, beside=True),
    ),
    "backward_once": (backward_once,),
    "copy_of_weights": (copy_of_weights,),
    "gradients": (gradients,),
    "float64": (float64, partial(float64, everywhere=True)),
    "attention_scores": (attention_scores, partial(attention_scores, contiguous=True)),
}


def changes(text: str, before: str, request: Request) -> list[str]:
    """The text with the change, once for each way that there is, best first; ``before`` is what a notebook's cells before this one say."""
    ways = CAUSES.get(request.cause)
    if ways is None:
        raise NoPatch("no change of a few lines mends this")
    found: list[str] = []
    reasons: list[NoPatch] = []
    for way in ways:
        source = Source(text, before)
        try:
            way(source, request)
            changed = source.result()
        except NoPatch as why:
            reasons.append(why)
        else:
            if changed not in found:
                found.append(changed)
    if not found:
        raise reasons[0]
    return found
