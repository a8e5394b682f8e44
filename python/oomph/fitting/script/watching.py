"""Watches a script that trains, unchanged, until it has stepped once: which model, which optimizer, which batch, and on which lines.

It notes and changes nothing. What the lines mean is for ``source``. PyTorch is given, not imported: the script must be the one that imports it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from oomph.live.library_code import is_installed

# Frames of a call that are checked, from the inside.
_DEPTH = 40


@dataclass(frozen=True)
class Place:
    """A line of the script."""

    file: str
    line: int
    function: str


@dataclass
class Call:
    """A model that was called with gradients on, and the frames that it was called from: (frame, line, names and what they were)."""

    module: Any
    frames: list[tuple[Any, int, dict[str, Any]]]
    results: set[Any]
    arguments: tuple[Any, ...]
    samples: int | None
    autocast: Any
    #: How often each tensor that had a name was written to, once the model was done with it.
    versions: dict[int, int]


@dataclass(frozen=True)
class Graph:
    """What autograd knows of a loss: its type, and the names of the operations between it and what the models gave."""

    dtype: Any
    dimensions: int
    operations: Counter[str]


@dataclass
class Backward:
    """The first backward pass: the function that contains both the model's call and this, and what its names were when the model was called."""

    file: str
    function: str
    first_line_of_function: int
    called_on: int
    backward_on: int
    locals: dict[str, Any]
    globals: dict[str, Any]
    #: What the names were when backward was called.
    after: dict[str, Any]
    models: list[Any]
    #: What the model was called with, by position; empty if it was called several times.
    arguments: tuple[Any, ...]
    samples: int | None
    #: (type of the device, type of the numbers), if the model was called under autocast.
    autocast: tuple[str, Any] | None
    #: The same, for the call of backward: then autocast is around the whole step.
    autocast_around: tuple[str, Any] | None
    #: Of what backward was called on.
    graph: Graph
    #: Names of tensors that were written to in place between the model's call and backward.
    written: set[str]


@dataclass
class Seen:
    """What was seen so far."""

    backward: Backward | None = None
    backwards: int = 0
    #: The lines that call backward before the first step.
    backward_places: list[Place] = field(default_factory=list)
    optimizers: list[Any] = field(default_factory=list)
    made: dict[int, Place] = field(default_factory=dict)
    stepped: list[Place] = field(default_factory=list)
    zeroed: list[Place] = field(default_factory=list)
    clipped: list[tuple[Place, float | None]] = field(default_factory=list)
    scaled: list[Place] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)


