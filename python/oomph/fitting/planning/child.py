"""Inside the child, on the virtual GPU: runs the step under one plan after another, and says what each takes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._python_dispatch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph.fitting.errors import FitError
from oomph.fitting.planning.costs import IN_PART, BlockCosts, CountCosts, ForwardCosts, InPart, Step, bytes_of, seconds_of, share_that_is_hidden
from oomph.fitting.planning.payload import unpack
from oomph.fitting.planning.plan import Measured, Plan
from oomph.fitting.planning.search import Facts, Search
from oomph.fitting.running.batches import moved, samples, take
from oomph.fitting.running.step import Running
from oomph.fitting.techniques import optimizers
from oomph.fitting.techniques.allocator import use_expandable_segments
from oomph.fitting.techniques.blocks import find_blocks, get_block
from oomph.fitting.techniques.compiled import budgets_for, compiled_modules, inside_compiled, is_of_one_graph
from oomph.fitting.techniques.grouped_queries import RepeatedGroups
from oomph.fitting.techniques.selective import SelectiveBlocks
from oomph.live.out_of_memory import is_out_of_memory
from oomph.virtual.speeds import Speeds, gather

# Seconds after which plans that only might be better are not looked at any more.
_LATE = 8.0
# Bytes of a plan that cannot be run.
_TOO_MUCH = 1 << 60
# Samples of the forward pass that is counted.
_PROBE = 4
# Shares of the optimizer's state in steps of this: nearly the same need not be tried twice.
_SHARES = 0.05
# Copies beside work take longer than copies alone. But where the estimate of the work is far too short, as of convolutional models, there is room for more of them.
_SHARES_OF_COPIES = (1.2, 0.8, 0.5)
# So many more are a library that was imported.
_MANY_MODULES = 50


def answer(entry: str, folder: str, modules: Sequence[str] = (), paths: Sequence[str] = ()) -> None:
    """What the script of ``asking`` calls: each answer goes into a file, whole or not at all."""
    torch.cuda.init()
    # The child's own peaks are asked for, not its lines.
    torch.cuda.memory._record_memory_history(enabled=None)
    sys.path.extend(path for path in paths if path not in sys.path)
    for name in modules:
        # What is sent needs them. Whatever is wrong with one is said when it is needed.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    options = _wait_for(os.path.join(folder, "options.json"))
    options["progress"] = os.path.join(folder, "progress")
    answers = 0
    try:
        with open(os.path.join(folder, "payload"), "rb") as file:
            payload = file.read()
        things = unpack(payload)
        if options.get("ways"):
            # Each way of sharding begins with the model as it came.
            things["again"] = functools.partial(unpack, payload)
        # What is here now stays: collections between plans need not look at it.
        gc.enable()
        gc.collect()
        gc.freeze()
        module, _, name = entry.partition(":")
        said = getattr(importlib.import_module(module), name)(things, options)
        # Whoever was given them has them.
        del things
        for one in [said] if isinstance(said, dict) else said:
            _write(folder, answers, one)
            answers += 1
    except Exception as error:
        traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}" if not isinstance(error, FitError) else str(error), "ours": isinstance(error, FitError)}
        _write(folder, answers, said)


def _wait_for(path: str) -> dict[str, Any]:
    """What this child is asked. Where the folder is gone, nobody waits for an answer."""
    while not os.path.exists(path):
        if not os.path.isdir(os.path.dirname(path)) or os.getppid() == 1:
            raise SystemExit(1)
        time.sleep(0.02)
    with open(path) as file:
        options: dict[str, Any] = json.load(file)
    return options


def _write(folder: str, number: int, said: dict[str, Any]) -> None:
    path = os.path.join(folder, f"answer-{number}.json")
    with open(path + ".part", "w") as file:
        json.dump(said, file)
    os.replace(path + ".part", path)


def plan(things: dict[str, Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entry for training steps: first what people do by hand, then the plans that fit, and then how each is reached and left, while those before are tried elsewhere."""
    optimizers.copies_are_real = False
    started = time.monotonic()
    trials = Trials(things, Speeds(**options["speeds"]), options["progress"])
    given = {**options["facts"], "tiled": tuple(options["facts"].get("tiled", ()))}
    inside, compiled = set(inside_compiled(trials.model, trials.blocks)), set(compiled_modules(trials.model))

    def search_with(blocks: tuple[str, ...]) -> Search:
        # Compiled code has no operations that could be kept one by one: its budget does that.
        path = tuple((mode, name) for mode, name in trials.path() if name in blocks and (mode in ("checkpoint", "offload") or name not in compiled))
        away = tuple(dict.fromkeys(found for share in _SHARES_OF_COPIES if (found := tuple(name for name in trials.away(share) if name in blocks))))
        facts = Facts(blocks=blocks, path=path, budgets=budgets_for(trials.model), groups=trials.has_groups, away=away, **given)
        return Search(facts, trials.measure, trials.seconds, trials.guess, trials.prove, trials.shares, lambda: time.monotonic() > started + _LATE)

    search = search_with(tuple(name for name in trials.blocks if name not in inside))
    yield {"usual": [one.to_dict() for one in search.usual()]}
    found = search.find()
    if found.chosen is None and inside and not is_of_one_graph(trials.model):
        # Blocks that are taken out of compiled code run as they are, and slower: only where nothing else fits.
        seen, search = search.seen, search_with(trials.blocks)
        search.seen.update(seen)
        found = search.find()
    yield {**found.to_dict(), "blocks": len(trials.blocks)}
    search.explain(found)
    yield {**found.to_dict(), "blocks": len(trials.blocks)}


