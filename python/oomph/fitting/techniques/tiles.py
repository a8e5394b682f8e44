"""Parts of a model that treat each position of a sequence by itself, computed for some positions at a time.

The MLP of a long sequence makes the widest activations of a block, and keeps several of them for the backward. Here it is run tile by tile
and keeps its input only; the backward runs each tile again, and goes through it before the next. So of what lies between input and output
one tile is there at a time. Which modules are of this kind is found out elsewhere (``positionwise``).

A row of a tile is computed from the same numbers as in the whole. Gradients of weights are sums over positions: here they are sums of the
tiles' sums, in float32 at least, which is the same but for rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from oomph.fitting.errors import FitError
from oomph.fitting.running.batches import cuts
from oomph.fitting.techniques.blocks import TILES, Surrounded
from oomph.fitting.techniques.saved import away_from_hooks
from oomph.fitting.techniques.technique import Technique

# Matrix products of fewer rows are no faster than one of so many, and a library may add in another order for them.
LEAST_ROWS = 16


class TiledModules(Surrounded):
    """Modules that are run in tiles until ``undo()``."""

    def __init__(self, model: nn.Module, names: Sequence[str], pieces: int) -> None:
        super().__init__(model, TILES, {name: _Tiles(name, pieces) for name in names})


def tile_modules(model: nn.Module, names: Sequence[str], pieces: int) -> TiledModules:
    """Has the named modules run in so many pieces along the sequence, and keep only their input for the backward.

    They are modules of which `find_tiled` has found that they treat each position by itself. Calls of few positions have fewer pieces.
    """
    return TiledModules(model, names, pieces)


def cut_dimension(tensors: Sequence[torch.Tensor]) -> int | None:
    """Along which dimension a call with these tensors is cut; None if it is not one with a width for each position of a sequence.

    Either (batch, sequence, width), or (sequence, batch, width), or (positions, width): of those before the width, the longest.
    """
    if not tensors or tensors[0].dim() not in (2, 3) or not tensors[0].is_floating_point():
        return None
    positions = tensors[0].shape[:-1]
    if any(tensor.layout != torch.strided or tensor.shape[: len(positions)] != positions for tensor in tensors):
        return None
    return len(positions) - 1 if positions[-1] >= positions[0] else 0


class _Tiles:
    """What lies around the forward of one module."""

    def __init__(self, name: str, pieces: int) -> None:
        self.name, self.pieces = name, pieces

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tiles:
        return self

    def __call__(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        dimension = cut_dimension(tensors)
        if dimension is None:
            return forward(*args, **kwargs)
        length = tensors[0].shape[dimension]
        pieces = min(self.pieces, length // LEAST_ROWS)
        if pieces < 2:
            return forward(*args, **kwargs)
        call = _Call(self.name, forward, leaves, spec, dimension, cuts(length, pieces))
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not torch.is_grad_enabled() or not (trained or any(tensor.requires_grad for tensor in tensors)):
            with torch.no_grad(), _uncached_autocast(tensors[0].device.type):
                return call.whole(tensors)
        # Before the tiles are computed: a checkpoint around this has then all that it must compute again, and leaves the tiles to the backward.
        kept = _Keep.apply(torch.empty(0, device=tensors[0].device, requires_grad=True), *tensors)
        return _Tiled.apply(kept, call, trained, *tensors, *trained)


class _Call:
    """One call of a module: everything but the tensors, which are given for each run."""

    def __init__(self, name: str, forward: Callable[..., Any], leaves: list[Any], spec: pytree.TreeSpec, dimension: int, tiles: list[tuple[int, int]]) -> None:
        self.name, self.dimension, self.tiles = name, dimension, tiles
        self._forward, self._spec = forward, spec
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def run(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        filled = list(self._fixed)
        for place, tensor in zip(self._places, tensors):
            filled[place] = tensor
        args, kwargs = pytree.tree_unflatten(filled, self._spec)
        result = self._forward(*args, **kwargs)
        positions = tensors[0].shape[:-1]
        if not isinstance(result, torch.Tensor) or result.shape[: len(positions)] != positions:
            raise FitError(f"{self.name} cannot be run in tiles: it does not give one tensor with a row for each position")
        return result

    def tile(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return tensor.narrow(self.dimension, start, stop - start)

    def whole(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """All tiles, one after another."""
        positions = tensors[0].shape[:-1]
        whole = None
        for start, stop in self.tiles:
            result = self.run([self.tile(tensor, start, stop) for tensor in tensors])
            if whole is None:
                whole = result.new_empty((*positions, *result.shape[len(positions) :]))
            self.tile(whole, start, stop).copy_(result)
            del result
        assert whole is not None
        return whole


class _Keep(torch.autograd.Function):
    """Saves the inputs of a call, through whatever hooks there are; its output is only a place in the graph, so that they are freed behind the backward."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return token.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        return (None,) * len(ctx.needs_input_grad)


