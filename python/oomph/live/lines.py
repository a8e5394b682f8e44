"""The lines of a program that put something into what it has a name for: ``history.append(loss)``, ``self.cache[key] = x``, ``total += loss``.

Source is read and parsed, never run. Which name to look for, and where that name lives, is for the caller to say.
"""

from __future__ import annotations

import ast
import linecache
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# Longer files are not parsed: this much takes a tenth of a second.
LARGEST_SOURCE = 200_000
# A longer statement is cut.
LONGEST_TEXT = 300

APPEND, ADD, ASSIGN, ITEM, CONCATENATE, HOOK = "append", "add", "assign", "item", "concatenate", "hook"

_PUT_IN = frozenset(("append", "extend", "insert", "appendleft", "extendleft", "add", "update", "setdefault"))
_JOIN = frozenset(("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"))
# What puts more into a container than it had.
_GROWS = frozenset((APPEND, ITEM, ADD, CONCATENATE))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


@dataclass
class Function:
    """A function of a file: where it begins (with its decorators), and the names that are its own."""

    first: int
    name: str
    argument: str
    own: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)  # global and nonlocal


@dataclass(frozen=True)
class Put:
    """One place that puts something somewhere."""

    target: str
    how: str
    statement: ast.stmt
    functions: tuple[Function, ...]
    classes: tuple[str, ...]
    in_loop: bool
    onto_itself: bool = False


class Sources:
    """The files of one census."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._puts: dict[str, list[Put]] = {}

    def lines(self, file: str) -> list[str]:
        if file not in self._lines:
            self._lines[file] = linecache.getlines(file)
        return self._lines[file]

    def tree(self, file: str) -> ast.Module | None:
        if file not in self._trees:
            text = "".join(self.lines(file))
            tree = None
            if text and len(text) <= LARGEST_SOURCE:
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        tree = ast.parse(text)
                except (SyntaxError, ValueError, RecursionError, MemoryError):
                    tree = None
            self._trees[file] = tree
        return self._trees[file]

    def statement(self, file: str, line: int) -> ast.stmt | None:
        """The innermost statement that a line belongs to."""
        body: list[Any] = list(getattr(self.tree(file), "body", ()))
        found = None
        while body:
            node = body.pop()
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                if isinstance(node, ast.stmt):
                    found = node
                body = [child for child in ast.walk(node) if child is not node and isinstance(child, (ast.stmt, ast.ExceptHandler))]
                inner = [child for child in body if child.lineno <= line <= (child.end_lineno or child.lineno) and isinstance(child, ast.stmt)]
                return min(inner, key=lambda child: (child.end_lineno or child.lineno) - child.lineno, default=found)
        return found

    def text(self, file: str, line: int, statement: ast.stmt | None = None) -> str:
        """The statement at a line, in one line and without indentation; of a block its head."""
        statement = statement or self.statement(file, line)
        lines = self.lines(file)
        first = last = line
        if statement is not None:
            first, last = statement.lineno, statement.end_lineno or statement.lineno
            body = getattr(statement, "body", None)
            if isinstance(body, list) and body:
                last = max(first, min(last, body[0].lineno - 1))
        words = " ".join(part.strip() for part in lines[first - 1 : last])
        return words if len(words) <= LONGEST_TEXT else words[: LONGEST_TEXT - 1] + "…"

    # --- puts ------------------------------------------------------------------------------------------------

    def puts(self, file: str) -> list[Put]:
        if file not in self._puts:
            tree = self.tree(file)
            self._puts[file] = _puts(tree) if tree is not None else []
        return self._puts[file]

    def of_variable(self, files: Iterable[str], name: str, container: bool, before: int = 0) -> tuple[str, Put] | None:
        """What puts something into a variable of a module. ``name`` may go on: ``history['loss']``."""
        for file in files:
            here = [(put.target, put) for put in self.puts(file) if _is_of_module(put, _base(name))]
            found = _choose(_named(here, name), container, before)
            if found is not None:
                return file, found
        return None

    def of_local(self, file: str, first: int, name: str, container: bool, before: int = 0, around: Iterable[str] = ()) -> Put | None:
        """The same for a local variable of the function that begins at a line, functions inside it included; of a closure, also in those ``around`` it."""
        puts = self.puts(file)
        here = [(put.target, put) for put in puts if any(function.first == first for function in put.functions)]
        outside = [(put.target, put) for put in puts if put.functions and put.functions[-1].name in around]
        return _choose(_named(here, name) or _named(outside, name), container, before)

    def of_attribute(self, file: str, kinds: Iterable[str], attribute: str, container: bool) -> Put | None:
        """The same for an attribute of a class's objects: ``attribute`` as it goes on after ``self.``."""
        attributes = [(put.target.partition("."), put) for put in self.puts(file) if "." in put.target]
        for kind in kinds:
            here = [(after, put) for (of, _, after), put in attributes if kind in put.classes and put.functions and put.functions[0].argument == of]
            found = _choose(_named(here, attribute), container)
            if found is not None and (not container or found.how in _GROWS):
                return found
        # From outside: trainer.cache.append(x). What only makes it empty says less.
        return _choose(_named([(after, put) for (_, _, after), put in attributes], attribute), container)


