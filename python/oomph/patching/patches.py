"""The change for each cause of an out-of-memory, one function each: it finds the code by the line and the name it is told, and edits the source.

A change that could turn the result into another one is not made: then ``NoPatch`` says why. That the change helps, and that the program still runs with it, is checked by
whoever asked, on the virtual GPU; here only the text is known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .source import FUNCTIONS, LOOPS, Function, NoPatch, Scope, Source, dotted, first_line


@dataclass
class Request:
    """What is known of the cause: where it is and what keeps the memory."""

    cause: str
    line: int
    function: str = ""
    name: str | None = None
    also: list[int] = field(default_factory=list)

    @property
    def lines(self) -> list[int]:
        return [self.line, *(line for line in self.also if line != self.line)]


def patched(source: Source, request: Request) -> str:
    """The text with the change."""
    change = CAUSES.get(request.cause)
    if change is None:
        raise NoPatch("no change of a few lines mends this")
    change(source, request)
    return source.result()


# -- no_grad_missing

# Functions whose name says that nothing is trained in them, whatever becomes of their result.
_EVALUATES = re.compile(r"eval|valid|test|infer|predict|generat|sampl|teacher|reference|frozen|accuracy|metric|perplex|score|extract|benchmark", re.IGNORECASE)
# Functions of others' loops that give the loss to somebody who calls backward.
_TRAINS = re.compile(r"^(?:forward|__call__|training_step|train_step|compute_loss|loss|closure|get_loss|calculate_loss)$|train", re.IGNORECASE)
_STEPPED = re.compile(r"optim|^opt|scaler|accelerator|engine|sgd|adam", re.IGNORECASE)
_OFF = {"no_grad", "inference_mode"}


def no_grad_missing(source: Source, request: Request) -> None:
    statement = _statement(source, request, lambda one: not _in_forward(source, one))
    function = source.function(statement)
    if _is_off(source, statement):
        raise NoPatch(f"line {statement.lineno} runs without gradients already")
    if function is not None and _only_evaluates(source, function) and isinstance(function, ast.FunctionDef):
        # Nearest to the function: what other decorators make of it (a property, a static method) is no function any more.
        source.insert_line(function.lineno, f"@{source.torch_member('no_grad', function.lineno)}()")
        return
    wrapped = _largest_without_training(source, statement)
    if isinstance(wrapped, ast.FunctionDef):
        raise NoPatch(f"line {statement.lineno} defines a function")
    source.wrap(wrapped, f"with {source.torch_member('no_grad', wrapped.lineno)}():")


def _in_forward(source: Source, statement: ast.stmt) -> bool:
    """Inside a model: it is the call of it that trains or not."""
    function = source.function(statement)
    return function is not None and function.name in ("forward", "__call__")


def _is_off(source: Source, statement: ast.stmt) -> bool:
    """Whether it runs under no_grad as it is written."""
    calls: list[ast.expr] = []
    for above in source.parents(statement):
        if isinstance(above, (ast.With, ast.AsyncWith)):
            calls += [item.context_expr for item in above.items]
        elif isinstance(above, FUNCTIONS):
            calls += above.decorator_list
    names = [dotted(one.func if isinstance(one, ast.Call) else one) or "" for one in calls]
    return any(name.rpartition(".")[2] in _OFF for name in names)


def _trains(node: ast.AST) -> bool:
    """Whether it calls backward, or steps an optimizer."""
    for call in _calls(node):
        name = (dotted(call.func) or getattr(call.func, "attr", "")).split(".")
        if name[-1] in ("backward", "manual_backward") or name[-2:] == ["autograd", "grad"]:
            return True
        if name[-1] == "step" and len(name) > 1 and _STEPPED.search(name[-2]):
            return True
    return False


def _only_evaluates(source: Source, function: Function) -> bool:
    """Whether nothing that it makes is trained on: neither in it nor by those who call it."""
    if _trains(function) or (_TRAINS.search(function.name) and not _EVALUATES.search(function.name)):
        return False
    if _EVALUATES.search(function.name):
        return True
    # What it returns may be the loss of somebody else.
    for call in _calls(source.tree):
        if (dotted(call.func) or "").rpartition(".")[2] != function.name:
            continue
        scope = source.scope(call)
        if scope is function:
            continue
        if any(made is call for made in _trained_on(scope)) or _targets(source.statement_of(call)) & _names_trained_on(scope):
            return False
    return True


def _trained_on(scope: Scope) -> Iterator[ast.AST]:
    """All that stands in what backward is called on: ``f(x).backward()``."""
    for call in _calls(scope):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            yield from ast.walk(call.func.value)
            for argument in call.args:
                yield from ast.walk(argument)


def _names_trained_on(scope: Scope) -> set[str]:
    """Names whose graph a backward goes through: its own, and those that it is made of."""
    names = {name for node in _trained_on(scope) if (name := dotted(node)) is not None}
    while True:
        more = set(names)
        for node in ast.walk(scope):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None and _targets(node) & names:
                more |= _read(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append" and dotted(node.func.value) in names:
                more |= {name for one in node.args for name in _read(one)}
        if more == names:
            return names
        names = more


def _largest_without_training(source: Source, statement: ast.stmt) -> ast.stmt:
    """The outermost loop around it in which nothing is trained; without one, the statement."""
    found: ast.stmt | None = None
    for loop in source.loops(statement):
        assert isinstance(loop, ast.stmt)
        made = {name for node in ast.walk(loop) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) for name in _targets(node)}
        if _trains(loop) or made & _trained_on_later(source, loop):
            break
        found = loop
    if found is not None:
        return found
    # What a loss is made with may be made without a graph, as a teacher's output is; the loss itself may not.
    if _targets(statement) & _trained_on_later(source, statement, itself=True):
        raise NoPatch(f"line {statement.lineno} makes what backward is called on")
    if isinstance(statement, (*LOOPS, ast.If, ast.Try, ast.With, ast.ClassDef)) and _trains(statement):
        raise NoPatch(f"line {statement.lineno} begins a block that trains")
    return statement


def _trained_on_later(source: Source, statement: ast.stmt, itself: bool = False) -> set[str]:
    """Names whose value, as it is after a statement, goes into a backward below it; with ``itself`` only what backward is called on."""
    scope, end = source.scope(statement), statement.end_lineno or statement.lineno
    later = [node for node in ast.walk(scope) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.lineno > end and node.value is not None]
    found: set[str] = set()
    for call in _calls(scope):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward" or call.lineno <= end:
            continue
        needed = _read(call.func.value)
        for one in sorted(later, key=lambda node: -node.lineno):
            if one.lineno < call.lineno and _targets(one) & needed:
                needed = (needed if isinstance(one, ast.AugAssign) else needed - _targets(one)) | (set() if itself else _read(one.value))
        found |= needed
    return found


# -- graph_kept and tensors_kept

_SCALAR = re.compile(r"loss|nll|cost|penalty|^ce$|^kl|_kl$|_ce$|^mse|_mse$|perplexity|grad_?norm|accuracy|^acc$|_acc$", re.IGNORECASE)
_NUMBER = re.compile(r"^(?:i|j|k|n|t|idx|index|step|steps|epoch|epochs|it|iter|iteration|name|key|path|count|batch_idx|batch_index|lr|device|layer_name|reward|rewards|done|terminated|truncated|info|text|texts|filename|url)$|_(?:idx|index|name|count|id)$")
_REDUCES = {"mean", "sum", "cross_entropy", "mse_loss", "l1_loss", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "norm", "max", "min"}
# What makes a number, a text or a tensor without graph of a tensor.
_LET_GO = {"item", "detach", "cpu", "numpy", "tolist", "float", "int", "len", "str", "format", "round", "bool", "range", "list", "dict"}
_PUTS = {"append", "appendleft", "add", "put", "push", "insert", "extend", "update", "setdefault", "store", "save", "log"}


def graph_kept(source: Source, request: Request) -> None:
    """A loss, an output or a state is kept with all that made it."""
    statement = _keeping(source, request)
    if _carries(source, statement, request.name):
        return _let_go_of_the_state(source, statement, request.name)
    kept, values = _kept(statement)
    scope = _holder_scope(source, statement, kept)
    if kept is not None and kept in {dotted(node) for node in _trained_on(scope)}:
        raise NoPatch(f"{kept} is what backward is called on: its graph is needed until then")
    edited = False
    sums = _sums(statement)
    for value in values:
        for node in _tensors(source, value, leave=kept):
            edited = True
            name = dotted(node)
            if sums and name in _parameters(source.function(statement)) and not _used_as_tensor(source, scope, kept):
                # Whoever calls it may give a number as well.
                source.insert(source.start(node), "float(")
                source.insert(source.end(node), ")")
            elif _is_scalar(source, node) and not _used_as_tensor(source, scope, kept):
                source.after(node, ".item()")
            elif not _grows(statement) or _used_with_others(source, scope, kept):
                source.after(node, ".detach()")
            else:
                source.after(node, ".detach().cpu()")
    if not edited:
        raise NoPatch(f"line {statement.lineno} keeps no tensor that could be told by its name")


def tensors_kept(source: Source, request: Request) -> None:
    """Results without graph pile up on the card: they go to the host."""
    statement = _keeping(source, request)
    if _copies_weights(source, statement):
        return
    kept, values = _kept(statement)
    edited = False
    for value in values:
        for node in _tensors(source, value, leave=kept):
            edited = True
            call = node if isinstance(node, ast.Call) else None
            last = call.func.attr if call is not None and isinstance(call.func, ast.Attribute) else ""
            if last == "clone" and call is not None and not call.args:
                # A tensor that comes from the card is a copy already.
                source.replace_span(source.end(call.func) - len("clone"), source.end(call.func), "cpu")
            else:
                source.after(node, ".cpu()")
    if not edited:
        raise NoPatch(f"line {statement.lineno} keeps no tensor that could be told by its name")


def _keeping(source: Source, request: Request) -> ast.stmt:
    """The statement that puts something where it stays: on a line that is named, or wherever the named thing is put into."""
    last = _last(request.name)
    for one in _statements(source, request):
        if _keeps(one, last):
            return one
    for one in ast.walk(source.tree):
        if last and isinstance(one, ast.stmt) and _keeps(one, last) and (_grows(one) or _sums(one)):
            return one
    raise NoPatch(f"line {request.line} is not of the form that is known how to change")


def _last(name: str | None) -> str:
    """``history`` of ``self.history[3]``."""
    return (name or "").partition("[")[0].rpartition(".")[2]


def _keeps(statement: ast.stmt, last: str) -> bool:
    """Whether it puts something into the thing of that name; without a name, into anything that outlives it."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and statement.value is not None:
        if last:
            return any(target.rpartition(".")[2] == last for target in _targets(statement, inside=True))
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
    return isinstance(statement, ast.Assign) and isinstance(statement.value, (ast.BinOp, ast.IfExp)) and bool(_targets(statement) & _read(statement.value))


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


