"""How large autograd's graphs are, and of how many forwards: from the last nodes that tensors hold, by ``next_functions`` alone.

What nodes saved is never asked for: that may run the program's own hooks, and bring back what was put away. Nothing is computed on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# Nodes visited in all. One takes about a microsecond and a hundred bytes.
MOST_NODES = 150_000
# Nodes in a row. PyTorch frees a node that Python has looked at inside the one before it: after a walk down 45,000 in a row, the program's own
# `del` overflows the stack and kills it (torch 2.15, a stack of 8 MiB). What was not looked at is freed one by one.
MOST_IN_A_ROW = 5_000
# Parameters that are followed through the graph to see whether forwards are chained, and nodes that this looks at.
_FOLLOWED = 6
_MOST_CHAIN = 20_000
# Nodes between two questions whether it is enough.
_OFTEN = 256
# What makes a parameter ready for its use.
_READY = frozenset((
    "TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0",
    "ExpandBackward0", "CloneBackward0", "UnsqueezeBackward0",
))  # fmt: skip


class Graph(NamedTuple):
    """What hangs on some tensors and on nothing that was asked about before."""

    nodes: int
    forwards: int
    chained: bool


class Graphs:
    """All graphs of one census: a node counts for the first who leads to it."""

    def __init__(self, torch: Any, enough: Callable[[], bool]) -> None:
        self._leaf = torch._C._functions.AccumulateGrad
        self._enough = enough
        # A node's object is freed when nothing refers to it, and another may get its identity: they are kept until the end.
        self._next: dict[int, tuple[Any, list[Any]]] = {}
        self.complete = True
        self._stopped = False

    def of(self, last: Iterable[Any]) -> Graph:
        """The graph that ends in these nodes."""
        order: list[int] = []  # Each after those that it leads to, unless looking has stopped.
        uses: dict[int, int] = {}  # Of leaves: how many nodes lead to each.
        for node in last:
            self._visit(node, order, uses)
        forwards = sorted(uses.values())[(len(uses) - 1) // 2] if uses else 0
        return Graph(len(order), forwards, forwards > 1 and self._is_chained(order, uses, forwards))

    def _visit(self, last: Any, order: list[int], uses: dict[int, int]) -> None:
        if self._stopped or id(last) in self._next:
            return
        # How many lead to a node from the last one; None comes back to it when all that it leads to is done.
        waiting: list[tuple[Any, int | None]] = [(last, 0)]
        while waiting:
            node, before = waiting.pop()
            identity = id(node)
            if before is None:
                order.append(identity)
                continue
            if identity in self._next:
                continue
            if len(self._next) >= MOST_NODES or (len(self._next) % _OFTEN == 0 and self._enough()):
                self.complete, self._stopped = False, True
                return
            if before >= MOST_IN_A_ROW:
                self.complete = False
                self._next[identity] = (node, [])
                order.append(identity)
                continue
            following = [after for after, _ in node.next_functions if after is not None]
            self._next[identity] = (node, following)
            waiting.append((node, None))
            for after in following:
                if type(after) is self._leaf:
                    uses[id(after)] = uses.get(id(after), 0) + 1
                    self._next.setdefault(id(after), (after, []))
                else:
                    waiting.append((after, before + 1))

    def _is_chained(self, order: list[int], uses: dict[int, int], forwards: int) -> bool:
        """Whether a path through the graph passes the same parameter again and again: side by side, each path passes it once."""
        typical = [leaf for leaf, count in uses.items() if count >= forwards]
        step = max(len(typical) // _FOLLOWED, 1)
        part = order[:_MOST_CHAIN]
        return any(self._passes(leaf, part) for leaf in typical[::step][:_FOLLOWED])

    def _passes(self, leaf: int, part: list[int]) -> bool:
        passed: dict[int, int] = {}  # How often a path from here passes the leaf, at most.
        leads: set[int] = {leaf}  # The leaf, and what only makes it ready: its transpose, its copy in another dtype.
        used = 0
        for identity in part:
            node, following = self._next[identity]
            here = any(id(after) in leads for after in following)
            if here and len(following) == 1 and type(node).__name__ in _READY:
                leads.add(identity)
                continue
            used += here
            passed[identity] = here + max((passed.get(id(after), 0) for after in following), default=0)
        return max(passed.values(), default=0) >= max(2, used // 2) and used > 1

    def drop(self) -> None:
        self._next.clear()
