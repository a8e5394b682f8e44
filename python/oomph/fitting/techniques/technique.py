"""What a technique is: one object that says what it is called, how it is applied, and what it changes. All of them are listed in ``training`` and ``inference``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# In which order techniques are applied: weights before the optimizer that has them, both before what lies around blocks, and the step last.
WEIGHTS, OPTIMIZER, BLOCKS, STEP = range(4)


def _begins(before: Any, after: Any) -> bool:
    return bool(after) and not before


@dataclass(frozen=True)
class Technique:
    """Something that can be done to a training step, or to a model for inference, and undone."""

    #: The field of the plan that says whether, and how much.
    name: str
    #: What is done, in words: given the field's value, the samples of the batch, and how many blocks there are.
    words: Callable[[Any, int, int], str]
    #: What it changes besides memory.
    why: str
    #: Applies it to a step (``running.step.Running``, or ``running.inference.FitInference``) and gives what has ``undo()``, or None where there is nothing to do. None for what has no object: it is read off
    #: the plan where it matters.
    apply: Callable[[Any], Any] | None = None
    stage: int = BLOCKS
    #: Whether the values of two plans differ in a way that is worth words.
    is_new: Callable[[Any, Any], bool] = _begins
    #: Its name in ``allow=``, if it changes numbers, and what that means.
    allow: str | None = None
    allowed: str = ""
    #: What it makes of a plan, given the 16-bit type of the card, and in which order it is tried: what changes least comes first.
    asked: Callable[[str], dict[str, Any]] | None = None
    turn: int = 0
    #: Why it does nothing here, given the search (``planning.inference_search``): None if it does, no words where nobody would expect it to.
    why_not: Callable[[Any], str | None] = lambda _: None
    #: Other fields of the plan that belong to it, and are nothing without it.
    besides: tuple[str, ...] = ()
    #: It stays from one plan to the next, where both have it: to undo it would lose something.
    lasts: bool = False


def some_of(count: int, blocks: int) -> str:
    return f"all {blocks} blocks" if count >= blocks else f"{count} of {blocks} blocks"


def differs_in_length(before: Any, after: Any) -> bool:
    return len(before) != len(after)
