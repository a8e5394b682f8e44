"""Batches that differ in shape: how long a program is run for them, which one made the peak, and what the longest makes.

Three steps are enough where every batch is like the first. Where batches are padded to their longest sample, they are not: ``child`` then asks here, after the wanted steps, whether
to go on. It goes on until the peak has stopped growing, within limits. With ``longest``, the loader that feeds the training is drawn through, without the model, and its largest batch is
what the program gets next. Boundary: what a batch is made of is looked at, its values are not; what the program draws by itself stays what it is.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import random
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from types import ModuleType

    from torch import Tensor
    from torch.nn import Module
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from torch.utils.hooks import RemovableHandle

    from .child import Run

# The peak has stopped growing if it did not for as many steps, or for half of those that were run.
QUIET = 10
# Where it never stops, or a step takes long: further steps, and seconds (as many times what the wanted steps took, but within these).
MOST_STEPS = 200
TIMES, LEAST, MOST = 10, 3.0, 20.0
# Batches are alike if they differ by less than this part: a few boxes more beside the same images.
ALIKE = 0.01
# How long a loader is drawn through, in seconds, and how far.
DRAW_SECONDS, DRAW_BATCHES = 60.0, 100_000
# Tensors of a batch that are looked at, and how deep they may lie.
MOST_TENSORS, DEEPEST = 10_000, 4
# Batches that are remembered, to say which was in a step.
REMEMBERED = 1024


class Batch(NamedTuple):
    """What is known of one."""

    elements: int
    # Of its largest tensor.
    shape: tuple[int, ...]
    # In its epoch, from 1; None if the program did not draw it by itself.
    number: int | None = None


def tensors(torch: ModuleType, thing: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in what a loader gives: in dicts, lists, and objects of the program's own."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif depth < DEEPEST:
        if isinstance(thing, Mapping):
            inside: Iterable[Any] = thing.values()
        elif isinstance(thing, (list, tuple)):
            inside = thing
        else:
            inside = getattr(thing, "__dict__", {}).values() if not isinstance(thing, (type, str, bytes)) else ()
        for one in inside:
            yield from tensors(torch, one, depth + 1)


def looked_at(torch: ModuleType, thing: Any, number: int | None = None) -> tuple[Batch, bool]:
    """The batch, and whether any of it lies on the GPU."""
    elements, on_gpu = 0, False
    largest: tuple[int, ...] = ()
    for count, tensor in enumerate(tensors(torch, thing)):
        if count >= MOST_TENSORS:
            break
        # Some kinds of tensors have no shape in numbers.
        with contextlib.suppress(Exception):
            shape = tuple(int(size) for size in tensor.shape)
            elements += math.prod(shape)
            on_gpu |= tensor.is_cuda
            if not largest or math.prod(shape) > math.prod(largest):
                largest = shape
    return Batch(elements, largest, number), on_gpu


def differ(sizes: Collection[int], alike: float = ALIKE) -> bool:
    return bool(sizes) and max(sizes) - min(sizes) > alike * max(sizes)


class Loader(NamedTuple):
    """What batches are made with, as an iterator has it."""

    dataset: Any
    dataset_kind: int
    index_sampler: Any
    auto_collation: bool
    collate_fn: Callable[[list[Any]], Any]
    drop_last: bool


class Feed:
    """One loader, over all its epochs."""

    def __init__(self) -> None:
        self.feeds = self.on_gpu = self.whole = False
        self.drawn = self.in_this_step = self.largest = 0
        self.counts: list[int] = []
        self.ends = (0, 0)
        self.recent: deque[tuple[int, Batch]] = deque(maxlen=REMEMBERED)
        self.shapes: set[tuple[int, ...]] = set()
        self.sizes: set[int] = set()
        self.last_count = 0
        self.loader: Loader | Any = None
        self.iterator: weakref.ref[_BaseDataLoaderIter] | None = None
        # The longest batch, its data, how many were drawn, and of how many; and how often it is still to be given, where there is one.
        self.gift: tuple[Batch, Any, int, int | None] | Any = None
        self.gifts = 0

    def follow(self, iterator: _BaseDataLoaderIter, before_training: bool) -> None:
        """Batches come from this iterator now. It is not held: its workers go with it."""
        if self.iterator is None or self.iterator() is not iterator:
            self.iterator = weakref.ref(iterator)
            # These are, so that nothing else gets their ids.
            self.loader = Loader(*(getattr(iterator, f"_{name}") for name in Loader._fields))
            if before_training:
                # A batch that was looked at before is no step's.
                self.in_this_step, self.ends = 0, (0, self.drawn)

    def note(self, batch: Batch, is_rest: bool = False) -> None:
        self.drawn += 1
        self.in_this_step += 1
        self.recent.append((self.drawn, batch))
        # What is left over at the end of an epoch is smaller, and no news.
        if not is_rest:
            if len(self.shapes) < MOST_TENSORS:
                self.shapes.add(batch.shape)
                self.sizes.add(batch.elements)
            self.largest = max(self.largest, batch.elements)

    def differs(self) -> bool:
        return len(self.shapes) > 1 or differ(self.sizes)

    def ahead(self) -> int:
        """How many batches are drawn before they are used: libraries look for the end of an epoch like this."""
        return max(0, self.counts[0] - self.counts[1]) if len(self.counts) > 1 else 0

    def step_is_done(self) -> None:
        if self.in_this_step:
            self.feeds = True
        if len(self.counts) < 2:
            self.counts.append(self.in_this_step)
        self.ends = (self.ends[1], self.drawn)
        self.last_count, self.in_this_step = self.in_this_step, 0

    def of_this_step(self) -> list[Batch]:
        """The batches of the step that was done last."""
        low, high = (end - self.ahead() for end in self.ends)
        return [batch for position, batch in self.recent if low < position <= high]

    def of_next_step(self) -> list[Batch]:
        """Those that were drawn since, or before and not used."""
        return [batch for position, batch in self.recent if position > self.ends[1] - self.ahead()]


class Batches:
    """Those of one program."""

    def __init__(self, run: Run, torch: ModuleType) -> None:
        self.run, self.torch = run, torch
        self.feeds: dict[tuple[int, int], Feed] = {}
        self.over = False
        # When the wanted steps were done, and how many these were.
        self.since: float | Any = None
        self.from_step: int | Any = None
        self.step = self.grew_in = self.allocated = self.reserved = 0
        self.settled = False
        self.peak: tuple[int, Batch | None] | None = None
        self.bytes: deque[int] = deque(maxlen=3)
        # Of programs without loaders: what goes into their models, step by step.
        self.hooks: list[RemovableHandle] = []
        self.depth = 0
        self.inputs: list[Batch] = []
        self.per_step: list[Batch] | None = None
        self.longest: dict[str, Any] | None = None
        self.no_longest: str | None = None
        self.awaited: int | None = None
        after_import("torch.utils.data.dataloader", self.watch_loaders)

    # -- loaders

    def watch_loaders(self, dataloader: ModuleType) -> None:
        following = dataloader._BaseDataLoaderIter.__next__

        @functools.wraps(following)
        def __next__(iterator: _BaseDataLoaderIter) -> Any:
            if self.over or self.run.process != os.getpid():
                return following(iterator)
            feed = self.feed_of(iterator)
            if iterator._num_yielded == 0:
                self.loop_begins(feed)
            try:
                data = following(iterator)
            except StopIteration:
                self.loop_ends(feed)
                raise
            if feed.gifts:
                # In the place of the other, which was drawn all the same: what the program draws by chance goes on as it would.
                feed.gifts -= 1
                feed.note(feed.gift[0])
                return self.given(iterator, feed.gift[1], again=feed.gifts > 0)
            batch, on_gpu = looked_at(self.torch, data, iterator._num_yielded)
            feed.on_gpu |= on_gpu
            # How many are left may take long to say.
            feed.note(batch, batch.elements < feed.largest and self.run.phases.remaining(iterator) == 0)
            return data

        dataloader._BaseDataLoaderIter.__next__ = __next__

    def feed_of(self, iterator: _BaseDataLoaderIter) -> Feed:
        key = id(iterator._dataset), id(iterator._index_sampler)
        feed = self.feeds.get(key)
        if feed is None:
            feed = self.feeds[key] = Feed()
        feed.follow(iterator, self.step == 0)
        return feed

    def loop_begins(self, feed: Feed) -> None:
        """Another loop than that of the training, after the wanted steps, is validation: that is for ``phases``, which cuts it short."""
        if self.since is not None and not feed.feeds:
            self.leave_off()

    def loop_ends(self, feed: Feed) -> None:
        """All that there is was drawn."""
        feed.whole = True
        if self.since is not None and feed.feeds:
            self.run.phases.loader_ended = True
            self.leave_off()

    def leave_off(self) -> None:
        """Between two steps: on to what follows them, unless all steps are run."""
        self.finish()
        if self.over:
            self.run.enough()

    @staticmethod
    def given(iterator: _BaseDataLoaderIter, data: Any, again: bool) -> Any:
        if again:
            # Programs take batches apart.
            data = copy.deepcopy(data)
        if iterator._pin_memory:
            from torch.utils.data._utils.pin_memory import pin_memory

            return pin_memory(data, iterator._pin_memory_device)
        return data

    # -- steps

    def step_is_done(self, step: int) -> None:
        """After each step of the program."""
        if self.over:
            return
        self.step = step
        for feed in self.feeds.values():
            feed.step_is_done()
        stats = self.torch.cuda.memory_stats()
        allocated, reserved = stats.get("allocated_bytes.all.peak", 0), stats.get("reserved_bytes.all.peak", 0)
        self.bytes.append(stats.get("allocated_bytes.all.allocated", 0))
        if self.per_step is not None:
            self.per_step.append(self.largest_input())
        if allocated > self.allocated or reserved > self.reserved:
            self.grew_in = step
        if allocated > self.allocated:
            found = [batch for feed in self.feeding() for batch in feed.of_this_step()] or ([self.per_step[-1]] if self.per_step else [])
            self.peak = (step, max(found, key=lambda batch: batch.elements)) if found else (step, None)
        self.allocated, self.reserved = max(self.allocated, allocated), max(self.reserved, reserved)

    def go_on(self) -> bool:
        """The wanted steps are done, or more: whether there is a reason for another."""
        all_are_run = not self.run.task.get("steps")
        if self.over or (all_are_run and not self.run.task.get("longest")):
            return False
        if self.since is None:
            took = time.time() - self.run.phases.started
            self.since, self.from_step = time.time(), self.step
            self.limit = min(MOST, max(LEAST, TIMES * took))
        if self.wants_longest() or self.wants_more():
            return True
        self.finish()
        return False

    def wants_more(self) -> bool:
        if not self.run.task.get("more"):
            return False
        feeding = self.feeding()
        if not feeding and not self.inputs_may_differ():
            return False
        if feeding and (not self.differ() or any(feed.whole for feed in feeding)):
            return False
        ran = self.step - self.from_step
        # Of shapes that are only suspected to differ, two steps tell.
        if not feeding and not self.differ():
            return ran < 3
        self.settled = self.step - self.grew_in >= max(QUIET, self.step // 2)
        return not self.settled and ran < MOST_STEPS and time.time() - self.since < self.limit

    def finish(self) -> None:
        # Where all steps are run, each may be the peak.
        self.over, self.since = bool(self.run.task.get("steps")), None
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        if self.awaited is not None:
            self.note_longest()

    def feeding(self) -> list[Feed]:
        return [feed for feed in self.feeds.values() if feed.feeds]

    def differ(self) -> bool:
        feeding = self.feeding()
        if feeding:
            return any(feed.differs() for feed in feeding)
        seen = [batch for batch in self.per_step or () if batch.shape]
        return len({batch.shape for batch in seen}) > 1 or differ([batch.elements for batch in seen])

    # -- programs without loaders

    def inputs_may_differ(self) -> bool:
        """Whether steps differ in what they allocate: then what goes into the models is looked at from here on. Hooks would disturb compiled ones."""
        if self.per_step is not None:
            return True
        # Of inference nothing is said: to generate a text, it differs from forward to forward.
        if self.run.compiled or len(self.bytes) < 3 or not self.run.facts["steps"]:
            return False
        first, second, third = self.bytes
        # Workspaces and weights, which are in every step, may be most of it.
        if not differ([second - first, third - second], ALIKE / 10):
            return False
        hooks = self.torch.nn.modules.module
        self.per_step = []
        self.hooks = [
            hooks.register_module_forward_pre_hook(self.before_forward),
            hooks.register_module_forward_hook(self.after_forward, with_kwargs=True, always_call=True),
        ]
        return True

    def before_forward(self, module: Module, args: tuple[Any, ...]) -> None:
        self.depth += 1

    def after_forward(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth == 0 and self.torch.is_grad_enabled():
            self.inputs.append(looked_at(self.torch, (args, kwargs))[0])

    def largest_input(self) -> Batch:
        """Of the whole models that were called in this step."""
        given, self.inputs = self.inputs, []
        if not given:
            return Batch(0, ())
        return Batch(sum(batch.elements for batch in given), max(given, key=lambda batch: batch.elements).shape)

    # -- the longest batch

    def wants_longest(self) -> bool:
        """Draws through the loader when it is first asked, and waits for the step that has the longest batch."""
        if not self.run.task.get("longest") or self.no_longest or self.longest:
            return False
        if self.awaited is None:
            feeding = self.feeding()
            if not feeding:
                self.no_longest = "no DataLoader feeds the training"
                return False
            for feed in feeding:
                self.draw(feed)
            given = [feed for feed in feeding if feed.gift is not None]
            if not given:
                return False
            # A program that looks ahead uses it a step later.
            self.awaited = self.step + 1 + (max(feed.ahead() for feed in given) > 0)
            return True
        if self.step < self.awaited:
            return True
        self.note_longest()
        return False

    def note_longest(self) -> None:
        """What there is to say of it, and of the peak with it; if the program has not asked for another batch, there is no such peak."""
        self.awaited = None
        given = [feed for feed in self.feeding() if feed.gift is not None]
        if not given:
            return
        feed = max(given, key=lambda feed: feed.gift[0].elements)
        batch, _, drawn, of = feed.gift
        ran = feed.gifts == 0
        self.longest = {"shape": batch.shape, "drawn": drawn, "of": of, "ran": ran}
        # Where memory ran out, the peak is not what it would be.
        if ran and self.run.facts["status"] != "out_of_memory":
            stats = self.torch.cuda.memory_stats()
            self.longest.update(allocated=stats.get("allocated_bytes.all.peak", 0), reserved=stats.get("reserved_bytes.all.peak", 0))
        for feed in given:
            feed.gift, feed.gifts = None, 0

    def draw(self, feed: Feed) -> None:
        """Finds the largest batch of a loader. The program's own batches, and all that it draws by chance, stay what they are."""
        from torch.utils.data.dataloader import _DatasetKind

        loader = feed.loader
        if loader.dataset_kind != _DatasetKind.Map:
            self.no_longest = "the loader's dataset is iterable, and what is drawn from it is gone"
        elif feed.on_gpu:
            self.no_longest = "the loader makes its batches on the GPU"
        if self.no_longest:
            return
        from torch.utils._python_dispatch import _disable_current_modes
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        best: Batch | None = None
        data: Any = None
        drawn, until = 0, time.monotonic() + DRAW_SECONDS
        with _disable_current_modes(), self.chance_as_it_was():
            try:
                sampler = own_copy(self.torch, loader.index_sampler, loader.dataset)
                fetcher = _MapDatasetFetcher(loader.dataset, loader.auto_collation, loader.collate_fn, loader.drop_last)
                for index in sampler:
                    one = fetcher.fetch(index)
                    drawn += 1
                    batch, _ = looked_at(self.torch, one)
                    if best is None or batch.elements > best.elements:
                        best, data = batch, one
                    if drawn >= DRAW_BATCHES or time.monotonic() > until:
                        break
            except Exception as error:
                self.no_longest = f"the loader cannot be drawn through: {type(error).__name__}: {error}"
                return
        if best is None:
            self.no_longest = "the loader has no batch"
            return
        of: int | None = None
        with contextlib.suppress(Exception):
            of = len(loader.index_sampler)
        # For a step of several batches each of them: gradients of the first are there when the second is run.
        feed.gift, feed.gifts = (best, data, drawn, of), max(1, feed.last_count)

    @contextlib.contextmanager
    def chance_as_it_was(self) -> Iterator[None]:
        """Datasets and samplers draw from these generators, as the program does after them."""
        numpy = sys.modules.get("numpy")
        before = self.torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()
        try:
            yield
        finally:
            self.torch.set_rng_state(before[0])
            random.setstate(before[1])
            if numpy:
                numpy.random.set_state(before[2])

    # -- what is left behind

    def report(self) -> dict[str, Any] | None:
        """None where there is nothing to say."""
        if self.awaited is not None:
            # It ended in that step.
            self.note_longest()
        asked = self.run.task.get("longest", False)
        if asked and self.longest is None and self.no_longest is None and self.run.facts["status"] != "out_of_memory":
            self.no_longest = "the program ended before"
        if not (asked or self.differ()):
            return None
        feeding = self.feeding()
        peak: dict[str, Any] | None = None
        # What came later may have taken more.
        highest = self.torch.cuda.memory_stats().get("allocated_bytes.all.peak", 0)
        if self.run.facts["status"] == "out_of_memory" and not self.over:
            # That of the step that was not done.
            found = [batch for feed in feeding for batch in feed.of_next_step()]
            if found:
                self.peak, highest = (self.step + 1, max(found, key=lambda batch: batch.elements)), self.allocated
        if self.peak is not None and self.peak[1] is not None and highest <= self.allocated:
            step, batch = self.peak[0], self.peak[1]
            peak = {"step": step, "batch": batch.number, "shape": batch.shape}
        return {
            "vary": self.differ(),
            "loader": bool(feeding),
            "drawn": sum(feed.drawn for feed in feeding) or len(self.per_step or ()),
            "shapes": sum(len(feed.shapes) for feed in feeding) or len({batch.shape for batch in self.per_step or ()}),
            "settled": self.settled,
            "whole": bool(feeding) and all(feed.whole for feed in feeding),
            "peak": peak,
            "longest": self.longest,
            "no_longest": self.no_longest,
        }


def own_copy(torch: ModuleType, sampler: Any, dataset: Any) -> Any:
    """A sampler that can be gone through without a trace in the other: its generators are copied as they are, and the dataset is shared."""
    memo: dict[int, Any] = {id(dataset): dataset}
    look: list[Any] = [sampler]
    seen: set[int] = set()
    while look:
        thing = look.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for inside in getattr(thing, "__dict__", {}).values():
            if isinstance(inside, torch.Generator):
                twin = torch.Generator(device=inside.device)
                twin.set_state(inside.get_state())
                memo[id(inside)] = twin
            elif isinstance(inside, torch.utils.data.Sampler):
                look.append(inside)
            elif isinstance(inside, torch.utils.data.Dataset):
                memo[id(inside)] = inside
    return copy.deepcopy(sampler, memo)
