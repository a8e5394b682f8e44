"""The blocks of a model, and how something is put around the forward of one.

``find_blocks`` names the modules that are worth treating one by one: the layers of a transformer, the residual blocks of a convolutional
network. ``put_around`` changes what calling a block does, on the instance, so that hooks, names and the state dict stay; what is put
around is elsewhere (``checkpoints``, ``activations``, ``tiles``).
"""

from __future__ import annotations

import functools
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

# A module is a mere stage, and its blocks are the ones inside, if these hold at least this share of its parameters.
_STAGE_SHARE = 0.5
# Lists of parts that are of one piece with the module around them: all experts of a layer see the same tokens, all heads the same input.
_PARTS = ("expert", "head")
# What parametrised weights and adapters keep in lists: called for a weight, never for an activation.
_NOT_LAYERS = ("parametrizations", "modules_to_save")

# In which order things lie around a forward, the outermost first: activations leave what the checkpoint keeps, and not what it drops; and what is run
# again is run in tiles.
OFFLOAD, CHECKPOINT, SELECTIVE, TILES = "offload", "checkpoint", "selective", "tiles"
_ORDER = (OFFLOAD, CHECKPOINT, SELECTIVE, TILES)

# Where a module has the code that module.compile() makes of it.
_COMPILED = "_compiled_call_impl"

