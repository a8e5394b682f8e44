"""Which parts of an expression are tensors, and of what sort, as far as names and what made them show. There are no types to ask."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .reading import calls_in, names_read
from .source import Source, dotted

_SCALAR = re.compile(r"loss|nll|cost|penalty|^ce$|^kl|_kl$|_ce$|^mse|_mse$|perplexity|grad_?norm|accuracy|^acc$|_acc$", re.IGNORECASE)
_NUMBER = re.compile(
    r"^(?:i|j|k|n|t|idx|index|step|steps|epoch|epochs|it|iter|iteration|name|key|path|count|batch_idx|batch_index|lr|device|layer_name|reward|rewards|done|terminated|truncated|info|text|texts|filename|url)$|_(?:idx|index|name|count|id)$"
)
_REDUCES = {"mean", "sum", "cross_entropy", "mse_loss", "l1_loss", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "norm", "max", "min"}
# What makes a number, a text or a tensor without graph of a tensor.
_DETACHES = {"item", "detach", "cpu", "numpy", "tolist", "float", "int", "len", "str", "format", "round", "bool", "range", "list", "dict"}
_OF_LISTS = {
    "append",
    "appendleft",
    "extend",
    "insert",
    "add",
    "update",
    "clear",
    "pop",
    "popleft",
    "copy",
    "count",
    "items",
    "keys",
    "values",
    "setdefault",
    "get",
    "remove",
    "put",
}
_JOINS = {"stack", "cat", "concat", "concatenate", "hstack", "vstack"}


def tensors_in(source: Source, value: ast.expr, leave: str | None) -> Iterator[ast.expr]:
    """The parts of an expression that are tensors as far as names show, outermost first, without the one that is added to."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        for one in value.elts:
            yield from tensors_in(source, one, leave)
    elif isinstance(value, ast.Dict):
        for entry in value.values:
            yield from tensors_in(source, entry, leave)
    elif isinstance(value, ast.Starred):
        return
    elif isinstance(value, ast.IfExp):
        yield from tensors_in(source, value.body, leave)
        yield from tensors_in(source, value.orelse, leave)
    elif isinstance(value, ast.Call) and dotted(value.func) == "dict":
        for key in value.keywords:
            yield from tensors_in(source, key.value, leave)
    elif isinstance(value, ast.Call) and joins(value) and leave is not None and leave in names_read(value):
        # What it was joined to before is freed already.
        yield from tensors_in(source, value.args[0], leave)
    elif isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield from tensors_in(source, value.elt, leave)
    elif isinstance(value, ast.DictComp):
        yield from tensors_in(source, value.value, leave)
    elif isinstance(value, ast.BinOp):
        named = [one for one in (value.left, value.right) if not _is_number(source, one)]
        if leave is not None and leave in names_read(value):
            is_weighted = isinstance(value.op, (ast.Mult, ast.Div)) and leave in (dotted(value.left), dotted(value.right))
            # `decay * average`: the factor is a number.
            for one in () if is_weighted else (value.left, value.right):
                if dotted(one) != leave:
                    yield from tensors_in(source, one, leave)
        elif len(named) == 1:
            yield from tensors_in(source, named[0], leave)
        elif named:
            scalars = [one for one in named if isinstance(one, (ast.Name, ast.Attribute)) and is_scalar(source, one)]
            # `loss * x.size(0)`: the number is none of the tensors.
            if len(scalars) == 1 and not isinstance(value.op, (ast.Add, ast.Sub)):
                yield scalars[0]
            else:
                yield value
    elif isinstance(value, ast.UnaryOp):
        yield from tensors_in(source, value.operand, leave)
    elif isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) and dotted(value) != leave and not _is_number(source, value):
        yield value