def _tensors(source: Source, value: ast.expr, leave: str | None) -> Iterator[ast.expr]:
    """The parts of an expression that are tensors as far as names tell, outermost first, without the one that is added to."""
    if isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        for one in value.elts:
            yield from _tensors(source, one, leave)
    elif isinstance(value, ast.Dict):
        for entry in value.values:
            yield from _tensors(source, entry, leave)
    elif isinstance(value, ast.Starred):
        return
    elif isinstance(value, ast.IfExp):
        yield from _tensors(source, value.body, leave)
        yield from _tensors(source, value.orelse, leave)
    elif isinstance(value, ast.Call) and dotted(value.func) == "dict":
        for key in value.keywords:
            yield from _tensors(source, key.value, leave)
    elif isinstance(value, ast.Call) and _joins(value) and leave is not None and leave in _read(value):
        # What it was joined to before has let go already.
        yield from _tensors(source, value.args[0], leave)
    elif isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
        yield from _tensors(source, value.elt, leave)
    elif isinstance(value, ast.DictComp):
        yield from _tensors(source, value.value, leave)
    elif isinstance(value, ast.BinOp):
        named = [one for one in (value.left, value.right) if not _is_number(source, one)]
        if leave is not None and leave in _read(value):
            for one in (value.left, value.right):
                if dotted(one) != leave:
                    yield from _tensors(source, one, leave)
        elif len(named) == 1:
            yield from _tensors(source, named[0], leave)
        elif named:
            scalars = [one for one in named if isinstance(one, (ast.Name, ast.Attribute)) and _is_scalar(source, one)]
            # `loss * x.size(0)`: the number is none of the tensors.
            if len(scalars) == 1 and not isinstance(value.op, (ast.Add, ast.Sub)):
                yield scalars[0]
            else:
                yield value
    elif isinstance(value, ast.UnaryOp):
        yield from _tensors(source, value.operand, leave)
    elif isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) and dotted(value) != leave and not _is_number(source, value):
        yield value


