"""``oomph.profile_ram``: what each line of a function, or of a ``with`` block, holds of RAM at the peak of a call.

Each outermost call is a recording of its own; profiled functions that it calls get their tables of the same one. What a recording says, and how it looks beside the
source, is ``_ram_held``'s.
"""

from __future__ import annotations

import ast
import contextvars
import functools
import inspect
import linecache
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from oomph._ram_held import Held, Measured, Piece, shown, table
from oomph._recorders import RecordingError

_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.Lock()
_current: _Call | None = None
# The outermost call that this code runs in: in a thread or a task beside it, none.
_inside: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("oomph_profile_ram", default=None)
_said: set[str] = set()


@dataclass(frozen=True)
class _Part:
    """Lines of source that get a table."""

    name: str
    file: str
    source: tuple[tuple[int, str], ...]

    @property
    def piece(self) -> Piece:
        return Piece.of(self.file, (number for number, _ in self.source))

    def shown(self, held: Held, is_all: bool = True) -> list[str]:
        return table(held, self.piece, self.source, is_all=is_all)


class RamProfile:
    """What ``oomph.profile_ram`` gives: a context manager, and a decorator. After the block, :attr:`peak` and :attr:`lines` say what was printed."""

    def __init__(self, name: str | None = None, *, path: str | os.PathLike[str] | None = None, quiet: bool = False) -> None:
        self.name, self.path, self.quiet = name, path, quiet
        self._call: _Call | None = None
        self._part: _Part | None = None

    def __call__(self, function: _F) -> _F:
        """Profiles each call of a function."""
        return _profiled(function, self)

    @property
    def peak(self) -> int | None:
        """The most bytes that were asked for at once. None if the block was not recorded."""
        held = self._held()
        return None if held is None else held.asked

    @property
    def lines(self) -> dict[int, int]:
        """Bytes that were held at the peak, by line of the block, with what it called."""
        held = self._held()
        return {} if held is None or self._part is None else {number: line.bytes for number, line in held.within.get(self._part.piece, {}).items()}

    def _held(self) -> Held | None:
        return None if self._call is None else self._call.outermost.held

    def __enter__(self) -> RamProfile:
        self._part = _part_of_block(self.name, _caller())
        self._call = _Call(self._part, self)
        self._call.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._call is not None:
            self._call.__exit__()


class _Call:
    """One call of a part. The outermost has the recording, and the parts that are called within; if nothing can be recorded, it has none, and says so."""

    def __init__(self, part: _Part, settings: RamProfile) -> None:
        self.parts = [part]
        self.settings = settings
        self.outermost = self
        self.held: Held | None = None
        self._measured: Measured | None = None
        self._process = os.getpid()
        self._entered: contextvars.Token[_Call | None] | None = None

    def __enter__(self) -> _Call:
        self.begin()
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.end()

    def enter(self) -> None:
        """What is run now is inside this call: of a generator, from one value to the next."""
        if self._measured is not None:
            self._entered = _inside.set(self)

    def leave(self) -> None:
        if self._entered is not None:
            _inside.reset(self._entered)
            self._entered = None

    def begin(self) -> None:
        global _current
        around = _inside.get()
        if around is not None and around._is_under_way():
            self.outermost = around
            around.parts += [part for part in self.parts if part not in around.parts]
            return
        with _lock:
            busy = _current is not None and _current._is_under_way()
            if not busy:
                _current = self
        if busy:
            self._say_once("another call is being profiled, and there is one recording of RAM at a time")
            return
        measured = Measured(self.settings.path)
        try:
            measured.start()
            self._measured = measured
        except RecordingError as error:
            _current = None
            self._say_once(str(error))

    def end(self) -> None:
        global _current
        measured, self._measured = self._measured, None
        if measured is None or os.getpid() != self._process:
            return
        try:
            self.held = measured.stop([part.piece for part in self.parts])
        except RecordingError as error:
            self._say_once(str(error))
        finally:
            _current = None
        if self.held is not None and not self.settings.quiet:
            print("\n".join(self._shown(self.held)), file=sys.stderr)

    def _is_under_way(self) -> bool:
        return self is _current and os.getpid() == self._process

    def _shown(self, held: Held) -> list[str]:
        outermost, *others = self.parts
        lines = [f"oomph: RAM of {outermost.name}, held at the peak of this call, of what was allocated since it began", *outermost.shown(held), ""]
        for part in others:
            lines += [f"oomph: RAM of {part.name}, held at the peak of {outermost.name}", *part.shown(held, is_all=False), ""]
        if self.settings.path is not None:
            lines.append(f"Next: oomph explain {os.fspath(self.settings.path)}")
        return lines

    def _say_once(self, why: str) -> None:
        text = f"oomph: {self.parts[0].name} is not profiled: {why}"
        if text not in _said and not self.settings.quiet:
            _said.add(text)
            print(text, file=sys.stderr)


if TYPE_CHECKING:

    @overload
    def profile_ram(what: _F) -> _F: ...
    @overload
    def profile_ram(what: str | None = None, *, path: str | os.PathLike[str] | None = None, quiet: bool = False) -> RamProfile: ...


