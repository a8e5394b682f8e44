"""The census: who holds what when memory runs out, by the program's own names. What ``oomph-trace``'s ``census.rs`` reads.

Taken in the thread that asked, before PyTorch raises, so it is quick (a fifth of a second, a second at most), small, and changes nothing: no code of the
program runs, no tensor is made, nothing is kept. It says what is there; what is wrong with it is for the rules.
"""

from __future__ import annotations

import ast
import gc
import heapq
import os
import re
import sys
import threading
import time
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import itemgetter
from typing import Any

from . import roots as places
from .graphs import Graphs
from .library_code import is_library
from .lines import ADD, APPEND, HOOK, Put, Sources, name_of
from .tensors import Tensors, rounded
from .utf8 import as_json
from .walk import Walk, instance_dict

# Seconds of this thread's time, after which the search for tensors, the walk, the groups, and lines and graphs end, so that what they found is written. Where other programs keep the machine
# busy, they may take five times as long: what a census says must not hang on what else runs. All of it ends by the last.
_SCANNED, _WALKED, _GROUPED, _GRAPHED, _LONGEST = 0.6, 0.8, 0.9, 1.1, 6.0
_BUSY = 5
_LEAST_WALKED = 0.1
# Tensors between two looks at the clock.
_OFTEN = 1024
# The first so many are taken whatever they cost. Later ones take at most a twentieth of a program's time, and are at most so many seconds apart.
_FREELY, _SHARE, _APART = 4, 20, 2.0
# The most that is listed.
_TENSORS, _HOLDERS, _MODULES, _OPTIMIZERS, _FRAMES, _NAMED, _ALSO, _LONGEST_NAME = 2_000, 160, 64, 16, 64, 32, 8, 200

_CONTAINERS = ((list, "list"), (dict, "dict"), (tuple, "tuple"), (set, "set"), (frozenset, "set"), (deque, "deque"))
_OF_MODULES = ("._modules", "._parameters", "._buffers", "._non_persistent_buffers_set")
_HERE = os.path.dirname(os.path.abspath(__file__))
_STANDARD = os.path.dirname(os.path.abspath(os.__file__))
# A dictionary of so few names is a record, whose parts grow; one of more grows itself.
_RECORD = 8


class Turns:
    """Which out-of-memories a census is taken at: a program that catches them again and again must not become slow."""

    def __init__(self) -> None:
        self.taken = 0
        self._next = 0.0

    def take(self, torch: Any, device: int, asked: int, total: int, free: int) -> bytes | None:
        """A census as JSON, if it is time for one."""
        begun = time.monotonic()
        if self.taken >= _FREELY and begun < self._next:
            return None
        census = take(torch, device, asked, total, free)
        self.taken += 1
        ended = time.monotonic()
        self._next = ended + min(_APART, _SHARE * (ended - begun))
        return as_json(census) if census is not None else None


def take(torch: Any, device: int, asked: int, total: int, free: int) -> dict[str, Any] | None:
    """Who holds what now; None if it cannot be found out. Never raises."""
    collects = gc.isenabled()
    # A collection would run the program's code in the midst of it.
    gc.disable()
    census = None
    try:
        census = _Census(torch, device, sys._getframe(1))
        with census.tensors.quietly():
            return census.tell(asked, total, free)
    except Exception:
        return None
    finally:
        if census is not None:
            census.drop()
        if collects:
            gc.enable()


def is_own(file: str) -> bool:
    """Whether a file is the program's, not a library's nor oomph's."""
    if file.startswith("<"):
        return file.startswith(("<ipython-input", "<stdin", "<string", "<cell"))
    if is_library(file):
        return False
    return not file.startswith((_STANDARD + os.sep, _HERE + os.sep)) and not (__package__ == "oomph.live" and file.startswith(os.path.dirname(_HERE) + os.sep))


@dataclass
class _Root:
    """A name that something can be held by, and where it lives."""

    name: str
    kind: str
    function: str = ""
    file: str = ""
    first: int = 0  # The line that the function begins at.
    line: int = 0  # The line that it is at.
    files: tuple[str, ...] = ()  # Where a module's lines may be: a notebook has a file for each cell.
    around: tuple[str, ...] = ()  # The functions around a closure.


@dataclass
class _Spot:
    """What holds a tensor: a container that the program has a name for, or that tensor alone."""

    name: str
    kind: str
    root: _Root
    number: int
    holder: Any
    owner: type | None  # Whose attribute it is.
    attribute: str
    is_alone: bool


@dataclass
class _Group:
    """What has one holder."""

    spot: _Spot
    what: str
    tensors: list[Any] = field(default_factory=list)
    bytes: int = 0
    largest: int = 0
    also: set[int] = field(default_factory=set)
    graphs: list[Any] = field(default_factory=list)
    holders: dict[int, Any] = field(default_factory=dict)
    entry: dict[str, Any] = field(default_factory=dict)