def _is_number(source: Source, node: ast.expr, within: frozenset[str] = frozenset()) -> bool:
    """A number, a text, or a tensor that holds nothing else: as far as names tell. ``within``: names that are being asked about already."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.BinOp):
        return _is_number(source, node.left, within) and _is_number(source, node.right, within)
    if isinstance(node, ast.UnaryOp):
        return _is_number(source, node.operand, within)
    if isinstance(node, ast.Call):
        name = dotted(node.func) or getattr(node.func, "attr", "")
        return name.rpartition(".")[2] in {*_LET_GO, "size", "numel", "dim"} and not name.startswith("torch.")
    if isinstance(node, ast.Subscript):
        return dotted(node.value) is not None and (dotted(node.value) or "").endswith(".shape")
    if not isinstance(node, ast.Name):
        return False
    if _NUMBER.search(node.id):
        return True
    if node.id in within:
        return True  # what else it is made of decides
    made = list(_made(source, node))
    return bool(made) and all(value is not None and _is_number(source, value, within | {node.id}) for value in made)


def _made(source: Source, name: ast.Name) -> Iterator[ast.expr | None]:
    """What the function assigns to a name; ``None`` for what cannot be told."""
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


def _is_scalar(source: Source, node: ast.expr) -> bool:
    """Whether it has one element: because backward is called on it, because of what made it, or because it is called a loss."""
    name = dotted(node)
    if name is not None:
        receivers = {dotted(call.func.value) for call in _calls(source.scope(node)) if isinstance(call.func, ast.Attribute) and call.func.attr == "backward"}
        if name in receivers:
            return True
        if isinstance(node, ast.Name):
            made = [value for value in _made(source, node) if value is not None]
            if any(_keeps_elements(value) for value in made):
                return False
            if any(_reduces(value) for value in made):
                return True
        return bool(_SCALAR.search(name.rpartition(".")[2]))
    if isinstance(node, ast.Call):
        return _reduces(node)
    if isinstance(node, ast.BinOp):
        tensors = [one for one in (node.left, node.right) if not _is_number(source, one)]
        return bool(tensors) and all(_is_scalar(source, one) for one in tensors)
    return False


def _reduces(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or _keeps_elements(value):
        return False
    name = (dotted(value.func) or getattr(value.func, "attr", "")).rpartition(".")[2]
    return (name in _REDUCES and not any(_is_dimension(one) for one in value.args[-1:]) and "dim" not in {one.arg for one in value.keywords}) or bool(
        re.search(r"criterion|loss", name, re.IGNORECASE)
    )


def _is_dimension(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or isinstance(node, ast.UnaryOp)


def _keeps_elements(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and any(one.arg == "reduction" and isinstance(one.value, ast.Constant) and one.value.value == "none" for one in value.keywords)


def _holder_scope(source: Source, statement: ast.stmt, kept: str | None) -> ast.AST:
    """Where what is kept may be used: attributes and globals anywhere in the file."""
    function = source.function(statement)
    if function is None or kept is None or "." in kept:
        return source.tree
    assigned = {name for node in ast.walk(function) if isinstance(node, ast.stmt) for name in _targets(node)}
    shared = any(isinstance(node, (ast.Global, ast.Nonlocal)) and kept in node.names for node in ast.walk(function))
    return function if kept in assigned and not shared else source.tree


_OF_LISTS = {"append", "appendleft", "extend", "insert", "add", "update", "clear", "pop", "popleft", "copy", "count", "items", "keys", "values", "setdefault", "get", "remove", "put"}
_JOINS = {"stack", "cat", "concat", "concatenate", "hstack", "vstack"}


def _joins(call: ast.Call) -> bool:
    name = dotted(call.func) or ""
    return name.rpartition(".")[2] in _JOINS and not name.startswith(("np.", "numpy.")) and bool(call.args)


def _used_as_tensor(source: Source, scope: ast.AST, kept: str | None) -> bool:
    """Whether a number in its place, or in it, would not do: it has methods called, or is joined."""
    if kept is None:
        return False
    elements = {one.id for node in ast.walk(scope) if isinstance(node, (ast.For, ast.comprehension)) and kept in _read(node.iter) for one in ast.walk(node.target) if isinstance(one, ast.Name)}
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in _OF_LISTS:
            inner = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if dotted(inner) == kept or dotted(node.value) in elements:
                return True
        elif isinstance(node, ast.Call) and any(kept in _read(one) for one in node.args):
            if _joins(node):
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


def _used_with_others(source: Source, scope: ast.AST, kept: str | None) -> bool:
    """Whether it goes on into something that may want it on the card: anything but what is joined and brought to the host."""
    if kept is None:
        return False
    for call in _calls(scope):
        name = dotted(call.func) or getattr(call.func, "attr", "")
        if not any(kept in _read(one) for one in call.args) or name.rpartition(".")[2] in {"len", "print", "enumerate", "save", "list", "range", "zip"}:
            continue
        above = source.parent(call)
        if name.rpartition(".")[2] in _JOINS and isinstance(above, ast.Attribute) and above.attr in ("cpu", "numpy", "tolist"):
            continue
        if isinstance(source.parent(call), ast.Return) and name.rpartition(".")[2] in _JOINS:
            continue
        return True
    return False


def _grows(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) or (isinstance(statement, ast.Assign) and any(isinstance(one, ast.Subscript) for one in statement.targets))


# -- a state that is carried from round to round

_RECURRENT = re.compile(r"\b(?:LSTM|LSTMCell)\b")


def _carries(source: Source, statement: ast.stmt, name: str | None) -> bool:
    """``h = cell(x, h)``: the state goes into its own next value by a call."""
    if not isinstance(statement, ast.Assign) or not source.loops(statement) or any(_joins(call) for call in _calls(statement.value)):
        return False
    carried = _targets(statement) & {read for call in _calls(statement.value) for one in [*call.args, *(key.value for key in call.keywords)] for read in _read(one)}
    return bool(carried) and (name is None or name in carried or name.rpartition(".")[2] in {one.rpartition(".")[2] for one in carried})


def _let_go_of_the_state(source: Source, statement: ast.stmt, name: str | None) -> None:
    assert isinstance(statement, ast.Assign)
    read = _read(statement.value)
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
        block = [one for one in loop.body if _trains(one)]  # type: ignore[attr-defined]
        if block:
            last = block[-1]
            if not isinstance(last, (ast.Expr, ast.Assign)):
                raise NoPatch(f"line {last.lineno}: where the backward pass ends cannot be told")
            source.insert_line((last.end_lineno or last.lineno) + 1, "\n".join(lines), source.indentation(last.lineno))
            return
    raise NoPatch("there is no backward pass in the loop: where the state may be cut off cannot be told")


def _is_several(source: Source, node: ast.expr) -> bool:
    """Whether a state is a tuple: as it was made, or because an LSTM is all there is."""
    if isinstance(node, ast.Name):
        for value in _made(source, node):
            if isinstance(value, ast.Tuple):
                return True
    return bool(_RECURRENT.search(source.text)) and not re.search(r"\b(?:nn\.RNN|GRU)", source.text)


# -- copies of weights

def _copies_weights(source: Source, statement: ast.stmt) -> bool:
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
    for statement in _statements(source, request):
        for call in _calls(statement):
            name = (dotted(call.func) or "").rpartition(".")[2]
            if name in ("load", "load_file", "load_checkpoint") and _puts_on_the_host(source, call, "device" if name == "load_file" else "map_location"):
                return
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) and any("best" in name or "state" in name for name in _targets(statement)) and _copies_weights(source, statement):
            return
        if "state_dict(" in source.written(statement) and _copies_weights(source, statement):
            return
    for call in _calls(source.tree):
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


# -- backward_once

def backward_once(source: Source, request: Request) -> None:
    """Losses are summed and backward comes at the end: each part gets its own backward, and its graph goes."""
    adding = _statement(source, request, lambda one: bool(source.loops(one)) and _adds(one) is not None)
    total, part = _adds(adding) or ("", adding.value)  # type: ignore[attr-defined]
    loop, later, backward = _backward_after(source, adding)
    if any(isinstance(one, ast.Assign) and _carries(source, one, None) for one in ast.walk(loop)):
        raise NoPatch(f"the rounds of the loop of line {loop.lineno} go on from one another: one backward goes through all of them")
    between = later[: later.index(backward)]
    receiver = backward.value.func.value  # type: ignore[attr-defined]
    scaled, dropped = _scaled(source, receiver, loop, total), [backward]
    makers = [one for one in between if isinstance(one, (ast.Assign, ast.AugAssign)) and dotted(receiver) in _targets(one)]
    if makers:
        maker = makers[-1]
        value = maker.value if isinstance(maker, ast.Assign) else ast.BinOp(maker.target, maker.op, maker.value)
        scaled = _scaled(source, value, loop, total) if len(makers) == 1 else None
        dropped.append(maker)
    if scaled is None:
        raise NoPatch(f"what line {backward.lineno} calls backward on is not a plain sum of the parts")
    for one in between:
        if any(isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad" for call in _calls(one)):
            # It would take away what the parts have left.
            source.move_before(one, loop)
    gone = {id(one) for one in [*dropped, adding]}
    uses = [node for node in ast.walk(source.scope(adding)) if isinstance(getattr(node, "ctx", None), ast.Load) and id(source.statement_of(node)) not in gone]
    if makers and dotted(receiver) != total and any(dotted(node) == dotted(receiver) and node.lineno > backward.lineno for node in uses):  # type: ignore[attr-defined]
        raise NoPatch(f"{dotted(receiver)} is used after its backward")
    if any(dotted(node) == total for node in uses):
        # The sum is still asked for: without the graphs.
        if makers and dotted(receiver) == total:
            dropped.remove(makers[-1])
        if isinstance(part, ast.Name):
            source.insert_line(first_line(adding), _backward_of(part.id, True, scaled))
            source.after(part, ".detach()")
        else:
            source.insert_line(first_line(adding), f"part = {source.written(part)}\n{_backward_of('part', True, scaled)}")
            source.replace(part, "part.detach()")
    else:
        source.replace(adding, _backward_of(source.written(part), _is_atom(part), scaled))
        block = source.block(loop)
        for one in block[: block.index(loop)]:
            if isinstance(one, ast.Assign) and [dotted(target) for target in one.targets] == [total]:
                source.remove(one)
    for one in dropped:
        source.remove(one)


def _backward_after(source: Source, adding: ast.stmt) -> tuple[ast.stmt, list[ast.stmt], ast.stmt]:
    """The loop around the sum, what comes after it, and the one backward there."""
    for loop in source.loops(adding):
        assert isinstance(loop, ast.stmt)
        block = source.block(loop)
        later = block[block.index(loop) + 1 :]
        passes = [one for one in later if _is_backward(one)]
        if len(passes) == 1:
            return loop, later, passes[0]
        if passes or any(_trains(one) for one in loop.body):  # type: ignore[attr-defined]
            break
    raise NoPatch(f"line {adding.lineno} is not followed by one backward() after its loop")


def _backward_of(part: str, is_atom: bool, scaled: str) -> str:
    """``scaled`` as ``_scaled`` gives it."""
    if scaled.endswith("({})"):
        return f"{scaled.format(part)}.backward()"
    part = part if is_atom or scaled == "{}" else f"({part})"
    return f"{part}.backward()" if is_atom and scaled == "{}" else f"({scaled.format(part)}).backward()"


def _is_backward(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args and not call.keywords


def _adds(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """The total and what is added: ``total += loss``, ``total = total + loss``, ``losses.append(loss)``."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        name = dotted(statement.target)
        return (name, statement.value) if name is not None else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.BinOp) and isinstance(statement.value.op, ast.Add):
        name, value = dotted(statement.targets[0]), statement.value
        if name is not None and dotted(value.left) == name:
            return name, value.right
        if name is not None and dotted(value.right) == name:
            return name, value.left
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1:
            name = dotted(call.func.value)
            return (name, call.args[0]) if name is not None else None
    return None


