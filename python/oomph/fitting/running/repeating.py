"""So that what was run can be run again as if it were the first time: a batch after an out-of-memory, a loss after a trial."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from collections.abc import Collection, Iterator

import torch
from torch.nn.modules.batchnorm import _NormBase


class Before:
    """What a forward pass changes besides gradients: random numbers and buffers. ``untouched`` are ids of buffers that it is known to leave alone."""

    def __init__(self, model: torch.nn.Module, device: torch.device, untouched: Collection[int] = ()) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self.buffers = [
            (module, name, buffer, buffer.detach().clone(), buffer._version)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and id(buffer) not in untouched
        ]
        # Their kernels change statistics without counting that as a change.
        self.uncounted = {id(module) for module in model.modules() if isinstance(module, _NormBase) and module.training}

    def changed(self) -> list[str]:
        """The names of the buffers that are others, or have other values, than before."""
        return [name for module, name, buffer, _, version in self.buffers if module._buffers.get(name) is not buffer or buffer._version != version]

    def learn(self, untouched: set[int]) -> None:
        """Once the pass is over: adds the buffers that are as they were."""
        kept = (
            buffer for module, name, buffer, _, version in self.buffers if module._buffers.get(name) is buffer and buffer._version == version and id(module) not in self.uncounted
        )
        untouched.update(map(id, kept))

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)
        with torch.no_grad():
            for module, name, buffer, value, version in self.buffers:
                module._buffers[name] = buffer
                if buffer._version != version or id(module) in self.uncounted:
                    buffer.copy_(value)


@contextlib.contextmanager
def random_numbers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Afterwards those of Python, NumPy and PyTorch go on as if nothing had been drawn."""
    numpy = sys.modules.get("numpy")
    of_python, of_numpy = random.getstate(), numpy.random.get_state() if numpy is not None else None
    devices = sorted({tensor.device.index or 0 for tensor in model.parameters() if tensor.is_cuda})
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


def release_memory(device: torch.device) -> None:
    """Gives back what nothing holds any more. What failed must have been forgotten before."""
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