class _Census:
    def __init__(self, torch: Any, device: int, asked_from: types.FrameType) -> None:
        self.begun, self.begun_here = time.perf_counter(), time.thread_time()
        self.torch, self.device = torch, device
        self.tensors = Tensors(torch)
        self.sources = Sources()
        self.graphs = Graphs(torch, lambda: self._is_late(_GRAPHED))
        self.complete = True
        self.main = sys.modules["__main__"].__dict__
        self.frames = _asking_frames(asked_from)
        self.at: dict[int, int] = {}  # Tensors on the card: identity -> address
        self.everything: dict[int, Any] = {}
        self.learning: dict[int, Any] = {}  # Those that require gradients.
        self.modules: list[Any] = []
        self.optimizers: list[Any] = []
        self.owned: dict[int, tuple[str, Any, Any]] = {}  # address -> what it is, whose, and as which tensor
        self.hooks: dict[tuple[str, int], str] = {}
        self.roots: list[_Root] = []
        self.spots: dict[int, _Spot] = {}
        self.groups: list[_Group] = []
        # Nearly no program gives a tensor attributes, and there may be a hundred thousand of them.
        self.walk = Walk(self._is_wanted, lambda _: (), self._walls(), (torch.Tensor, torch.nn.Parameter))
        self.missing = 0

    def drop(self) -> None:
        """Drops everything, frames too."""
        self.walk.drop()
        self.graphs.drop()
        self.__dict__.clear()

    def _is_late(self, limit: float) -> bool:
        passed = time.perf_counter() - self.begun
        if passed <= limit:
            return False
        return passed > min(_BUSY * limit, _LONGEST) or time.thread_time() - self.begun_here > limit

    def tell(self, asked: int, total: int, free: int) -> dict[str, Any]:
        result: dict[str, Any] = {"time": time.time_ns() // 1000, "device": device_number(self.device), "asked": asked}
        result["grad_enabled"] = bool(self.torch.is_grad_enabled())
        parts = (
            ("card", lambda: self._card(total, free)),
            ("frames", self._running),
            ("", self._find_tensors),
            ("", self._own_tensors),
            ("", self._walk),
            ("", self._group),
            ("", self._describe_groups),
            ("", self._find_lines),
            ("", self._count_graphs),
            ("modules", self._modules),
            ("optimizers", self._optimizers),
            ("holders", self._holders),
            ("tensors", self._tensors),
        )
        for name, part in parts:
            # What was found is written in any case.
            if part not in (self._group, self._describe_groups, self._holders) and self._is_late(_LONGEST):
                self.complete = False
                continue
            try:
                found = part()
            except MemoryError:
                raise
            except Exception:
                self.complete = False
                continue
            if name:
                result[name] = found
        result["complete"] = self.complete and self.graphs.complete
        result["milliseconds"] = round(1000 * (time.perf_counter() - self.begun), 3)
        return result

    # --- the card and the frames -----------------------------------------------------------------------------

    def _card(self, total: int, free: int) -> dict[str, Any]:
        card = self.torch.cuda.get_device_properties(self.device)
        reserved = self.torch._C._cuda_memoryStats(self.device)["reserved_bytes"]["all"]["current"]
        elsewhere = max(total - free - reserved, 0)
        return {"name": card.name, "total": total, "capability": [card.major, card.minor], "elsewhere": elsewhere}

    def _running(self) -> list[dict[str, Any]]:
        own = [frame for frame in self.frames if is_own(frame.f_code.co_filename)]
        # What was started with `python -c` has no lines.
        own = [frame for frame in own if not frame.f_code.co_filename.startswith("<string") or self.sources.lines(frame.f_code.co_filename)]
        lines = []
        for frame in own[:_FRAMES]:
            file, line = frame.f_code.co_filename, frame.f_lineno or 0
            text = self.sources.text(file, line)
            lines.append({"file": file, "line": line, "function": frame.f_code.co_name, "text": text})
        if own:
            statement = self.sources.statement(own[0].f_code.co_filename, own[0].f_lineno or 0)
            lines[0]["tensors"] = list(self._named(own[0], statement)) if statement is not None else []
        return lines

    def _named(self, frame: types.FrameType, statement: ast.stmt) -> Iterator[dict[str, Any]]:
        """The tensors that a statement has names for."""
        variables = dict(places.users_variables(frame)) or frame.f_globals
        seen: set[str] = set()
        head: list[ast.AST] = [statement]
        while head and len(seen) < _NAMED:
            node = head.pop(0)
            if node is not statement and isinstance(node, ast.stmt):
                continue  # The body of a block is not what runs.
            name = name_of(node) if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load) else None
            value = self._value(node, variables, frame.f_globals) if name is not None else None
            if name is None or value is None:
                head += ast.iter_child_nodes(node)
                continue
            if self.tensors.is_tensor(value):
                several = [(name, value)]
            elif type(value) in (list, tuple):
                several = [(f"{name}[{index}]", one) for index, one in enumerate(value[:3]) if self.tensors.is_tensor(one)]
            elif type(value) is dict:
                several = [(f"{name}[{key!r}]", one) for key, one in list(value.items())[:8] if type(key) is str and self.tensors.is_tensor(one)]
            else:
                several = []
            for called, tensor in several:
                if called not in seen:
                    seen.add(called)
                    shape, dtype, device = self.tensors.shape(tensor)
                    yield {"name": called[:_LONGEST_NAME], "shape": shape, "dtype": dtype, "device": device}
            if not several:
                head += ast.iter_child_nodes(node)

    def _value(self, node: ast.AST, variables: dict[str, Any], more: dict[str, Any]) -> Any:
        """What an expression of names, attributes and constant keys stands for, as far as it is stored; else None."""
        if isinstance(node, ast.Name):
            return variables[node.id] if node.id in variables else more.get(node.id)
        if isinstance(node, ast.Attribute):
            attributes = instance_dict(self._value(node.value, variables, more)) or {}
            kept = [attributes, *(attributes.get(kind) for kind in ("_parameters", "_buffers", "_modules"))]
            return next((where[node.attr] for where in kept if type(where) is dict and node.attr in where), None)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            where, key = self._value(node.value, variables, more), node.slice.value
            with suppress(LookupError, TypeError):
                if type(where) in (list, tuple) and type(key) is int or type(where) is dict and type(key) in (str, int):
                    return where[key]
        return None

    # --- what is there ---------------------------------------------------------------------------------------

    def _find_tensors(self) -> None:
        torch = self.torch
        kinds = [_with_subclasses(base) for base in (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)]
        identities = set().union(*kinds)
        everything = gc.get_objects()
        # Hundreds of thousands of objects: nothing but C looks at each. Not by their classes themselves, which may have a hash of their own.
        are_wanted = map(identities.__contains__, map(id, map(type, everything)))
        self.kinds = kinds[0]
        found = list(compress(everything, are_wanted))
        del everything
        self.modules = [thing for thing in found if id(type(thing)) in kinds[1]]
        self.optimizers = [thing for thing in found if id(type(thing)) in kinds[2]]
        self._note(thing for thing in found if id(type(thing)) in kinds[0])

    def _note(self, tensors: Iterable[Any]) -> bool:
        """Whether one of these is on the card."""
        before = len(self.at)
        for tensor, address, learns in self.tensors.places(tensors, self.device):
            identity = id(tensor)
            self.at[identity] = address
            self.everything[identity] = tensor
            if learns:
                self.learning[identity] = tensor
            if len(self.at) % _OFTEN == 0 and self._is_late(_SCANNED):
                self.complete = False
                break
        return len(self.at) > before

    def _own_tensors(self) -> None:
        """Parameters, buffers, gradients and optimizer state are those of modules and optimizers, wherever else they are held."""
        inside = {id(child) for module in self.modules for child in _part(module, "_modules")}
        self.tops = [module for module in self.modules if id(module) not in inside]
        self.of_module: dict[int, tuple[list[Any], list[Any]]] = {}
        for top in self.tops:
            parameters, buffers = self.of_module[id(top)] = self._tensors_of(top)
            for what, tensors in (("parameters", parameters), ("buffers", buffers)):
                for tensor in tensors:
                    self._own(tensor, what, top)
            for tensor in parameters:
                self._own(self.tensors.gradient(tensor), "gradients", top)
        for optimizer in self.optimizers:
            for tensor in self._state(optimizer):
                self._own(tensor, "optimizer state", optimizer)
        for tensor in list(self.learning.values()):
            if self.at[id(tensor)] not in self.owned:
                self._own(self.tensors.gradient(tensor), "gradients", tensor)

    def _own(self, tensor: Any, what: str, whose: Any) -> None:
        if tensor is not None and (id(tensor) in self.at or (self.tensors.is_tensor(tensor) and self._note([tensor]))):
            self.owned.setdefault(self.at[id(tensor)], (what, whose, tensor))

    def _tensors_of(self, top: Any) -> tuple[list[Any], list[Any]]:
        """A module's parameters and buffers, those of its parts included. Notes its hooks on the way."""
        parameters, buffers, seen, waiting = [], [], {id(top)}, [top]
        while waiting:
            module = waiting.pop()
            parameters += [tensor for tensor in _part(module, "_parameters") if tensor is not None]
            buffers += [tensor for tensor in _part(module, "_buffers") if tensor is not None]
            for name, kept in list((instance_dict(module) or {}).items()):
                if type(name) is str and name.endswith("_hooks") and issubclass(type(kept), dict):
                    self._note_hooks(dict.values(kept))
            # In the order in which they stand.
            for part in reversed([part for part in _part(module, "_modules") if part is not None]):
                if id(part) not in seen:
                    seen.add(id(part))
                    waiting.append(part)
        return parameters, buffers

    def _note_hooks(self, hooks: Iterable[Any]) -> None:
        for hook in list(hooks):
            if type(hook) is partial:
                hook = partial.func.__get__(hook)
            function = hook.__func__ if type(hook) is types.MethodType else hook
            if type(function) is types.FunctionType:
                code = function.__code__
                self.hooks[(code.co_filename, code.co_firstlineno)] = code.co_name

    def _state(self, optimizer: Any) -> Iterator[Any]:
        state: Any = (instance_dict(optimizer) or {}).get("state")
        for of_parameter in list(dict.values(state)) if issubclass(type(state), dict) else ():
            for value in list(dict.values(of_parameter)) if issubclass(type(of_parameter), dict) else ():
                if self.tensors.is_tensor(value):
                    yield value

    # --- by what name ----------------------------------------------------------------------------------------

    def _walls(self) -> list[Any]:
        modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
        return [sys.modules, self.main, *modules, *(module.__dict__ for module in modules)]

    def _is_wanted(self, thing: Any) -> bool:
        if id(thing) in self.targets:
            self.missing -= 1
            return True
        # Objects that were frozen are not in the collector's lists.
        return id(type(thing)) in self.kinds and id(thing) not in self.at and self._note([thing])

    def _walk(self) -> None:
        self.targets = {identity for identity, address in self.at.items() if address not in self.owned}
        self.targets |= {id(thing) for thing in [*self.tops, *self.optimizers]}
        self.missing = len(self.targets)
        some_are_frozen = gc.get_freeze_count() > 0
        # Names matter most: some time is left for them, whatever was before.
        least = time.perf_counter() - self.begun + _LEAST_WALKED

        def enough() -> bool:
            return (self.missing <= 0 and not some_are_frozen) or (self._is_late(_WALKED) and self._is_late(least))

        named = list(self._named_roots())
        tensors = self.tensors
        # Modules first and optimizers last: both lead to a model's parameters. A list has what a passing variable has, too.
        order = (tensors.is_module, lambda thing: not any(is_kind(thing) for is_kind in (tensors.is_module, tensors.is_tensor, tensors.is_optimizer)))
        for chosen in (*order, tensors.is_tensor, tensors.is_optimizer):
            self._go([(root, thing) for root, thing in named if chosen(thing)], enough)
        del named
        for more in (self._remembered_roots, self._library_roots):
            self._go(more(), enough)

    def _go(self, found: Iterable[tuple[_Root, Any]], enough: Any) -> None:
        if enough():
            self.complete &= self.missing <= 0
            return
        found = list(found)
        self.roots += [root for root, _ in found]
        was_whole = self.walk.go([(root.name, root.kind, thing) for root, thing in found], enough=enough)
        self.complete &= was_whole or self.missing <= 0

    def _named_roots(self) -> Iterator[tuple[_Root, Any]]:
        """Variables of the program's own modules, then those of its running functions, the outermost first."""
        shell = places.shell()
        namespace = places.namespace(shell)
        files = _files_of_main(namespace, self.frames)
        for name, _, value in places.variables(shell):
            yield _Root(name, "variable", file=files[0] if files else "", files=files), value
        for module in list(sys.modules.values()):
            file = _file_of(module)
            if file and module.__dict__ is not namespace and is_own(file):
                for name, value in list(module.__dict__.items()):
                    # Functions and classes are everywhere where they are imported.
                    if type(name) is str and not name.startswith("__") and type(value) not in (types.FunctionType, types.ModuleType):
                        yield _Root(name, "variable", file=file, files=(file,)), value
        for frame in [*reversed(self.frames), *_other_frames()]:
            if is_own(frame.f_code.co_filename):
                yield from _variables_of(frame, "local", frame.f_lineno or 0)

    def _remembered_roots(self) -> Iterator[tuple[_Root, Any]]:
        shell = places.shell()
        for name, _, value in places.outputs(shell):
            yield _Root(name, "output"), value
        handled = sys.exc_info()[1]
        for trace in places.remembered(shell, *([handled] if handled is not None else [])):
            yield from _variables_of(trace.tb_frame, "traceback", trace.tb_lineno)
        module = sys.modules.get("torch.nn.modules.module")
        for name, value in list(module.__dict__.items()) if module is not None else ():
            if name.startswith("_global_") and name.endswith("_hooks") and issubclass(type(value), dict):
                self._note_hooks(dict.values(value))
                yield _Root(name, "hook"), value

    def _library_roots(self) -> Iterator[tuple[_Root, Any]]:
        """What library functions that run now hold: a forward that is under way."""
        for frame in [*reversed(self.frames), *_other_frames()]:
            if not is_own(frame.f_code.co_filename) and not frame.f_code.co_filename.startswith(_HERE + os.sep):
                yield from _variables_of(frame, "local", frame.f_lineno or 0)

    # --- holders ---------------------------------------------------------------------------------------------

    def _spot(self, thing: Any) -> _Spot:
        """What holds a thing that the walk has met."""
        parent, _, number = self.walk.origin(thing)
        known = self.spots.get(parent)
        if known is not None:
            return known
        root = self.roots[number]
        name, kind = root.name, root.kind
        owner, attribute = None, ""
        steps = self.walk.steps_to(thing)
        is_in_hooks = is_key = False
        for place, (edge, here) in enumerate(steps):
            before: Any = steps[place - 1][1] if place else None
            if edge.startswith(" (closure: "):
                code = before.__code__
                name, kind = edge[len(" (closure: ") : -1], "hook" if is_in_hooks else "closure"
                root = _Root(name, kind, code.co_name, code.co_filename, code.co_firstlineno, around=tuple(before.__qualname__.split(".")[:-1]))
                owner, attribute = None, ""
            elif edge.startswith(" (") and " in " in edge:
                frame = before.tb_frame if type(before) is types.TracebackType else before if type(before) is types.FrameType else None
                name = edge[2:].partition(" in ")[0]
                kind = "traceback" if type(before) is types.TracebackType else "local"
                root = _root_of(frame, name, kind) if frame is not None else _Root(name, kind)
                owner, attribute = None, ""
            elif edge == ".__self__":
                name, owner, attribute = type(here).__name__, None, ""
            elif is_key:
                name, is_key = f"{name}.{edge[2:-2]}", False
            elif edge in _OF_MODULES and self.tensors.is_module(before):
                is_key = True
                continue
            elif edge.endswith("_hooks") and self.tensors.is_module(before):
                is_in_hooks = True
                continue
            elif edge.startswith("."):
                name += edge
                owner, attribute = type(before), edge[1:]
            elif not is_in_hooks and edge != " (lru_cache)":
                name += edge
            if here is thing or _container(here):
                found = _Spot(name, kind, root, number, here, owner, attribute, here is thing)
                if here is not thing:
                    found = self._part_of_record(found, steps, place)
                    self.spots[parent] = found
                return found
        return _Spot(name, kind, root, number, thing, owner, attribute, True)

    @staticmethod
    def _part_of_record(spot: _Spot, steps: list[Any], place: int) -> _Spot:
        """``metrics['loss']`` instead of ``metrics``: a dictionary of a few names, in which lists grow."""
        while (
            place + 2 < len(steps)
            and issubclass(type(spot.holder), dict)
            and dict.__len__(spot.holder) <= _RECORD
            and steps[place + 1][0].startswith("['")
            and _container(steps[place + 1][1])
        ):
            place += 1
            edge, here = steps[place]
            attribute = spot.attribute + edge if spot.attribute else ""
            spot = _Spot(spot.name + edge, spot.kind, spot.root, spot.number, here, spot.owner, attribute, False)
        return spot

    def _group(self) -> None:
        """One group for each holder. Memory counts for the tensor that shows most of it: a view is not its owner."""
        of: dict[tuple[Any, ...], _Group] = {}
        by_address: dict[int, list[Any]] = {}
        listed: set[int] = set()
        # Some of each name are listed, however late it is.
        for number, tensor in enumerate(self.walk.found):
            if number % _OFTEN == _OFTEN - 1 and self._is_late(_GROUPED):
                self.complete = False
                break
            address = self.at.get(id(tensor))
            if address is not None and address not in self.owned:
                by_address.setdefault(address, []).append(tensor)
        known: dict[int, _Group] = {}  # Of many in one container.
        for number, (address, held) in enumerate(by_address.items()):
            if address in listed:
                continue
            if number % _OFTEN == _OFTEN - 1 and self._is_late(_GROUPED):
                self.complete = False
                break
            owner = held[0] if len(held) == 1 else max(held, key=self.tensors.extent)
            parent = self.walk.origin(owner)[0]
            group = known.get(parent)
            if group is None:
                spot = self._spot(owner)
                group = self._group_of(of, spot, "tensor")
                group.holders.setdefault(id(spot.holder), spot.holder)
                if parent in self.spots:
                    known[parent] = group
                    self._add_many(group, self.walk.things[parent], by_address, listed)
                    if address in listed:
                        continue
            self._add(group, owner, address)
            listed.add(address)
            if len(group.tensors) <= _ALSO:
                group.also |= self.walk.also(owner) - {group.spot.number}
            for tensor in held:
                if id(tensor) in self.learning:
                    node = self.tensors.graph(tensor)
                    if node is not None:
                        where = group if tensor is owner else self._group_of(of, self._spot(tensor), "tensor")
                        where.graphs.append(node)
        unknown = _Spot("", "unknown", _Root("", "unknown"), -1, None, None, "", True)
        for identity, tensor in self.everything.items():
            address = self.at[identity]
            if address in listed:
                continue
            listed.add(address)
            if len(listed) % _OFTEN == 0 and self._is_late(_LONGEST):
                self.complete = False
                break
            what, whose, tensor = self.owned.get(address, ("tensor", None, tensor))
            spot = unknown
            if self.walk.knows(whose):
                spot = self._spot(whose)
            elif whose is not None:
                spot = _Spot(type(whose).__name__, "unknown", _Root("", "unknown"), -1, whose, None, "", True)
            self._add(self._group_of(of, spot, what), tensor, address)
        self.groups = list(of.values())

    def _group_of(self, of: dict[tuple[Any, ...], _Group], spot: _Spot, what: str) -> _Group:
        # Layers are many, and do the same.
        pattern = re.sub(r"\.\d+(?=\.|$)", ".*", spot.name)
        key = (spot.number, spot.kind, pattern, spot.root.function, what)
        group = of.get(key)
        if group is None:
            group = of[key] = _Group(spot, what)
        elif pattern != spot.name and spot.name != group.spot.name:
            group.spot.name = pattern
        return group

    def _add(self, group: _Group, tensor: Any, address: int) -> None:
        size = rounded(self.tensors.memory[address])
        group.bytes += size
        if size > group.largest:
            group.largest = size
            group.tensors.insert(0, tensor)
        else:
            group.tensors.append(tensor)

    def _add_many(self, group: _Group, container: Any, by_address: dict[int, list[Any]], listed: set[int]) -> None:
        """What a large container holds and nothing else does, all at once: one by one takes ten times as long."""
        if type(container) not in (list, tuple, dict, deque) or _length(container) < _OFTEN:
            return
        at, memory, parent = self.at, self.tensors.memory, id(container)
        held = {at.get(id(thing), 0): thing for thing in (container.values() if type(container) is dict else list(container))}
        held = {address: thing for address, thing in held.items() if len(by_address.get(address, ())) == 1 and address not in listed}
        held = {address: thing for address, thing in held.items() if self.walk.knows(thing) and self.walk.origin(thing)[0] == parent}
        if not held:
            return
        listed.update(held)
        sizes = [rounded(memory[address]) for address in held]
        group.bytes += sum(sizes)
        largest = max(sizes)
        first = list(held.values())[sizes.index(largest)]
        rest = [thing for thing in held.values() if thing is not first]
        group.tensors = [first, *group.tensors, *rest] if largest > group.largest else [*group.tensors, first, *rest]
        group.largest = max(group.largest, largest)
        group.also |= self.walk.also(first) - {group.spot.number}
        for number, thing in enumerate(held.values()):
            if number % _OFTEN == 0 and self._is_late(_GROUPED):
                self.complete = False
                break
            node = self.tensors.graph(thing) if id(thing) in self.learning else None
            if node is not None:
                group.graphs.append(node)

    def _describe_groups(self) -> None:
        self.groups.sort(key=lambda group: (-group.bytes, group.spot.name))
        kept = self.groups[:_HOLDERS]
        kept += [group for group in self.groups[_HOLDERS:] if group.graphs][:_HOLDERS]
        self.groups = kept
        for group in kept:
            spot = group.spot
            shape, dtype, _ = self.tensors.shape(group.tensors[0]) if group.tensors else ([], "", "")
            entry = group.entry
            entry.update(name=spot.name[:_LONGEST_NAME], root=spot.kind, what=group.what, function=spot.root.function, file=spot.root.file)
            entry.update(bytes=group.bytes, tensors=len(group.tensors), with_graph=len(group.graphs), shape=shape, dtype=dtype)
            kind = _container(spot.holder)
            if spot.holder is not None:
                entry["container"] = kind or ("tensor" if self.tensors.is_tensor(spot.holder) else type(spot.holder).__name__)
            if kind:
                entry["length"] = sum(map(_length, group.holders.values()))
            entry["path"] = self._path(group)[:_LONGEST_NAME]
            also = {self.roots[number].name for number in group.also} - {spot.name}
            entry["also"] = sorted(name[:_LONGEST_NAME] for name in also)[:_ALSO]

    def _path(self, group: _Group) -> str:
        """How the largest tensor is reached from its holder."""
        spot, tensor = group.spot, group.tensors[0] if group.tensors else None
        if group.what != "tensor" or spot.is_alone or not self.walk.knows(tensor):
            return spot.name
        after: list[str] = []
        for edge, thing in reversed(self.walk.steps_to(tensor)):
            if id(thing) in group.holders:
                break
            after.append(edge)
        return spot.name + "".join(reversed(after))

    def _find_lines(self) -> None:
        for group in self.groups:
            if self._is_late(_GRAPHED):
                self.complete = False
                return
            self._find_line(group.spot, bool(_container(group.spot.holder)), group.entry)

    def _find_line(self, spot: _Spot, is_container: bool, entry: dict[str, Any]) -> None:
        """The line that puts things in."""
        root, sources = spot.root, self.sources
        found: tuple[str, Put | None] | None = None
        if spot.owner is not None:
            file = _file_of_class(spot.owner)
            if file and is_own(file):
                kinds = [base.__name__ for base in spot.owner.__mro__ if base is not object]
                found = file, sources.of_attribute(file, kinds, spot.attribute, is_container)
        if (found is None or found[1] is None) and root.first:
            found = root.file, sources.of_local(root.file, root.first, spot.name, is_container, root.line, root.around)
        elif (found is None or found[1] is None) and root.files:
            found = sources.of_variable(root.files, spot.name, is_container, root.line)
        if found is not None and found[1] is not None:
            file, put = found
            assert put is not None
            how = APPEND if put.how == ADD and is_container and entry.get("container") in ("list", "deque", "tuple") else put.how
            entry.update(file=file, line=put.statement.lineno, text=sources.text(file, put.statement.lineno, put.statement), how=how)
            hook = next((self.hooks[(file, one.first)] for one in put.functions if (file, one.first) in self.hooks), "")
            if hook:
                entry["hook"] = hook
        elif spot.kind == "hook" and root.first:
            entry.update(line=root.first, text=sources.text(root.file, root.first), how=HOOK, hook=root.function)

    def _count_graphs(self) -> None:
        """What accumulates comes before what passes by, so that a sum is not robbed of its last term."""
        with_graphs = [group for group in self.groups if group.graphs]
        with_graphs.sort(key=lambda group: (group.spot.is_alone and not group.spot.attribute, group.entry.get("how") in (None, "assign")))
        for group in with_graphs:
            graph = self.graphs.of(group.graphs)
            group.entry.update(nodes=graph.nodes, forwards=graph.forwards, chained=graph.chained)

    def _holders(self) -> list[dict[str, Any]]:
        for group in self.groups:
            copied = self._copied(group)
            if copied:
                group.entry["copy_of"] = copied
        return [group.entry for group in self.groups]

    # --- modules and optimizers ------------------------------------------------------------------------------

    def _modules(self) -> list[dict[str, Any]]:
        optimized = {id(tensor) for optimizer in self.optimizers for tensor in _parameters_of(optimizer)}
        entries = []
        for top in self.tops:
            parameters, buffers = ([tensor for tensor in kept if id(tensor) in self.at] for kept in self.of_module[id(top)])
            if not parameters and not buffers:
                continue
            size = self._bytes([*parameters, *buffers])
            dtypes: Counter[str] = Counter()
            for tensor in parameters or buffers:
                dtypes[self.tensors.shape(tensor)[1]] += self.tensors.extent(tensor)
            one: dict[str, Any] = {
                "name": self._name(top),
                "class": type(top).__name__,
                "parameters": sum(map(self.tensors.elements, parameters)),
                "bytes": size,
                "gradients": self._bytes([gradient for gradient in map(self.tensors.gradient, parameters) if id(gradient) in self.at]),
                "training": (instance_dict(top) or {}).get("training") is True,
                "requires_grad": any(id(tensor) in self.learning for tensor in parameters),
                "optimized": any(id(tensor) in optimized for tensor in parameters),
                "dtype": dtypes.most_common(1)[0][0],
            }
            one["file"], one["calls"] = self._calls(one["name"])
            entries.append((one, self._shapes(parameters), self._shapes(buffers)))
            if one["optimized"]:
                entries += [(part, Counter(), Counter()) for part in self._untrained_parts(top, one["name"], optimized)]
        # What trains is the original.
        entries.sort(key=lambda entry: (not entry[0]["optimized"], not entry[0]["training"], -entry[0]["bytes"]))
        self.shapes = [(one["name"], shapes, shapes + more) for one, shapes, more in entries]
        for number, (one, shapes, _) in enumerate(entries):
            original = next((name for name, others, _ in self.shapes[:number] if shapes and others == shapes), None)
            if original is not None:
                one["copy_of"] = original
        return [one for one, _, _ in entries[:_MODULES]]

    def _untrained_parts(self, top: Any, name: str, optimized: set[int]) -> Iterator[dict[str, Any]]:
        """Parts of a model that no optimizer has, though they ask for gradients: a teacher, a target."""
        parts: Any = (instance_dict(top) or {}).get("_modules")
        for key, part in list(dict.items(parts)) if issubclass(type(parts), dict) else ():
            if part is None or type(key) is not str:
                continue
            parameters = [tensor for tensor in self._tensors_of(part)[0] if id(tensor) in self.at]
            if not any(id(tensor) in self.learning for tensor in parameters) or any(id(tensor) in optimized for tensor in parameters):
                continue
            file, calls = self._calls(key)
            yield {
                "name": f"{name}.{key}"[:_LONGEST_NAME],
                "class": type(part).__name__,
                "parameters": sum(map(self.tensors.elements, parameters)),
                "bytes": self._bytes(parameters),
                "training": (instance_dict(part) or {}).get("training") is True,
                "requires_grad": True,
                "optimized": False,
                "file": file,
                "calls": calls,
            }

    def _calls(self, name: str) -> tuple[str, list[int]]:
        """Lines that call a model of this name, in the files of the running functions."""
        wanted = name.rpartition(".")[2]
        for file in dict.fromkeys(frame.f_code.co_filename for frame in self.frames if is_own(frame.f_code.co_filename)):
            tree = self.sources.tree(file)
            calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)] if tree is not None and wanted else []
            named = (ast.Name, ast.Attribute)
            lines = {node.lineno for node in calls if isinstance(node.func, named) and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) == wanted}
            if lines:
                return file, sorted(lines)[:_NAMED]
        return "", []

    def _copied(self, group: _Group) -> str | None:
        """The module that a dictionary or list of tensors has the shapes of, once or several times."""
        if group.what != "tensor" or group.entry.get("container") not in ("dict", "list", "tuple") or len(group.tensors) > 100_000:
            return None
        shapes = None
        for name, parameters, everything in getattr(self, "shapes", ()):
            for wanted in (parameters, everything):
                count = wanted.total() if hasattr(wanted, "total") else sum(wanted.values())
                if count < 2 or len(group.tensors) % count:
                    continue
                shapes = shapes or self._shapes(group.tensors)
                times = len(group.tensors) // count
                if len(shapes) == len(wanted) and all(shapes.get(shape) == times * number for shape, number in wanted.items()):
                    return name
        return None

    def _shapes(self, tensors: list[Any]) -> Counter[Any]:
        return Counter(tuple(self.tensors.shape(tensor)[0]) for tensor in tensors)

    def _bytes(self, tensors: list[Any]) -> int:
        return sum(rounded(self.tensors.memory[address]) for address in {self.at[id(tensor)] for tensor in tensors})

    def _name(self, thing: Any) -> str:
        return self._spot(thing).name[:_LONGEST_NAME] if self.walk.knows(thing) else ""

    def _optimizers(self) -> list[dict[str, Any]]:
        entries = []
        for optimizer in self.optimizers:
            groups = (instance_dict(optimizer) or {}).get("param_groups")
            first = groups[0] if type(groups) is list and groups and type(groups[0]) is dict else {}
            one: dict[str, Any] = {
                "name": self._name(optimizer),
                "class": type(optimizer).__name__,
                "bytes": self._bytes([tensor for tensor in self._state(optimizer) if id(tensor) in self.at]),
                "parameters": self._bytes([tensor for tensor in _parameters_of(optimizer) if id(tensor) in self.at]),
            }
            for setting in ("foreach", "fused"):
                if type(first.get(setting)) is bool:
                    one[setting] = first[setting]
            entries.append(one)
        return sorted(entries, key=lambda one: -one["bytes"])[:_OPTIMIZERS]

    def _tensors(self) -> list[dict[str, Any]]:
        memory, at = self.tensors.memory, self.at
        held = ((memory[at[id(tensor)]], number, tensor) for number, group in enumerate(self.groups) for tensor in group.tensors)
        entries = []
        for _, number, tensor in heapq.nlargest(_TENSORS, held, key=itemgetter(0)):
            address = self.at[id(tensor)]
            shape, dtype, _ = self.tensors.shape(tensor)
            one = {"address": address, "bytes": self.tensors.memory[address], "shape": shape, "dtype": dtype, "holder": number}
            if self.tensors.has_graph(tensor):
                one["graph"] = True
            entries.append(one)
        return entries


