"""What a script of ``scripts`` takes with other batches and sequences, and the largest that fit into some bytes: every answer is a step that was run.

Runs on the virtual GPU, on a card without a limit, with a file of JSON as its argument: what ``prepare`` is asked, for it is done here if it was not done before; ``checkpoint``, the one to load;
``cards`` (each with ``room``, the bytes for all that a program takes, ``safe``, what of it the largest sizes may take, and ``search``), and ``answer``, the file to write. PyTorch is held to a card's room by its own limit, which it meets as it would meet the
card's end: it gives back what it caches, and then fails. Where ``search`` is false, the largest sizes come from a curve through the sizes that were run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import runpy
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    from torch.amp import GradScaler
    from torch.nn import Module

    from oomph.virtual.values import Values

    # What a step took, of memory that is allocated and that is reserved.
    Took = tuple[int, int]

# Longer sequences than any model's, and larger batches than anybody's.
MOST_SEQUENCE, MOST_BATCH = 1 << 20, 1 << 16
# Sequences are tried in steps of a power of two: of at most this part of the one that is asked about.
PART = 16
# A line is straight if it rises by at most as much more later on; and how many points it may take to become one.
STRAIGHT, MOST_POINTS = 0.1, 6
# A guess may be far off where nothing near it was run: not farther than so many times the largest that was.
FARTHEST = 8


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        task = json.load(file)
    # It is a script, whose folder is first on the path.
    from prepare import prepared

    # What is imported stays: to look through it for garbage takes seconds.
    gc.disable()
    ready = prepared(task)
    if ready is None:
        return
    answer = Sizes({**task, **ready}).answer()
    with open(task["answer"], "w", encoding="utf-8") as file:
        json.dump(answer, file)


class Sizes:
    """One script with one model, which is loaded once."""

    def __init__(self, task: dict[str, Any]) -> None:
        import torch

        self.torch, self.task = torch, task
        self.script = runpy.run_path(task["script"], run_name="sizes")
        gc.freeze()
        gc.enable()
        self.trained = self.script["load"](task["checkpoint"])
        gc.collect()
        gc.freeze()
        # The least that a card must have.
        self.loading = torch.cuda.max_memory_allocated()
        self.unit = 1 << max(0, (task["sequence"] // PART).bit_length() - 1)
        self.whole = torch.cuda.get_device_properties(0).total_memory
        # What is on the card beside PyTorch's memory.
        self.library = ctypes.CDLL("liboomph_cuda.so")
        self.library.oomph_peak.restype = ctypes.c_uint64
        self.taken: dict[tuple[int, int], Took | None] = {}
        self.unread = Unread(torch, self.trained[0], followed_by(torch))

    def step(self, batch: int, sequence: int) -> Took | None:
        """Takes a step, and gives what it took: allocated and reserved. None if memory ran out."""
        with self.unread.step():
            took = self.one_step(batch, sequence)
        if self.unread.was_read_after_all:
            self.empty()
            took = self.one_step(batch, sequence)
        return took

    def one_step(self, batch: int, sequence: int) -> Took | None:
        torch = self.torch
        model, *rest = self.trained
        # One that is left after an error waits for the rest of its step.
        rest = [self.unread.apart(type(one)("cuda", enabled=one.is_enabled())) if isinstance(one, torch.amp.GradScaler) else one for one in rest]
        try:
            self.script["step"](model, *rest, self.script["batch"](model, batch, sequence))
        except torch.cuda.OutOfMemoryError:
            pass
        else:
            return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        with contextlib.suppress(IndexError):
            rest[0].zero_grad()
        return None

    def begin(self, batch: int, sequence: int) -> Took | None:
        """The first steps, as the script takes them: the optimizer makes its state in the first. Everything after them begins with nothing cached."""
        self.step(batch, sequence)
        self.taken[batch, sequence] = self.step(batch, sequence)
        return self.taken[batch, sequence]

    def empty(self) -> None:
        gc.collect()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()

    def takes(self, batch: int, sequence: int) -> Took | None:
        """What a step takes where memory is not short."""
        if (batch, sequence) not in self.taken:
            self.empty()
            self.taken[batch, sequence] = self.step(batch, sequence)
        return self.taken[batch, sequence]

    def fits(self, room: int, batch: int, sequence: int) -> bool:
        self.empty()
        taken = self.taken.get((batch, sequence))
        if max(self.loading, self.torch.cuda.memory_reserved(), taken[0] if taken else 0) > room:
            return False
        if taken and taken[1] <= room:
            # Memory would not be short: it was run as it would run here.
            return True
        self.torch.cuda.set_per_process_memory_fraction(min(1.0, max(room, 1) / self.whole))
        try:
            return self.step(batch, sequence) is not None
        finally:
            self.torch.cuda.set_per_process_memory_fraction(1.0)

    def curve(self, value: int, most: int, step: Callable[[int], Took | None]) -> dict[int, Took]:
        """What three values take: this one and its doubles, or its halves where the doubles are too many. Where one part of a step takes the most at first, and another later, it is
        doubled on, until what comes after is a straight line."""
        values = [one for one in (value, 2 * value, 4 * value) if one <= most]
        while len(values) < 3 and values[0] > 1:
            values.insert(0, values[0] // 2)
        took = {one: step(one) for one in values}
        while len(took) < MOST_POINTS and 2 * values[-1] <= most and took[values[-1]] and bends(took):
            values.append(2 * values[-1])
            took[values[-1]] = step(values[-1])
        return dict([(one, bytes) for one, bytes in took.items() if bytes][-3:])

    def answer(self) -> dict[str, Any]:
        task = self.task
        batch, sequence = task["batch"], task["sequence"]
        most = task["positions"] or MOST_SEQUENCE
        asked = self.begin(batch, sequence)
        if asked is None:
            raise SystemExit("a step takes more than any card has")
        other = max(0, self.library.oomph_peak(0) - self.torch.cuda.max_memory_reserved())
        batches = self.curve(batch, MOST_BATCH, lambda one: self.takes(one, sequence))
        sequences = self.curve(sequence, most, lambda one: self.takes(batch, one))
        cards = []
        for card in task["cards"]:
            room, safe = card["room"] - other, card["safe"] - other
            # With less than it would take it may still do, without what is cached; with less than is in tensors it cannot.
            fits = max(asked[1], self.loading) <= room or (asked[0] <= room and self.fits(room, batch, sequence))
            if self.loading > safe:
                largest = longest = 0
            elif fits and asked[1] > safe:
                # It is the last, and too close to be sure of.
                largest, longest = batch, sequence
            elif card["search"]:
                largest = search(lambda one: self.fits(safe, one, sequence), *bounds(batches, safe, batch, fits), MOST_BATCH, 1)
                longest = search(lambda one: self.fits(safe, batch, one), *bounds(sequences, safe, sequence, fits), most, self.unit)
            else:
                # It is known which side of the asked size they are on.
                guesses = estimate(batches, safe, MOST_BATCH, 1), estimate(sequences, safe, most, self.unit)
                bound, largest, longest = max if fits else min, batch - (not fits), sequence - (not fits)
                largest, longest = bound(guesses[0], largest), bound(guesses[1], down(longest, 1 if fits else self.unit))
            cards.append({"fits": fits, "batch": largest, "sequence": longest})
        return {"allocated": asked[0], "reserved": asked[1], "other": other, "cards": cards}


def followed_by(torch: ModuleType) -> Values | None:
    """What follows values on the virtual GPU; None where nothing does."""
    return next((mode for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack() if hasattr(mode, "has_read")), None)


class Unread:
    """Most models read nothing of the card once their first block runs; before it, they look at masks. Then values need not be followed from there on, which takes most of a step's time on
    the virtual GPU. What a step reads is seen in the first one, and in each of the others, which is then taken again."""

    def __init__(self, torch: ModuleType, model: Module, followed: Values | None) -> None:
        self.followed: Values = followed  # type: ignore[assignment]  # where it is None, nothing asks for it
        lists = [one for one in model.modules() if isinstance(one, torch.nn.ModuleList) and len(one) > 1]
        self.is_seen, self.reads = False, followed is None or not lists
        self.has_begun = self.has_ended = True
        self.was_read_after_all = False
        if not self.reads:
            largest = max(lists, key=lambda one: sum(weight.numel() for weight in one.parameters()))
            largest[0].register_forward_pre_hook(self.begins)

    def begins(self, *_: object) -> None:
        """The first block is called, or called again."""
        if self.has_begun:
            return
        self.has_begun = True
        if self.is_seen and not self.reads:
            self.without.enter_context(self.followed.paused())
        self.followed.has_read = False

    def apart(self, scaler: GradScaler) -> GradScaler:
        """A scaler that scales reads whether gradients are sound: values are followed again when its turn comes."""
        if not scaler.is_enabled():
            return scaler
        step = scaler.step

        def after_the_end(*args: Any, **kwargs: Any) -> Any:
            self.end()
            return step(*args, **kwargs)

        scaler.step = after_the_end
        return scaler

    def end(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        self.without.close()
        # One that never came to its blocks says nothing.
        if self.has_begun:
            self.reads = self.followed.has_read
            self.was_read_after_all = self.is_seen and self.reads
            self.is_seen = True

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self.was_read_after_all, self.has_begun, self.has_ended = False, self.reads, self.reads
        with contextlib.ExitStack() as self.without:
            yield
            self.end()


def down(value: int, unit: int) -> int:
    return value // unit * unit


def rises(points: dict[int, int]) -> list[float]:
    """How fast what is in tensors rises, between points that follow each other."""
    known = sorted(points.items())
    return [(high - low) / (last - first) for (first, low), (last, high) in zip(known, known[1:])]


def bends(took: dict[int, Took | None]) -> bool:
    *_, before, last = rises({one: bytes[0] for one, bytes in took.items() if bytes})
    return last > (1 + STRAIGHT) * before


def estimate(points: dict[int, Took], room: int, most: int, unit: int) -> int:
    """The largest value that takes no more than the room, by the curve: halfway between what is in tensors and what is reserved where memory is not short."""
    return down(sum(crossing({one: took[which] for one, took in points.items()}, room, most) for which in (0, 1)) // 2, unit)


def crossing(points: dict[int, int], room: int, most: int) -> int:
    """Where the curve through the last points comes to the room: a straight line, or one that bends up beyond them."""
    (first, _), *_, (middle, there), (last, _) = sorted(points.items())
    *_, before, rise = rises(points)
    if room < there:
        return max(0, int(middle - (there - room) / before)) if before > 0 else 0
    bend = (rise - before) / (last - first) if rise > (1 + STRAIGHT) * before else 0.0
    inside, outside = middle, most + 1
    while outside - inside > 1:
        value = (inside + outside) // 2
        # Through the last two points, whatever the bend.
        if there + rise * (value - middle) + bend * (value - middle) * (value - last) <= room:
            inside = value
        else:
            outside = value
    return inside


def bounds(points: dict[int, Took], room: int, asked: int, fits: bool) -> tuple[int, int | None, int, int]:
    """What is known of the largest value that fits, by points of a curve and by whether the one that was asked about does: one that fits, and one that does not or None; and between which
    two it is thought to lie: what is reserved where memory is not short will fit, and what is in tensors must."""
    known = max((one for one, took in points.items() if took[1] <= room and (fits or one < asked)), default=0)
    if fits:
        # The curve may begin beyond it.
        known = max(known, asked)
    over = [one for one, took in points.items() if took[0] > room and one > known]
    fails = min(over if fits else [*over, asked], default=None)
    farthest = FARTHEST * max(points)
    least, last = (min(farthest, crossing({one: took[which] for one, took in points.items()}, room, farthest)) for which in (1, 0))
    return known, fails, least, last


def search(fits: Callable[[int], bool], known: int, fails: int | None, least: int, last: int, most: int, unit: int) -> int:
    """The largest value that fits, in steps of the unit: looked for between the two values that it is thought to lie between, then beyond them."""
    # Counted in units; the last may be a part of one.
    low, high, top = known // unit, fails and -(-fails // unit), -(-most // unit)
    least, last = least // unit, max(least, last) // unit
    stride = max(1, last - least)
    while low < top and high != low + 1:
        if low <= last and (high is None or high > least):
            bottom, ceiling = max(low, least), last + 1 if high is None else min(high, last + 1)
            value = (bottom + ceiling) // 2
            if ceiling - bottom <= 1:
                # As it is thought to be: what is left is to be sure of it.
                value = bottom if bottom > low else ceiling
        elif high is None:
            value, stride = low + stride, 2 * stride
        else:
            # Beyond on one side it is far off or near; of the other nothing was expected.
            near = high - stride if high <= least else low
            value, stride = max((low + high) // 2, near), 2 * stride
        value = max(low + 1, min(value, top if high is None else high - 1))
        if fits(min(most, value * unit)):
            low = value
        else:
            high = value
    return max(known, min(most, low * unit))


if __name__ == "__main__":
    main()
