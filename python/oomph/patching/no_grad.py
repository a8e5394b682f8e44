"""An evaluation, or a frozen model, that runs with gradients: they are turned off around it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .reading import Request, calls_in, names_assigned, names_read, names_trained_on, parts_trained_on, statement_that, trains
from .source import FUNCTIONS, LOOPS, Function, NoPatch, Source, dotted

# Functions whose name says that nothing is trained in them, whatever becomes of their result.
_EVALUATES = re.compile(r"eval|valid|test|infer|predict|generat|sampl|teacher|reference|frozen|accuracy|metric|perplex|score|extract|benchmark", re.IGNORECASE)
# Functions of others' loops that return the loss to a caller that calls backward.
_TRAINS = re.compile(r"^(?:forward|__call__|training_step|train_step|compute_loss|loss|closure|get_loss|calculate_loss)$|train", re.IGNORECASE)
_OFF = {"no_grad", "inference_mode"}


def no_grad_missing(source: Source, request: Request) -> None:
    """Around the code that is named."""
    _turn_off(source, _place(source, statement_that(source, request, lambda one: not _in_forward(source, one))))


def no_grad_missing_in_caller(source: Source, request: Request) -> None:
    """Around those who call it without training on the result: ``validate`` where ``training_step`` shares its ``shared_step``."""
    function = source.function(statement_that(source, request, lambda one: not _in_forward(source, one)))
    if function is None or trains(function):
        raise NoPatch(f"line {request.line} is never called")
    calls = list(_calls_of(source, function))
    evaluating = [call for call in calls if not _is_trained_on(source, call)]
    if len(evaluating) == len(calls) or not evaluating:
        raise NoPatch(f"{function.name} is not shared by training and evaluation")
    # Two calls in one loop or function are one change.
    places = {id(place): place for place in (_place(source, source.statement_of(call)) for call in evaluating)}
    for place in places.values():
        _turn_off(source, place)


def _place(source: Source, statement: ast.stmt) -> ast.stmt:
    """What to run without gradients: the function, a loop, or the statement."""
    function = source.function(statement)
    if _is_off(source, statement):
        raise NoPatch(f"line {statement.lineno} runs without gradients already")
    if isinstance(function, ast.FunctionDef) and _only_evaluates(source, function):
        return function
    if function is not None:
        trained = [_is_trained_on(source, call) for call in _calls_of(source, function)]
        # Training still runs if only a part of the step has no graph; that part would not be trained.
        if any(trained) and (isinstance(statement, ast.Return) or not all(trained)):
            raise NoPatch(f"{function.name} makes what others call backward on")
    wrapped = _largest_without_training(source, statement)
    if isinstance(wrapped, ast.FunctionDef):
        raise NoPatch(f"line {statement.lineno} defines a function")
    return wrapped


def _turn_off(source: Source, place: ast.stmt) -> None:
    no_grad = source.torch_member("no_grad", place.lineno)
    if isinstance(place, ast.FunctionDef):
        # Nearest to the function: what other decorators make of it (a property, a static method) is no function any more.
        source.insert_line(place.lineno, f"@{no_grad}()")
    else:
        source.wrap(place, f"with {no_grad}():")


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


def _only_evaluates(source: Source, function: Function) -> bool:
    """Whether nothing that it makes is trained on: neither in it nor by those who call it."""
    if trains(function) or (_TRAINS.search(function.name) and not _EVALUATES.search(function.name)):
        return False
    if _EVALUATES.search(function.name):
        return True
    # What it returns may be the loss of another caller.
    return not any(_is_trained_on(source, call) for call in _calls_of(source, function))


def _calls_of(source: Source, function: Function) -> Iterator[ast.Call]:
    """Where it is called, as far as its name shows; not by itself."""
    named = (call for call in calls_in(source.tree) if (dotted(call.func) or "").rpartition(".")[2] == function.name)
    return (call for call in named if source.scope(call) is not function)


def _is_trained_on(source: Source, call: ast.Call) -> bool:
    """Whether a backward goes through what it returns: one that is to be seen, or one of a framework that gets it from here."""
    scope = source.scope(call)
    if any(made is call for made in parts_trained_on(scope)) or names_assigned(source.statement_of(call)) & names_trained_on(scope):
        return True
    name = getattr(scope, "name", "")
    return bool(_TRAINS.search(name)) and not _EVALUATES.search(name)


def _largest_without_training(source: Source, statement: ast.stmt) -> ast.stmt:
    """The outermost loop around it in which nothing is trained; without one, the statement."""
    found: ast.stmt | None = None
    for loop in source.loops(statement):
        assert isinstance(loop, ast.stmt)
        made = {name for node in ast.walk(loop) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) for name in names_assigned(node)}
        if trains(loop) or made & _trained_on_later(source, loop):
            break
        found = loop
    if found is not None:
        return found
    # What a loss is made with may be made without a graph, as a teacher's output is; the loss itself may not.
    if names_assigned(statement) & _trained_on_later(source, statement, itself=True):
        raise NoPatch(f"line {statement.lineno} makes what backward is called on")
    if isinstance(statement, (*LOOPS, ast.If, ast.Try, ast.With, ast.ClassDef)) and trains(statement):
        raise NoPatch(f"line {statement.lineno} begins a block that trains")
    return statement


def _trained_on_later(source: Source, statement: ast.stmt, itself: bool = False) -> set[str]:
    """Names whose value, as it is after a statement, goes into a backward below it; with ``itself`` only what backward is called on."""
    scope, end = source.scope(statement), statement.end_lineno or statement.lineno
    later = [node for node in ast.walk(scope) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.lineno > end and node.value is not None]
    found: set[str] = set()
    for call in calls_in(scope):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward" or call.lineno <= end:
            continue
        needed = names_read(call.func.value)
        for one in sorted(later, key=lambda node: -node.lineno):
            if one.lineno < call.lineno and names_assigned(one) & needed:
                assert one.value is not None
                needed = (needed if isinstance(one, ast.AugAssign) else needed - names_assigned(one)) | (set() if itself else names_read(one.value))
        found |= needed
    return found
