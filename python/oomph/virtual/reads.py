"""Where the program reads, or steers by, a value that a real GPU would have computed.

Kernels do nothing on the virtual GPU: a loss is not known, and printing it changes nothing. Comparing it may. So what
``item()`` gives is a number that remembers where it came from, and notes the line when it is compared, tested or used
as a count.
"""

from __future__ import annotations

import os
import sys

from .library_code import is_torch

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any, Protocol

    from torch import Tensor, dtype

    from .values import Values

    # File, line and function.
    Place = tuple[str, int, str]
    Scalar = bool | int | float | complex
    # Computes the true number; None if it cannot be had.
    Later = Callable[[], Scalar | None]

    class Unknown(Protocol):
        """What ``UnknownFloat`` and ``UnknownInt`` have beside what numbers have."""

        reads: Reads
        place: Place | None
        later: Later | None
        true: Scalar | None

        def truth(self) -> Scalar | None: ...


READ, BRANCH, SIZE = "read", "branch", "size"
_ORDER = {READ: 0, BRANCH: 1, SIZE: 2}
TWO_TO_64 = 2**64
_HERE = os.path.dirname(os.path.abspath(__file__))


class Reads:
    """The lines, each with the worst that happened there."""

    def __init__(self) -> None:
        self.lines: dict[Place, dict[str, Any]] = {}
        # Sizes that were taken to be the most, or the least, that they can be.
        self.open_sizes = 0
        # Whether more time or memory would have told some of them.
        self.more_helps = False
        # Whether the program has got a number that remembers, which is not of the plain type that some ask for.
        self.handed_out = False
        self.latest: Place | None = None

    def note(self, what: str, detail: str, place: Place | None = None) -> None:
        place = place or calling_line()
        if place is None:
            return
        entry = self.lines.setdefault(place, {"what": what, "detail": detail, "count": 0})
        entry["count"] += 1
        self.latest = place
        if _ORDER[what] > _ORDER[entry["what"]]:
            entry["what"], entry["detail"] = what, detail

    def report(self) -> list[dict[str, Any]]:
        return [_named(place, entry) for place, entry in self.lines.items()]

    def plain_helps(self) -> bool:
        """Whether plain numbers might do: some were handed out, and nothing that was made up has decided anything."""
        return self.handed_out and all(entry["what"] == READ for entry in self.lines.values())

    def last(self) -> dict[str, Any] | None:
        """The latest line of all."""
        return None if self.latest not in self.lines else _named(self.latest, self.lines[self.latest])


def _named(place: Place, entry: dict[str, Any]) -> dict[str, Any]:
    file, line, function = place
    return {"file": file, "line": line, "function": function, **entry}


def calling_line() -> Place | None:
    """The innermost frame that is not PyTorch's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_torch(code.co_filename) and not code.co_filename.startswith(("<frozen", _HERE)) and not code.co_filename.endswith("/contextlib.py"):
            return code.co_filename, frame.f_lineno, code.co_name
        frame = frame.f_back
    return None


# What PyTorch puts between an operation and a mode.
DISPATCH = ("/torch/_ops.py", "/torch/_compile.py", "/torch/_dynamo/eval_frame.py", "/torch/utils/_python_dispatch.py")


def asking_file(between: tuple[str, ...] = DISPATCH) -> str:
    """The file of the innermost frame that is not oomph's own, nor of PyTorch's dispatch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HERE) and not file.endswith(between):
            return file
        frame = frame.f_back
    return ""


def asked_by(folder: str) -> bool:
    """Whether that file lies in this folder."""
    return folder in asking_file()


def _steers(name: str, kind: type[Any]) -> Callable[..., Any]:
    def method(self: Unknown, *arguments: object) -> Any:
        true = self.truth()
        if true is not None:
            return getattr(kind, name)(true, *map(_truth_or_itself, arguments))
        self.reads.note(BRANCH, f"a value from line {self.place[1]} of {os.path.basename(self.place[0])} decides" if self.place else "a value decides")
        return getattr(kind, name)(self, *arguments)

    method.__name__ = name
    return method


