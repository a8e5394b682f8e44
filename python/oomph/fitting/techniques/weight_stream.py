"""Weights that wait in host memory and travel to the GPU block by block, each while the block before it runs. For inference: nothing is written back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oomph.fitting.techniques import optimizers
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.host import Lanes, Slab, aligned, size_of
from oomph.live.out_of_memory import is_out_of_memory


class WeightStream:
    """Keeps the weights of ``streamed`` blocks in pinned host memory, and brings each to the device while the block before it runs.

    The streamed ones are spread evenly, so that copies have time. For inference: what is written to such weights on the device is lost.
    """

    def __init__(self, model: nn.Module, device: torch.device, streamed: int) -> None:
        self._device = device
        self._lanes = Lanes(device)
        self._origins = [(tensor, tensor.device) for tensor in [*model.parameters(), *model.buffers()]]
        self._blocks = [_Block(tensors, device) for tensors in _own_tensors(model)]
        streamed_tensors = {id(tensor) for block in self._blocks for tensor in block.tensors}
        modules = [model.get_submodule(name) for name in find_blocks(model)]
        self._hooks: list[Any] = []
        self._line: list[_Block] = []
        try:
            self.stream(streamed)
            for tensor, _ in self._origins:
                if id(tensor) not in streamed_tensors:
                    tensor.data = tensor.data.to(device)
        except BaseException:
            self.undo()
            raise
        for module, block in zip(modules, self._blocks):
            self._hooks.append(module.register_forward_pre_hook(lambda *_, block=block: self._enter(block), prepend=True))
            self._hooks.append(module.register_forward_hook(lambda *_, block=block: self._leave(block), always_call=True))

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    @property
    def bytes_on_host(self) -> int:
        return sum(block.slab.size for block in self._blocks if block.slab is not None)

    def stream(self, count: int) -> None:
        """Lets the weights of so many blocks wait in host memory, and those of the others be on the device."""
        self.rest()
        chosen = _spread(count, len(self._blocks))
        with _plain():
            for index, block in enumerate(self._blocks):
                if index in chosen and block.slab is None:
                    block.go(self._lanes)
            for index, block in enumerate(self._blocks):
                if index not in chosen:
                    block.stay()
        self._line = [block for index, block in enumerate(self._blocks) if index in chosen]

    def rest(self) -> None:
        """Takes all streamed weights off the device, also after a pass that failed."""
        with _plain():
            self._lanes.wait_for_all()
            for block in self._blocks:
                block.leave()

    def undo(self) -> None:
        """Puts all weights back where they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.rest()
        with _plain():
            for tensor, device in self._origins:
                # A copy, because the host memory that it lies in is given back.
                tensor.data = tensor.data.to(device, copy=True) if tensor.data.device == device else tensor.data.to(device)
        self._line.clear()
        self._blocks.clear()
        self._origins.clear()

    def _enter(self, block: _Block) -> None:
        if block.slab is None:
            return
        with _plain():
            block.come(self._lanes)
            block.arrive(self._lanes)
            place = next(index for index, one in enumerate(self._line) if one is block)
            following = self._line[(place + 1) % len(self._line)]
            if following is not block:
                try:
                    following.come(self._lanes)
                except Exception as error:
                    # It comes when it is needed.
                    if not is_out_of_memory(error):
                        raise

    def _leave(self, block: _Block) -> None:
        if block.slab is not None:
            with _plain():
                block.leave()


class _Block:
    """The weights of one block that belong to it alone."""

    def __init__(self, tensors: list[Tensor], device: torch.device) -> None:
        self.tensors, self.device = tensors, device
        self.slab: Any = None
        self._places: list[tuple[int, int]] = []
        self._host: list[Tensor] = []
        self._memory: Tensor | None = None
        self._arrived: Any = None

    def go(self, lanes: Any) -> None:
        """To host memory."""
        places, end = [], 0
        for tensor in self.tensors:
            places.append((end, size_of(tensor)))
            end += aligned(places[-1][1])
        self.slab, self._places = Slab(max(end, 1), self.device), places
        self._host = [_inside(self.slab.tensor, place, tensor) for place, tensor in zip(places, self.tensors)]
        for host, tensor in zip(self._host, self.tensors):
            if optimizers.copies_are_real or not lanes.is_cuda:
                host.copy_(tensor.data)
            tensor.data = host

    def stay(self) -> None:
        """On the device."""
        for tensor in self.tensors:
            if self.slab is not None or tensor.device != self.device:
                tensor.data = tensor.data.to(self.device, copy=True)
        self.slab, self._host, self._places = None, [], []

    def come(self, lanes: Any) -> None:
        """On its way to the device, beside what runs there."""
        if self._memory is not None:
            return
        self._memory = torch.empty(self.slab.size, dtype=torch.uint8, device=self.device)
        with lanes.copying(lanes.coming):
            if optimizers.copies_are_real or not lanes.is_cuda:
                self._memory.copy_(self.slab.tensor, non_blocking=True)
        self._arrived = lanes.mark(lanes.coming)

    def arrive(self, lanes: Any) -> None:
        lanes.wait(self._arrived)
        for place, tensor in zip(self._places, self.tensors):
            tensor.data = _inside(self._memory, place, tensor)

    def leave(self) -> None:
        for host, tensor in zip(self._host, self.tensors):
            tensor.data = host
        self._memory = self._arrived = None


def _inside(memory: Tensor, place: tuple[int, int], like: Tensor) -> Tensor:
    stride = torch.empty_like(like, device="meta").stride()
    return memory[place[0] : place[0] + place[1]].view(like.dtype).as_strided(like.shape, stride)


def _own_tensors(model: nn.Module) -> list[list[Tensor]]:
    """For each block, the parameters and buffers that nothing outside of it has."""
    names = find_blocks(model)
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        block = next((one for one in names if name == one or name.startswith(one + ".")), "")
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            owners.setdefault(id(tensor), set()).add(block)
    own = []
    for name in names:
        module = model.get_submodule(name)
        tensors = {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]}
        own.append([tensor for key, tensor in tensors.items() if owners[key] == {name} and type(tensor.data) is Tensor and tensor.numel()])
    return own


def _spread(count: int, of: int) -> set[int]:
    return {index for index in range(of) if (index + 1) * count // of > index * count // of}


@contextmanager
def _plain() -> Any:
    """Tensors that are made inside can become the data of parameters, also while the model runs in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield
