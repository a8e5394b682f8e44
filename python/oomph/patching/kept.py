"""Tensors that stay round after round, with or without their graphs: the number, or a copy without graph or on the host, is kept instead."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator

from .reading import Request, calls_in, names_assigned, names_read, names_trained_on, parameters_of, parts_trained_on, statements_named, trains
from .source import NoPatch, Scope, Source, dotted
from .tensors import is_scalar, joins, makers_of, tensors_in, used_as_tensor, used_with_others
from .weights import copies_weights

_PUTS = {"append", "appendleft", "add", "put", "push", "insert", "extend", "update", "setdefault", "store", "save", "log"}


class Form(enum.Enum):
    """What a kept value may be; its name does not show it."""

    TENSOR = "one tensor"
    MAPPING = "a dict of tensors"
    SEQUENCE = "a list or tuple of tensors"


def graph_kept(source: Source, request: Request, form: Form = Form.TENSOR, beside: bool = False, on_card: bool = False) -> None:
    """A loss, an output or a state is kept with all that made it. ``beside``: so are others in the same loop. ``on_card``: it is needed there later."""
    statement = _keeping(source, request)
    if carries_state(source, statement, request.name):
        return _detach_state(source, statement, request.name)
    edited = _without_graph(source, statement, form, on_card)
    for other in _kept_beside(source, statement) if beside else ():
        _without_graph(source, other, form, on_card)
    if not edited:
        raise NoPatch(f"line {statement.lineno} keeps no tensor that its name identifies")


def _without_graph(source: Source, statement: ast.stmt, form: Form, on_card: bool) -> bool:
    kept, values = _kept(statement)
    scope = _holder_scope(source, statement, kept)
    if kept is not None and kept in {dotted(node) for node in parts_trained_on(scope)}:
        raise NoPatch(f"{kept} is what backward is called on: its graph is needed until then")
    edited = False
    sums = _sums(statement)
    for value in values:
        for node in tensors_in(source, value, leave=kept):
            edited = True
            name = dotted(node)
            if form is not Form.TENSOR:
                _end_each(source, node, form, ".detach()" if on_card else ".detach().cpu()")
            elif on_card:
                source.after(node, ".detach()")
            elif sums and name in parameters_of(source.function(statement)) and not used_as_tensor(source, scope, kept):
                # Whoever calls it may give a number as well.
                source.insert(source.start(node), "float(")
                source.insert(source.end(node), ")")
            elif is_scalar(source, node) and not used_as_tensor(source, scope, kept):
                source.after(node, ".item()")
            elif not _grows(statement) or used_with_others(source, scope, kept):
                source.after(node, ".detach()")
            else:
                source.after(node, ".detach().cpu()")
    return edited


def tensors_kept(source: Source, request: Request, form: Form = Form.TENSOR, beside: bool = False) -> None:
    """Results without graph pile up on the card: they go to the host. ``beside``: others of the same loop too, which they may be used with."""
    statement = _keeping(source, request)
    if copies_weights(source, statement):
        return
    edited = _on_host(source, statement, form)
    for other in _kept_beside(source, statement) if beside else ():
        _on_host(source, other, form)
    if not edited:
        raise NoPatch(f"line {statement.lineno} keeps no tensor that its name identifies")


def _on_host(source: Source, statement: ast.stmt, form: Form) -> bool:
    kept, values = _kept(statement)
    edited = False
    for value in values:
        for node in tensors_in(source, value, leave=kept):
            edited = True
            call = node if isinstance(node, ast.Call) else None
            last = call.func.attr if call is not None and isinstance(call.func, ast.Attribute) else ""
            if form is not Form.TENSOR:
                _end_each(source, node, form, ".cpu()")
            elif last == "clone" and call is not None and not call.args:
                # A tensor that comes from the card is a copy already.
                source.replace_span(source.end(call.func) - len("clone"), source.end(call.func), "cpu")
            else:
                source.after(node, ".cpu()")
    return edited


def _end_each(source: Source, node: ast.expr, form: Form, ending: str) -> None:
    """Every tensor in a dict or a list gets the ending."""
    written = source.written(node)
    if form is Form.MAPPING:
        source.replace(node, f"{{key: value{ending} for key, value in {written}.items()}}")
    else:
        source.replace(node, f"[value{ending} for value in {written}]")


def _kept_beside(source: Source, statement: ast.stmt) -> Iterator[ast.stmt]:
    """Other statements of the innermost loop that keep something, round after round; not what a loss is made of, which must keep its graph."""
    trained = names_trained_on(source.scope(statement))
    for loop in source.loops(statement):
        for one in ast.walk(loop):
            if isinstance(one, ast.stmt) and one is not statement and _keeps(one, "") and (_grows(one) or _sums(one)) and _kept(one)[0] not in trained:
                yield one
        return


def _keeping(source: Source, request: Request) -> ast.stmt:
    """The statement that puts something where it stays: on a line that is named, or wherever the named thing is put into."""
    last = _last(request.name)
    for one in statements_named(source, request):
        if _keeps(one, last) and not _makes_empty(one):
            return one
    for node in ast.walk(source.tree):
        if last and isinstance(node, ast.stmt) and _keeps(node, last) and (_grows(node) or _sums(node)):
            return node
    raise NoPatch(f"line {request.line} is not of the form that is known how to change")


def _makes_empty(statement: ast.stmt) -> bool:
    """``history = []``, ``self.memory = deque()``, ``states = defaultdict(list)``: others fill it."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    if isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    name = (dotted(value.func) or "").rpartition(".")[2] if isinstance(value, ast.Call) else ""
    return name == "defaultdict" or (name in {"list", "dict", "set", "deque", "OrderedDict", "Counter"} and isinstance(value, ast.Call) and not value.args)


