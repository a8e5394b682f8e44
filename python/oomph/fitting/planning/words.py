"""A plan in words: the chain from the plain step to what is done, with bytes saved and time, and what was seen on the way."""

from __future__ import annotations

from oomph._sizes import signed, text
from oomph.fitting.planning.plan import Measured, Plan


def techniques(before: Plan, after: Plan, batch: int, blocks: int) -> str:
    """What is new in ``after``."""
    new = []
    if after.fused and not before.fused:
        new.append("optimizer without temporary copies (fused)")
    if after.optimizer_8bit and not before.optimizer_8bit:
        new.append("optimizer state in 8 bits (allowed)")
    if after.defer_logits and not before.defer_logits:
        new.append("logits and cross-entropy in pieces")
    if after.expandable and not before.expandable:
        new.append("expandable segments")
    if after.autocast and not before.autocast:
        new.append(f"autocast in {after.autocast} (allowed)")
    if after.bf16_weights and not before.bf16_weights:
        new.append("weights in bfloat16 (allowed)")
    if after.micro != before.micro:
        new.append(f"{batch} samples in {-(-batch // after.micro)} parts of {after.micro}" if after.micro else "the whole batch at once")
    if len(after.checkpoint) != len(before.checkpoint):
        new.append(f"{_some(len(after.checkpoint), blocks)} run again in the backward pass")
    if len(after.offload) != len(before.offload):
        new.append(f"activations of {_some(len(after.offload), blocks)} in host memory")
    if after.states_on_host and not before.states_on_host:
        new.append("optimizer state in host memory")
    return ", ".join(new) or "the plain step"


def _some(count: int, blocks: int) -> str:
    return f"all {blocks} blocks" if count >= blocks else f"{count} of {blocks} blocks"


WHY = {
    "fused": "same numbers, usually faster",
    "optimizer_8bit": "you allowed it",
    "defer_logits": "same numbers; the logits are never whole",
    "expandable": "same numbers; no holes that nothing fits into",
    "autocast": "you allowed it; usually faster",
    "bf16_weights": "you allowed it",
    "micro": "same mean, weighted by targets",
    "checkpoint": "same numbers; pays with recomputation",
    "offload": "same numbers; copies run beside the work",
    "states_on_host": "same numbers; pays with copies at each step",
}


def why(before: Plan, after: Plan) -> str:
    return "; ".join(words for name, words in WHY.items() if getattr(before, name) != getattr(after, name))


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