def _scaled(source: Source, value: ast.expr, loop: ast.stmt, total: str) -> str | None:
    """How one part goes into a value, with ``{}`` for the part: ``total / n`` is ``{} / n``, ``torch.stack(losses).mean()`` is ``{} / len(batches)``."""
    if dotted(value) == total or _joined(value, "sum", total):
        return "{}"
    if _joined(value, "mean", total):
        return f"{{}} / {_rounds(source, loop)}"
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "scale" and len(value.args) == 1:
        inner = _scaled(source, value.args[0], loop, total)
        return inner and f"{source.written(value.func)}({inner})"
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Div, ast.Mult)) and _scaled(source, value.left, loop, total) == "{}":
        right = ast.unparse(value.right)
        if right == f"len({total})":
            right = _rounds(source, loop)
        elif total in _read(value.right):
            return None
        return f"{{}} {'/' if isinstance(value.op, ast.Div) else '*'} {right}"
    return None


def _joined(value: ast.expr, how: str, total: str) -> bool:
    """``sum(losses)``, ``torch.stack(losses).sum()``, ``torch.mean(torch.stack(losses))``."""
    if not isinstance(value, ast.Call):
        return False
    if dotted(value.func) == how == "sum":
        return [dotted(one) for one in value.args] == [total]
    if not isinstance(value.func, ast.Attribute) or value.func.attr != how:
        return False
    inner = value.args[0] if value.args else value.func.value
    return isinstance(inner, ast.Call) and (dotted(inner.func) or "").rpartition(".")[2] == "stack" and [dotted(one) for one in inner.args] == [total]


