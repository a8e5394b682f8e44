"""The change for each cause of an out-of-memory: every cause has a function, which finds the code by the line and the name it is told, and edits the source.

A change that could turn the result into another one is not made: then ``NoPatch`` says why. That the change helps, and that the program still runs with it, is checked by
whoever asked, on the virtual GPU; here only the text is known.
"""

from __future__ import annotations

from collections.abc import Callable

from .attention import attention_scores
from .backward import backward_once
from .kept import graph_kept, tensors_kept
from .no_grad import no_grad_missing
from .precision import float64, gradients
from .reading import Request
from .source import NoPatch, Source
from .weights import copy_of_weights

CAUSES: dict[str, Callable[[Source, Request], None]] = {
    one.__name__: one for one in (no_grad_missing, graph_kept, tensors_kept, backward_once, copy_of_weights, gradients, float64, attention_scores)
}


def patched(source: Source, request: Request) -> str:
    """The text with the change."""
    change = CAUSES.get(request.cause)
    if change is None:
        raise NoPatch("no change of a few lines mends this")
    change(source, request)
    return source.result()
