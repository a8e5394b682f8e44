"""Which modules of a model treat each position of a sequence by itself: found by trying them on their own inputs.

One sample goes through the model without gradients, until a block of each kind has run, and of each kind of module some rows are kept of
what it was given and what it gave. Then the module is run on these rows alone, in another order, and with other neighbours. If a row always
comes out the same, if no random numbers were drawn and nothing was changed, it may be run in tiles. Modules of the same class, shapes and
settings are of one kind; those that differ in the number of their layer are tried one by one.

The values must be real, so this is nothing for a virtual GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from oomph.fitting.errors import NotSplittable
from oomph.fitting.losses.loss_of import Loss
from oomph.fitting.running.batches import moved, pick, shortened
from oomph.fitting.running.repeating import Before, random_numbers_kept
from oomph.fitting.techniques.blocks import find_blocks, get_block
from oomph.fitting.techniques.tiles import LEAST_ROWS, cut_dimension

# Positions of the sample that goes through the model, if it may be shortened.
_POSITIONS = 1024
# Rows that are kept from each of three places of a sequence.
_ROWS = 16
# How far apart, of the largest value, the same row may be when another number of rows is multiplied. TensorFloat-32 has ten bits.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-3, torch.bfloat16: 4e-2, torch.float16: 1e-2}
# What a module keeps for the backward besides its input and its weights, as a share of its input: of less there is nothing to gain.
_WORTH = 0.5
# What the number of a layer is called, on a module of that layer.
_NUMBERS = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "idx", "index")
# Parameters that are smaller than this hide what they multiply: gates and adapters begin at nothing.
_HIDES = 1e-3


def find_tiled(model: nn.Module, loss_of: Loss, example: Any) -> tuple[str, ...]:
    """The names of the modules that can be run in tiles along the sequence, never one inside another; the largest that can are taken.

    One sample of the example goes through the first blocks of the model; of a long sequence its beginning, if the model takes that.
    Nothing of the model changes. May be empty.
    """
    blocks = find_blocks(model)
    if not blocks:
        return ()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    try:
        sample = pick(example, [0])
    except NotSplittable:
        sample = example
    before, modes = Before(model, device), [(module, module.training) for module in model.modules()]
    try:
        with random_numbers_kept(model):
            if not model.training:
                model.train()
            seen = _see_short(model, blocks, lambda short: loss_of(model, moved(shortened(sample, _POSITIONS) if short else sample, device)))
            # What the sample has changed is no part of the trials.
            before.restore()
            return tuple(_chosen(model, seen))
    finally:
        for module, training in modes:
            module.training = training
        before.restore()


# -- one forward


class _Enough(BaseException):
    """A block of each kind has run; no handler of the program's takes it for an error."""


@dataclass
class _Seen:
    """Rows of one call of a module, from the beginning, the middle and the end of the sequence."""

    module: nn.Module
    spec: pytree.TreeSpec
    leaves: list[Any]
    #: For each place, the rows of all tensors given, and of the tensor that came out.
    given: list[list[torch.Tensor]]
    came: list[torch.Tensor]
    dimension: int
    autocast: list[tuple[str, torch.dtype]]


def _see_short(model: nn.Module, blocks: list[str], forward: Callable[[bool], Any]) -> dict[Hashable, _Seen]:
    """By a short sample, or by the whole one where the model takes no other. Where that fails too, the step itself will report it, and better."""
    for short in (True, False):
        with contextlib.suppress(Exception):
            return _see(model, blocks, lambda: forward(short))
    return {}


