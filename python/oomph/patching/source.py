"""A file of Python that is to be changed in few places: where things stand in it, and edits that leave the rest as it is.

Positions are those of ``ast``. Comments, blank lines and the way a line is written stay, because only the spans that are named change. What to change is not
known here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
# What has a position.
Placed = ast.stmt | ast.expr

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.While, ast.AsyncFor)


class NoPatch(Exception):
    """There is no change to offer; the message is why, for people."""


class Source:
    """One file, or one cell of a notebook. ``before`` is what ran before it: the cells above, for the names that they bind."""

    def __init__(self, text: str, before: str = "") -> None:
        self.text = text
        try:
            self.tree = ast.parse(text)
            self.before = ast.parse(before)
        except SyntaxError as error:
            raise NoPatch(f"line {error.lineno} cannot be read: {error.msg}") from error
        # As the parser counts lines; str.splitlines knows more ends of lines.
        self.lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
        self.newline = "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._edits: list[tuple[int, int, str]] = []

    # -- where things stand

    def start(self, node: Placed) -> int:
        return self._index(node.lineno, node.col_offset)

    def end(self, node: Placed) -> int:
        return self._index(node.end_lineno, node.end_col_offset)  # type: ignore[arg-type]  # of what was parsed, both are known

    def _index(self, line: int, column: int) -> int:
        # Columns count bytes.
        text = self.lines[line - 1]
        return self._starts[line - 1] + len(text.encode()[:column].decode(errors="ignore"))

    def written(self, node: Placed) -> str:
        return self.text[self.start(node) : self.end(node)]

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """From the inside out."""
        while (above := self._parents.get(node)) is not None:
            yield above
            node = above

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that the line belongs to."""
        found: ast.stmt | None = None
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and first_line(node) <= line <= (node.end_lineno or 0):
                if found is None or first_line(node) >= first_line(found):
                    found = node
        return found

    def statement_of(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self._parents[node]
        return node

    def function(self, node: ast.AST) -> Function | None:
        """The function that it is in; ``None`` at the top of the file, and in the body of a class there."""
        return next((one for one in self.parents(node) if isinstance(one, FUNCTIONS)), None)

    def scope(self, node: ast.AST) -> Scope:
        return self.function(node) or self.tree

    def loops(self, node: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
        """The loops around it in the same function, from the inside out."""
        found = []
        for above in self.parents(node):
            if isinstance(above, (*FUNCTIONS, ast.ClassDef)):
                break
            if isinstance(above, LOOPS):
                found.append(above)
        return found

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The block of statements that contains it."""
        above = self._parents[statement]
        for name in ("body", "orelse", "finalbody"):
            block = getattr(above, name, None)
            if isinstance(block, list) and statement in block:
                return block
        return [statement]

    def indentation(self, line: int) -> str:
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip(" \t"))]

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether no other code is on its lines."""
        first, last = first_line(statement), statement.end_lineno or statement.lineno
        before = self.text[self._starts[first - 1] : self.start(statement)] if first == statement.lineno else ""
        after = self.text[self.end(statement) : self._starts[last]].strip()
        return not before.strip() and (not after or after.startswith("#"))

    # -- edits

    def insert(self, at: int, text: str) -> None:
        self._edits.append((at, at, text))

    def replace(self, node: Placed, text: str) -> None:
        self._edits.append((self.start(node), self.end(node), text))

    def replace_span(self, start: int, end: int, text: str) -> None:
        self._edits.append((start, end, text))

    def after(self, node: ast.expr, text: str) -> None:
        """Puts a method call, say, behind an expression, with parentheses where that would bind otherwise."""
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) or self._is_in_parentheses(node):
            end = self.end(node)
            if self._is_in_parentheses(node) and not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
                end = self._closing(node)
            self.insert(end, text)
        else:
            self.insert(self.start(node), "(")
            self.insert(self.end(node), ")" + text)

    def _is_in_parentheses(self, node: ast.expr) -> bool:
        """Its own, not those of a call around it."""
        before = self.text[: self.start(node)].rstrip()
        after = self.text[self.end(node) :].lstrip()
        if not (before.endswith("(") and after.startswith(")")):
            return False
        opening = before[:-1].rstrip()
        return not re.search(r"[\w\])]$", opening) or bool(re.search(r"\b(?:return|in|and|or|not|if|else|yield|await)$", opening))

    def _closing(self, node: ast.expr) -> int:
        return self.text.index(")", self.end(node)) + 1

    def insert_line(self, line: int, text: str, indentation: str | None = None) -> None:
        """Puts lines before this one, indented as it is."""
        indentation = self.indentation(line) if indentation is None else indentation
        whole = "".join(f"{indentation}{one}{self.newline}" if one else self.newline for one in text.split("\n"))
        at = self._starts[line - 1] if line <= len(self.lines) else len(self.text)
        if at == len(self.text) and self.lines and not self.lines[-1].endswith(("\n", "\r")):
            whole = self.newline + whole[: -len(self.newline)]
        self.insert(at, whole)

    def remove(self, statement: ast.stmt) -> None:
        """Takes a statement out with its lines; what would be an empty block gets ``pass``."""
        if not self.stands_alone(statement):
            raise NoPatch(f"line {statement.lineno} has several statements")
        if len(self.block(statement)) == 1 and not isinstance(self.parent(statement), ast.Module):
            self.replace(statement, "pass")
        else:
            self._edits.append((self._starts[first_line(statement) - 1], self._starts[statement.end_lineno or statement.lineno], ""))

    def move_before(self, statement: ast.stmt, other: ast.stmt) -> None:
        """Takes a statement to the lines before another one."""
        self.insert_line(first_line(other), self.written(statement))
        self.remove(statement)

    def wrap(self, statement: ast.stmt, header: str) -> None:
        """Puts a statement, a loop with all of its body say, under ``with …:``."""
        if not self.stands_alone(statement):
            raise NoPatch(f"line {statement.lineno} has several statements")
        first, last = first_line(statement), statement.end_lineno or statement.lineno
        self.insert_line(first, header)
        step, inside = self.step(), _inside_strings(statement)
        for line in range(first, last + 1):
            if line not in inside and self.lines[line - 1].strip():
                self.insert(self._starts[line - 1], step)

    def step(self) -> str:
        """What one level is indented by in this file."""
        for node in ast.walk(self.tree):
            body = getattr(node, "body", None)
            if isinstance(node, ast.stmt) and isinstance(body, list) and body and body[0].lineno > node.lineno:
                outer, inner = self.indentation(first_line(node)), self.indentation(first_line(body[0]))
                if inner.startswith(outer) and len(inner) > len(outer):
                    return inner[len(outer) :]
        return "    "

    def result(self) -> str:
        """The text with all edits. What does not overlap is done in order; among insertions at one place, in the order they were asked for."""
        out, at = [], 0
        for start, end, text in sorted(self._edits, key=lambda edit: (edit[0], edit[1])):
            if start < at:
                raise NoPatch("two changes meet on one line")
            out += [self.text[at:start], text]
            at = end
        changed = "".join([*out, self.text[at:]])
        if changed == self.text:
            raise NoPatch("there is nothing to change")
        try:
            ast.parse(changed)
        except SyntaxError as error:
            raise NoPatch(f"line {error.lineno} would not be Python any more") from error
        return changed

    # -- names

    def bound(self, module: str, line: int) -> str | None:
        """What a module (``torch``) or a member of one (``torch.no_grad``) is called on a line."""
        package, _, member = module.rpartition(".")
        for tree, last in ((self.tree, line), (self.before, None)):
            for node in ast.walk(tree):
                if last is not None and getattr(node, "lineno", 0) >= last:
                    continue
                if isinstance(node, ast.Import):
                    for one in node.names:
                        if one.name == module and (one.asname or "." not in module):
                            return one.asname or module
                        if one.asname is None and "." not in module and one.name.startswith(module + "."):
                            return module
                elif isinstance(node, ast.ImportFrom) and member and node.module == package and not node.level:
                    for one in node.names:
                        if one.name == member:
                            return one.asname or member
        return None

    def torch_member(self, member: str, line: int) -> str:
        """How to write ``torch.member`` on a line; imports torch if nothing does."""
        if (short := self.bound(f"torch.{member}", line)) is not None:
            return short
        torch = self.bound("torch", line)
        if torch is None:
            self._import_torch()
            torch = "torch"
        return f"{torch}.{member}"

    def _import_torch(self) -> None:
        imports = [one for one in self.tree.body if isinstance(one, (ast.Import, ast.ImportFrom))]
        if imports:
            line = (imports[-1].end_lineno or imports[-1].lineno) + 1
        else:
            line = (self.tree.body[0].end_lineno or 1) + 1 if ast.get_docstring(self.tree) is not None else 1
        self.insert_line(line, "import torch", "")


def first_line(node: ast.stmt) -> int:
    """Its decorators are part of it."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def _inside_strings(node: ast.AST) -> set[int]:
    """Lines that begin inside a string: to indent those would change it."""
    strings = [one for one in ast.walk(node) if isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Constant) and isinstance(one.value, (str, bytes)))]
    return {line for one in strings for line in range(one.lineno + 1, (one.end_lineno or one.lineno) + 1)}


def dotted(node: ast.AST) -> str | None:
    """``self.history`` as text; ``None`` if it is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
