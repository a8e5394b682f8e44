"""``oomph.who()``: what holds GPU memory now, by the name that the program has for it.

Every CUDA tensor that Python can see is found, its memory counted once, and its holder named, by a walk from what can hold something:
variables first, then what IPython remembers, tracebacks, running functions, then the graphs of the tensors that were found (`_graphs.py`). What
no walk reaches is traced backwards, by its referrers.
Memory that no tensor of Python's accounts for is listed as such. Frees nothing: see `_free.py`.
"""

from __future__ import annotations

import gc
import html
import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from oomph._graphs import Graphs
from oomph._measure import torch_on_gpu
from oomph._sizes import MIB, percent, text
from oomph.live import roots as places
from oomph.live.tensors import Tensors, rounded
from oomph.live.walk import HEAP_TYPE, Edge, Walk

# How many leftovers are traced backwards, each of which scans all objects of the process, and how far.
_MOST_TRACED = 32
_MOST_REFERRERS = 400
# A rest below this is rounding of blocks.
_SMALLEST_REST = MIB

_NEXT = "del what you no longer need, then oomph.free(), which frees what has no name"

NOT_VISIBLE = "not visible to Python"
_NOT_TRACED = "not looked into"
GARBAGE = "garbage in cycles"
GRAPH = "graph"

# Kinds of what modules and optimizers hold.
_OF_MODULES = ("parameters", "gradients", "buffers", "optimizer state")


@dataclass(frozen=True)
class Holder:
    """One holder: its name, the bytes that it holds, what they are, and how it holds them."""

    name: str
    bytes: int
    kind: str
    how: str


@dataclass(frozen=True)
class Holders:
    """What holds GPU memory, largest first. ``rows`` has all of them; printed are ``top``."""

    rows: list[Holder]
    allocated: int
    reserved: int
    top: int = field(default=20, repr=False)
    on_gpu: bool = field(default=True, repr=False)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        if not self.on_gpu:
            yield "No GPU memory is held: this program does not use CUDA (yet)"
            return
        yield f"GPU memory held now: {text(self.allocated)} allocated, {text(self.reserved)} reserved"
        shown, rest = self.rows[: self.top], self.rows[self.top :]
        width = min(max((len(row.name) for row in shown), default=0), 60)
        for row in shown:
            name = row.name if len(row.name) <= width else row.name[: width - 1] + "…"
            yield f"  {text(row.bytes):>9}  {percent(row.bytes, self.allocated):>5}  {name:<{width}}  {row.how}".rstrip()
        if rest:
            yield f"  {text(sum(row.bytes for row in rest)):>9}         in {len(rest)} more"
        if self.rows:
            yield f"Next: {_NEXT}"

    def _repr_html_(self) -> str:
        if not self.on_gpu:
            return f"<p>{html.escape(str(self))}</p>"
        head, *_ = self._lines()
        cells = "".join(
            f"<tr>{_cell(text(row.bytes), 'right')}{_cell(percent(row.bytes, self.allocated), 'right')}{_cell(row.name)}{_cell(row.how)}</tr>" for row in self.rows[: self.top]
        )
        more = f"<p>and {len(self.rows) - self.top} more</p>" if len(self.rows) > self.top else ""
        return (
            f"<p>{html.escape(head)}</p><table><thead><tr><th>bytes</th><th>share</th><th>holder</th><th>what</th></tr></thead>"
            f"<tbody>{cells}</tbody></table>{more}<p>Next: {html.escape(_NEXT)}</p>"
        )


def _cell(words: str, align: str = "left") -> str:
    return f'<td style="text-align:{align}">{html.escape(words)}</td>'


def who(top: int = 20) -> Holders:
    """What holds GPU memory now, by variable name: printed as a table, ``.rows`` for programs.

    Never starts CUDA, keeps nothing alive, collects nothing.
    """
    torch = torch_on_gpu()
    if torch is None:
        return Holders([], 0, 0, top, on_gpu=False)
    devices = range(torch.cuda.device_count())
    allocated, reserved = (sum(ask(device) for device in devices) for ask in (torch.cuda.memory_allocated, torch.cuda.memory_reserved))
    search = _Search(torch, sys._getframe(1))
    try:
        rows = search.rows()
        rest = allocated - sum(row.bytes for row in rows)
        if rest >= _SMALLEST_REST:
            rows.append(Holder(NOT_VISIBLE, rest, NOT_VISIBLE, search.invisible()))
    finally:
        search.drop()
    rows.sort(key=lambda row: -row.bytes)
    return Holders(rows, allocated, reserved, top)


