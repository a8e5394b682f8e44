"""One rank of many, without the others.

``init_process_group`` gets a store in which every other rank has already done its part. NCCL is PyTorch's own process
group over the virtual GPU's NCCL, which moves nothing, so that what a rank allocates (its shards, its buckets, what it
gathers, what it keeps until a collective is done) is what it would allocate among others. Other backends are PyTorch's
fake one. What a program would start as processes, one a GPU, is called here as that rank.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import time

from .imports import after_import

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta
    from types import ModuleType
    from typing import Any

    from torch.distributed import ProcessGroup, Store
    from torch.nn import Module
    from torch.optim import Optimizer

    from .child import Run

    # How many ranks there are, which this is, and how many of them a machine has: size, rank, per_node.
    World = dict[str, int]

# PyTorch's watchdog looks this often for collectives that are done; the next collective then frees what they held.
WATCHDOG_SECONDS = 0.1
# DistributedDataParallel makes its buckets anew after the first step, and holds the same ones from then on.
STEPS_WITH_NEW_BUCKETS = 3
# As ``nccl.rs`` has it.
_ANY_COLOR = -1


def announce(world: World) -> None:
    """The variables that torchrun would have set."""
    rank, size, cards = world["rank"], world["size"], world["per_node"]
    numbers = {
        "RANK": rank,
        "ROLE_RANK": rank,
        "LOCAL_RANK": rank % cards,
        "GROUP_RANK": rank // cards,
        "WORLD_SIZE": size,
        "ROLE_WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": cards,
        "GROUP_WORLD_SIZE": size // cards,
    }
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", ROLE_NAME="default", TORCHELASTIC_RUN_ID="oomph")


def prepare(torch: ModuleType, world: World, run: Run) -> None:
    """Makes torch.distributed believe in the other ranks. ``world``: how many there are, and which this is."""
    import torch.distributed as distributed

    from .objects import Objects

    if not distributed.is_available():
        return
    size, rank, facts = world["size"], world["rank"], run.facts

    class Everyone(distributed.Store):
        """A store in which all others have answered."""

        def __init__(self) -> None:
            super().__init__()
            self.values: dict[str, bytes] = {}
            # Of each group, how many ranks it has, and how many of them are on this machine.
            self.groups: dict[str, tuple[int, int]] = {}

        def set(self, key: str, value: str | bytes) -> None:
            self.announce(key)
            self.values[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            # The id of a communicator is all that a rank waits for.
            self.announce(key)
            return self.values.get(key, b"o" * 128)

        def announce(self, key: str) -> None:
            """Of the group that asks, a communicator may be made next, which itself says only how many they are."""
            for part in key.split("/"):
                if part in self.groups:
                    run.library.oomph_nccl_group(*self.groups[part])

        def add(self, key: str, amount: int) -> int:
            return size

        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
            self.set(key, desired)
            return self.values[key]

        def check(self, keys: list[str]) -> bool:
            return all(key in self.values for key in keys)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            return None

        def delete_key(self, key: str) -> bool:
            return self.values.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self.values)

        def set_timeout(self, timeout: timedelta) -> None:
            return None

        def clone(self) -> Everyone:
            return self

    def on_this_machine(ranks: Iterable[int]) -> int:
        return sum(one // world["per_node"] == rank // world["per_node"] for one in ranks)

    # Held here: C++ keeps its own half alive, but not the methods above.
    everyone = Everyone()
    original = distributed.init_process_group
    uses_nccl, steps_left = False, STEPS_WITH_NEW_BUCKETS

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if distributed.is_initialized():
            return None
        from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers the fake backend

        asked = "cuda:nccl,cpu:gloo" if backend is None else str(backend)
        if ":" in asked:
            pairs = (pair.split(":") for pair in asked.split(","))
            asked = ",".join(f"{device}:{'nccl' if name == 'nccl' else 'fake'}" for device, name in pairs)
        elif asked != "nccl":
            asked = "fake"
        nonlocal uses_nccl
        uses_nccl = "nccl" in asked
        keep = {name: kwargs[name] for name in ("timeout", "pg_options", "device_id") if kwargs.get(name) is not None}
        return original(backend=asked, store=everyone, rank=rank, world_size=size, **keep)

    def let_watchdog_see(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A step of a GPU lasts longer than the watchdog's turns, one of the virtual GPU does not. Whether the buckets of the
        # first step are still held in the second would be chance.
        nonlocal steps_left
        note_groups(distributed, run)
        if steps_left and uses_nccl:
            steps_left -= 1
            torch.cuda.synchronize()
            time.sleep(2.5 * WATCHDOG_SECONDS)

    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(let_watchdog_see)
    # Meshes begin distribution where the program has not, and have imported its name by now.
    module: Any
    for module in (distributed, distributed.distributed_c10d, sys.modules.get("torch.distributed.device_mesh")):
        if module is not None:
            module.init_process_group = init_process_group
    color_of = getattr(distributed.distributed_c10d, "_process_group_color", None)
    if color_of is not None:

        def colored(ranks: list[int]) -> int:
            # Parts that are split off a communicator have no other sign of how many ranks they have.
            color = color_of(ranks)
            run.library.oomph_nccl_part(color, len(ranks), ranks.index(rank) if rank in ranks else 0, on_this_machine(ranks))
            return color

        distributed.distributed_c10d._process_group_color = colored
    split = getattr(distributed.ProcessGroup, "split_group", None)
    if split is not None:

        @functools.wraps(split)
        def splitting(parent: ProcessGroup, ranks: list[int], *args: Any, **kwargs: Any) -> ProcessGroup | None:
            # Its colour is found by C++: the next part is this one, whatever its colour.
            among = distributed.get_process_group_ranks(parent)
            mine = [among[one] for one in ranks]
            run.library.oomph_nccl_part(_ANY_COLOR, len(mine), mine.index(rank) if rank in mine else 0, on_this_machine(mine))
            return split(parent, ranks, *args, **kwargs)

        distributed.ProcessGroup.split_group = splitting
    make_group = getattr(distributed.distributed_c10d, "_new_process_group_helper", None)
    if make_group is not None:

        @functools.wraps(make_group)
        def announced(group_size: int, group_rank: int, global_ranks_in_group: list[int], backend: Any, store: Store, group_name: str, *args: Any, **kwargs: Any) -> Any:
            # Its communicator is made now, or when it is first used.
            ranks = global_ranks_in_group or range(size)
            if rank in ranks:
                everyone.groups[str(group_name)] = len(ranks), on_this_machine(ranks)
                run.library.oomph_nccl_group(len(ranks), on_this_machine(ranks))
            return make_group(group_size, group_rank, global_ranks_in_group, backend, store, group_name, *args, **kwargs)

        distributed.distributed_c10d._new_process_group_helper = announced
    watch_chances(torch, run)
    run.objects = Objects(torch, rank, run)
    run.objects.replace()
    facts["notes"].append("each rank ran without the others: collectives moved nothing")


# Measured on an H200, eight ranks, in three ways of FSDP 1 (docs/measured/ranks.md): of what is reserved, so much less or more than predicted.
_FSDP1_LESS, _FSDP1_MORE = 0.07, 0.10


def watch_chances(torch: ModuleType, run: Run) -> None:
    """What is taken of the card by chance: how far the GPU is behind when something is freed."""
    parallel = torch.nn.parallel.DistributedDataParallel
    original = parallel.__init__

    @functools.wraps(original)
    def made(self: Any, module: Module, *args: Any, **kwargs: Any) -> None:
        original(self, module, *args, **kwargs)
        if getattr(self, "static_graph", False):
            # They are made anew at the end of the first backward pass, when collectives may still read the first ones.
            buckets = sum(one.numel() * one.element_size() for one in module.parameters() if one.requires_grad)
            add_chance(run, "static_graph: whether the first buckets of gradients are freed before the next are made is chance", 0, buckets)

    parallel.__init__ = made


def add_chance(run: Run, why: str, less: float, more: float) -> None:
    run.facts.setdefault("chances", []).append({"why": why, "less": int(less), "more": int(more)})


def add_chances(torch: ModuleType, run: Run) -> None:
    """Once the program has run."""
    if run.has_flat_parameters:
        reserved = max(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count())))
        add_chance(run, "FSDP 1 frees what other streams still use: what it reserves hangs on timing", _FSDP1_LESS * reserved, _FSDP1_MORE * reserved)


def among(torch: ModuleType, run: Run) -> dict[str, Any]:
    """What this rank did, to be held against what others did (``Among`` of the crate ``oomph-predict``)."""
    note_groups(torch.distributed, run)
    calls = run.nccl_calls()
    counted = (
        "allocation.all.allocated",
        "allocated_bytes.all.allocated",
        "allocated_bytes.all.peak",
        "allocated_bytes.all.current",
        "requested_bytes.all.allocated",
        "reserved_bytes.all.peak",
    )
    # Whichever card it took: another rank has another.
    used = sorted(tuple(int(stats.get(name, 0)) for name in counted) for stats in map(torch.cuda.memory_stats, range(torch.cuda.device_count())))
    counters = [run.facts["steps"], run.facts["forwards"], [one for one in used if any(one)], calls]
    # Of how many of the collectives a rank runs, those of one kind and size of group are as many on each that does the same.
    role = digest([sorted(call.rpartition(" ")[0] for call in calls), *run.trained.values()]) if run.trained else ""
    received = run.objects.received if run.objects else []
    return {"counters": digest(counters), "role": role, "groups": sorted(run.groups), "received": received}


def note_groups(distributed: ModuleType, run: Run) -> None:
    """The groups that there are, which are gone when the program ends."""
    if not distributed.is_available() or not distributed.is_initialized():
        return
    # Where this inside has changed, nothing is known of groups.
    with contextlib.suppress(AttributeError):
        lines = (as_line(sorted(ranks)) for ranks in distributed.distributed_c10d._world.pg_group_ranks.values())
        run.groups.update(line for line in lines if line and line[2] < distributed.get_world_size())


def digest(things: object) -> str:
    return hashlib.sha256(repr(things).encode()).hexdigest()[:24]


def as_line(ranks: Sequence[int]) -> tuple[int, int, int] | None:
    """Ranks that lie at equal distances: the first, the distance, and how many. None of others."""
    if len(ranks) < 2:
        return None
    distance = ranks[1] - ranks[0]
    return (ranks[0], distance, len(ranks)) if all(b - a == distance for a, b in zip(ranks, ranks[1:])) else None


class _Ended:
    """What ``torch.multiprocessing.spawn`` gives to those who do not wait: all processes are done."""

    processes = ()

    def pids(self) -> list[int]:
        return []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True


def stay_in_this_process(torch: ModuleType, world: World | None, run: Run) -> None:
    """Lets what would start processes, one a GPU, call its function or become its program instead: others would not be watched."""

    def this_one(processes: int, machines: int = 1) -> tuple[World, int]:
        """The world, and which of so many processes of a machine this is."""
        if world is None:
            alone = {"size": processes * machines, "rank": 0, "per_node": processes}
            if processes * machines > 1:
                prepare(torch, alone, run)
            return alone, 0
        if processes * machines != world["size"]:
            note(run, f"the program would start {processes * machines} processes: {world['size']} ranks were asked for, and run")
        return world, world["rank"] % processes

    def start_processes(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *rest: Any, **named: Any) -> _Ended | None:
        run.task["starts_ranks"] = True
        fn(this_one(nprocs)[1], *args)
        return None if join else _Ended()

    def launch(launcher: Any, *args: Any) -> dict[int, Any]:
        """``elastic_launch``, which torchrun, ``accelerate launch`` and ``notebook_launcher`` come to."""
        run.task["starts_ranks"] = True
        config, entry = launcher._config, launcher._entrypoint
        of, place = this_one(config.nproc_per_node, config.max_nodes)
        announce(of)
        if callable(entry):
            return {place: entry(*args)}
        run.task["world"] = of
        command = entry or sys.executable
        os.execvp(command, [command, *(word.replace("${local_rank}", os.environ["LOCAL_RANK"]) for word in args)])

    def elastic_is_here(api: ModuleType) -> None:
        api.elastic_launch.__call__ = launch

    torch.multiprocessing.spawn = torch.multiprocessing.start_processes = start_processes
    after_import("torch.distributed.launcher.api", elastic_is_here)


def note(run: Run, text: str) -> None:
    if text not in run.facts["notes"]:
        run.facts["notes"].append(text)
