"""Walking from named roots through Python's objects, so that what is found has a name: ``history[12].loss``.

The objects are strangers: none of their own code is run (no getattr, no iteration, no comparison), only what Python itself knows of them.
Nothing is kept: a walk holds what it has seen until it is dropped. What is looked for, and what roots there are, is for the caller to say.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

# Nothing in these leads to what a program holds; modules are roots of their own.
_LEAVES = frozenset((
    type(None), bool, int, float, complex, str, bytes, bytearray, range, types.ModuleType, types.CodeType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
))  # fmt: skip

# CO_OPTIMIZED: locals live in fast slots, and f_locals is a copy before Python 3.13.
_OPTIMIZED = 0x1

HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or by C that wants to look like one.

_SUSPENDABLE = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame", types.AsyncGeneratorType: "ag_frame"}

# Objects between two questions whether it is enough.
_OFTEN = 1024

Edge = tuple[str, Any]


def local_variables(frame: types.FrameType) -> list[Edge]:
    """A frame's local variables. A frame of a module or a class gives none: those are variables of that module."""
    if not frame.f_code.co_flags & _OPTIMIZED:
        return []
    variables = frame.f_locals
    found = list(variables.items())
    # Before Python 3.13 that copy stays on the frame and keeps alive what the function drops meanwhile. Only the frame, this variable
    # and the call hold it, unless the function itself asked for locals() and kept it.
    if sys.version_info < (3, 13) and sys.getrefcount(variables) <= 3:
        variables.clear()
    return found


