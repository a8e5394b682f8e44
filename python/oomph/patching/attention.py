"""Attention whose scores are written out: scaled_dot_product_attention never holds them."""

from __future__ import annotations

import ast
import re

from .reading import Request, is_atom, names_assigned, statements_named
from .source import NoPatch, Scope, Source, dotted


def attention_scores(source: Source, request: Request, contiguous: bool = False) -> None:
    """``softmax(q @ k.transpose(-2, -1) * scale) @ v``, over a few statements, becomes scaled_dot_product_attention.

    ``contiguous``: of copies, because its kernels that hold no scores refuse tensors whose last dimension is not the innermost in memory.
    """
    near = statements_named(source, request)
    scopes = list(dict.fromkeys(source.scope(one) for one in near))
    for scope in scopes:
        for product in [node for node in ast.walk(scope) if isinstance(node, (ast.BinOp, ast.Call))]:
            read = _Attention(source, scope).read(product)
            if read is None:
                continue
            query, key, value, scale, dropped = read
            function = source.bound("torch.nn.functional", product.lineno)
            name = f"{function}.scaled_dot_product_attention" if function else source.torch_member("nn.functional.scaled_dot_product_attention", product.lineno)
            given = ", ".join(f"{one}.contiguous()" if contiguous else one for one in (query, key, value))
            source.replace(product, f"{name}({given}{scale})")
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
        if not isinstance(weights, ast.Call) or (dotted(weights.func) or str(getattr(weights.func, "attr", ""))).rpartition(".")[2] != "softmax":
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
        makers = [one for one in ast.walk(self.scope) if isinstance(one, ast.Assign) and node.id in names_assigned(one)]
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
        return f", scale=1 / {text}" if is_atom(value) or isinstance(value, ast.Constant) else f", scale=1 / ({text})"


def _product(node: ast.AST | None) -> tuple[ast.expr, ast.expr] | None:
    """``a @ b``, ``torch.matmul(a, b)``, ``torch.bmm(a, b)``, ``a.matmul(b)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call) and not node.keywords:
        name = (dotted(node.func) or str(getattr(node.func, "attr", ""))).rpartition(".")
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
