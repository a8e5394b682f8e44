"""What all changes read off a source: the request, the statements that its lines belong to, names that are read and assigned, and what trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .source import Function, NoPatch, Scope, Source, dotted


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


def statements_named(source: Source, request: Request) -> list[ast.stmt]:
    """Those that the lines belong to, best first."""
    found = [one for line in request.lines if (one := source.statement(line)) is not None]
    return list(dict.fromkeys(found))


def statement_that(source: Source, request: Request, serves: Callable[[ast.stmt], bool]) -> ast.stmt:
    """The first of them that serves."""
    for one in statements_named(source, request):
        if serves(one):
            return one
    raise NoPatch(f"line {request.line} is not of the form that is known how to change")


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def names_read(node: ast.AST) -> set[str]:
    """Names that it reads, dotted ones included."""
    return {name for one in ast.walk(node) if (name := dotted(one)) is not None and isinstance(getattr(one, "ctx", None), ast.Load)}


def names_assigned(statement: ast.AST, inside: bool = False) -> set[str]:
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


def parameters_of(function: Function | None) -> set[str]:
    if function is None:
        return set()
    given = function.args
    return {one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]}


def is_atom(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))


_STEPPED = re.compile(r"optim|^opt|scaler|accelerator|engine|sgd|adam", re.IGNORECASE)


def trains(node: ast.AST) -> bool:
    """Whether it calls backward, or steps an optimizer."""
    for call in calls_in(node):
        name = (dotted(call.func) or str(getattr(call.func, "attr", ""))).split(".")
        if name[-1] in ("backward", "manual_backward") or name[-2:] == ["autograd", "grad"]:
            return True
        if name[-1] == "step" and len(name) > 1 and _STEPPED.search(name[-2]):
            return True
    return False


def parts_trained_on(scope: Scope) -> Iterator[ast.AST]:
    """All that is in the expression that backward is called on: ``f(x).backward()``."""
    for call in calls_in(scope):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            yield from ast.walk(call.func.value)
            for argument in call.args:
                yield from ast.walk(argument)


def names_trained_on(scope: Scope) -> set[str]:
    """Names whose graph a backward goes through: its own, and those that it is made of."""
    names = {name for node in parts_trained_on(scope) if (name := dotted(node)) is not None}
    while True:
        more = set(names)
        for node in ast.walk(scope):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None and names_assigned(node) & names:
                more |= names_read(node.value)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append" and dotted(node.func.value) in names:
                more |= {name for one in node.args for name in names_read(one)}
        if more == names:
            return names
        names = more