Around = Callable[[nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def find_blocks(model: nn.Module) -> list[str]:
    """The qualified names (as in ``model.named_modules()``) of the blocks of a model, in order and never one inside another.

    Blocks are the repeated modules of lists and Sequentials that have modules of their own and that gradients go through; of a model
    without such lists, the parts that it consists of. Wrappers (DistributedDataParallel, torch.compile, peft) are looked into. May be
    empty.
    """
    found = list(_in_lists(model, ""))
    if not found:
        found = list(_parts(model, ""))
    differentiable = _differentiable(model)
    return [name for name, module in found if id(module) in differentiable and _computes(module)]


def get_block(model: nn.Module, name: str) -> nn.Module:
    """The module of that name, as `find_blocks` gives it."""
    return model.get_submodule(name)


def put_around(module: nn.Module, kind: str, around: Around) -> Callable[[], None]:
    """Has ``around(module, forward, args, kwargs)`` called in place of the module's forward, which it may call; gives what undoes that.

    Each kind lies around a module at most once, and kinds are taken off in any order. Copies of the module (copy.deepcopy) keep what lies
    around it; pickles do not.
    """
    layers = _layers_of(module) or _surround(module)
    if kind in layers.around:
        raise ValueError(f"there is already a {kind} around this {type(module).__name__}")
    layers.around[kind] = around

    def take_off() -> None:
        if layers.around.get(kind) is not around:
            return
        del layers.around[kind]
        # Where others have put something around ours since, ours stays below theirs and does nothing.
        if not layers.around and module.__dict__.get(layers.place) is layers.method:
            if layers.before is None:
                del module.__dict__[layers.place]
            else:
                module.__dict__[layers.place] = layers.before
            # Or the module would wait for the garbage collector.
            layers.method = None

    return take_off


class Surrounded:
    """Modules with something around their forward until ``undo()``: ``around``, by name."""

    def __init__(self, model: nn.Module, kind: str, around: Mapping[str, Around]) -> None:
        # All are looked up before any is changed.
        modules = [get_block(model, name) for name in around]
        self.names = list(around)
        self._model = model
        self._undo = [put_around(module, kind, each) for module, each in zip(modules, around.values())]
        compile_again(model)

    def undo(self) -> None:
        """Leaves the modules as they were. A graph that is still there keeps what it needs."""
        if self._undo:
            for take_off in self._undo:
                take_off()
            self._undo = []
            compile_again(self._model)


def compile_again(model: nn.Module) -> None:
    """Has torch.compile look at a model again: code compiled for a whole model would go on without what is put around its blocks."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and any(isinstance(module, dynamo.OptimizedModule) or module._compiled_call_impl for module in model.modules()):
        dynamo.reset()


def compiled_code(module: nn.Module) -> Callable[..., Any] | None:
    """What module.compile() has made of a module, if it was called, without what lies around it now."""
    layers = _layers_of(module)
    if layers is not None and layers.place == _COMPILED:
        return layers.before
    return module._compiled_call_impl


class _Layers:
    """What lies around the forward of one module, by kind; ``before`` is what the instance had in that ``place`` instead of its class's forward."""

    def __init__(self, place: str, before: Callable[..., Any] | None) -> None:
        self.place, self.before = place, before
        self.around: dict[str, Around] = {}
        self.method: types.MethodType | None = None


def _layers_of(module: nn.Module) -> _Layers | None:
    """What lies around a module already."""
    methods = (module.__dict__.get(place) for place in (_COMPILED, "forward"))
    return next((layers for method in methods if (layers := getattr(getattr(method, "__func__", None), "oomph_layers", None)) is not None), None)


def _surround(module: nn.Module) -> _Layers:
    # Code that was compiled of a module itself (module.compile()) begins outside of its forward, and so must what lies around it, or it would not be compiled.
    place = _COMPILED if module.__dict__.get(_COMPILED) is not None else "forward"
    layers = _Layers(place, module.__dict__.get(place))

    @functools.wraps(module.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = layers.before if layers.before is not None else functools.partial(type(self).forward, self)
        for kind in reversed(_ORDER):
            if kind in layers.around:
                call = functools.partial(_called, layers.around[kind], self, call)
        return call(*args, **kwargs)

    # Hooks and contexts cannot be traced: within a compiled model such a block runs as it is. A block that is compiled itself is called so.
    forward = torch.compiler.disable(forward)
    # A method is deep-copied with its module, and pickled by this name: then it is found in the class, as if nothing lay around it.
    forward.__name__ = "forward"
    forward.oomph_layers = layers  # type: ignore[attr-defined]  # a mark on the function
    layers.method = types.MethodType(forward, module)
    # Not by setattr: wrappers such as torch.compile's pass attributes on to the module inside.
    module.__dict__[place] = layers.method
    return layers


def _called(around: Around, module: nn.Module, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return around(module, call, args, kwargs)


def _in_lists(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The blocks of all lists in a module, from the outside in."""
    counts = Counter(type(child) for child in module.children())
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        if key in _NOT_LAYERS:
            continue
        if _is_list(module) and _is_block(child) and not _is_stage(child, alone=counts[type(child)] == 1):
            yield path, child
        else:
            yield from _in_lists(child, path)


def _is_list(module: nn.Module) -> bool:
    if isinstance(module, nn.ModuleDict):
        # Adapters keep one module under each adapter's name; a dictionary of layers has several, or calls them itself.
        return _callable(module) or sum(map(_is_block, module.children())) > 1
    return isinstance(module, (nn.ModuleList, nn.Sequential))


def _callable(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _is_block(module: nn.Module) -> bool:
    return _callable(module) and any(True for _ in module.children())


def _is_stage(module: nn.Module, alone: bool) -> bool:
    """Whether a module of a list is only a row of blocks. One that is ``alone`` of its kind may be a whole model, with lists anywhere."""
    lists = [module] if _is_list(module) else []
    if alone:
        lists += [inner for inner in module.modules() if inner is not module and _is_list(inner)]
    else:
        lists += [child for key, child in module.named_children() if _is_list(child) and not any(part in key for part in _PARTS)]
    repeated: dict[int, nn.Module] = {}
    for inner in lists:
        blocks = [child for child in inner.children() if _is_block(child)]
        if inner is module:
            repeated.update((id(block), block) for block in blocks)
            continue
        # A convolution with its norm in a Sequential is a part of a block, not a block.
        kinds = Counter(type(block) for block in blocks if not isinstance(block, nn.Sequential))
        if any(count > 1 for count in kinds.values()):
            repeated.update((id(block), block) for block in blocks)
    inside = {id(parameter): parameter.numel() for block in repeated.values() for parameter in block.parameters()}
    return bool(inside) and sum(inside.values()) >= _STAGE_SHARE * sum(parameter.numel() for parameter in module.parameters())


def _parts(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a model without lists: the children that have children, looking through modules that have but one such child."""
    named = [(key, child) for key, child in module.named_children() if key not in _NOT_LAYERS and _is_block(child)]
    children = [(f"{name}.{key}" if name else key, child) for key, child in named]
    if len(children) == 1:
        (path, child) = children[0]
        yield from _parts(child, path)
    else:
        yield from children


def _differentiable(model: nn.Module) -> set[int]:
    """The ids of the modules that gradients go through: those with something to train, and those that come after such."""
    before = {id(module): False for module in model.modules()}
    seen = False
    for module in model.modules():
        before[id(module)] = seen
        seen = seen or any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    return {id(module) for module in model.modules() if before[id(module)] or any(parameter.requires_grad for parameter in module.parameters())}


def _computes(module: nn.Module) -> bool:
    """Whether a module has more parameters than tables that are looked up."""
    embeddings = (nn.Embedding, nn.EmbeddingBag)
    return any(not isinstance(inner, embeddings) and any(True for _ in inner.parameters(recurse=False)) for inner in module.modules())
