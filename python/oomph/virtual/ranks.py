"""One rank of many, without the others.

``init_process_group`` gets a store in which every other rank has already done its part. NCCL is PyTorch's own process
group over the virtual GPU's NCCL, which moves nothing, so that what a rank allocates (its shards, its buckets, what it
gathers, what it keeps until a collective is done) is what it would allocate among others. Other backends are PyTorch's
fake one. What a program would start as processes, one a GPU, is called here as that rank.
"""

import os
import time

# PyTorch's watchdog looks this often for collectives that are done; the next collective then frees what they held.
WATCHDOG_SECONDS = 0.1
# DistributedDataParallel makes its buckets anew after the first step, and holds the same ones from then on.
STEPS_WITH_NEW_BUCKETS = 3


def announce(world):
    """The variables that torchrun would have set."""
    rank, size = str(world["rank"]), str(world["size"])
    os.environ.update(
        RANK=rank,
        LOCAL_RANK=rank,
        WORLD_SIZE=size,
        LOCAL_WORLD_SIZE=size,
        GROUP_RANK="0",
        GROUP_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="oomph",
    )


def prepare(torch, world, facts, folder):
    """Makes torch.distributed believe in the other ranks. ``world``: how many there are, and which this is; ``folder``: of this run, beside those of the others."""
    import torch.distributed as distributed

    from .objects import Objects

    if not distributed.is_available():
        return
    size, rank = world["size"], world["rank"]

    class Everyone(distributed.Store):
        """A store in which all others have answered."""

        def __init__(self):
            super().__init__()
            self.values = {}

        def set(self, key, value):
            self.values[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key):
            # The id of a communicator is all that a rank waits for.
            return self.values.get(key, b"o" * 128)

        def add(self, key, amount):
            return size

        def compare_set(self, key, expected, desired):
            self.set(key, desired)
            return self.values[key]

        def check(self, keys):
            return all(key in self.values for key in keys)

        def wait(self, keys, timeout=None):
            return None

        def delete_key(self, key):
            return self.values.pop(key, None) is not None

        def num_keys(self):
            return len(self.values)

        def set_timeout(self, timeout):
            return None

        def clone(self):
            return self

    # Held here: C++ keeps its own half alive, but not the methods above.
    everyone = Everyone()
    original = distributed.init_process_group
    uses_nccl, steps_left = False, STEPS_WITH_NEW_BUCKETS

    def init_process_group(backend=None, *args, **kwargs):
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

    def let_watchdog_see(optimizer, args, kwargs):
        # A step of a GPU lasts longer than the watchdog's turns, one of the virtual GPU does not. Whether the buckets of the
        # first step are still held in the second would be chance.
        nonlocal steps_left
        if steps_left and uses_nccl:
            steps_left -= 1
            torch.cuda.synchronize()
            time.sleep(2.5 * WATCHDOG_SECONDS)

    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(let_watchdog_see)
    distributed.init_process_group = init_process_group
    distributed.distributed_c10d.init_process_group = init_process_group
    Objects(torch, rank, os.path.join(os.path.dirname(folder), "objects"), facts).replace()
    facts["notes"].append(f"rank {rank} of {size} ran without the others: collectives moved nothing")


class _Ended:
    """What ``torch.multiprocessing.spawn`` gives to those who do not wait: all processes are done."""

    processes = ()

    def pids(self):
        return []

    def join(self, timeout=None, grace_period=None):
        return True


def stay_in_this_process(torch, world, facts, folder):
    """Lets ``torch.multiprocessing.spawn`` call its function instead of starting processes, which would not be watched."""

    def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        if world is None and nprocs > 1:
            prepare(torch, {"size": nprocs, "rank": 0}, facts, folder)
        fn(min(world["rank"], nprocs - 1) if world else 0, *args)
        return None if join else _Ended()

    torch.multiprocessing.spawn = spawn