def instance_dict(thing: Any) -> dict[str, Any] | None:
    """An object's own attributes, as they are stored."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except Exception:
        return None
    return found if type(found) is dict else None


Slots = dict[int, list[Edge]]


def _slots(thing: Any, known: Slots) -> Iterator[Edge]:
    kind = type(thing)
    members = known.get(id(kind))
    if members is None:
        # Looked up once a class: a tensor's has a thousand attributes.
        members = known[id(kind)] = [
            (name, member) for base in kind.__mro__ for name, member in base.__dict__.items() if type(member) is types.MemberDescriptorType and not name.startswith("__")
        ]
    for name, member in members:
        try:
            yield f".{name}", member.__get__(thing, kind)
        except Exception:
            continue  # Never set.


def _key(key: Any) -> str:
    if type(key) is str:
        return f"[{key!r}]" if len(key) <= 40 else f"[{key[:40]!r}…]"
    return f"[{key!r}]" if type(key) in (int, bool, float) else f"[{type(key).__name__}]"


def children(thing: Any, slots: Slots | None = None) -> Iterator[Edge]:
    """What an object holds, each with how its name goes on. ``slots``: what is known of classes that stay alive meanwhile."""
    kind = type(thing)
    if issubclass(kind, dict):
        for key, value in list(dict.items(thing)):
            yield _key(key), value
            if gc.is_tracked(key):
                yield ".key", key
    elif issubclass(kind, (list, tuple, deque)):
        base: Any = list if issubclass(kind, list) else tuple if issubclass(kind, tuple) else deque
        for index, value in enumerate(list(base.__iter__(thing))):
            yield f"[{index}]", value
    elif issubclass(kind, (set, frozenset)):
        base = set if issubclass(kind, set) else frozenset
        for value in list(base.__iter__(thing)):
            yield "{…}", value
    elif kind is types.FunctionType:
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or ()):
            yield f" (closure: {name})", cell
        yield ".__defaults__", thing.__defaults__
        yield ".__kwdefaults__", thing.__kwdefaults__
    elif kind is types.CellType:
        try:
            yield "", thing.cell_contents
        except ValueError:
            return
    elif kind is types.MethodType:
        yield ".__self__", thing.__self__
        yield ".__func__", thing.__func__
    elif kind is types.BuiltinFunctionType:
        yield ".__self__", thing.__self__
    elif kind is types.FrameType:
        yield from frame_children(thing)
    elif kind in _SUSPENDABLE:
        frame = getattr(thing, _SUSPENDABLE[kind])
        if frame is not None:  # None: it has ended.
            yield from frame_children(frame)
    elif kind is types.TracebackType:
        for name, value in local_variables(thing.tb_frame):
            yield f" ({name} in {thing.tb_frame.f_code.co_name}() line {thing.tb_lineno})", value
        yield "", thing.tb_next
    elif issubclass(kind, partial):
        yield ".func", partial.func.__get__(thing)
        yield ".args", partial.args.__get__(thing)
        yield ".keywords", partial.keywords.__get__(thing)
    elif issubclass(kind, type):
        for name, value in list(type.__dict__["__dict__"].__get__(thing).items()):
            yield f".{name}", value
    elif issubclass(kind, BaseException):
        yield ".__traceback__", thing.__traceback__
        yield ".__cause__", thing.__cause__
        yield ".__context__", thing.__context__
        yield ".args", BaseException.args.__get__(thing)  # type: ignore[attr-defined]  # a descriptor, by the class
    elif not kind.__flags__ & HEAP_TYPE or kind.__module__ in ("functools", "itertools", "collections"):
        # Made in C: Python knows what it refers to, not by what name.
        name = " (lru_cache)" if kind.__name__ == "_lru_cache_wrapper" else ""
        for value in gc.get_referents(thing):
            if not issubclass(type(value), type):
                yield name, value
    attributes = instance_dict(thing) if not issubclass(kind, type) else None
    for name, value in list(attributes.items()) if attributes else ():
        yield f".{name}" if type(name) is str else ".?", value
    if kind.__flags__ & HEAP_TYPE:
        yield from _slots(thing, {} if slots is None else slots)


def frame_children(frame: types.FrameType) -> Iterator[Edge]:
    for name, value in local_variables(frame):
        yield f" ({name} in {frame.f_code.co_name}() line {frame.f_lineno})", value


class Walk:
    """A walk from roots, the nearest first. Roots that come later do not take what earlier ones have."""

    def __init__(self, wanted: Callable[[Any], bool], extra: Callable[[Any], Iterable[Edge]], walls: Iterable[Any], ends: Iterable[type] = ()) -> None:
        """``walls`` are not met; what is of a class in ``ends`` is met, but not entered."""
        self._wanted, self._extra = wanted, extra
        self._ends = frozenset(map(id, ends))
        self._walls = {id(wall): wall for wall in walls}
        self.things: dict[int, Any] = {}  # While the walk lasts, no identity may be given to another object.
        self._from: dict[int, tuple[int, str, int]] = {}  # object -> (where from, by what name, root)
        self._again: dict[int, set[int]] = {}
        self._slots: Slots = {}  # Of classes of things, which keep them alive.
        self.roots: list[tuple[str, str]] = []
        self.found: list[Any] = []

    def go(self, roots: Iterable[tuple[str, str, Any]], most: int = 2_000_000, enough: Callable[[], bool] | None = None) -> bool:
        """Walks from (name, kind of root, object); false if it had to stop before the end: after so many objects, or when it is ``enough``."""
        waiting: deque[Any] = deque()
        for name, kind, thing in roots:
            root = len(self.roots)
            self.roots.append((name, kind))
            self._meet(thing, 0, "", root, waiting)
        met = 0
        while waiting:
            thing = waiting.popleft()
            most -= 1
            if most < 0:
                return False
            root = self._from[id(thing)][2]
            try:
                for name, child in children(thing, self._slots):
                    self._meet(child, id(thing), name, root, waiting)
                    met += 1
                    # Asked here: one list may have millions.
                    if enough is not None and met % _OFTEN == 0 and enough():
                        return False
                for name, child in self._extra(thing):
                    self._meet(child, id(thing), name, root, waiting)
            except Exception:
                continue  # It changed during the walk, or lies about what it is.
        return True

    def _meet(self, thing: Any, parent: int, name: str, root: int, waiting: deque[Any]) -> None:
        if type(thing) in _LEAVES or not gc.is_tracked(thing):
            return
        identity = id(thing)
        if identity in self._walls:
            return
        known = self._from.get(identity)
        if known is not None:
            if known[2] != root:
                self._again.setdefault(identity, set()).add(root)
            return
        # A class is a root where it is named; every instance leads to it, and from there to all the others.
        if issubclass(type(thing), type) and parent:
            return
        self._from[identity] = (parent, name, root)
        self.things[identity] = thing
        if self._wanted(thing):
            self.found.append(thing)
        if id(type(thing)) not in self._ends:
            waiting.append(thing)

    def knows(self, thing: Any) -> bool:
        return id(thing) in self._from

    def origin(self, thing: Any) -> tuple[int, str, int]:
        """Where it was met: in what (its identity; 0 for a root), by what name, and from which root."""
        return self._from[id(thing)]

    def root_of(self, thing: Any) -> int:
        return self._from[id(thing)][2]

    def steps_to(self, thing: Any) -> list[Edge]:
        """How the name went on, and to what object, from the root."""
        steps = []
        identity = id(thing)
        while identity:
            parent, name, _ = self._from[identity]
            steps.append((name, self.things[identity]))
            identity = parent
        return steps[::-1]

    def also(self, thing: Any) -> set[int]:
        """Other roots that lead to it as well."""
        others: set[int] = set()
        for _, passed in self.steps_to(thing):
            others |= self._again.get(id(passed), set())
        return others - {self.root_of(thing)}

    def drop(self) -> None:
        """Drops everything: callbacks and what was seen would keep each other alive."""
        self.__dict__.clear()