def _truth_or_itself(value: object) -> object:
    true = value.truth() if isinstance(value, (UnknownFloat, UnknownInt)) else None
    return value if true is None else true


def _carries(name: str, kind: type[Any], of: type[Any]) -> Callable[..., Any]:
    def method(self: Unknown, *arguments: object) -> Any:
        value = getattr(kind, name)(self, *arguments)
        if type(value) is not kind:
            return value

        def later() -> Scalar | None:
            true = self.truth()
            return None if true is None else getattr(kind, name)(true, *map(_truth_or_itself, arguments))

        return of(value, self.reads, self.place, later)

    method.__name__ = name
    return method


def _truth(self: Unknown) -> Scalar | None:
    """The true number, computed now; None if it cannot be had."""
    if self.later is not None:
        self.true, self.later = self.later(), None
    return self.true


def _scalar(kind: type[Any], extra: tuple[str, ...] = ()) -> type[Any]:
    """A subclass of a number that is not computed before it decides something, and notes where it does without being known."""

    def new(cls: type[Any], value: float, reads: Reads, place: Place | None, later: Later | None = None) -> Any:
        self: Any = kind.__new__(cls, value)
        self.reads, self.place, self.later, self.true = reads, place, later, None
        return self

    body: dict[str, Any] = {
        "__new__": new,
        "__reduce__": lambda self: (kind, (kind(self),)),
        "__hash__": kind.__hash__,
        "truth": _truth,
    }
    for name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__", *extra):
        body[name] = _steers(name, kind)
    cls = type(f"Unknown{kind.__name__.title()}", (kind,), body)
    for name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__neg__", "__abs__"):
        setattr(cls, name, _carries(name, kind, cls))
    if kind is float:
        for name in ("__truediv__", "__rtruediv__", "__pow__"):
            setattr(cls, name, _carries(name, kind, cls))
    return cls


UnknownFloat = _scalar(float)
UnknownInt = _scalar(int, extra=("__index__",))


def without_sign(value: Scalar, dtype: dtype) -> Scalar:
    """The number that the program reads, where it was read as one of int64."""
    return value + TWO_TO_64 if type(value) is int and value < 0 and str(dtype) == "torch.uint64" else value


def watch(torch: ModuleType, values: Values, reads: Reads) -> None:
    """Lets tensors give numbers that remember."""
    tensor, base = torch.Tensor, torch._C.TensorBase

    def item(self: Tensor) -> Scalar:
        values.unknown_read, values.asks_item = None, True
        try:
            value = without_sign(base.item(self), self.dtype)
        finally:
            values.asks_item = False
        if values.unknown_read is None:
            return value
        (place, later), values.unknown_read, values.later = (values.unknown_read, values.later), None, None
        if values.plain_numbers:
            # It cannot say later what it decides.
            true = later() if later is not None else None
            if true is None:
                reads.note(BRANCH, "a plain number that is not known: what it decides is not seen", place)
            return value if true is None else true
        reads.handed_out = True
        if type(value) is float:
            return UnknownFloat(value, reads, place, later)
        if type(value) is int:
            return UnknownInt(value, reads, place, later)
        if type(value) is bool:
            reads.note(BRANCH, "a boolean that is not known", place)
        return value

    def noted(name: str, what: str, detail: str) -> Callable[[Tensor], Scalar]:
        original = getattr(base, name)

        def method(self: Tensor) -> Scalar:
            values.unknown_read = None
            value = without_sign(original(self), self.dtype)
            if values.unknown_read is not None:
                reads.note(what, detail + values.unknown_why, values.unknown_read)
                values.unknown_read = None
            return value

        method.__name__ = name
        return method

    item.__doc__ = base.item.__doc__
    tensor.item = item
    tensor.__bool__ = noted("__bool__", BRANCH, "a tensor that is not known is tested")
    tensor.__int__ = noted("__int__", SIZE, "a tensor that is not known becomes an integer")
    tensor.__index__ = noted("__index__", SIZE, "a tensor that is not known becomes an index")