def profile_ram(what: Any = None, *, path: str | os.PathLike[str] | None = None, quiet: bool = False) -> Any:
    """Prints what each line of a function holds of RAM, at the peak of a call.

        @oomph.profile_ram
        def load(file):
            ...

        with oomph.profile_ram("the merge"):
            ...

    After each call its source is printed to stderr, with the bytes that each line had asked for and not given back when that was most:
    of what was allocated since the call began, and what other threads asked for meanwhile too. Memory that a library takes, or another function of your own, is that of the line which
    called it; below the table stands where those functions held it. Small blocks are sampled: what they may be off by, two standard deviations, is said.

    Functions, methods, generators and async functions can be decorated; exceptions pass through. A profiled function that another calls gets a
    table of its own, at the same peak. A call beside another, in a thread or a task, is not profiled, for there is one recording of RAM in a process; nor
    is one under ``oomph run --ram``, which records all of it. Both are said once.

    ``path`` keeps the recording of the last call, for ``oomph explain``; ``quiet`` prints nothing.
    """
    settings = RamProfile(what if isinstance(what, str) else None, path=path, quiet=quiet)
    return settings if what is None or isinstance(what, str) else settings(what)


def _profiled(function: Any, settings: RamProfile) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_profiled(function.__func__, settings))
    inner = inspect.unwrap(function)
    if isinstance(function, type) or not inspect.isroutine(inner) or not hasattr(inner, "__code__"):
        raise TypeError(f"profile_ram takes a function that is written in Python, not {function!r}")
    part = functools.cache(lambda: _part_of_function(inner, settings.name))
    # How it is called is up to what is decorated; whose lines are shown, to what that wraps.
    if inspect.isasyncgenfunction(function):
        kind = _of_async_generator
    elif inspect.iscoroutinefunction(function):
        kind = _of_coroutine
    else:
        kind = _of_generator if inspect.isgeneratorfunction(function) else _of_plain
    return functools.wraps(function)(kind(function, lambda: _Call(part(), settings)))


def _of_plain(function: Any, new_call: Callable[[], _Call]) -> Any:
    def profiled(*args: Any, **kwargs: Any) -> Any:
        with new_call():
            return function(*args, **kwargs)

    return profiled


def _of_coroutine(function: Any, new_call: Callable[[], _Call]) -> Any:
    async def profiled(*args: Any, **kwargs: Any) -> Any:
        with new_call():
            return await function(*args, **kwargs)

    return profiled


def _of_generator(function: Any, new_call: Callable[[], _Call]) -> Any:
    def profiled(*args: Any, **kwargs: Any) -> Any:
        values, call = function(*args, **kwargs), new_call()
        call.begin()
        try:
            step: Callable[[], Any] = functools.partial(next, values)
            while True:
                call.enter()
                try:
                    value = step()
                except StopIteration as end:
                    return end.value
                finally:
                    call.leave()
                try:
                    step = functools.partial(values.send, (yield value))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = functools.partial(values.throw, error)
        finally:
            values.close()
            call.end()

    return profiled


def _of_async_generator(function: Any, new_call: Callable[[], _Call]) -> Any:
    async def profiled(*args: Any, **kwargs: Any) -> Any:
        values, call = function(*args, **kwargs), new_call()
        call.begin()
        try:
            step = values.asend(None)
            while True:
                call.enter()
                try:
                    value = await step
                except StopAsyncIteration:
                    return
                finally:
                    call.leave()
                try:
                    step = values.asend((yield value))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = values.athrow(error)
        finally:
            await values.aclose()
            call.end()

    return profiled


def _part_of_function(function: Any, name: str | None) -> _Part:
    code = function.__code__
    try:
        source, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        source, first = [], code.co_firstlineno
    return _Part(name or f"{function.__qualname__} ({shown(code.co_filename)}:{code.co_firstlineno})", code.co_filename, _numbered(source, first))


def _part_of_block(name: str | None, frame: FrameType) -> _Part:
    """The lines of the ``with`` statement that a frame is at."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    lines = linecache.getlines(file, frame.f_globals)
    first, last = line, line - 1
    try:
        statements = [node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.With)]
    except (SyntaxError, ValueError):
        statements = []
    for node in statements:
        # Of several on one line, or within each other, the last that begins here.
        if node.lineno <= line <= max(item.context_expr.end_lineno or 0 for item in node.items):
            first, last = node.lineno, node.end_lineno or node.lineno
    place = f"{shown(file)}:{first}"
    return _Part(f"{name} ({place})" if name else place, file, _numbered(lines[first - 1 : last], first))


def _numbered(lines: list[str], first: int) -> tuple[tuple[int, str], ...]:
    return tuple((number, line.rstrip().expandtabs()) for number, line in enumerate(lines, first))


def _caller() -> FrameType:
    """Who entered the block: of an ExitStack, who has it."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == "contextlib" and frame.f_back is not None:
        frame = frame.f_back
    return frame
