"""A plan in words: the chain from the plain step to what is done, with bytes saved and time, and what was seen on the way."""

from __future__ import annotations

from oomph._sizes import signed, text
from oomph.fitting.planning.plan import Measured, Plan
from oomph.fitting.planning.search import Way
from oomph.fitting.techniques.training import TECHNIQUES


def techniques(before: Plan, after: Plan, batch: int, blocks: int) -> str:
    """What is new in ``after``."""
    new = (one.words(getattr(after, one.name), batch, blocks) for one in TECHNIQUES if one.is_new(getattr(before, one.name), getattr(after, one.name)))
    return ", ".join(new) or "the plain step"


def why(before: Plan, after: Plan) -> str:
    return "; ".join(one.why for one in TECHNIQUES if getattr(before, one.name) != getattr(after, one.name))


def chain(measured: list[Measured], batch: int, blocks: int) -> list[str]:
    """A table: technique, what it saves, what it leaves, what it does to the time of a step, and why it is there."""
    first = measured[0]
    rows = [("the plain step", "", text(first.reserved), "", "")]
    for before, after in zip(measured, measured[1:]):
        saved, slower = before.reserved - after.reserved, after.seconds / max(before.seconds, 1e-9) - 1
        rows.append(
            (
                techniques(before.plan, after.plan, batch, blocks),
                signed(-saved),
                text(after.reserved),
                f"{slower:+.0%} time" if abs(slower) >= 0.005 else "no time",
                why(before.plan, after.plan),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return [f"  {name:<{widths[0]}}  {saved:>{widths[1]}}  {left:>{widths[2]}}  {slower:>{widths[3]}}  {reason}".rstrip() for name, saved, left, slower, reason in rows]


def tried(ways: list[Way], chosen: Plan, batch: int, blocks: int) -> list[str]:
    """What was timed on the card, the fastest first."""
    known = sorted((way.measured for way in ways if way.measured.timed is not None), key=lambda one: one.timed or 0.0)
    rows = [f"  {one.timed:.3f} s a step{', chosen' if one.plan == chosen else ''}: {techniques(Plan(), one.plan, batch, blocks)}" for one in known]
    return ["", "tried on this card:", *rows] if rows else []
