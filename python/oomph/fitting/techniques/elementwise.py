"""Modules that are a few elementwise operations and nothing else, such as a GELU that is written out: they keep their input, and what lies between is made again in the backward pass.

Which modules are looked at is for ``selective``. A module is left alone if its first call shows anything else than elementwise operations on its one input, or other bits when it
is run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from oomph._environment import on_virtual_gpu
from oomph.fitting.techniques import remaking
from oomph.fitting.techniques.remaking import CHEAP
from oomph.fitting.techniques.saved import away_from_hooks

_ELEMENTWISE = frozenset(
    f"{name}Backward{number}"
    for name in (
        "Mul",
        "Add",
        "Sub",
        "Div",
        "Pow",
        "Neg",
        "Tanh",
        "Sigmoid",
        "Exp",
        "Erf",
        "Sqrt",
        "Rsqrt",
        "Reciprocal",
        "Clamp",
        "Relu",
        "Silu",
        "Gelu",
        "Softplus",
        "Abs",
        "Log1P",
    )
    for number in (0, 1)
)


def written_out(block: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules inside a block that might be some: without parameters, without modules of their own, and not PyTorch's, which are one operation each."""
    for name, module in block.named_modules():
        own = any(True for _ in module.children()) or any(True for _ in module.parameters()) or any(True for _ in module.buffers())
        if name and not own and not type(module).__module__.startswith("torch.") and type(module).forward is not nn.Module.forward:
            yield name, module


class AroundElementwise:
    """What lies around the forward of one module."""

    def __init__(self) -> None:
        self._qualifies: bool | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> AroundElementwise:
        return self

    def __call__(self, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0] if len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor else None
        # Under autocast operations choose their type, and in the backward pass there is none.
        if tensor is None or not torch.is_grad_enabled() or not tensor.requires_grad or torch.is_autocast_enabled(tensor.device.type) or self._qualifies is False:
            return forward(*args, **kwargs)
        if self._qualifies is None:
            self._qualifies = _is_elementwise(forward, tensor)
            if not self._qualifies:
                return forward(tensor)
        return _Again.apply(tensor, forward)


def _is_elementwise(forward: Callable[..., Any], tensor: torch.Tensor) -> bool:
    version = tensor._version
    with torch.enable_grad():
        leaf = tensor.detach().requires_grad_()
        made = forward(leaf)
    if type(made) is not torch.Tensor or made.shape != tensor.shape or made.dtype != tensor.dtype or made is leaf or tensor._version != version or leaf._version != version:
        return False
    nodes, names = [made.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            if node.variable is not leaf:
                return False
            continue
        names.add(node.name())
        nodes += [before for before, _ in node.next_functions]
    if len(names) < 2 or not names <= _ELEMENTWISE:
        return False
    with torch.no_grad():
        return on_virtual_gpu() or torch.equal(made.detach(), forward(tensor.detach()))


class _Again(torch.autograd.Function):
    """Runs forward without a graph, and in the backward pass once more with one."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forward: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(tensor)
        ctx.run, ctx.known = forward, None
        return forward(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        leaf, made = ctx.known if ctx.known is not None else _with_a_graph(ctx)
        ctx.known = None
        return torch.autograd.grad(made, leaf, grads[0])[0], None


def _with_a_graph(ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.enable_grad(), away_from_hooks():
        leaf = ctx.saved_tensors[0].detach().requires_grad_()
        return leaf, ctx.run(leaf)


def _made_again(ctx: Any) -> torch.Tensor:
    """Its output. Who needs that runs just before its own backward, which needs the graph."""
    if not remaking.keeps:
        made: torch.Tensor = ctx.run(ctx.saved_tensors[0])
        return made
    ctx.known = _with_a_graph(ctx)
    return ctx.known[1].detach()


CHEAP["_AgainBackward"] = lambda values, node: lambda: _made_again(node)