class _Tiled(torch.autograd.Function):
    """The output of all tiles. The inputs are with `_Keep`; here they and the parameters are given for the graph only."""

    @staticmethod
    def forward(ctx: Any, kept: torch.Tensor, call: _Call, trained: list[nn.Parameter], *inputs: torch.Tensor) -> torch.Tensor:
        tensors = inputs[: len(inputs) - len(trained)]
        ctx.kept, ctx.call, ctx.trained = kept.grad_fn, call, trained
        ctx.versions = [parameter._version for parameter in trained]
        ctx.state = _State(tensors[0].device)
        with _uncached_autocast(tensors[0].device.type):
            return call.whole(tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        call, trained = ctx.call, ctx.trained
        tensors = ctx.kept.saved_tensors
        if [parameter._version for parameter in trained] != ctx.versions:
            raise RuntimeError(f"a parameter of {call.name} that is needed for the gradient has been changed in place since the forward")
        needed = ctx.needs_input_grad[3 : 3 + len(tensors)]
        of_tensors = [torch.empty_like(tensor, memory_format=torch.contiguous_format) if need else None for tensor, need in zip(tensors, needed)]
        # In float32 whatever the weight has: tiles are added, and the plain product rounds once.
        of_trained = [torch.zeros(one.shape, dtype=torch.promote_types(one.dtype, torch.float32), device=one.device) for one in trained]
        # Hooks that offload what a forward saves have no business with what is used at once.
        with ctx.state.as_before(), away_from_hooks():
            for start, stop in call.tiles:
                pieces = [call.tile(tensor, start, stop).detach().requires_grad_(need) for tensor, need in zip(tensors, needed)]
                gradients = _gradients(call, pieces, trained, call.tile(gradient, start, stop))
                for of_tensor in of_tensors:
                    if of_tensor is not None:
                        of_piece, there = gradients.pop(0), call.tile(of_tensor, start, stop)
                        there.zero_() if of_piece is None else there.copy_(of_piece)
                        del of_piece
                for total, of_piece in zip(of_trained, gradients):
                    if of_piece is not None:
                        total += of_piece
                del gradients, pieces
        rounded = []
        while of_trained:
            rounded.append(of_trained.pop().to(trained[len(of_trained)].dtype))
        return (gradient.new_empty(0), None, None, *of_tensors, *reversed(rounded))


def _gradients(call: _Call, pieces: list[torch.Tensor], trained: list[nn.Parameter], gradient: torch.Tensor) -> list[torch.Tensor | None]:
    """Of the pieces that need one, and of the parameters."""
    with torch.enable_grad():
        result = call.run(pieces)
    towards = [*(piece for piece in pieces if piece.requires_grad), *trained]
    if not result.requires_grad:
        return [None] * len(towards)
    return list(torch.autograd.grad(result, towards, gradient, allow_unused=True))


class _State:
    """Random numbers and autocast as they were when a forward began: tiles that are run again in the same order draw the same."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in {device.type, "cpu"} if torch.is_autocast_enabled(kind)]

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[self._device] if self._cuda is not None else []))
            torch.set_rng_state(self._cpu)
            if self._cuda is not None:
                torch.cuda.set_rng_state(self._cuda, self._device)
            for kind, dtype in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
            yield


@contextlib.contextmanager
def _uncached_autocast(device: str) -> Iterator[None]:
    """Autocast as it is, but it keeps no copy of a weight: one made without gradients would be used where there are some."""
    with contextlib.ExitStack() as stack:
        for kind in {device, "cpu"}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, torch.get_autocast_dtype(kind), cache_enabled=False))
        yield


IN_TILES = Technique(
    "tiles",
    lambda pieces, *_: f"position-wise parts in {pieces} tiles along the sequence",
    "same mathematics; pays with recomputation",
    apply=lambda step: tile_modules(step.model, step.plan.tiled, step.plan.tiles) if step.plan.tiled else None,
    is_new=lambda before, after: bool(before != after),
    besides=("tiled",),
)