def _rounds(source: Source, loop: ast.stmt) -> str:
    """How often a loop goes round, as an expression that is known before it begins."""
    if isinstance(loop, ast.For):
        over = loop.iter
        if isinstance(over, ast.Call) and dotted(over.func) == "range" and len(over.args) == 1:
            return source.written(over.args[0])
        while isinstance(over, ast.Call) and dotted(over.func) in ("enumerate", "zip", "tqdm") and over.args:
            over = over.args[0]
        if isinstance(over, (ast.Name, ast.Attribute)):
            return f"len({source.written(over)})"
    raise NoPatch(f"how often the loop of line {loop.lineno} goes round is not known before it ends")


def _is_atom(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))


# -- gradients

def gradients(source: Source, request: Request) -> None:
    """Gradients that stay as zeros: ``zero_grad(set_to_none=False)``."""
    found = False
    for call in _calls(source.tree):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
            kept = [one for one in call.keywords if one.arg == "set_to_none" and isinstance(one.value, ast.Constant) and one.value.value is False]
            if kept or (len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value is False):
                source.replace_span(source.end(call.func), source.end(call), "()")
                found = True
    if not found:
        raise NoPatch("no zero_grad(set_to_none=False) was found")


# -- float64

_DOUBLE = {"float64", "double"}