def _last(name: str | None) -> str:
    """``history`` of ``self.history[3]``."""
    return (name or "").partition("[")[0].rpartition(".")[2]


def _keeps(statement: ast.stmt, last: str) -> bool:
    """Whether it puts something into the thing of that name; without a name, into anything that outlives it."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and statement.value is not None:
        if last:
            return any(target.rpartition(".")[2] == last for target in names_assigned(statement, inside=True))
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return _sums(statement) or any(isinstance(one, (ast.Attribute, ast.Subscript)) for one in targets)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in _PUTS:
        return False
    return not last or _last(dotted(_holder(call.func))) == last


def _holder(method: ast.Attribute) -> ast.expr:
    """What a method is called on, without indices: ``results`` of ``results["loss"].append`` and ``results.setdefault("loss", []).append``."""
    holder: ast.expr = method.value
    while isinstance(holder, (ast.Subscript, ast.Call)):
        inner = holder.func if isinstance(holder, ast.Call) else holder
        holder = inner.value if isinstance(inner, (ast.Attribute, ast.Subscript)) else inner
    return holder


def _sums(statement: ast.stmt) -> bool:
    """``total += x``, ``average = 0.9 * average + x``; not ``h = cell(x, h)``."""
    if isinstance(statement, ast.AugAssign):
        return True
    return isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.BinOp, ast.IfExp)) and bool(names_assigned(statement) & names_read(statement.value))


def _kept(statement: ast.stmt) -> tuple[str | None, list[ast.expr]]:
    """What keeps, and the expressions that it keeps from then on."""
    if isinstance(statement, ast.AugAssign):
        return dotted(statement.target), [statement.value]
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        kept = dotted(target.value if isinstance(target, ast.Subscript) else target)
        return kept, [statement.value]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr in _PUTS:
            kept = dotted(_holder(call.func))
            given = [*call.args, *(one.value for one in call.keywords)]
            return kept, given[1:] if call.func.attr in ("insert", "setdefault") else given
    raise NoPatch(f"line {statement.lineno} does not say what it keeps")


def _holder_scope(source: Source, statement: ast.stmt, kept: str | None) -> Scope:
    """Where what is kept may be used: attributes and globals anywhere in the file."""
    function = source.function(statement)
    if function is None or kept is None or "." in kept:
        return source.tree
    assigned = {name for node in ast.walk(function) if isinstance(node, ast.stmt) for name in names_assigned(node)}
    shared = any(isinstance(node, (ast.Global, ast.Nonlocal)) and kept in node.names for node in ast.walk(function))
    return function if kept in assigned and not shared else source.tree


def _grows(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) or (isinstance(statement, ast.Assign) and any(isinstance(one, ast.Subscript) for one in statement.targets))


_RECURRENT = re.compile(r"\b(?:LSTM|LSTMCell)\b")


def carries_state(source: Source, statement: ast.stmt, name: str | None) -> bool:
    """``h = cell(x, h)``: the state goes into its own next value by a call."""
    if not isinstance(statement, ast.Assign) or not source.loops(statement) or any(joins(call) for call in calls_in(statement.value)):
        return False
    carried = names_assigned(statement) & {read for call in calls_in(statement.value) for one in [*call.args, *(key.value for key in call.keywords)] for read in names_read(one)}
    return bool(carried) and (name is None or name in carried or name.rpartition(".")[2] in {one.rpartition(".")[2] for one in carried})


def _detach_state(source: Source, statement: ast.stmt, name: str | None) -> None:
    assert isinstance(statement, ast.Assign)
    read = names_read(statement.value)
    target = statement.targets[0]
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    carried = [one for one in parts if any(dotted(part) in read for part in ast.walk(one))]
    lines = []
    for one in carried:
        written = source.written(one)
        if isinstance(one, (ast.Tuple, ast.List)):
            names = [source.written(part) for part in one.elts]
            lines.append(f"{', '.join(names)} = {', '.join(f'{part}.detach()' for part in names)}")
        elif _is_several(source, one):
            lines.append(f"{written} = tuple(state.detach() for state in {written})")
        else:
            lines.append(f"{written} = {written}.detach()")
    # After the pass that needs the graph; in the innermost loop that has one.
    for loop in source.loops(statement):
        block = [one for one in loop.body if trains(one)]
        if block:
            last = block[-1]
            if not isinstance(last, (ast.Expr, ast.Assign)):
                raise NoPatch(f"line {last.lineno}: where the backward pass ends is unknown")
            source.insert_line((last.end_lineno or last.lineno) + 1, "\n".join(lines), source.indentation(last.lineno))
            return
    raise NoPatch("there is no backward pass in the loop: where the state may be detached is unknown")


def _is_several(source: Source, node: ast.expr) -> bool:
    """Whether a state is a tuple: as it was made, or because an LSTM is all there is."""
    if isinstance(node, ast.Name):
        for value in makers_of(source, node):
            if isinstance(value, ast.Tuple):
                return True
    return bool(_RECURRENT.search(source.text)) and not re.search(r"\b(?:nn\.RNN|GRU)", source.text)