def _see(model: nn.Module, blocks: list[str], forward: Callable[[], Any]) -> dict[Hashable, _Seen]:
    """What modules of each kind were given, and gave. Those that were not called, or not so that it could be cut, are not there."""
    seen: dict[Hashable, _Seen] = {}
    begun: dict[int, tuple[_Seen, list[tuple[torch.Tensor, int]], list[tuple[int, int]]]] = {}
    within = {id(block): {_kind(module, layer=False) for module in _candidates(block)} for block in map(model.get_submodule, blocks)}
    kinds = {id(module): _kind(module, layer=False) for name in blocks for module in _candidates(get_block(model, name))}
    left = set(kinds.values())
    handles: list[Any] = []

    def entered(module: nn.Module, args: Any, kwargs: Any) -> None:
        if id(module) in begun or kinds[id(module)] in seen:
            return
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        dimension = cut_dimension(tensors)
        if dimension is None or tensors[0].shape[dimension] < 2 * LEAST_ROWS:
            return
        places = _places(tensors[0].shape[dimension])
        given = [[_rows(tensor, dimension, place) for tensor in tensors] for place in places]
        fixed = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        autocast = [(kind, torch.get_autocast_dtype(kind)) for kind in {tensors[0].device.type, "cpu"} if torch.is_autocast_enabled(kind)]
        begun[id(module)] = (_Seen(module, spec, fixed, given, [], dimension, autocast), [(tensor, tensor._version) for tensor in tensors], places)

    def came_out(module: nn.Module, _: Any, result: Any) -> None:
        if id(module) in begun:
            one, versions, places = begun.pop(id(module))
            positions = versions[0][0].shape[:-1]
            unchanged = all(tensor._version == version for tensor, version in versions)
            if unchanged and isinstance(result, torch.Tensor) and result.shape[: len(positions)] == positions and result.is_floating_point():
                one.came = [_rows(result, one.dimension, place) for place in places]
                seen[kinds[id(module)]] = one
        left.difference_update(within.get(id(module), ()))
        if not left:
            # The head and the loss are not asked for: of a long sequence they are the largest.
            raise _Enough

    for module in model.modules():
        if id(module) in kinds:
            handles.append(module.register_forward_pre_hook(entered, with_kwargs=True))
        if id(module) in kinds or id(module) in within:
            handles.append(module.register_forward_hook(came_out))
    try:
        with torch.no_grad():
            forward()
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return seen


# Where a tensor was among what a module was given.
_TENSOR = object()