def float64(source: Source, request: Request) -> None:
    """What is made double becomes float32: all of what says so, or models and data would not match."""
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
    # NumPy's arrays are double unless told otherwise, but labels are not: only those that were seen.
    for statement in _statements(source, request):
        for call in _calls(statement):
            name = dotted(call.func) or ""
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


# -- attention_scores

def attention_scores(source: Source, request: Request) -> None:
    """``softmax(q @ k.transpose(-2, -1) * scale) @ v``, over a few statements, becomes scaled_dot_product_attention."""
    near = _statements(source, request)
    scopes = list(dict.fromkeys(source.scope(one) for one in near))
    for scope in scopes:
        for product in [node for node in ast.walk(scope) if isinstance(node, (ast.BinOp, ast.Call))]:
            read = _Attention(source, scope).read(product)
            if read is None:
                continue
            query, key, value, scale, dropped = read
            function = source.bound("torch.nn.functional", product.lineno)
            name = f"{function}.scaled_dot_product_attention" if function else source.torch_member("nn.functional.scaled_dot_product_attention", product.lineno)
            source.replace(product, f"{name}({query}, {key}, {value}{scale})")
            for one in dropped:
                source.remove(one)
            return
    raise NoPatch("the scores are not made by a plain softmax(q @ k.transpose(-2, -1)) @ v: a mask or a dropout is between, or it is written otherwise")