def leave_the_compiler_out(dispatch: Any) -> None:
    """As the virtual GPU does for its own mode: PyTorch would import its compiler, for seconds, to say that this is not to be compiled."""
    if "torch._dynamo" not in sys.modules and hasattr(dispatch, "__wrapped__"):
        setattr(dispatch.__wrapped__, "__dynamo_disable", dispatch.__wrapped__)


class Trials:
    """One model on the virtual GPU, measured under plans."""

    def __init__(self, things: dict[str, Any], speeds: Speeds, progress: str) -> None:
        leave_the_compiler_out(CountCosts.__torch_dispatch__)
        self.followed = _followed()
        if self.followed is not None:
            self.followed.has_read = False
        # Whether a step reads what the GPU computed is seen in the first forward pass, and of optimizers that are not PyTorch's in the plain step. Those are followed: without
        # values, what waits for one would wait for ever.
        self.knows_updates = type(things["optimizer"]).__module__.partition(".")[0] == "torch"
        self.model, self.optimizer, self.loss_of, self.batch = things["model"], things["optimizer"], things["loss_of"], things["batch"]
        self.weighing, self.clip, self.scales = things["weighing"], things["clip_grad_norm"], things.get("scales", False)
        self.speeds, self.progress = speeds, progress
        if things.get("compiled") is not None:
            things["compiled"].restore(self.model)
        self.modules = 0
        self.state = {key: dict(value) for key, value in self.optimizer.state.items()}
        self.parameters = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self.forwards: dict[str | None, ForwardCosts] = {}
        self.blocks: tuple[str, ...] = tuple(find_blocks(self.model))
        # There is attention that writes out its scores, and need not.
        self.has_groups = False
        self._learn_costs()

    def _learn_costs(self) -> None:
        """Of a forward pass, block by block, and of the optimizer."""
        probe = self.forward_costs(None)
        # Equal blocks: the earliest first. Its recomputation comes when the others' activations are gone already.
        kept = (name for name in self.blocks if name in probe.blocks and probe.blocks[name].kept)
        self.blocks = tuple(sorted(kept, key=lambda name: -self._worth(probe.blocks[name].kept, probe.work(name, self.size)[0])))
        # In the order in which they run.
        probe.blocks = {name: block for name, block in probe.blocks.items() if name in self.blocks}
        for name, block in probe.blocks.items():
            block.trained = sum(p.numel() * p.element_size() for p in get_block(self.model, name).parameters() if p.requires_grad)
        trained = sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)
        self.step = Step(self.size, trained, self.parameters, self._bytes_of_states())

    @property
    def size(self) -> int:
        return samples(self.batch) if self.weighing is not None else 1

    @staticmethod
    def _worth(freed: int, seconds: float) -> float:
        """Bytes for a second, coarsely: small differences must not decide over the order."""
        return float(f"{freed / max(seconds, 1e-9):.1e}")

    def path(self) -> tuple[tuple[str, str], ...]:
        """What blocks give up one after another: first what frees most bytes for the seconds that it takes. What frees less for them than what comes after it is left out."""
        costs, steps = self.forward_costs(None), []
        scale = self.size / costs.samples
        for turn, name in enumerate(self.blocks):
            block, (again, _) = costs.blocks[name], costs.work(name, self.size)
            ways = [(mode, block.kept - block.in_part[mode].kept, costs.again_in_part(name, mode, self.speeds, False)) for mode in IN_PART]
            ways.append(("checkpoint", block.kept, again / scale))
            freed, seconds = 0, 0.0
            while ways:
                worth = [self._worth(bytes_ - freed, took - seconds) if bytes_ > freed else 0.0 for _, bytes_, took in ways]
                # Of those that are worth the same, the one that frees most.
                best = max(range(len(ways)), key=lambda place: (worth[place], place))
                mode, freed, seconds = ways[best]
                steps.append((-worth[best], turn, mode, name))
                ways = ways[best + 1 :]
        ordered = tuple((mode, name) for _, _, mode, name in sorted(steps, key=lambda step: step[:2]))
        return (*ordered, *(("offload", name) for name in self.blocks))

    def away(self, share: float) -> tuple[str, ...]:
        """Blocks whose inputs can be copied to the host while those after them run, until it is the next one's turn; that is so if the copies take this share of their time."""
        costs, chosen, passed, takes = self.forward_costs(None), [], 0.0, 0.0
        for name, block in costs.blocks.items():
            if passed >= takes:
                chosen.append(name)
                passed, takes = 0.0, share * block.inputs * self.size / costs.samples / self.speeds.link
            passed += costs.work(name, self.size)[0]
        # Memory is freed when the next of them has run: of one alone, never.
        return tuple(chosen) if len(chosen) > 1 else ()

    def _bytes_of_states(self) -> int:
        """Of the optimizer, once it has made a step."""
        self.reset()
        running = Running(self.model, self.optimizer, self.loss_of, Plan(), self.batch, self.weighing, rehearse=True)
        try:
            self.unfollowed(lambda: self._make_state(running), is_known=self.knows_updates)
            return bytes_in([list(state.values()) for state in self.optimizer.state.values()])
        finally:
            running.undo()
            self.reset()

    def reset(self) -> None:
        """As before the first step."""
        self.model.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        self.optimizer.state.update({key: dict(value) for key, value in self.state.items()})
        gc.collect()
        if len(sys.modules) > self.modules + _MANY_MODULES:
            # The compiler, mostly, which comes with the first checkpoint. It stays: no collection between plans need look at it.
            self.modules = len(sys.modules)
            gc.freeze()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def unfollowed(self, run: Callable[[], Any], is_known: bool) -> Any:
        """Runs it without following values, where the like of it is known to read none; once more with them, if it has read something all the same."""
        followed = self.followed
        if followed is None or followed.has_read or self.scales or not is_known:
            return run()
        try:
            with followed.paused():
                done = run()
        except Exception:
            if not followed.has_read:
                raise
        return done if not followed.has_read else run()

    def measure(self, plan: Plan) -> Measured:
        """Peaks of a step, with the optimizer's state there that the step before has made."""
        try:
            # What is allowed beyond the exact may read something of its own: a scaler does.
            measured: Measured = self.unfollowed(lambda: self._run(plan, steps=1, parts=1), is_known=self.knows_updates and plan.exact)
            self.knows_updates = self.knows_updates or plan == Plan()
            return measured
        except Exception as error:
            if is_out_of_memory(error) or not (plan.selective or plan.lean or plan.release or plan.tiles or plan.activation_budget or plan.repeat_groups):
                raise
            # Not every model bears it: a layer that is run twice by a checkpoint of its own, for instance. Then this plan is none.
            traceback.print_exc()
            return Measured(plan, _TOO_MUCH, _TOO_MUCH, self.seconds(plan), short=True)

    def prove(self, plan: Plan, limit: int | None) -> Measured:
        """The same for more steps and parts, held to the limit. ``short`` if that was not enough, be it only until the cache was freed."""
        self.reset()
        total = torch.cuda.get_device_properties(0).total_memory
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
        torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else limit / total)
        try:
            measured = self.unfollowed(lambda: self._run(plan, steps=3, parts=2), is_known=self.knows_updates and plan.exact)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
            measured = Measured(plan, 0, 0, self.seconds(plan), short=True)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            events = torch.cuda.memory._snapshot()["device_traces"][0]
            torch.cuda.memory._record_memory_history(enabled=None)
        largest = max((event["size"] for event in events if event["action"] == "alloc"), default=0)
        short = measured.short or torch.cuda.memory_stats()["num_alloc_retries"] > retries
        return dataclasses.replace(measured, largest=largest, short=short)

    def _run(self, plan: Plan, steps: int, parts: int) -> Measured:
        self.reset()
        put_back = use_expandable_segments() if plan.expandable else None
        as_is = plan == Plan()
        scaler = torch.amp.GradScaler("cuda") if self.scales else None
        running = Running(self.model, self.optimizer, self.loss_of, plan, self.batch, self.weighing, self.clip, as_is=as_is, rehearse=True, scaler=scaler)
        begun = False
        try:
            if steps == 1:
                self._make_state(running)
                torch.cuda.reset_peak_memory_stats()
                begun = self._has_begun(running)
                if begun:
                    # Those of the parts before the one that is run.
                    self._make_gradients(running)
            for _ in range(steps):
                for _ in range(getattr(self.loss_of, "batches_in_update", 1)):
                    running.backward(self.batch, only=parts, release=True, begun=begun)
                self._update(running)
            stats = torch.cuda.memory_stats()
            host = running.bytes_on_host()
        finally:
            # State that is on the host would come back, to be thrown away.
            self.optimizer.state.clear()
            running.undo()
            if put_back is not None:
                put_back()
        with open(self.progress, "a") as file:
            file.write(".")
        return Measured(plan, stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"], self.seconds(plan), host)

    def _make_state(self, running: Running) -> None:
        """An update without a step before it: gradients are only there, their values do not matter."""
        self._make_gradients(running)
        if running.scaler is not None:
            # It must have scaled something before it can take that back.
            running.scaler.scale(torch.zeros((), device="cuda"))
        running.update()

    def _has_begun(self, running: Running) -> bool:
        """Whether parts before the one that is run have left gradients."""
        return len(running.parts(self.batch)) > 1

    def _update(self, running: Running) -> None:
        running.update()

    @staticmethod
    def _make_gradients(running: Running) -> None:
        for parameter in running.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)

    # -- time and bytes, estimated

    def seconds(self, plan: Plan) -> float:
        """Of a step, estimated."""
        return seconds_of(plan, self._costs_of(plan), self.step, self.speeds)

    def guess(self, plan: Plan) -> tuple[int, int]:
        """Of bytes, to be put right by what is measured."""
        return bytes_of(plan, self.forward_costs(None), self.step)

    def shares(self, plan: Plan) -> list[float]:
        """Of the optimizer's state, what is worth being on the host: what travels while the backward pass runs, and all of it."""
        hidden = share_that_is_hidden(plan, self._costs_of(plan), self.step, self.speeds) if plan.release else 1.0
        rounded = hidden // _SHARES * _SHARES
        return sorted({round(share, 2) for share in (rounded / 2, rounded, 1.0) if share >= _SHARES})

    def _costs_of(self, plan: Plan) -> ForwardCosts:
        return self.forward_costs(plan.autocast or ("bfloat16" if plan.bf16_weights else None))

    def forward_costs(self, half: str | None) -> ForwardCosts:
        """Of a few samples; of more they are taken to be in proportion. Counted once for each type."""
        if half not in self.forwards:
            # The first forward pass shows what forward passes read.
            costs = self.unfollowed(lambda: self._count(half, None), is_known=bool(self.forwards))
            for mode in IN_PART:
                found = self._count_in_part(mode) if half is None else {}
                for name, block in costs.blocks.items():
                    # Of another type, what is known of the first. A block that draws whether it runs may not have.
                    known = found.get(name) if half is None else self.forwards[None].blocks[name].in_part[mode]
                    block.in_part[mode] = InPart(min(known.kept, block.kept), known.flops) if known is not None else InPart(block.kept)
            self.forwards[half] = costs
        return self.forwards[half]

    def _count_in_part(self, mode: str) -> dict[str, InPart]:
        """Nothing for a model that does not bear hooks for saved tensors."""
        try:
            costs = self.unfollowed(lambda: self._count(None, mode), is_known=True)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            traceback.print_exc()
            return {}
        return {name: InPart(block.kept, block.in_part[mode].flops) for name, block in costs.blocks.items()}

    def _count(self, half: str | None, mode_of_blocks: str | None) -> ForwardCosts:
        self.reset()
        size = min(self.size, _PROBE)
        part = moved(take(self.batch, 0, size) if size < self.size else self.batch, torch.device("cuda"))
        costs = ForwardCosts(size)
        before: dict[str, tuple[int, int]] = {}
        mode = CountCosts(self.speeds)
        hooks = []
        # A mask, say, goes into every block, and is there once.
        came_in: dict[int, StorageWeakRef] = {}

        def entered(name: str) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> None:
                costs.blocks.setdefault(name, BlockCosts()).inputs += bytes_in((args, list(kwargs.values())), came_in)
                before[name] = (len(mode.operations), torch.cuda.memory_allocated())

            return hook

        def left(name: str) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                start, held = before[name]
                block = costs.blocks[name]
                block.operations += mode.operations[start:]
                block.kept = max(0, block.kept + torch.cuda.memory_allocated() - held - bytes_in(output))

            return hook

        selective = SelectiveBlocks(self.model, self.blocks, products=mode_of_blocks == "lean") if mode_of_blocks is not None else None
        # Compiled code is not changed.
        groups = RepeatedGroups(self.model) if not compiled_modules(self.model) else None
        for name in self.blocks:
            block = get_block(self.model, name)
            # What a sharded block has gathered is there from before the first to after the last.
            hooks += [block.register_forward_pre_hook(entered(name), with_kwargs=True), block.register_forward_hook(left(name), prepend=True)]
        try:
            with _uncompiled(), mode, torch.autocast("cuda", getattr(torch, half or "bfloat16"), enabled=half is not None):
                self.loss_of(self.model, part)
        finally:
            if groups is not None:
                groups.undo()
            for hook in hooks:
                hook.remove()
            if selective is not None:
                selective.undo()
        if selective is not None and mode_of_blocks is not None:
            for name, block_costs in costs.blocks.items():
                block_costs.in_part[mode_of_blocks] = InPart(block_costs.kept, selective.counted[name].flops)
        costs.operations = mode.operations
        self.has_groups = self.has_groups or (groups is not None and groups.calls > 0)
        return costs


def _followed() -> Any:
    """The virtual GPU's mode that follows values; None where none is followed."""
    return next((mode for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack() if hasattr(mode, "has_read")), None)


def _uncompiled() -> Any:
    """Compiled modules run as they are: operations are counted one by one, and nothing is compiled for it."""
    stance = getattr(torch.compiler, "set_stance", None) if "torch._dynamo" in sys.modules else None
    return contextlib.nullcontext() if stance is None else stance("force_eager")


def bytes_in(things: Any, counted: dict[int, StorageWeakRef] | None = None) -> int:
    """On the GPU, of the tensors inside; not of those whose memory was ``counted`` before, to which the others are added."""
    tensors: list[torch.Tensor] = []
    gather(list(things.values()) if isinstance(things, dict) else things, tensors)
    size = 0
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        if not tensor.is_cuda:
            continue
        # A sparse one has no memory of its own.
        if counted is not None and tensor.layout == torch.strided:
            storage = StorageWeakRef(tensor.untyped_storage())
            # The same place may be another's, once the first is gone.
            if (before := counted.get(storage.cdata)) is not None and not before.expired():
                continue
            counted[storage.cdata] = storage
        size += tensor.numel() * tensor.element_size()
    return size
