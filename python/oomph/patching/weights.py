"""Weights that are on the card twice: a checkpoint that was loaded, a copy of the state: they go to the host."""

from __future__ import annotations

import ast

from .reading import Request, calls_in, names_assigned, statements_named
from .source import NoPatch, Source, dotted


def copies_weights(source: Source, statement: ast.stmt) -> bool:
    """``copy.deepcopy(model.state_dict())`` and ``{k: v.clone() for k, v in model.state_dict().items()}``."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and (dotted(node.func) or "").rpartition(".")[2] == "deepcopy" and len(node.args) == 1:
            if "state_dict(" in source.written(node.args[0]):
                source.replace(node, f"{{key: value.cpu() for key, value in {source.written(node.args[0])}.items()}}")
                return True
            if isinstance(node.args[0], (ast.Name, ast.Attribute)):
                source.after(node, ".cpu()")
                return True
        if isinstance(node, ast.DictComp) and "state_dict(" in source.written(node.generators[0].iter):
            value = node.value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "clone":
                source.replace_span(source.end(value.func) - len("clone"), source.end(value.func), "cpu")
            elif isinstance(value, ast.Call) and (dotted(value.func) or "").rpartition(".")[2] == "deepcopy" and value.args:
                source.replace(value, f"{source.written(value.args[0])}.cpu()")
            else:
                source.after(value, ".cpu()")
            return True
    return False


def copy_of_weights(source: Source, request: Request) -> None:
    """A checkpoint that is loaded beside the model goes to the host; so does a copy of the weights."""
    for statement in statements_named(source, request):
        for call in calls_in(statement):
            name = (dotted(call.func) or "").rpartition(".")[2]
            if name in ("load", "load_file", "load_checkpoint") and _puts_on_the_host(source, call, "device" if name == "load_file" else "map_location"):
                return
        if (
            isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr))
            and any("best" in name or "state" in name for name in names_assigned(statement))
            and copies_weights(source, statement)
        ):
            return
        if "state_dict(" in source.written(statement) and copies_weights(source, statement):
            return
    for call in calls_in(source.tree):
        if dotted(call.func) == f"{source.bound('torch', call.lineno)}.load" and _puts_on_the_host(source, call, "map_location"):
            return
    raise NoPatch("no line was found that loads a checkpoint to the card")


def _puts_on_the_host(source: Source, call: ast.Call, argument: str) -> bool:
    for one in call.keywords:
        if one.arg == argument:
            if isinstance(one.value, ast.Constant) and one.value.value == "cpu":
                return False
            source.replace(one.value, '"cpu"')
            return True
    if not call.args or len(call.args) > 1:
        return False
    source.insert(source.end(call.args[0]), f', {argument}="cpu"')
    return True
