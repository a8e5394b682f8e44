"""What autograd's graphs hold: what their nodes saved for a backward pass and have not freed, and the leaves that they lead to.

What was saved is looked at as it is stored, so that no hook of the program is run and nothing is brought back to the GPU. How large a graph is,
is for ``live/graphs.py``, which asks less and runs when memory is out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from oomph.live.graphs import MOST_IN_A_ROW, MOST_NODES
from oomph.live.tensors import Tensors
from oomph.live.walk import instance_dict

# Nodes that keep what they saved to themselves: those of functions in C++, and of a write to a part of a tensor.
_OPAQUE = ("CppFunction", "CopySlices")


class _Node(NamedTuple):
    """A node, and what is true of it and of all behind it."""

    node: Any  # One that nothing refers to is freed, and another may get its identity.
    graph: int
    is_held: bool
    is_opaque: bool


class Graphs:
    """All graphs of one search: what a node holds counts for the first who leads to it."""

    def __init__(self, torch: Any, tensors: Tensors) -> None:
        self._leaf = torch._C._functions.AccumulateGrad
        self._function = torch._C._FunctionBase
        self._saved = torch._C._autograd.SavedTensor
        self._tensors = tensors
        self._nodes: dict[int, _Node] = {}
        self._names: dict[type, list[str]] = {}

    def held(self, tensors: list[Any], graph: int) -> tuple[list[Any], set[int]]:
        """What the graph of these tensors holds and none before it did, and the graphs before it that it holds part of. ``graph`` is its number."""
        held: list[Any] = []
        shared: set[int] = set()
        # With how many lead to it from the tensor.
        waiting: list[tuple[Any, list[Any] | None, int]] = [(self._tensors.graph(tensor), None, 0) for tensor in tensors]
        while waiting:
            node, following, before = waiting.pop()
            known = self._nodes.get(id(node))
            if following is not None and known is not None:
                # All behind it is known now: a graph has no circles.
                behind = [self._nodes[id(after)] for after in following if id(after) in self._nodes]
                whole = known.is_held or any(one.is_held for one in behind), known.is_opaque or len(behind) < len(following) or any(one.is_opaque for one in behind)
                self._nodes[id(node)] = _Node(node, graph, *whole)
            elif known is not None:
                # All graphs of a parameter meet in it.
                shared |= {known.graph} if known.is_held else set()
            elif type(node) is self._leaf:
                held.append(node.variable)
                self._nodes[id(node)] = _Node(node, graph, False, False)
            elif before >= MOST_IN_A_ROW:
                self._nodes[id(node)] = _Node(node, graph, True, True)
            elif len(self._nodes) < MOST_NODES:
                following = [after for after, _ in node.next_functions if after is not None]
                here, is_held, is_opaque = self._of(node)
                held += here
                self._nodes[id(node)] = _Node(node, graph, is_held, is_opaque)
                waiting.append((node, following, before))
                waiting += [(after, None, before + 1) for after in following]
        return held, shared - {graph}

    def is_held(self, tensor: Any) -> bool:
        """Whether its graph holds what a forward pass left in it: what was saved is not freed."""
        node = self._known(tensor)
        return node is not None and node.is_held

    def may_hold_more(self, tensor: Any) -> bool:
        """Whether its graph holds something, and part of it cannot be looked at."""
        node = self._known(tensor)
        return node is not None and node.is_held and node.is_opaque

    def _known(self, tensor: Any) -> _Node | None:
        node = self._tensors.graph(tensor)
        # There were too many: nothing is known of the rest.
        return None if node is None else self._nodes.get(id(node), _Node(node, 0, True, True))

    def behind(self, thing: Any) -> list[Any]:
        """What a hook keeps where Python's collector does not see it, as checkpoints do: tensors in a list of saved ones, or on a node."""
        if type(thing) is list:
            return self._kept(one for one in thing if type(one) is self._saved)[0]
        return self._of(thing)[0] if issubclass(type(thing), self._function) else []

    def _of(self, node: Any) -> tuple[list[Any], bool, bool]:
        """What a node holds, whether tensors are among it, and whether there may be more."""
        held: list[Any] = []
        is_held, is_opaque = False, type(node).__name__ in _OPAQUE
        for name in self._names_of(type(node)):
            try:
                saved = getattr(node, name)
            except RuntimeError:
                continue  # Freed.
            kept, unseen = self._kept(saved if isinstance(saved, tuple) else (saved,))
            held += kept
            is_held, is_opaque = is_held or unseen or bool(kept), is_opaque or unseen
        # What a custom function keeps on its context is not freed by a backward pass.
        attributes = instance_dict(node)
        if attributes:
            held.append(attributes)
            is_held = is_held or any(self._tensors.address(value) is not None for value in attributes.values())
        return held, is_held, is_opaque

    def _kept(self, saved: Iterable[Any]) -> tuple[list[Any], bool]:
        """What is stored, with the hooks behind which more may be; and whether some of it does not say."""
        kept: list[Any] = []
        unseen = False
        for one in saved:
            try:
                data, hook = one.data, one.unpack_hook
            except (AttributeError, RuntimeError):
                unseen = True  # An older PyTorch, and hooks in C++.
                continue
            if data is not None:  # Else it was freed, or there never was one.
                kept += [data, hook]
        return kept, unseen

    def _names_of(self, kind: type) -> list[str]:
        names = self._names.get(kind)
        if names is None:
            names = self._names[kind] = [name for name in dir(kind) if name.startswith("_raw_saved_")]
        return names

    def drop(self) -> None:
        self._nodes.clear()
