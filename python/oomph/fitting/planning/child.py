"""Inside the child, on the virtual GPU: runs the step under one plan after another, and says what each takes."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import sys
import traceback
from typing import Any

import torch

from oomph.fitting.errors import FitError
from oomph.fitting.planning.costs import Cost, CountCosts, ForwardCosts, Speeds, gather
from oomph.fitting.planning.payload import unpack
from oomph.fitting.planning.plan import Measured, Plan
from oomph.fitting.planning.search import Facts, Search
from oomph.fitting.running.batches import moved, samples, take
from oomph.fitting.running.step import Running
from oomph.fitting.techniques import optimizers
from oomph.fitting.techniques.allocator import use_expandable_segments
from oomph.fitting.techniques.blocks import find_blocks, get_block
from oomph.live.out_of_memory import is_out_of_memory

# So many more are a library that was imported.
_MANY_MODULES = 50


def answer(entry: str, folder: str) -> None:
    """What the script of ``asking`` calls: the answer goes into a file, whole or not at all."""
    torch.cuda.init()
    # The child's own peaks are asked for, not its lines.
    torch.cuda.memory._record_memory_history(enabled=None)
    with open(os.path.join(folder, "options.json")) as file:
        options = json.load(file)
    options["progress"] = os.path.join(folder, "progress")
    try:
        with open(os.path.join(folder, "payload"), "rb") as file:
            things = unpack(file.read())
        # What is here now stays: collections between plans need not look at it.
        gc.collect()
        gc.freeze()
        module, _, name = entry.partition(":")
        said = getattr(importlib.import_module(module), name)(things, options)
    except Exception as error:
        traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}" if not isinstance(error, FitError) else str(error), "ours": isinstance(error, FitError)}
    path = os.path.join(folder, "answer.json")
    with open(path + ".part", "w") as file:
        json.dump(said, file)
    os.replace(path + ".part", path)


def plan(things: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The entry for training steps."""
    optimizers.copies_are_real = False
    trials = Trials(things, Speeds(**options["speeds"]), options["progress"])
    facts = Facts(blocks=trials.blocks, **options["facts"])
    found = Search(facts, trials.measure, trials.seconds, trials.prove).run()
    return {**found.to_dict(), "parameters": trials.parameters, "blocks": len(trials.blocks)}


def leave_the_compiler_out(dispatch: Any) -> None:
    """As the virtual GPU does for its own mode: PyTorch would import its compiler, for seconds, to say that this is not to be compiled."""
    if "torch._dynamo" not in sys.modules and hasattr(dispatch, "__wrapped__"):
        setattr(dispatch.__wrapped__, "__dynamo_disable", dispatch.__wrapped__)


