"""A spare interpreter: further runs of a program are forked from a process that has imported what the program imports.

The first run of a program imports PyTorch before the program asks for it (or all that a program of oomph's own is known to import, while somebody writes it), and leaves a copy of itself behind, which waits at a socket of oomph's (``door`` of
the task). It is forked before anything of the program has run and before CUDA is there, and again for each further run: with its own card, variables and files.
The first run also notes which installed modules the program imports until it uses CUDA; the spare imports these too.

To a program it makes no difference. What was imported ahead is not among its modules until it asks for it; who waits for an import hears of it then. Where a
fresh process could have imported something else (another environment, another file of that name), the process starts again, as a fresh one. The program's own
modules are never imported ahead: what they do is theirs.

Boundary: whether there is a spare at all is for the crate ``oomph-stage`` (``spare.rs``) to ask; without one, or where it refuses, oomph starts a fresh process.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading

from .imports import AfterImport
from .library_code import is_installed

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence
    from types import ModuleType
    from typing import Any

    # Variables that were set, and removed (None).
    Changes = dict[str, str | None]

# Read by what uses them, not by an import. Programs set them first of all, and so does Lightning.
_READ_WHEN_USED = {"CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK", "TOKENIZERS_PARALLELISM"}
_CALLS_THAT_SET = {"putenv", "unsetenv", "setdefault", "update", "pop", "load_dotenv"}
_PR_SET_PDEATHSIG = 1
# As it is before programs are followed that execute another.
_execve = os.execve


class Refused(Exception):
    """What was imported is not fit to be forked."""


class Group:
    """The modules that one import brought, and the environment that belongs to it."""

    def __init__(self, head: str, modules: dict[str, ModuleType], wanted: Changes, tops: Sequence[str] = ()) -> None:
        self.head, self.modules, self.wanted, self.tops = head, modules, wanted, tops
        # Variables that the import set, and whether it drew numbers from Python's own generator.
        self.sets: Changes = {}
        self.draws = False


class Imports(importlib.abc.MetaPathFinder):
    """What was imported ahead, and what the program imports: both by the installed modules that its own code, or a library at work, asks for."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task, self.start = task, task["spare"]["start"]
        self.groups: dict[str, Group] = {}
        self.known: set[str] = set()
        self.path = set(sys.path)
        self.launched = {**os.environ}
        self.process = os.getpid()
        self.is_first = True
        self.asked: list[dict[str, Any]] | None = None
        self.depth = 0
        self.outer: Changes = {}

    # -- ahead of the program

    def ahead(self, name: str, wanted: Changes, tops: Sequence[str] = ()) -> None:
        """Imports a module in the environment that the program is known to import it in."""
        before = set(sys.modules)
        change(os.environ, wanted)
        environment, drawn = dict(os.environ), random.getstate()
        importlib.import_module(name)
        new = {one: module for one, module in sys.modules.items() if one not in before}
        tops = tops or sorted({one.partition(".")[0] for one in new})
        group = Group(name, {one: module for one, module in new.items() if not is_pythons_own(one)}, wanted, tops)
        group.sets, group.draws = difference(environment, os.environ), random.getstate() != drawn
        self.known.update(new)
        change(os.environ, difference(os.environ, environment))
        change(os.environ, {one: self.launched.get(one) for one in wanted})
        for one in group.modules:
            self.groups[one] = group

    def hide(self) -> None:
        """From here on this process is the program's."""
        for name in (*self.groups, *self.known.intersection(["__mp_main__"])):
            sys.modules.pop(name, None)
        self.process = os.getpid()
        # As it is when the program begins; what imports set is added.
        self.environment, self.drawn = dict(os.environ), random.getstate()
        self.asked = [] if self.is_first else None
        sys.meta_path.insert(0, self)

    # -- in the program

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        is_here = name in self.groups
        # What is part of another import is not noted. PyTorch is: who waits for it must hear of it.
        is_noted = self.asked is not None and (self.depth == 0 or name == "torch")
        if is_pythons_own(name) or not (is_here or is_noted):
            return None
        spec = self.found(name, path, target)
        if spec is None:
            return None
        if is_here:
            return self.given(name, spec)
        if spec.loader is not None and hasattr(spec.loader, "exec_module") and is_installed(spec.origin or ""):
            self.watch(name, spec)
        return spec

    def found(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> importlib.machinery.ModuleSpec | None:
        """By those who come after this one."""
        after = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        specs = (finder.find_spec(name, path, target) for finder in after if hasattr(finder, "find_spec"))
        return next((spec for spec in specs if spec is not None), None)

    def given(self, name: str, spec: importlib.machinery.ModuleSpec) -> importlib.machinery.ModuleSpec:
        """The specification that a search gives, with a loader that has the module already."""
        module = self.groups[name].modules[name]
        if spec.loader is None:
            spec.loader = _Namespace()
        was = getattr(module, "__spec__", None), getattr(module, "__loader__", None)
        is_it = spec.origin == getattr(was[0], "origin", None)

        def execute(module: ModuleType) -> None:
            if not is_it or not self.is_as_expected(self.groups[name]):
                self.start_again()
            with contextlib.suppress(AttributeError):
                module.__spec__, module.__loader__ = was
            self.bring(name)

        loader: Any = spec.loader
        loader.create_module = lambda spec: module
        loader.exec_module = execute
        return spec

    def bring(self, name: str) -> None:
        """Puts what came with a module among the modules: all of it, or where only a part of what was imported is asked for, that package."""
        group, top = self.groups[name], name.partition(".")[0]
        is_head = name == group.head
        waited_for = {finder.name for finder in sys.meta_path if isinstance(finder, AfterImport)}
        later = []
        for one, module in group.modules.items():
            if one not in sys.modules and (is_head or one == top or one.startswith(top + ".")):
                if one in waited_for:
                    later.append(one)
                else:
                    sys.modules[one] = module
        if is_head:
            change(os.environ, group.sets)
            change(self.environment, group.sets)
            later.extend(one for one in group.tops if one not in sys.modules and one in self.groups)
        if "__mp_main__" in self.known:
            # multiprocessing has it as another name of the program.
            sys.modules["__mp_main__"] = sys.modules["__main__"]
        for one in later:
            if one in sys.modules:
                continue
            try:
                importlib.import_module(one)
            except ModuleNotFoundError:
                # Made by the library that it came with, and not to be found.
                sys.modules[one] = self.groups[one].modules[one]

    def is_as_expected(self, group: Group) -> bool:
        """Whether a fresh process would import the same here."""
        if os.getpid() != self.process:
            return True
        now = difference(self.environment, os.environ)
        if any(now.get(name) != group.wanted.get(name) or (name in now) != (name in group.wanted) for name in {*now, *group.wanted} - _READ_WHEN_USED):
            return False
        # A generator that nobody has seeded may be in any state; one that the program has seeded is to be where the import would leave it.
        if group.draws and random.getstate() != self.drawn:
            return False
        others = [place for place in sys.path if place not in self.path]
        self.path.update(others)
        tops = {name.partition(".")[0] for name in self.known}
        return not any(has_one_of(place, tops) for place in others)

    def start_again(self) -> None:
        """As a fresh process, from the program's beginning. What it has done so far is what comes before its imports."""
        if os.getpid() != self.process:
            return
        leave_word(self.task, "cold")
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        task = {name: value for name, value in self.task.items() if name != "spare"}
        environment = {**self.launched, "OOMPH_PREDICT": json.dumps(task)}
        _execve(sys.executable, [sys.executable, "-X", "faulthandler", "-c", self.start], environment)

    # -- what the program imports, for the runs that follow

    def watch(self, name: str, spec: importlib.machinery.ModuleSpec) -> None:
        """Notes an import when it is done."""
        loader: Any = spec.loader
        execute = loader.exec_module
        wanted = self.outer if self.depth else difference(self.environment, os.environ)

        def watched(module: ModuleType) -> None:
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            if self.depth == 0:
                self.outer = wanted
            before, environment = set(sys.modules), dict(os.environ)
            self.depth += 1
            try:
                execute(module)
            except BaseException:
                self.end()
                raise
            finally:
                self.depth -= 1
            if self.depth == 0:
                change(self.environment, difference(environment, os.environ))
            self.note(name, spec.origin, wanted, before)

        loader.exec_module = watched

    def note(self, name: str, origin: str | None, wanted: Changes, before: set[str]) -> None:
        if self.asked is None:
            return
        if os.getpid() != self.process or threading.current_thread() is not threading.main_thread() or is_card_known():
            self.end()
            return
        tops = sorted({one.partition(".")[0] for one in set(sys.modules).difference(before)})
        self.asked.append({"name": name, "origin": origin, "wanted": wanted, "tops": tops})

    def end(self) -> None:
        """What is imported from here on is not imported ahead."""
        if self.asked is None or self.process != os.getpid():
            return
        events, self.asked = self.asked, None
        leave_word(self.task, "imports.json", json.dumps(events))


class _Namespace(importlib.abc.Loader):
    """For a package that is no more than folders."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pass


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> Changes:
    """What was set, and what was removed (None), but for oomph's own variables."""
    names = {*before, *after}
    return {name: after.get(name) for name in names if before.get(name) != after.get(name) and not name.startswith("OOMPH_")}


def change(environment: MutableMapping[str, str], by: Mapping[str, str | None]) -> None:
    for name, value in by.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def is_pythons_own(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top in (__package__, "__main__", "__mp_main__")


def has_one_of(place: str, tops: set[str]) -> bool:
    """Whether a folder of Python's path has a module or package of one of these names."""
    with contextlib.suppress(OSError):
        for entry in os.listdir(place or "."):
            name, _, ending = entry.partition(".")
            if name in tops and (ending in ("py", "so") or ending.endswith((".so", ".pyc")) or os.path.exists(os.path.join(place, entry, "__init__.py"))):
                return True
    return False


def is_card_known() -> bool:
    """Whether anything has asked the virtual GPU what card it is: it will be no other in this process."""
    return bool(ctypes.CDLL("liboomph_cuda.so").oomph_card_is_known())


def beside(task: dict[str, Any], name: str) -> str:
    return os.path.join(os.path.dirname(task["folder"]), name)


def leave_word(task: dict[str, Any], name: str, text: str = "") -> None:
    with contextlib.suppress(OSError):
        path = beside(task, name)
        with open(path + ".part", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".part", path)


# -- the program's text


def program_file(task: dict[str, Any]) -> tuple[str, str | None]:
    """The folder that comes first on the program's path, and its file if that is known."""
    target = os.fsdecode(task["target"].encode("latin-1"))
    if task["kind"] != "module":
        return os.path.dirname(os.path.realpath(target)), target
    start = os.path.join(os.getcwd(), *target.split("."))
    return os.getcwd(), next((path for path in (start + ".py", os.path.join(start, "__main__.py")) if os.path.exists(path)), None)


def sets_variables(path: str, kind: str) -> bool:
    """Whether a program's text says that it sets variables: it may do so before it imports. What it does otherwise is seen when it does it."""
    try:
        with open(path, "rb") as file:
            text = file.read()
        if kind == "notebook":
            return b"environ" in text or b"%env" in text
        key: ast.expr | None
        for node in ast.walk(ast.parse(text)) if b"env" in text else ():
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
                what, key = node.value, node.slice
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in _CALLS_THAT_SET:
                what, key = node.func, node.args[0] if node.args else None
            else:
                continue
            if "env" in ast.dump(what) and not (isinstance(key, ast.Constant) and key.value in _READ_WHEN_USED):
                return True
    except (OSError, SyntaxError, ValueError, TypeError, RecursionError):
        return True
    return False


# -- the spare


def ready(task: dict[str, Any]) -> tuple[dict[str, Any], Imports | None]:
    """Leaves a spare behind. Returns in each process that is to run the program: with its task, and with what was imported ahead."""
    if os.name != "posix" or not sys.executable:
        none_is_left(task)
        return task, None
    imports = Imports(task)
    place, file = program_file(task)
    if has_one_of(place, {*sys.stdlib_module_names, "torch"}):
        none_is_left(task)
        return task, None
    # One that is awaited is ours: what it imports is known, and that it sets no variables.
    names = task["awaited"]["ahead"] if "awaited" in task else ["torch"]
    if "awaited" in task or (file is not None and not sets_variables(file, task["kind"])):
        try:
            for name in names:
                if name not in sys.modules:
                    imports.ahead(name, {})
            if "awaited" in task and is_card_known():
                raise Refused("the card was asked for")
        except Exception:
            # Whatever it is, the program is to meet it in its own import.
            imports.start_again()
    try:
        check()
        is_spare = any(leave_a_copy() for _ in range(task["spare"].get("copies", 1)))
    except Exception:
        # Refused, no room for a process, a PyTorch that is none: the program runs here, and alone.
        none_is_left(task)
        return task, imports
    if is_spare:
        task = Spare(task, imports).serve()
    elif has_threads():
        # It was forked from among them.
        leave_word(task, "cold")
    return task, imports


def none_is_left(task: dict[str, Any]) -> None:
    """Nobody is to wait for it."""
    leave_word(task, "cold")


def leave_a_copy() -> bool:
    """True in the copy. It is nobody's child: the program does not wait for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            return True
        os._exit(0)
    os.waitpid(middle, 0)
    return False


def has_threads() -> bool:
    """After a fork. Libraries of linear algebra end their threads then, and start them when they are needed; whoever does not is not made for it."""
    return len(os.listdir("/proc/self/task")) > 1


def check() -> None:
    """Raises Refused if this process cannot be forked."""
    torch = sys.modules.get("torch")
    if is_card_known() or (torch is not None and torch.cuda.is_initialized()):
        raise Refused("the card was asked for")
    if threading.active_count() > 1:
        raise Refused("threads")


def random_state() -> bytes | bool:
    """PyTorch's, which is seeded alike in all processes."""
    torch = sys.modules.get("torch")
    return torch is not None and bytes(torch.get_rng_state().tolist())


class Spare:
    """Waits for oomph's word, and forks a process for each run."""

    def __init__(self, task: dict[str, Any], imports: Imports) -> None:
        self.task, self.imports = task, imports
        self.has_all = False

    def serve(self) -> dict[str, Any]:
        """Returns in the processes that are forked, with their tasks."""
        try:
            self.settle()
            while True:
                asked, files = self.next()
                self.import_all()
                spare, pid = os.getpid(), os.fork()
                if pid == 0:
                    return self.become(spare, asked, files)
                for file in files:
                    os.close(file)
                if has_threads():
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    raise Refused("threads")
                self.door.sendall(b"program %d\n" % pid)
                self.wait_for(pid)
        except BaseException as error:
            # For a bug report. oomph sees that nobody is there.
            with contextlib.suppress(Exception):
                self.door.sendall(f"refused {type(error).__name__}: {error}".replace("\n", " ").encode() + b"\n")
            os._exit(1)

    def settle(self) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.close(null)
        # Ctrl-C, and whatever else is sent to the program's group, is for the program. The spare ends with oomph, whose socket is closed then.
        self.group = os.getpgrp()
        os.setpgid(0, 0)
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.handler = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.door = socket.socket(socket.AF_UNIX)
        self.door.connect(os.fsdecode(self.task["spare"]["door"].encode("latin-1")))
        self.door.sendall(b"spare %d\n" % os.getpid())

    def next(self) -> tuple[list[tuple[str, str | None]], list[int]]:
        data, files, _, _ = socket.recv_fds(self.door, 4, 3)
        data += self.received(4 - len(data))
        (length,) = struct.unpack("<I", data)
        return json.loads(self.received(length)), files

    def received(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            more = self.door.recv(length - len(data))
            if not more:
                os._exit(0)
            data += more
        return data

    def import_all(self) -> None:
        """Once: what the first run imported. A rank reads variables that are not known here."""
        if os.path.exists(beside(self.task, "cold")):
            raise Refused("the program does not import what was expected")
        path = beside(self.task, "imports.json")
        if self.has_all or self.task.get("world") or not os.path.exists(path):
            return
        self.has_all = True
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
        state = random_state()
        for event in events:
            name = event["name"]
            if name not in sys.modules:
                self.imports.ahead(name, event["wanted"], event["tops"])
                if name == "torch":
                    state = random_state()
            if getattr(sys.modules[name].__spec__, "origin", None) != event["origin"]:
                raise Refused("another module of that name")
        check()
        if random_state() != state:
            raise Refused("random numbers were drawn")

    def wait_for(self, pid: int) -> None:
        """Tells oomph how the program ended. If oomph goes, so does the program. Its number is its own until the next is asked for."""
        while True:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None:
                break
            heard: list[socket.socket | int] = [self.door, self.reader]
            ready, _, _ = select.select(heard, [], [])
            if self.door in ready:
                os.kill(pid, signal.SIGKILL)
                os._exit(0)
            with contextlib.suppress(BlockingIOError):
                os.read(self.reader, 4096)
        # As wait(2) has it.
        status = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status | (0x80 if ended.si_code == os.CLD_DUMPED else 0)
        self.door.sendall(b"ended %d\n" % status)
        select.select([self.door], [], [])
        os.waitpid(pid, 0)

    def become(self, spare: int, asked: Iterable[tuple[str, str | None]], files: list[int]) -> dict[str, Any]:
        """This process is the program's."""
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != spare:
            os._exit(1)
        os.setpgid(0, self.group)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, self.handler or signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        self.door.close()
        os.close(self.reader)
        os.close(self.writer)
        open_files()
        decoded = lambda text: os.fsdecode(text.encode("latin-1"))
        change(os.environ, {decoded(name): None if value is None else decoded(value) for name, value in asked})
        task = json.loads(os.environ.pop("OOMPH_PREDICT"))
        self.imports.task, self.imports.launched, self.imports.is_first = task, dict(os.environ), False
        return task


def open_files() -> None:
    """Standard input and output as Python makes them when it starts: what they are decides how they are written."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        if before is None:
            continue
        is_unbuffered = number > 0 and before.write_through
        raw: Any = open(number, "wb" if number else "rb", 0 if is_unbuffered else -1, closefd=False)
        (raw if is_unbuffered else raw.raw).name = f"<{name}>"
        lines = number == 2 or os.isatty(number)
        text: Any = io.TextIOWrapper(raw, before.encoding, before.errors, "\n", line_buffering=lines, write_through=is_unbuffered)
        text.mode = "w" if number else "r"
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