def _places(length: int) -> list[tuple[int, int]]:
    rows = min(_ROWS, length // 3 or 1)
    middle = (length - rows) // 2
    return [(0, rows), (middle, middle + rows), (length - rows, length)]


def _rows(tensor: torch.Tensor, dimension: int, place: tuple[int, int]) -> torch.Tensor:
    start, stop = place
    return tensor.detach().narrow(dimension, start, stop - start).clone()


def _candidates(block: nn.Module) -> Iterator[nn.Module]:
    return (module for module in block.modules() if not _too_small(module))


def _too_small(module: nn.Module) -> bool:
    """PyTorch's own single modules keep nothing but their input."""
    return not any(True for _ in module.children()) and type(module).__module__.startswith("torch.nn.modules.")


def _kind(module: nn.Module, layer: bool = True) -> Hashable:
    """The same for modules of which what is true for one is true for the other: classes, shapes, and plain settings such as the share of a dropout.

    Without ``layer`` the number of a layer is no such setting.
    """
    parts: list[Hashable] = []
    for name, inner in module.named_modules():
        settings = ((key, value) for key, value in vars(inner).items() if isinstance(value, (bool, int, float, str)) and not key.startswith("_"))
        told = tuple(sorted((key, value) for key, value in settings if layer or key not in _NUMBERS))
        tensors = tuple(
            (key, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for key, tensor in (*inner._parameters.items(), *inner._buffers.items()) if tensor is not None
        )
        parts.append((name, type(inner), told, tensors))
    return tuple(parts)


# -- trials of modules


def _chosen(model: nn.Module, seen: dict[Hashable, _Seen]) -> Iterator[str]:
    verdicts: dict[Hashable, bool] = {}
    taken: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if not name or _too_small(module) or name.startswith(taken):
            continue
        one = seen.get(_kind(module, layer=False))
        if one is None:
            continue
        kind = _kind(module)
        if kind not in verdicts:
            # The one that was seen, unless this one has another number, and may do something else.
            verdicts[kind] = _may_be_tiled(one.module if _kind(one.module) == kind else module, one)
        # Hooks are not of the kind, but of the module.
        if verdicts[kind] and not _has_hooks_within(module):
            taken = (*taken, f"{name}.")
            yield name


def _has_hooks_within(module: nn.Module) -> bool:
    """They would see tiles, twice, the first time without gradients: as those that record what a router has chosen, for a loss of its own."""
    return any(inner._forward_hooks or inner._forward_pre_hooks or inner._backward_hooks for inner in module.modules() if inner is not module)


def _may_be_tiled(module: nn.Module, seen: _Seen) -> bool:
    try:
        return _changes_nothing(module, seen) and _is_positionwise(module, seen) and _is_worth_it(module, seen)
    except Exception:
        # A module that fails on some rows of what it was given is not one that is run in tiles.
        return False


def _run(module: nn.Module, seen: _Seen, tensors: list[torch.Tensor], parameters: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    given = iter(tensors)
    args, kwargs = pytree.tree_unflatten([next(given) if leaf is _TENSOR else leaf for leaf in seen.leaves], seen.spec)
    with contextlib.ExitStack() as stack:
        for kind, dtype in seen.autocast:
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=False))
        if parameters:
            result = torch.func.functional_call(module, parameters, args, kwargs)
        else:
            result = module(*args, **kwargs)
    assert isinstance(result, torch.Tensor)
    return result


def _changes_nothing(module: nn.Module, seen: _Seen) -> bool:
    """No random numbers are drawn, no buffer is changed, nothing is left on the module for others to find."""
    device = seen.given[0][0].device
    attributes = [
        (inner, dict(vars(inner)), dict(inner._buffers), {key: buffer._version for key, buffer in inner._buffers.items() if buffer is not None}) for inner in module.modules()
    ]
    cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    with torch.no_grad():
        _run(module, seen, seen.given[0])
    if not torch.equal(cpu, torch.get_rng_state()) or cuda is not None and not torch.equal(cuda, torch.cuda.get_rng_state(device)):
        return False
    for inner, had, buffers, versions in attributes:
        has = vars(inner)
        if has.keys() != had.keys() or any(isinstance(value, torch.Tensor) and had[key] is not value for key, value in has.items()):
            return False
        if any(buffer is not buffers.get(key) or buffer is not None and buffer._version != versions[key] for key, buffer in inner._buffers.items()):
            return False
    return True


def _is_positionwise(module: nn.Module, seen: _Seen) -> bool:
    with torch.no_grad():
        for given, came in zip(seen.given, seen.came if module is seen.module else ()):
            # The rows by themselves, out of a sequence with others before and behind them.
            if not _same(_run(module, seen, given), came):
                return False
        shown = _shown(module)
        # With real values, and with what hides nothing: a gate that is zero today lets another position through tomorrow.
        return _rows_are_alone(module, seen, {}) and (not shown or _rows_are_alone(module, seen, shown))


def _rows_are_alone(module: nn.Module, seen: _Seen, parameters: dict[str, torch.Tensor]) -> bool:
    dimension = seen.dimension
    three = [torch.cat([given[which] for given in seen.given], dimension) for which in range(len(seen.given[0]))]
    count = three[0].shape[dimension]
    whole = _run(module, seen, three, parameters)
    if not bool(whole.isfinite().all()):
        return False

    def of_rows(rows: torch.Tensor) -> bool:
        return _same(_run(module, seen, [tensor.index_select(dimension, rows) for tensor in three], parameters), whole.index_select(dimension, rows))

    every = torch.arange(count, device=whole.device)
    if not of_rows(every.flip(0)) or not of_rows(every[: count // 3]) or not of_rows(every[count // 2 : count // 2 + 1]):
        return False
    for row in (0, count // 2, count - 1):
        for others in (every == row, every != row):
            # One row is another, or all but one are: the others come out as they did.
            changed = [_others(tensor, dimension, others) for tensor in three]
            result = _run(module, seen, changed, parameters)
            if not _same(result.index_select(dimension, every[~others]), whole.index_select(dimension, every[~others])):
                return False
    if three[0].dim() == 3:
        # Sequences side by side are as little to each other as positions of one.
        turned = _run(module, seen, [tensor.transpose(0, 1) for tensor in three], parameters)
        if not _same(turned.transpose(0, 1), whole):
            return False
    return True


def _others(tensor: torch.Tensor, dimension: int, chosen: torch.Tensor) -> torch.Tensor:
    """With other values in the chosen rows. Of whole numbers and masks, those of the row before."""
    changed = tensor.roll(1, dimension) if not tensor.is_floating_point() else 1 - 2 * tensor.roll(1, dimension)
    shape = [1] * tensor.dim()
    shape[dimension] = -1
    return torch.where(chosen.view(shape), changed, tensor)


def _shown(module: nn.Module) -> dict[str, torch.Tensor]:
    """Values for the parameters that are next to nothing, among which what they hide can be seen."""
    generator = torch.Generator().manual_seed(1)
    shown = {}
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and parameter.numel() and float(parameter.detach().abs().max()) < _HIDES:
            values = torch.randn(parameter.shape, generator=generator) * 0.5
            shown[name] = values.to(parameter.device, parameter.dtype)
    return shown


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    tolerance = _TOLERANCE.get(other.dtype, 0.0)
    # TensorFloat-32 is for matrix products on the GPU only.
    if other.dtype is torch.float32 and other.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        tolerance = 1e-5
    return bool((one - other).abs().max() <= tolerance * other.abs().max())


def _is_worth_it(module: nn.Module, seen: _Seen) -> bool:
    """Whether it keeps more for the backward than its input and its weights."""
    given = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in (tensor.clone() for tensor in seen.given[0])]
    known = {tensor.untyped_storage()._cdata for tensor in (*given, *module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
            # Or its place would be another's.
            alive.append(tensor.detach())
        return tensor.detach()

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _run(module, seen, given)
    inputs = sum(tensor.numel() * tensor.element_size() for tensor in given)
    return sum(kept.values()) >= _WORTH * inputs