class Trials:
    """One model on the virtual GPU, measured under plans."""

    def __init__(self, things: dict[str, Any], speeds: Speeds, progress: str) -> None:
        leave_the_compiler_out(CountCosts.__torch_dispatch__)
        self.model, self.optimizer, self.loss_of, self.batch = things["model"], things["optimizer"], things["loss_of"], things["batch"]
        self.weighing, self.clip, self.scales = things["weighing"], things["clip_grad_norm"], things.get("scales", False)
        self.speeds, self.progress = speeds, progress
        self.modules = 0
        self.state = {key: dict(value) for key, value in self.optimizer.state.items()}
        self.parameters = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self.forwards: dict[Any, ForwardCosts] = {}
        self.blocks: tuple[str, ...] = tuple(find_blocks(self.model))
        probe = self.forward_costs(min(self.size, 4), None)
        # Equal blocks: the earliest first. Its recomputation comes when the others' activations are gone already.
        self.blocks = tuple(sorted(filter(probe.kept.get, self.blocks), key=lambda name: -self._worth(probe, name)))

    @property
    def size(self) -> int:
        return samples(self.batch) if self.weighing is not None else 1

    @staticmethod
    def _worth(costs: ForwardCosts, name: str) -> float:
        """Bytes for a second of recomputation, coarsely: small differences must not decide over the order."""
        return float(f"{costs.kept[name] / max(costs.blocks[name].gpu, 1e-9):.1e}")

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

    def measure(self, plan: Plan) -> Measured:
        """Peaks of a step, with the optimizer's state there that the step before has made."""
        return self._run(plan, steps=1, parts=2)

    def prove(self, plan: Plan, limit: int | None) -> Measured:
        """The same for more steps and parts, held to the limit. ``short`` if that was not enough, be it only until the cache was freed."""
        self.reset()
        total = torch.cuda.get_device_properties(0).total_memory
        retries = torch.cuda.memory_stats()["num_alloc_retries"]
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1_000_000)
        torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else limit / total)
        try:
            measured = self._run(plan, steps=4, parts=4)
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
        try:
            if steps == 1:
                self._make_state(running)
                torch.cuda.reset_peak_memory_stats()
            for _ in range(steps):
                for _ in range(getattr(self.loss_of, "batches_in_update", 1)):
                    running.backward(self.batch, only=parts)
                running.update()
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
        for parameter in running.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        if running.scaler is not None:
            # It must have scaled something before it can take that back.
            running.scaler.scale(torch.zeros((), device="cuda"))
        running.update()

    # -- time

    def seconds(self, plan: Plan) -> float:
        """Of a step, estimated."""
        speeds = self.speeds
        size = plan.micro or self.size
        parts = -(-self.size // size)
        half = plan.autocast or ("bfloat16" if plan.bf16_weights else None)
        costs = self.forward_costs(-(-self.size // parts), half)
        part = costs.seconds(plan.checkpoint, speeds.launch)
        if plan.offload:
            again = set(plan.checkpoint)
            moved = sum(costs.inputs[name] if name in again else costs.kept[name] + costs.inputs[name] for name in plan.offload if name in costs.kept)
            forward = part / 3
            # Copies run beside the work; what is longer decides. Some of it never overlaps.
            part = max(forward, moved / speeds.link) + max(part - forward, moved / speeds.link) + 0.1 * moved / speeds.link
        trained = sum(p.numel() * p.element_size() for p in self.model.parameters() if p.requires_grad)
        update = 7 * trained / speeds.memory
        if plan.states_on_host:
            update = max(update, 2.2 * trained / speeds.link)
        return parts * part + update

    def forward_costs(self, size: int, half: str | None) -> ForwardCosts:
        """Of a part of so many samples. Counted once for each size."""
        if (size, half) not in self.forwards:
            self.forwards[size, half] = self._count(size, half)
        return self.forwards[size, half]

    def _count(self, size: int, half: str | None) -> ForwardCosts:
        self.reset()
        part = moved(take(self.batch, 0, size) if size < self.size else self.batch, torch.device("cuda"))
        costs = ForwardCosts(Cost())
        before: dict[str, tuple[Cost, int]] = {}
        mode = CountCosts(self.speeds)
        hooks = []

        def now() -> tuple[Cost, int]:
            return Cost(mode.cost.gpu, mode.cost.operations), torch.cuda.memory_allocated()

        def entered(name: str) -> Any:
            def hook(module: Any, args: Any, kwargs: Any) -> None:
                costs.inputs[name] = costs.inputs.get(name, 0) + _bytes((args, list(kwargs.values())))
                before[name] = now()

            return hook

        def left(name: str) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                cost, allocated = now()
                start, held = before[name]
                spent = costs.blocks.setdefault(name, Cost())
                spent.gpu, spent.operations = spent.gpu + (cost - start).gpu, spent.operations + (cost - start).operations
                costs.kept[name] = max(0, costs.kept.get(name, 0) + allocated - held - _bytes(output))

            return hook

        for name in self.blocks:
            block = get_block(self.model, name)
            hooks += [block.register_forward_pre_hook(entered(name), with_kwargs=True), block.register_forward_hook(left(name))]
        try:
            with mode, torch.autocast("cuda", getattr(torch, half or "bfloat16"), enabled=half is not None):
                self.loss_of(self.model, part)
        finally:
            for hook in hooks:
                hook.remove()
        costs.whole = mode.cost
        return costs


def _bytes(things: Any) -> int:
    tensors: list[torch.Tensor] = []
    gather(list(things.values()) if isinstance(things, dict) else things, tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in {id(tensor): tensor for tensor in tensors}.values() if tensor.is_cuda)