class _Search:
    """One search, from the frame that asked."""

    def __init__(self, torch: Any, asked_from: types.FrameType) -> None:
        self.tensors = tensors = Tensors(torch)
        self.graphs = Graphs(torch, tensors)
        # Tensors that a graph hangs on.
        self._with_graph: list[Any] = []
        self._walked = 0  # Of these.
        # Of graphs, by their root: the root of the tensor that each hangs on, the graph that it is found in or itself, and other graphs that hold part of it.
        self._hang_on: dict[int, int] = {}
        self._part_of: dict[int, int] = {}
        self._shared: dict[int, set[int]] = {}
        running = places.shell()
        modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
        walls: list[Any] = [sys.modules, places.namespace(running), *modules, *(module.__dict__ for module in modules)]
        if running is not None:
            walls += [
                running,
                running.user_ns_hidden,
                running.displayhook,
                running.history_manager,
                running.user_ns.get("_oh"),
                running.events,
            ]
        self.walk = Walk(self._is_held, self._extra, walls)
        everything = {id(tensor): tensor for tensor in tensors.all()}
        # Modules first and optimizers last: both lead to a model's parameters, which are the model's.
        variables = sorted(places.variables(running), key=lambda root: (not tensors.is_module(root[2]), tensors.is_optimizer(root[2])))
        for _, same in itertools.groupby(variables, key=lambda root: (tensors.is_module(root[2]), tensors.is_optimizer(root[2]))):
            self.walk.go(same)
        del variables
        for roots in (places.outputs(running), places.tracebacks(running), places.running_functions(asked_from)):
            self.walk.go(roots)
        self._walk_graphs()
        self._trace_backwards(everything)
        self._walk_graphs()

    def _is_held(self, thing: Any) -> bool:
        return self.tensors.address(thing) is not None

    def _extra(self, thing: Any) -> Iterator[Edge]:
        if self.tensors.is_tensor(thing):
            if self.tensors.has_graph(thing):
                self._with_graph.append(thing)
            yield ".grad", self.tensors.gradient(thing)
        elif self._hang_on:
            yield from (("", kept) for kept in self.graphs.behind(thing))

    def _bytes(self, tensor: Any) -> int:
        """What it was seen with; another thread may have freed it meanwhile."""
        return self.tensors.memory.get(self.tensors.address(tensor) or 0, 0)

    def _walk_graphs(self) -> None:
        """What only a graph holds is named by the tensor that the graph hangs on, which may be one on the CPU."""
        # A graph leads to all parameters that it trains. Those that have a name are not worth a word.
        parameters = {self.tensors.address(tensor) for tensor in self.walk.found if self.tensors.learns(tensor)}
        # Graphs lead to tensors that have graphs of their own.
        while self._walked < len(self._with_graph):
            by_root: dict[int, list[Any]] = {}
            for tensor in self._with_graph[self._walked :]:
                by_root.setdefault(self.walk.root_of(tensor), []).append(tensor)
            self._walked = len(self._with_graph)
            for root, tensors in by_root.items():
                self._walk_graph(root, tensors, parameters)

    def _walk_graph(self, root: int, tensors: list[Any], parameters: set[int | None]) -> None:
        graph = len(self.walk.roots)
        self._hang_on[graph] = self._hang_on.get(root, root)
        whole = self._part_of[graph] = self._part_of.get(root, graph)
        name = f"{self._path(tensors[0])} (graph)" if len(tensors) == 1 else f"{self.walk.roots[root][0]} (graphs)"
        held, shared = self.graphs.held(tensors, whole)
        self.walk.go([(name, GRAPH, [thing for thing in held if self.tensors.address(thing) not in parameters])])
        for other in shared:
            self._shared.setdefault(other, set()).add(whole)

    # --- what no walk from a root reaches ------------------------------------------------------------------

    def _trace_backwards(self, everything: dict[int, Any]) -> None:
        unreachable: list[Any] = []
        for _ in range(_MOST_TRACED):
            left = self._left(everything, unreachable)
            if not left:
                break
            largest = max(left, key=self._bytes)
            mine = {id(thing) for thing in (everything, unreachable, left, self._with_graph, self.walk.things, self.walk.found)}
            root = self._behind(largest, mine)
            if root is not None:
                self.walk.go([root])
            if not self.walk.knows(largest):
                unreachable.append(largest)
        self.walk.go([("others", _NOT_TRACED, self._left(everything, unreachable))])

    def _left(self, everything: dict[int, Any], unreachable: list[Any]) -> list[Any]:
        """Tensors that no root leads to, the memory of which no other tensor accounts for."""
        reached = {self.tensors.address(tensor) for tensor in [*self.walk.found, *unreachable]}
        return [tensor for tensor in everything.values() if self.tensors.address(tensor) not in reached]

    def _behind(self, tensor: Any, mine: set[int]) -> places.Root | None:
        """Who holds a tensor that no root leads to: a module, or an unreachable cycle. None if Python does not know."""
        modules = {id(module.__dict__): name for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)}
        behind: dict[int, Any] = {id(tensor): tensor}
        frontier = [tensor]
        mine |= {id(behind), id(modules)}
        this_call = object()
        while frontier and len(behind) < _MOST_REFERRERS:
            referrers: Any = gc.get_referrers(*frontier, this_call)
            new = []
            for thing in referrers:
                if id(thing) in mine or thing is frontier or _is_oomphs(thing):
                    continue
                # The arguments of that call are a tuple, which Python 3.13 finds as well.
                if type(thing) is tuple and thing and thing[-1] is this_call:
                    continue
                if id(thing) in modules:
                    return self._named_in(modules[id(thing)], thing, frontier)
                if id(thing) not in behind:
                    behind[id(thing)] = thing
                    new.append(thing)
            frontier = new
            referrers = thing = None  # Else the next round finds these lists.
        # From here on only `behind` may hold what is in it: references are counted.
        del referrers, frontier, new, thing
        if len(behind) == 1 or len(behind) >= _MOST_REFERRERS or _is_held_from_outside(behind, id(tensor)):
            return None
        classes = [type(thing) for thing in behind.values() if type(thing).__flags__ & HEAP_TYPE and not self.tensors.is_tensor(thing)]
        return f"{GARBAGE} ({classes[0].__name__})" if classes else GARBAGE, GARBAGE, list(behind.values())

    def _named_in(self, module: str, namespace: dict[str, Any], held: list[Any]) -> places.Root:
        identities = {id(thing) for thing in held}
        for name, value in list(namespace.items()):
            if id(value) in identities:
                return f"{module}.{name}", "module", value
        return module, "module", held

    # --- rows ----------------------------------------------------------------------------------------------

    def rows(self) -> list[Holder]:
        """One row for each root and kind. Memory counts for the tensor that covers most of it: a view is not its owner."""
        by_address: dict[int, list[Any]] = {}
        for tensor in self.walk.found:
            by_address.setdefault(self.tensors.address(tensor) or 0, []).append(tensor)
        groups: dict[tuple[int, str], list[Any]] = {}
        others: dict[int, set[int]] = {}
        for held in by_address.values():
            owner = max(held, key=self.tensors.extent)
            root = self._root_of(owner)
            groups.setdefault((root, self._kind(owner)), []).append(owner)
            others.setdefault(root, set()).update(*map(self.walk.also, held), map(self._root_of, held), self._shared.get(root, ()))
        return [self._row(root, kind, held, others[root] - {root}) for (root, kind), held in groups.items()]

    def _root_of(self, tensor: Any) -> int:
        root = self.walk.root_of(tensor)
        return self._part_of.get(root, root)

    def _row(self, root: int, kind: str, held: list[Any], others: set[int]) -> Holder:
        name, root_kind = self.walk.roots[root]
        size = sum(rounded(self._bytes(tensor)) for tensor in held)
        if kind in _OF_MODULES:
            how = f"{_count(sum(map(self.tensors.elements, held)))} {kind}" if kind == "parameters" else kind
        else:
            largest = max(held, key=self._bytes)
            how = self.tensors.describe(largest)
            path = self._path(largest)
            if root_kind in (GARBAGE, GRAPH, _NOT_TRACED):
                how = f"{len(held)} tensors, the largest {how}" if len(held) > 1 else how
            elif len(held) == 1:
                name = path
            else:
                how = f"{len(held)} tensors, the largest {path}: {how}"
            graphs = sum(map(self._has_graph, held))
            if root_kind == GRAPH:
                how += ", a leaf of it" if self.tensors.learns(largest) else ", kept for a backward pass"
            elif graphs:
                how += ", with its graph" if len(held) == 1 else f", {graphs} with their graphs"
        if root_kind == GARBAGE:
            how += ", waits for gc.collect()"
        # A graph leads to the parameters that it trains, and to the tensor that it hangs on.
        of_graphs = {other for other in others if other in self._hang_on and (kind in _OF_MODULES or self._hang_on[other] == root)}
        also = sorted({self.walk.roots[self._part_of.get(other, other)][0] for other in others - of_graphs} - {name})
        if also:
            how += f"; also held by {', '.join(also[:3])}{' and more' if len(also) > 3 else ''}"
        return Holder(name, size, kind if root_kind == places.VARIABLE else root_kind, how)

    def _kind(self, tensor: Any) -> str:
        kind, holder = "tensor", None
        for name, thing in self.walk.steps_to(tensor):
            if name in ("._parameters", "._buffers") and self.tensors.is_module(holder):
                kind = name[2:]
            elif name == ".grad" and self.tensors.is_tensor(holder):
                kind = "gradients"
            elif self.tensors.is_optimizer(holder):
                kind = {".state": "optimizer state", ".param_groups": "parameters"}.get(name, kind)
            elif name == ".key" and kind == "optimizer state":
                kind = "parameters"
            holder = thing
        return kind

    def _path(self, tensor: Any) -> str:
        root = self.walk.roots[self.walk.root_of(tensor)][0]
        path = "".join(name for name, _ in self.walk.steps_to(tensor))
        return root + path.replace("._modules", "").replace("._parameters", "").replace("._buffers", "")

    def _has_graph(self, tensor: Any) -> bool:
        """Whether a graph hangs on it that still holds something; what a graph itself holds is part of that graph."""
        return self.walk.root_of(tensor) not in self._hang_on and self.graphs.is_held(tensor)

    def invisible(self) -> str:
        """What memory may be that no name leads to, and who probably holds it."""
        graphs = [self._path(tensor) for tensor in self._with_graph if self._has_graph(tensor) and self.graphs.may_hold_more(tensor)]
        how = "held by autograd graphs, workspaces of libraries, or C++"
        return f"{how}; graphs hang on {', '.join(graphs[:3])}{' and more' if len(graphs) > 3 else ''}" if graphs else how

    def drop(self) -> None:
        self._with_graph.clear()
        self.walk.drop()
        self.graphs.drop()


def _is_oomphs(thing: Any) -> bool:
    return type(thing) is types.FrameType and thing.f_globals.get("__name__", "").startswith("oomph.")


def _is_held_from_outside(behind: dict[int, Any], first: int) -> bool:
    """Whether anything but these objects themselves holds one of them, as Python's collector finds it out.

    The first is not asked about: it is the tensor, which the search holds.
    """
    inner: dict[int, int] = {}
    for identity in behind:
        for child in map(id, gc.get_referents(behind[identity])):
            inner[child] = inner.get(child, 0) + 1
    return any(sys.getrefcount(behind[identity]) - _ONE_REFERENCE > inner.get(identity, 0) for identity in behind if identity != first)


def _count(elements: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if elements >= unit:
            return f"{elements / unit:.{0 if elements >= 100 * unit else 1}f}{name}"
    return str(elements)


def _references_of_one() -> int:
    """What sys.getrefcount says of an object that only a dictionary holds; it differs between versions of Python."""
    behind = {0: object()}
    return max(sys.getrefcount(behind[identity]) for identity in behind)


_ONE_REFERENCE = _references_of_one()