def _base(name: str) -> str:
    end = min((place for place in (name.find("["), name.find(".")) if place >= 0), default=len(name))
    return name[:end]


def _is_of_module(put: Put, name: str) -> bool:
    if _base(put.target) != name:
        return False
    return all(name not in function.own or name in function.others for function in put.functions) and (
        not put.functions or put.how in (APPEND, ITEM) or put.target != name or any(name in function.others for function in put.functions)
    )


def _named(puts: list[tuple[str, Put]], name: str) -> list[Put]:
    """Those of a name: ``metrics['loss']``, else with any key, else what puts whole values into ``metrics``."""
    for wanted in (name, _any_key(name), name[: name.rindex("[")] if name.endswith("]") else name):
        found = [put for target, put in puts if target == wanted]
        if found:
            # `states = defaultdict(list)` says less than `states[layer].append(x)`.
            inside = [put for target, put in puts if target.startswith(wanted + "[") and put.how in _GROWS]
            return found if any(put.how in _GROWS for put in found) else found + inside
    return []


def _choose(puts: list[Put], container: bool, before: int = 0) -> Put | None:
    """The one that most probably is what makes it grow."""

    def rank(put: Put) -> tuple[Any, ...]:
        if container:
            kind = {APPEND: 0, ITEM: 1, ADD: 2, CONCATENATE: 3}.get(put.how, 4)
        else:
            kind = 0 if put.onto_itself else 1
        line = put.statement.lineno
        late = before and line > before
        # Of assignments the last before the line that runs.
        return kind, not put.in_loop if kind == 0 or container else False, late, line if kind == 0 or late else -line

    return min(puts, key=rank, default=None)


def _any_key(name: str) -> str:
    """``metrics['loss']`` as ``metrics[]``."""
    out, depth = [], 0
    for character in name:
        depth -= character == "]"
        if depth == 0:
            out.append(character)
        depth += character == "["
    return "".join(out)


def name_of(node: ast.AST) -> str | None:
    """An expression as a name: ``self.cache``, ``metrics['loss']``; keys that are not constant are left out."""
    after = ""
    while True:
        if isinstance(node, ast.Name):
            return node.id + after
        if isinstance(node, ast.Attribute):
            after, node = f".{node.attr}{after}", node.value
        elif isinstance(node, ast.Subscript):
            key = repr(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
            after, node = f"[{key}]{after}", node.value
        else:
            return None


def _puts(tree: ast.Module) -> list[Put]:
    found: list[Put] = []
    waiting: list[tuple[ast.AST, Any, tuple[Function, ...], tuple[str, ...], bool]] = [(tree, None, (), (), False)]
    while waiting:
        node, statement, functions, classes, in_loop = waiting.pop()
        if isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, _FUNCTIONS):
            functions = (*functions, _function(node))
            in_loop = False
        elif isinstance(node, ast.ClassDef):
            classes = (*classes, node.name)
        elif isinstance(node, _LOOPS):
            in_loop = True
        elif isinstance(node, (ast.Global, ast.Nonlocal)) and functions:
            functions[-1].others.update(node.names)

        def put(target: ast.AST, how: str, onto_itself: bool = False) -> None:
            if isinstance(target, (ast.Tuple, ast.List)):
                for one in target.elts:
                    put(one, how)
                return
            if isinstance(target, ast.Starred):
                target = target.value
            if isinstance(target, ast.Subscript) and how in (ASSIGN, CONCATENATE):
                target, how = target.value, ITEM
            elif isinstance(target, ast.Subscript) and how == ADD:
                target = target.value
            elif isinstance(target, ast.Name) and functions and how != APPEND:
                functions[-1].own.add(target.id)
            name = name_of(target)
            if name is not None and statement is not None:
                found.append(Put(name, how, statement, functions, classes, in_loop, onto_itself))

        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PUT_IN:
            put(node.func.value, APPEND, True)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                name = name_of(target)
                onto_itself = name is not None and any(name_of(part) == name for part in ast.walk(node.value) if isinstance(part, (ast.Name, ast.Attribute)))
                how = CONCATENATE if _joins(node.value) else ADD if onto_itself and isinstance(node.value, ast.BinOp) else ASSIGN
                put(target, how, onto_itself)
        elif isinstance(node, ast.AugAssign):
            put(node.target, ADD, True)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            put(node.target, ASSIGN)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            put(node.optional_vars, ASSIGN)
        waiting += [(child, statement, functions, classes, in_loop) for child in ast.iter_child_nodes(node)]
    return found


def _joins(value: ast.AST) -> bool:
    if not isinstance(value, ast.Call):
        return False
    function = value.func
    return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in _JOIN


def _function(node: Any) -> Function:
    arguments = [*node.args.posonlyargs, *node.args.args]
    rest = [*arguments, *node.args.kwonlyargs, *(one for one in (node.args.vararg, node.args.kwarg) if one is not None)]
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    return Function(first, getattr(node, "name", "<lambda>"), arguments[0].arg if arguments else "", {one.arg for one in rest})
