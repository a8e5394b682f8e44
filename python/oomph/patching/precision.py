"""Numbers that take more room than they need: float64, and gradients that stay as zeros."""

from __future__ import annotations

import ast
import re

from .reading import Request, calls_in, statements_named
from .source import NoPatch, Source, dotted

_DOUBLE = {"float64", "double"}
# What is called so counts or names things, and is no float to begin with.
_INTEGERS = re.compile(r"\bids?\b|_ids?\b|idx|index|label|class|mask|token|count|time", re.IGNORECASE)


def float64(source: Source, request: Request, everywhere: bool = False) -> None:
    """What is made double becomes float32: all of what says so, or models and data would not match.

    ``everywhere``: NumPy's arrays of other lines too, whose type is not known.
    """
    torch = {source.bound("torch", 1 << 30), "torch"}
    changed: set[int] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = dotted(node.func) or ""
            if name.rpartition(".")[0] in torch and name.rpartition(".")[2] in ("set_default_dtype", "set_default_tensor_type"):
                if any("float64" in source.written(one) or "ouble" in source.written(one) for one in node.args):
                    source.remove(source.statement_of(node))
                    changed.update(id(one) for one in ast.walk(node))
            elif isinstance(node.func, ast.Attribute) and node.func.attr == "double" and not node.args and id(node) not in changed:
                statement = source.statement_of(node)
                if isinstance(statement, ast.Expr) and statement.value is node:
                    source.remove(statement)  # model.double(), alone on its line
                else:
                    source.replace_span(source.end(node.func.value), source.end(node), "")
                changed.add(id(node))
        elif isinstance(node, ast.Attribute) and node.attr in _DOUBLE and dotted(node.value) in torch and id(node) not in changed:
            source.replace_span(source.end(node) - len(node.attr), source.end(node), "float32")
            changed.add(id(node))
    # NumPy's arrays are double by default, but labels are not: only those that were seen.
    for part in [source.tree] if everywhere else statements_named(source, request):
        for call in calls_in(part):
            name = dotted(call.func) or ""
            if everywhere and (not name.endswith(".from_numpy") or _INTEGERS.search(source.written(source.statement_of(call)))):
                continue
            if name.rpartition(".")[0] not in torch or id(call) in changed or any(one.arg == "dtype" for one in call.keywords):
                continue
            above = source.parent(call)
            if isinstance(above, ast.Attribute) and above.attr in ("float", "double", "half", "long", "bfloat16", "int"):
                continue
            if name.endswith(".from_numpy"):
                source.after(call, ".float()")
                changed.add(id(call))
            elif name.rpartition(".")[2] in ("tensor", "as_tensor", "asarray") and call.args:
                last = [*call.args, *(one.value for one in call.keywords)][-1]
                source.insert(source.end(last), f", dtype={name.rpartition('.')[0]}.float32")
                changed.add(id(call))
    if not changed:
        raise NoPatch("no line was found that makes float64")


def gradients(source: Source, request: Request) -> None:
    """Gradients that stay as zeros: ``zero_grad(set_to_none=False)``."""
    found = False
    for call in calls_in(source.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
            kept = [one for one in call.keywords if one.arg == "set_to_none" and isinstance(one.value, ast.Constant) and one.value.value is False]
            if kept or (len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value is False):
                source.replace_span(source.end(call.func), source.end(call), "()")
                found = True
    if not found:
        raise NoPatch("no zero_grad(set_to_none=False) was found")
