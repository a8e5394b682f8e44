"""Compiled models: which of their modules torch.compile has, and PyTorch's own budget for what Inductor's code keeps for the backward pass.

The budget (``torch._functorch.config.activation_memory_budget``) is a setting of the process that is read while code is compiled: what compiles under it keeps that share
of its activations, and computes the rest again. Nothing here compiles; the modules are looked at again by the compiler when they are called next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from oomph.fitting.errors import FitError
from oomph.fitting.techniques.blocks import compile_again, compiled_code
from oomph.fitting.techniques.technique import Technique

# Shares that are tried, from what costs least. With less than the last, a model that is compiled as a whole computes so much again at once that it needs more, not less.
BUDGETS = (0.8, 0.6, 0.4, 0.2, 0.1)


# -- what is compiled


def compiled_modules(model: nn.Module) -> dict[str, Any]:
    """The modules that torch.compile has, by name, with what it compiles them by (its context; None where that cannot be found)."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return {}
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, dynamo.OptimizedModule):
            found[name] = module.dynamo_ctx
        elif (code := compiled_code(module)) is not None:
            found[name] = next(_contexts(code), None)
    return found


def _contexts(compiled: Any) -> Iterator[Any]:
    kind = sys.modules["torch._dynamo"].eval_frame._TorchDynamoContext
    for cell in getattr(compiled, "__closure__", None) or ():
        if isinstance(cell.cell_contents, kind):
            yield cell.cell_contents


def inside_compiled(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Those of the names whose modules are within a compiled one: what is put around them takes them out of its code, and they run as they are."""
    outer = [f"{name}." if name else "" for name in compiled_modules(model)]
    # What torch.compile has made of a module has that module inside.
    return [name for name in names if any(name.startswith(prefix) and name != f"{prefix}_orig_mod" for prefix in outer)]


def is_of_one_graph(model: nn.Module) -> bool:
    """Whether a module was compiled with fullgraph=True: nothing inside can be taken out."""
    return any(type(link).__name__ == "ConvertFrameAssert" for context in compiled_modules(model).values() for link in _links(context))


def _links(context: Any) -> Iterator[Any]:
    """From a context to the backend, by way of what PyTorch has put around it."""
    link = getattr(context, "callback", None)
    while link is not None:
        yield link
        link = getattr(link, "_torchdynamo_orig_backend", None) or getattr(link, "_torchdynamo_orig_callable", None)


def _by_inductor(context: Any) -> bool:
    return any(getattr(link, "compiler_name", None) == "inductor" for link in _links(context))


def budgets_for(model: nn.Module) -> tuple[float, ...]:
    """The budgets that may be set for a model: those below the one that is set. None where nothing is compiled, or not by Inductor alone."""
    contexts = compiled_modules(model).values()
    if not contexts or not all(map(_by_inductor, contexts)):
        return ()
    try:
        _settings()
    except FitError:
        return ()
    return tuple(budget for budget in BUDGETS if budget < budget_now())


def budget_now() -> float:
    settings = sys.modules.get("torch._functorch.config")
    return float(getattr(settings, "activation_memory_budget", 1.0))


# -- the same in another process


@dataclass
class Compiled:
    """What a pickled model loses: modules that were compiled in place, and the budget of the process."""

    in_place: dict[str, Any]
    budget: float

    @classmethod
    def of(cls, model: nn.Module) -> Compiled | None:
        """None for a model of which nothing is compiled."""
        contexts = compiled_modules(model)
        if not contexts:
            return None
        return cls({name: context for name, context in contexts.items() if model.get_submodule(name)._compiled_call_impl is not None}, budget_now())

    def restore(self, model: nn.Module) -> None:
        for name, context in self.in_place.items():
            module = model.get_submodule(name)
            if context is None:
                module.compile()
            else:
                module._compiled_call_impl = context(module._call_impl)
        if self.budget != 1.0:
            _settings().activation_memory_budget = self.budget


# -- the budget


def _settings() -> Any:
    """The module with the setting; refuses a PyTorch that has none."""
    try:
        import torch._functorch.config as settings
        import torch._inductor.config as inductor
        import torch._inductor.custom_graph_pass as passes
    except ImportError as error:
        raise FitError(f"PyTorch {torch.__version__} has no budget for the activations of compiled code") from error
    if not hasattr(settings, "activation_memory_budget") or not hasattr(inductor, "joint_custom_post_pass") or not hasattr(passes, "CustomGraphPass"):
        raise FitError(f"PyTorch {torch.__version__} has no budget for the activations of compiled code")
    return settings


class ActivationBudget:
    """The budget of this process until ``undo()``, and a model that is compiled anew under it."""

    def __init__(self, model: nn.Module, budget: float) -> None:
        settings = _settings()
        contexts = compiled_modules(model).values()
        if not contexts or not all(map(_by_inductor, contexts)):
            raise FitError("the plan has a budget for the activations of compiled code, and the model is not compiled by Inductor: torch.compile(model)")
        import torch._inductor.config as inductor

        self._model = model
        self._before: tuple[float, Any] | None = (settings.activation_memory_budget, inductor.joint_custom_post_pass)
        settings.activation_memory_budget = budget
        inductor.joint_custom_post_pass = _keeper(inductor.joint_custom_post_pass)
        try:
            compile_again(model)
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        if self._before is None:
            return
        import torch._inductor.config as inductor

        _settings().activation_memory_budget, inductor.joint_custom_post_pass = self._before
        self._before = None
        compile_again(self._model)


def _keeper(before: Any) -> Any:
    """A pass of Inductor's that has random numbers kept, whatever the budget, after the pass that was there before.

    Without it, PyTorch draws others when it computes a dropout again, and gradients are wrong without a word (pytorch/pytorch#190758).
    """
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class KeepRandomNumbers(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            if before is not None:
                before(graph)
            for node in graph.nodes:
                if node.op == "call_function" and _draws(node):
                    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

        def uuid(self) -> Any:
            """Of compiled code that is kept on disk: code that was compiled without this pass is other code."""
            own = get_hash_for_files((__file__,))
            if before is None:
                return own
            inner = before.uuid() if isinstance(before, CustomGraphPass) else None
            return None if inner is None else (own, inner)

    return KeepRandomNumbers()


def _draws(node: Any) -> bool:
    """Whether an operation draws random numbers. Attention draws only where it drops something."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            return bool(given != 0)
    return True


ACTIVATION_BUDGET = Technique(
    "activation_budget",
    lambda budget, *_: f"compiled code keeps at most {budget:.0%} of its activations",
    "same numbers but for rounding; the compiler computes the rest again",
    apply=lambda step: ActivationBudget(step.model, step.plan.activation_budget),
    is_new=lambda before, after: bool(after) and before != after,
)