class _Attention:
    """Reads attention backwards from the product with the values."""

    def __init__(self, source: Source, scope: Scope) -> None:
        self.source, self.scope = source, scope
        self.dropped: list[ast.stmt] = []

    def read(self, product: ast.expr) -> tuple[str, str, str, str, list[ast.stmt]] | None:
        written = self.source.written
        outer = _product(product)
        if outer is None:
            return None
        weights = self._behind(outer[0])
        if not isinstance(weights, ast.Call) or (dotted(weights.func) or getattr(weights.func, "attr", "")).rpartition(".")[2] != "softmax":
            return None
        is_method = isinstance(weights.func, ast.Attribute) and (dotted(weights.func) or "").split(".")[0] not in ("F", "torch", "nn")
        dimension = [*weights.args[0 if is_method else 1 :], *(one.value for one in weights.keywords if one.arg == "dim")]
        if any(one.arg != "dim" for one in weights.keywords) or len(dimension) != 1 or ast.unparse(dimension[0]) != "-1":
            return None
        scores = self._behind(weights.func.value if is_method and isinstance(weights.func, ast.Attribute) else weights.args[0])
        factor: tuple[str, ast.expr] | None = None
        if isinstance(scores, ast.BinOp) and isinstance(scores.op, (ast.Mult, ast.Div)):
            factor = ("/" if isinstance(scores.op, ast.Div) else "*", scores.right)
            scores = self._behind(scores.left)
        inner = _product(scores) if scores is not None else None
        if inner is None:
            return None
        key = self._behind(inner[1], keep=True)
        transposed = _transposed(key)
        if transposed is None:
            return None
        query = written(inner[0])
        return query, written(transposed), written(outer[1]), self._scale(query, factor), self.dropped

    def _behind(self, node: ast.expr, keep: bool = False) -> ast.expr | None:
        """What a name was made by, if it has no other use; the statement goes then."""
        if not isinstance(node, ast.Name) or (keep and _transposed(node) is not None):
            return node
        makers = [one for one in ast.walk(self.scope) if isinstance(one, ast.Assign) and node.id in _targets(one)]
        uses = [one for one in ast.walk(self.scope) if isinstance(one, ast.Name) and one.id == node.id and isinstance(one.ctx, ast.Load)]
        # `scores = scores.softmax(-1)`: the last one before this use.
        before = [one for one in makers if one.lineno < node.lineno]
        if not before or len(uses) != len(makers):
            return None
        maker = before[-1]
        if len(maker.targets) != 1 or not isinstance(maker.targets[0], ast.Name) or len(makers) > 3:
            return None
        self.dropped.append(maker)
        return maker.value

    def _scale(self, query: str, factor: tuple[str, ast.expr] | None) -> str:
        if factor is None:
            return ", scale=1.0"
        sign, value = factor
        text = ast.unparse(value)
        of_query = rf"{re.escape(query)}\.(?:size\(-1\)|shape\[-1\])"
        if re.fullmatch(rf"(?:math|np|numpy)\.sqrt\({of_query}\)|{of_query} \*\* 0\.5" if sign == "/" else rf"{of_query} \*\* -0\.5", text):
            return ""
        if sign == "*":
            return f", scale={text}"
        return f", scale=1 / {text}" if _is_atom(value) or isinstance(value, ast.Constant) else f", scale=1 / ({text})"