class Watcher:
    """Puts itself into PyTorch until ``stop``."""

    def __init__(self, torch: Any, ours: tuple[str, ...]) -> None:
        self.torch, self.seen = torch, Seen()
        self._ours = (*ours, os.path.dirname(torch.__file__) + os.sep, "<frozen")
        self._inside = 0
        self._calls: list[Call] = []
        self._undo: list[Callable[[], None]] = []
        self._put(torch.nn.Module, "__call__", self._calling)
        self._put(torch.Tensor, "backward", self._backward)
        self._put(torch.optim.Optimizer, "__init__", self._making)
        self._put(torch.optim.Optimizer, "zero_grad", functools.partial(self._at, self.seen.zeroed))
        self._put(torch.nn.Module, "zero_grad", functools.partial(self._at, self.seen.zeroed))
        self._put(torch.nn.utils, "clip_grad_norm_", self._clipping)
        for name in ("step", "update", "unscale_"):
            self._put(torch.amp.GradScaler, name, self._scaling)

    def stop(self) -> None:
        """PyTorch as it was."""
        while self._undo:
            self._undo.pop()()
        self._calls.clear()

    def before_step(self, optimizer: Any) -> None:
        place = self.place()
        if place is not None:
            self.seen.stepped.append(place)
        if not any(one is optimizer for one in self.seen.optimizers):
            self.seen.optimizers.append(optimizer)

    # -- what is put into PyTorch

    def _put(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        had = name in vars(owner)
        setattr(owner, name, watched)

        def undo() -> None:
            if had:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        self._undo.append(undo)

    def _calling(self, original: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        torch = self.torch
        if self._inside or self.seen.backward is not None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return original(module, *args, **kwargs)
        self._inside += 1
        try:
            frames = self._frames(sys._getframe(2))
            output = original(module, *args, **kwargs)
        finally:
            self._inside -= 1
        if any(parameter.requires_grad for parameter in module.parameters()):
            results = {tensor.grad_fn for tensor in self._tensors(output) if tensor.grad_fn is not None}
            versions = {id(value): _version(value) for _, _, names in frames for value in names.values() if isinstance(value, torch.Tensor)}
            self._calls.append(Call(module, frames, results, args, _samples((args, kwargs)), self._autocast(), versions))
        return output

    def _backward(self, original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
        if self._inside == 0:
            self.seen.backwards += 1
            place = self.place()
            if place is not None and place not in self.seen.backward_places and not self.seen.optimizers:
                self.seen.backward_places.append(place)
            if self.seen.backward is None:
                self.seen.backward = self._what_led_to(loss, sys._getframe(2))
                self._calls.clear()
        return original(loss, *args, **kwargs)

    def _making(self, original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> None:
        place = self.place()
        if place is not None:
            self.seen.made[id(optimizer)] = place
        original(optimizer, *args, **kwargs)

    def _at(self, places: list[Place], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        place = self.place()
        if place is not None and place not in places:
            places.append(place)
        return original(*args, **kwargs)

    def _scaling(self, original: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(one is scaler for one in self.seen.scalers):
            self.seen.scalers.append(scaler)
        return self._at(self.seen.scaled, original, scaler, *args, **kwargs)

    def _clipping(self, original: Callable[..., Any], parameters: Any, max_norm: Any, *args: Any, **kwargs: Any) -> Any:
        place = self.place()
        if place is not None:
            self.seen.clipped.append((place, float(max_norm) if isinstance(max_norm, (int, float)) else None))
        return original(parameters, max_norm, *args, **kwargs)

    # -- frames

    def place(self) -> Place | None:
        """The innermost line of the script's own; without one, of a library, but neither PyTorch's nor oomph's."""
        frame: Any = sys._getframe(1)
        library = None
        while frame is not None:
            if not self._is_ours(frame):
                place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                if not is_installed(place.file):
                    return place
                library = library or place
            frame = frame.f_back
        return library

    def _is_ours(self, frame: Any) -> bool:
        return frame.f_code.co_filename.startswith(self._ours)

    def _frames(self, frame: Any) -> list[tuple[Any, int, dict[str, Any]]]:
        frames: list[tuple[Any, int, dict[str, Any]]] = []
        while frame is not None and len(frames) < _DEPTH:
            if not self._is_ours(frame):
                frames.append((frame, frame.f_lineno, _names(frame)))
            frame = frame.f_back
        return frames

    def _what_led_to(self, loss: Any, frame: Any) -> Backward | None:
        nodes = set(_nodes(loss.grad_fn, ()))
        calls = [call for call in self._calls if call.results & nodes] or self._calls[-1:]
        if not calls:
            return None
        here: dict[int, int] = {}
        while frame is not None:
            if not self._is_ours(frame):
                here.setdefault(id(frame), frame.f_lineno)
            frame = frame.f_back
        first = calls[0]
        for common, line, names in first.frames:
            if id(common) in here:
                code = common.f_code
                models: list[Any] = []
                for call in calls:
                    if not any(call.module is model for model in models):
                        models.append(call.module)
                return Backward(
                    file=code.co_filename,
                    function=code.co_name,
                    first_line_of_function=code.co_firstlineno,
                    called_on=line,
                    backward_on=here[id(common)],
                    locals=names,
                    globals=common.f_globals,
                    after=_names(common),
                    models=models,
                    arguments=first.arguments if len(calls) == 1 else (),
                    samples=first.samples,
                    autocast=first.autocast,
                    autocast_around=self._autocast(),
                    graph=graph_of(loss, {node for call in calls for node in call.results}),
                    written={name for name, value in names.items() if isinstance(value, self.torch.Tensor) and _version(value) != first.versions.get(id(value), _version(value))},
                )
        return None

    def _autocast(self) -> tuple[str, Any] | None:
        torch = self.torch
        return ("cuda", torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else None

    def _tensors(self, things: Any) -> list[Any]:
        found: list[Any] = []
        tensors_in(self.torch, things, found)
        return found


def graph_of(loss: Any, results: Iterable[Any]) -> Graph:
    """What lies between the loss and the results of models: inside of them, layers may be left out in one call and not in another."""
    nodes = _nodes(loss.grad_fn, results)
    return Graph(loss.dtype, loss.dim(), Counter(node.name() for node in nodes))


def _nodes(first: Any, ends: Iterable[Any]) -> list[Any]:
    """The nodes of autograd that lead to this one, without those at the ends and behind them."""
    seen, found, waiting = set(ends), [], [first]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.append(node)
            waiting += [following for following, _ in node.next_functions]
    return found


def _version(tensor: Any) -> int:
    """How often it was written to. Tensors of inference mode do not count that."""
    return 0 if tensor.is_inference() else tensor._version


def _names(frame: Any) -> dict[str, Any]:
    """What the names of a frame stand for. Before Python 3.13 a frame that was asked keeps a copy, and with it what the script frees."""
    names = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        frame.f_locals.clear()
    return names


def tensors_in(torch: Any, things: Any, found: list[Any], depth: int = 0) -> None:
    """The tensors in tuples, lists, dicts and what is like a dict."""
    if isinstance(things, torch.Tensor):
        found.append(things)
    elif depth < 5 and isinstance(things, (list, tuple)):
        for thing in things:
            tensors_in(torch, thing, found, depth + 1)
    elif depth < 5 and hasattr(things, "values") and callable(things.values) and not isinstance(things, (torch.nn.Module, type)):
        for thing in things.values():
            tensors_in(torch, thing, found, depth + 1)


def _samples(things: Any) -> int | None:
    from oomph.fitting.errors import FitError
    from oomph.fitting.running.batches import samples

    try:
        return samples(things)
    except FitError:
        return None