def device_number(device: Any) -> int:
    return device if type(device) is int and device >= 0 else 0


def _asking_frames(innermost: types.FrameType) -> list[types.FrameType]:
    """The frames of the thread that asked, innermost first. A thread of autograd's asks for the one that waits for it."""
    frames = list(_outward(innermost))
    asking = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # threading's own table
    main = threading.main_thread()
    if asking is None or isinstance(asking, threading._DummyThread):
        waiting = sys._current_frames().get(main.ident or 0)
        frames += _outward(waiting) if asking is not main and waiting is not None else []
    return frames


def _outward(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_HERE + os.sep):
            yield frame
        frame = frame.f_back


def _other_frames() -> list[types.FrameType]:
    here = threading.get_ident()
    others = [frame for thread, frame in sys._current_frames().items() if thread != here]
    return [frame for innermost in others for frame in reversed(list(_outward(innermost)))]


def _variables_of(frame: types.FrameType, kind: str, line: int) -> Iterator[tuple[_Root, Any]]:
    code = frame.f_code
    for name, value in places.users_variables(frame):
        yield _Root(name, kind, code.co_name, code.co_filename, code.co_firstlineno, line), value


def _root_of(frame: types.FrameType, name: str, kind: str) -> _Root:
    code = frame.f_code
    return _Root(name, kind, code.co_name, code.co_filename, code.co_firstlineno, frame.f_lineno or 0)