def _product(node: ast.AST | None) -> tuple[ast.expr, ast.expr] | None:
    """``a @ b``, ``torch.matmul(a, b)``, ``torch.bmm(a, b)``, ``a.matmul(b)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call) and not node.keywords:
        name = (dotted(node.func) or getattr(node.func, "attr", "")).rpartition(".")
        if name[2] in ("matmul", "bmm"):
            if len(node.args) == 2:
                return node.args[0], node.args[1]
            if len(node.args) == 1 and isinstance(node.func, ast.Attribute):
                return node.func.value, node.args[0]
    return None


def _transposed(node: ast.AST | None) -> ast.expr | None:
    """What is transposed in its last two dimensions."""
    if isinstance(node, ast.Attribute) and node.attr == "mT":
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "transpose" and len(node.args) == 2:
        if ast.unparse(node.args[0]) + ast.unparse(node.args[1]) in ("-2-1", "-1-2", "23", "32", "12", "21"):
            return node.func.value
    return None


CAUSES: dict[str, Callable[[Source, Request], None]] = {
    one.__name__: one for one in (no_grad_missing, graph_kept, tensors_kept, backward_once, copy_of_weights, gradients, float64, attention_scores)
}


# -- what several need

def _statements(source: Source, request: Request) -> list[ast.stmt]:
    """Those that the lines belong to, best first."""
    found = [one for line in request.lines if (one := source.statement(line)) is not None]
    return list(dict.fromkeys(found))


def _statement(source: Source, request: Request, serves: Callable[[ast.stmt], bool]) -> ast.stmt:
    """The first of them that serves."""
    for one in _statements(source, request):
        if serves(one):
            return one
    raise NoPatch(f"line {request.line} is not of the form that is known how to change")


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def _read(node: ast.AST) -> set[str]:
    """Names that it reads, dotted ones included."""
    return {name for one in ast.walk(node) if (name := dotted(one)) is not None and isinstance(getattr(one, "ctx", None), ast.Load)}


def _targets(statement: ast.AST, inside: bool = False) -> set[str]:
    """Names that it assigns to; with ``inside``, those of containers that it puts something into as well."""
    targets: Iterable[ast.AST] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets = [statement.target]
    elif isinstance(statement, (ast.For, ast.AsyncFor)):
        targets = [statement.target]
    found = set()
    for target in targets:
        for part in [target] if not isinstance(target, (ast.Tuple, ast.List)) else list(ast.walk(target)):
            while inside and isinstance(part, ast.Subscript):
                part = part.value
            if (name := dotted(part)) is not None:
                found.add(name)
    return found


def _parameters(function: Function | None) -> set[str]:
    if function is None:
        return set()
    given = function.args
    return {one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]}