def _is_number(source: Source, node: ast.expr, within: frozenset[str] = frozenset()) -> bool:
    """A number, a text, or a tensor that holds nothing else: as far as names show. ``within``: names that are being asked about already."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.BinOp):
        return _is_number(source, node.left, within) and _is_number(source, node.right, within)
    if isinstance(node, ast.UnaryOp):
        return _is_number(source, node.operand, within)
    if isinstance(node, ast.Call):
        name = dotted(node.func) or str(getattr(node.func, "attr", ""))
        return name.rpartition(".")[2] in {*_DETACHES, "size", "numel", "dim"} and not name.startswith("torch.")
    if isinstance(node, ast.Subscript):
        return dotted(node.value) is not None and (dotted(node.value) or "").endswith(".shape")
    if not isinstance(node, ast.Name):
        return False
    if _NUMBER.search(node.id):
        return True
    if node.id in within:
        return True  # what else it is made of decides
    made = list(makers_of(source, node))
    return bool(made) and all(value is not None and _is_number(source, value, within | {node.id}) for value in made)


def makers_of(source: Source, name: ast.Name) -> Iterator[ast.expr | None]:
    """What the function assigns to a name; ``None`` for what is unknown."""
    for node in ast.walk(source.scope(name)):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name.id:
                    yield node.value
                elif isinstance(target, (ast.Tuple, ast.List)) and name.id in {dotted(one) for one in ast.walk(target)}:
                    if isinstance(node.value, (ast.Tuple, ast.List)) and len(node.value.elts) == len(target.elts):
                        yield from (value for one, value in zip(target.elts, node.value.elts) if dotted(one) == name.id)
                    else:
                        yield None
        elif isinstance(node, ast.AnnAssign) and dotted(node.target) == name.id:
            yield node.value
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and name.id in {dotted(one) for one in ast.walk(node.target)}:
            call = node.iter
            if isinstance(call, ast.Call) and dotted(call.func) == "range":
                yield ast.Constant(0)
            elif isinstance(call, ast.Call) and dotted(call.func) == "enumerate" and isinstance(node.target, ast.Tuple) and dotted(node.target.elts[0]) == name.id:
                yield ast.Constant(0)
            else:
                yield None


def is_scalar(source: Source, node: ast.expr) -> bool:
    """Whether it has one element: because backward is called on it, because of what made it, or because it is called a loss."""
    name = dotted(node)
    if name is not None:
        receivers = {dotted(call.func.value) for call in calls_in(source.scope(node)) if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"}
        if name in receivers:
            return True
        if isinstance(node, ast.Name):
            made = [value for value in makers_of(source, node) if value is not None]
            if any(_keeps_elements(value) for value in made):
                return False
            if any(_reduces(value) for value in made):
                return True
        return bool(_SCALAR.search(name.rpartition(".")[2]))
    if isinstance(node, ast.Call):
        return _reduces(node)
    if isinstance(node, ast.BinOp):
        tensors = [one for one in (node.left, node.right) if not _is_number(source, one)]
        return bool(tensors) and all(is_scalar(source, one) for one in tensors)
    return False


def _reduces(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or _keeps_elements(value):
        return False
    name = (dotted(value.func) or str(getattr(value.func, "attr", ""))).rpartition(".")[2]
    return (name in _REDUCES and not any(_is_dimension(one) for one in value.args[-1:]) and "dim" not in {one.arg for one in value.keywords}) or bool(
        re.search(r"criterion|loss", name, re.IGNORECASE)
    )


def _is_dimension(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or isinstance(node, ast.UnaryOp)


def _keeps_elements(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and any(one.arg == "reduction" and isinstance(one.value, ast.Constant) and one.value.value == "none" for one in value.keywords)


def joins(call: ast.Call) -> bool:
    name = dotted(call.func) or ""
    return name.rpartition(".")[2] in _JOINS and not name.startswith(("np.", "numpy.")) and bool(call.args)


def used_as_tensor(source: Source, scope: ast.AST, kept: str | None) -> bool:
    """Whether a number in its place, or in it, would not do: it has methods called, or is joined."""
    if kept is None:
        return False
    elements = {
        one.id
        for node in ast.walk(scope)
        if isinstance(node, (ast.For, ast.comprehension)) and kept in names_read(node.iter)
        for one in ast.walk(node.target)
        if isinstance(one, ast.Name)
    }
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in _OF_LISTS:
            inner = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if dotted(inner) == kept or dotted(node.value) in elements:
                return True
        elif isinstance(node, ast.Call) and any(kept in names_read(one) for one in node.args):
            if joins(node):
                return True
            # A total of tensors has methods too.
            above = source.parent(node)
            if dotted(node.func) == "sum" and isinstance(above, (ast.Attribute, ast.BinOp)) and _has_method_called(source, node):
                return True
    return False


def _has_method_called(source: Source, node: ast.AST) -> bool:
    above = source.parent(node)
    while isinstance(above, ast.BinOp):
        above = source.parent(above)
    return isinstance(above, ast.Attribute)


def used_with_others(source: Source, scope: ast.AST, kept: str | None) -> bool:
    """Whether it goes on into something that may want it on the card: anything but what is joined and brought to the host."""
    if kept is None:
        return False
    for call in calls_in(scope):
        name = dotted(call.func) or str(getattr(call.func, "attr", ""))
        if not any(kept in names_read(one) for one in call.args) or name.rpartition(".")[2] in {"len", "print", "enumerate", "save", "list", "range", "zip"}:
            continue
        above = source.parent(call)
        if name.rpartition(".")[2] in _JOINS and isinstance(above, ast.Attribute) and above.attr in ("cpu", "numpy", "tolist"):
            continue
        if isinstance(source.parent(call), ast.Return) and name.rpartition(".")[2] in _JOINS:
            continue
        return True
    return False
