"""The CUDA tensors that Python can see, and the memory behind them.

No tensor is made, none of a tensor subclass's own code is run, and nothing is asked of the GPU.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from typing import Any

# PyTorch's allocator hands out blocks in multiples of this.
_BLOCK = 512


class Tensors:
    """Asks about tensors as PyTorch's own base class answers, whatever subclass they are of."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._base = torch._C.TensorBase if hasattr(torch._C, "TensorBase") else torch._C._TensorBase
        self.memory: dict[int, int] = {}  # What tensors were found to hold: address -> bytes

    def is_tensor(self, thing: Any) -> bool:
        return issubclass(type(thing), self._torch.Tensor)

    def is_module(self, thing: Any) -> bool:
        return issubclass(type(thing), self._torch.nn.Module)

    def is_optimizer(self, thing: Any) -> bool:
        return issubclass(type(thing), self._torch.optim.Optimizer)

    def address(self, thing: Any) -> int | None:
        """Where a tensor's memory on the GPU is; None if it is no tensor or has none. Views of one memory have one address."""
        if not self.is_tensor(thing):
            return None
        try:
            with self._torch._C.DisableTorchFunction():
                if not self._base.is_cuda.__get__(thing):
                    return None
                storage = self._base.untyped_storage(thing)
                address, size = storage.data_ptr(), storage.nbytes()
        except Exception:
            return None  # No memory of its own: fake, functional, freed.
        if not address or not size:
            return None
        self.memory[address] = size
        return address

    def places(self, tensors: Iterable[Any], device: int) -> Iterator[tuple[Any, int, bool]]:
        """Those on one device, each with its address and whether it requires gradients. A hundred thousand in a tenth of a second, ``quietly``."""
        device_of, storage_of, requires_grad, memory = self._base.get_device, self._base.untyped_storage, self._base.requires_grad.__get__, self.memory
        for tensor in tensors:
            try:
                if device_of(tensor) != device:
                    continue
                storage = storage_of(tensor)
                address, size = storage.data_ptr(), storage.nbytes()
                if address and size:
                    memory[address] = size
                    yield tensor, address, requires_grad(tensor)
            except Exception:
                continue  # No memory of its own: fake, functional, freed.

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """For many questions: no code of a subclass nor of a mode hears of them."""
        with self._torch._C.DisableTorchFunction(), self._torch._C._DisableTorchDispatch():
            yield

    def gradient(self, thing: Any) -> Any | None:
        """A leaf's gradient, which Python may never have seen before."""
        try:
            with self._torch._C.DisableTorchFunction():
                return self._base.grad.__get__(thing) if self._base.is_leaf.__get__(thing) else None
        except Exception:
            return None

    def graph(self, thing: Any) -> Any | None:
        """The last node of the graph that a backward pass would walk, which holds what the forward pass saved."""
        try:
            with self._torch._C.DisableTorchFunction():
                return self._base.grad_fn.__get__(thing)
        except Exception:
            return None

    def has_graph(self, thing: Any) -> bool:
        return self.graph(thing) is not None

    def learns(self, thing: Any) -> bool:
        """Whether it is a leaf that gathers gradients: a parameter."""
        try:
            with self._torch._C.DisableTorchFunction():
                return bool(self._base.is_leaf.__get__(thing) and self._base.requires_grad.__get__(thing))
        except Exception:
            return False

    def shape(self, thing: Any) -> tuple[list[int], str, str]:
        """Shape, dtype (without ``torch.``) and device; of what does not say, nothing."""
        try:
            with self._torch._C.DisableTorchFunction():
                base = self._base
                shape, dtype, device = base.shape.__get__(thing), base.dtype.__get__(thing), base.device.__get__(thing)
                return [int(length) for length in shape], str(dtype).removeprefix("torch."), str(device)
        except Exception:
            return [], "", ""

    def describe(self, thing: Any) -> str:
        shape, dtype, _ = self.shape(thing)
        return f"{'×'.join(map(str, shape)) or 'scalar'} {dtype}" if dtype else type(thing).__name__

    def elements(self, thing: Any) -> int:
        try:
            with self._torch._C.DisableTorchFunction():
                return int(self._base.numel(thing))
        except Exception:
            return 0

    def extent(self, thing: Any) -> int:
        """Bytes that a tensor itself shows of its memory."""
        try:
            with self._torch._C.DisableTorchFunction():
                return int(self._base.numel(thing)) * int(self._base.element_size(thing))
        except Exception:
            return 0

    def all(self) -> Iterator[Any]:
        """Every CUDA tensor that Python's collector knows, and their gradients."""
        for thing in gc.get_objects():
            if self.address(thing) is not None:
                yield thing
                gradient = self.gradient(thing)
                if gradient is not None and self.address(gradient) is not None:
                    yield gradient


def rounded(size: int) -> int:
    """The least that a block for ``size`` bytes takes."""
    return -(-size // _BLOCK) * _BLOCK
