"""Losses that are summed before one backward: each part gets its own, and its graph goes."""

from __future__ import annotations

import ast
from typing import cast

from .kept import carries_state
from .reading import Request, calls_in, is_atom, names_assigned, names_read, statement_that, trains
from .source import NoPatch, Source, dotted, first_line


def backward_once(source: Source, request: Request) -> None:
    """Losses are summed and backward comes at the end: each part gets its own backward, and its graph goes."""
    adding = statement_that(source, request, lambda one: bool(source.loops(one)) and _adds(one) is not None)
    # What serves adds something.
    total, part = cast("tuple[str, ast.expr]", _adds(adding))
    loop, later, backward = _backward_after(source, adding)
    if any(isinstance(one, ast.Assign) and carries_state(source, one, None) for one in ast.walk(loop)):
        raise NoPatch(f"the rounds of the loop of line {loop.lineno} go on from one another: one backward goes through all of them")
    between = later[: later.index(backward)]
    receiver = backward.value.func.value  # type: ignore[attr-defined]  # as `_is_backward` has it
    scaled, dropped = _scaled(source, receiver, loop, total), [backward]
    makers = [one for one in between if isinstance(one, (ast.Assign, ast.AugAssign)) and dotted(receiver) in names_assigned(one)]
    if makers:
        maker = makers[-1]
        value = maker.value if isinstance(maker, ast.Assign) else ast.BinOp(maker.target, maker.op, maker.value)
        scaled = _scaled(source, value, loop, total) if len(makers) == 1 else None
        dropped.append(maker)
    if scaled is None:
        raise NoPatch(f"what line {backward.lineno} calls backward on is not a plain sum of the parts")
    for one in between:
        if any(isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad" for call in calls_in(one)):
            # It would take away what the parts have left.
            source.move_before(one, loop)
    gone = {id(one) for one in [*dropped, adding]}
    uses = [
        node
        for node in ast.walk(source.scope(adding))
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", None), ast.Load) and id(source.statement_of(node)) not in gone
    ]
    if makers and dotted(receiver) != total and any(dotted(node) == dotted(receiver) and node.lineno > backward.lineno for node in uses):
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
        source.replace(adding, _backward_of(source.written(part), is_atom(part), scaled))
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
        if passes or any(trains(one) for one in loop.body):
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
        elif total in names_read(value.right):
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