def _files_of_main(namespace: dict[str, Any], frames: list[types.FrameType]) -> tuple[str, ...]:
    """The files whose lines make the variables of the main module: its own, and the cells of a notebook, the last ones first."""
    import linecache

    files = [frame.f_code.co_filename for frame in frames if frame.f_globals is namespace]
    own = namespace.get("__file__")
    if type(own) is str:
        files.append(own)
        cells = [name for name in list(linecache.cache) if name.startswith(own + "[")]
    else:
        cells = [name for name in list(linecache.cache) if "ipykernel_" in name or name.startswith("<ipython-input")]
    return tuple(dict.fromkeys([*files, *cells[-100:][::-1]]))


def _file_of(module: Any) -> str:
    file = module.__dict__.get("__file__") if isinstance(module, types.ModuleType) else None
    return file if type(file) is str else ""


def _file_of_class(kind: type) -> str:
    """The file that a class is written in, which for the main module is what its functions say."""
    for member in list(type.__dict__["__dict__"].__get__(kind).values()):
        if type(member) is types.FunctionType:
            return member.__code__.co_filename
    return _file_of(sys.modules.get(str(type.__dict__["__dict__"].__get__(kind).get("__module__"))))


def _container(thing: Any) -> str:
    return next((name for kind, name in _CONTAINERS if issubclass(type(thing), kind)), "")


def _length(thing: Any) -> int:
    for kind, _ in _CONTAINERS:
        if issubclass(type(thing), kind):
            return kind.__len__(thing)
    return 0


def _part(module: Any, name: str) -> list[Any]:
    """A module's own parameters, buffers or parts, as they are stored."""
    kept: Any = (instance_dict(module) or {}).get(name)
    return [value for value in dict.values(kept) if value is not None] if issubclass(type(kept), dict) else []


def _parameters_of(optimizer: Any) -> list[Any]:
    groups = (instance_dict(optimizer) or {}).get("param_groups")
    found: list[Any] = []
    for group in groups if type(groups) is list else ():
        kept = dict.get(group, "params") if issubclass(type(group), dict) else None
        found += kept if type(kept) is list else ()
    return found


def _with_subclasses(base: type) -> set[int]:
    found, waiting = {id(base)}, [base]
    kind: type
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            if id(kind) not in found:
                found.add(id(kind))
                waiting.append(kind)
    return found
