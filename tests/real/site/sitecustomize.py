"""What the scripts of the suite find in their environment, on the card and predicted alike: made-up data where they look for
downloaded files, a seed, an end after some optimizer steps, and PyTorch's counters (and history, if wanted) in a file when they end. The scripts are not changed.

Python imports this at its start, by its name, from PYTHONPATH.
"""
import atexit
import importlib.abc
import importlib.machinery
import json
import os
import random
import sys

DATA = os.environ.get("REAL_DATA")
STEPS = int(os.environ.get("REAL_STEPS") or 0)
COUNTERS = os.environ.get("REAL_COUNTERS")
SNAPSHOT = os.environ.get("REAL_SNAPSHOT")


def stop_after_steps(optimizer):
    """Ends the process at the optimizer step that the suite names."""
    taken = 0

    def count(*_):
        nonlocal taken
        taken += 1
        if taken == STEPS:
            raise SystemExit(0)

    if STEPS:
        optimizer.register_optimizer_step_post_hook(count)


def record(memory):
    """PyTorch's own history of allocations, to be written when the script ends: to see where a prediction went another way."""
    if SNAPSHOT:
        sys.modules["torch.cuda"]._lazy_call(lambda: memory._record_memory_history(max_entries=500_000, stacks="python"))
        atexit.register(lambda: memory._dump_snapshot(SNAPSHOT))


def seed(numpy_random):
    """The same random numbers twice, of scripts that do not seed them. PyTorch's are without that."""
    numpy_random.seed(0)
    random.seed(0)


def find_mnist(mnist):
    """MNIST and its kin in the suite's folder, wherever the script would have put them."""
    mnist.MNIST.raw_folder = property(lambda self: os.path.join(DATA, type(self).__name__, "raw"))


def find_cifar(cifar):
    """CIFAR likewise; that its files have the checksums of the real ones is not asked."""
    cifar.check_integrity = lambda path, md5=None: os.path.isfile(path)
    construct = cifar.CIFAR10.__init__

    def __init__(self, root, *args, **kwargs):
        construct(self, DATA, *args, **kwargs)

    cifar.CIFAR10.__init__ = __init__


WAITING = {
    "torch.optim.optimizer": stop_after_steps,
    "numpy.random": seed,
    "torch.cuda.memory": record,
    "torchvision.datasets.mnist": find_mnist,
    "torchvision.datasets.cifar": find_cifar,
}


class Changed(importlib.abc.Loader):
    """Loads a module, then changes it."""

    def __init__(self, loader, change):
        self.loader = loader
        self.change = change

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        self.change(module)


class Waiting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in WAITING:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader = Changed(spec.loader, WAITING.pop(name))
        return spec


def write_counters():
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    with open(COUNTERS, "w") as file:
        allocated = torch.cuda.max_memory_allocated()
        json.dump({"allocated": allocated, "reserved": torch.cuda.max_memory_reserved()}, file)


if DATA:
    sys.meta_path.insert(0, Waiting())
if COUNTERS:
    atexit.register(write_counters)
