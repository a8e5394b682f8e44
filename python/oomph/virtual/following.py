"""Programs that start themselves, or another, anew: the new process is watched as this one is.

A script that has to set a variable before PyTorch is imported executes itself again (``os.execv``), and a launcher starts the script that trains (``subprocess``). Both get what ``child``
got: the same task, for another program. Of several children each is followed until one has used the GPU; the next then is not started. Boundary: only this interpreter with a script or a
module is followed. Of other commands the first that names a Python file is noted, to be said if the GPU was never used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shlex
import shutil
import signal
import sys
import threading

from .imports import AfterImport
from .library_code import is_installed, is_torch

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from subprocess import Popen
    from types import ModuleType
    from typing import Any

    from .child import Run

    # Kind, target, arguments, and Python's own options.
    Program = tuple[str, str, list[str], list[str]]

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
# What comes from the command, and must come first: lists of files and folders.
LISTS = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")
# Libraries' programs that start a process for each GPU, and only wait for these. Others come by PyTorch's own (``ranks``).
LAUNCHERS = ("deepspeed/launcher/runner.py", "deepspeed/launcher/launch.py")
# Options of Python without and with a word behind them.
ALONE, WITH_A_WORD = "bBdEiIOPqsSuvx", "WX"
# A child that has the same time as this process is heard before this one ends: seconds.
GRACE = 2


class Following:
    """The processes that one program starts."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.environment = dict(os.environ)
        self.child: Popen[Any] | None = None
        self.watch_exec()
        if "subprocess" in sys.modules:
            self.watch_children(sys.modules["subprocess"])
        else:
            sys.meta_path.insert(0, AfterImport("subprocess", self.watch_children))
        if run.task.get("started"):
            end_with_parent()

    def is_another(self) -> bool:
        """Whether this is a process that the program forked."""
        return self.run.process != os.getpid()

    # -- the same process, another program

    def watch_exec(self) -> None:
        """All of ``os.exec*`` come by these two."""
        execv, execve, system = os.execv, os.execve, os.system

        @functools.wraps(execv)
        def becomes(path: Any, argv: Any) -> Any:
            self.become(path, argv, os.environ, execve)
            return execv(path, argv)

        @functools.wraps(execve)
        def becomes_with(path: Any, argv: Any, env: Mapping[Any, Any]) -> Any:
            self.become(path, argv, env, execve)
            return execve(path, argv, env)

        @functools.wraps(system)
        def started(command: Any) -> int:
            self.note(command)
            return system(command)

        os.execv, os.execve, os.system = becomes, becomes_with, started

    def become(self, path: Any, args: Any, env: Mapping[Any, Any], execve: Callable[..., Any]) -> None:
        """Returns if the program is to become something that is not followed."""
        run = self.run
        if self.is_another() or run.written:
            return
        program = program_of(path, args)
        if program is None:
            self.note(args)
            # The last that can be written. Along the folders of PATH it is tried in those that do not have it, too.
            if os.access(path, os.X_OK):
                run.write()
            return
        left = signal.alarm(0) if "seconds" in run.task else 0
        words, env = self.started_as(program, {**run.task, "seconds": left} if left else run.task, env)
        execve(path, [path, *words], env)

    def become_rank(self, words: list[str], env: Mapping[Any, Any]) -> None:
        """What a launcher starts first takes its place, as the rank that this is."""
        program = program_of(words[0], words)
        if program is not None:
            place = f"--local_rank={os.environ['LOCAL_RANK']}"
            os.execve(words[0], [place if word.startswith("--local_rank=") else word for word in words], env)

    # -- another process

    def watch_children(self, subprocess: ModuleType) -> None:
        init = subprocess.Popen.__init__

        @functools.wraps(init)
        def __init__(popen: Popen[Any], args: Any, *rest: Any, **named: Any) -> None:
            program = None
            if "world" in self.run.task and sys._getframe(1).f_code.co_filename.endswith(LAUNCHERS):
                self.become_rank(args, os.environ if named.get("env") is None else named["env"])
            if not rest and not named.get("shell") and named.get("executable") is None and isinstance(args, (list, tuple)) and args and self.may_follow():
                program = program_of(args[0], args, named.get("cwd"), libraries=False)
            if program is None:
                self.note(args)
                return init(popen, args, *rest, **named)
            if self.has_left():
                # One was seen. This one would be run to its end, unwatched.
                self.run.stop()
            words, env = self.started_as(program, self.task_of_child(), os.environ if named.get("env") is None else named["env"])
            init(popen, [args[0], *words], **{**named, "env": env})
            self.child = popen

        subprocess.Popen.__init__ = __init__

    def may_follow(self) -> bool:
        """One at a time, and none of a program that uses the GPU itself."""
        run = self.run
        if self.is_another() or run.written or "fit" in run.task or threading.current_thread() is not threading.main_thread():
            return False
        if run.torch is not None and run.torch.cuda.is_initialized():
            return False
        return self.child is None or self.child.poll() is not None

    def has_left(self) -> bool:
        """Whether a child has used the GPU, and left word of it."""
        return os.path.exists(os.path.join(self.run.task["folder"], "facts.json"))

    def task_of_child(self) -> dict[str, Any]:
        task = {**self.run.task, "started": True}
        left = signal.alarm(0) if "seconds" in task else 0
        if left:
            signal.alarm(left + GRACE)
            task["seconds"] = left
        return task

    def end_child(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()

    # -- both

    def started_as(self, program: Program, task: dict[str, Any], env: Mapping[Any, Any]) -> tuple[list[str], dict[str, str]]:
        """Words for the interpreter, and the environment, that make a program start as this one did."""
        kind, target, arguments, options = program
        handed = [os.fsencode(word).decode("latin-1") for word in (target, *arguments)]
        task = {**task, "kind": kind, "target": handed[0], "args": handed[1:]}
        imports = f"from {__package__}.child import main"
        if "fit" in task:
            imports = f"import oomph; from {__package__}.fit import start as main"
        folder = os.path.dirname(_PACKAGE)
        start = f"import sys\nif sys.path[:1] == ['']: del sys.path[0]\nsys.path.insert(0, {folder!r}); {imports}; del sys.path[0]; main()"
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        for name, ours in self.environment.items():
            if name in LISTS:
                theirs = [part for part in env.get(name, "").split(":") if part]
                env[name] = ":".join([*(part for part in ours.split(":") if part and part not in theirs), *theirs])
            elif name.startswith("OOMPH_") or name in ("TRITON_LIBCUDA_PATH", "TORCHINDUCTOR_CACHE_DIR"):
                env.setdefault(name, ours)
        env["OOMPH_PREDICT"] = json.dumps(task)
        return [*options, "-X", "faulthandler", "-c", start], env

    def note(self, words: Any) -> None:
        """The first command that names a Python file of the program's own."""
        if "starts" in self.run.facts or self.is_another():
            return
        # What cannot be read as a command is none that could be typed.
        with contextlib.suppress(Exception):
            if isinstance(words, (str, bytes)):
                words = shlex.split(os.fsdecode(words))
            words = [os.fsdecode(word) for word in words]
            if any(word.endswith(".py") and not is_installed(word) for word in words):
                self.run.facts["starts"] = shlex.join([os.path.basename(words[0]), *words[1:]])


def program_of(path: Any, words: Any, folder: str | None = None, libraries: bool = True) -> Program | None:
    """Kind, target, arguments, and Python's own options, of a command that starts a script or a module with this interpreter; else None. ``libraries``: whether these may be a library's."""
    try:
        words = [os.fsdecode(word) for word in words]
        if not is_this_python(os.fsdecode(path)):
            return None
    except (OSError, TypeError, ValueError):
        return None
    options: list[str] = []
    rest: list[str] = words[1:]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        word = rest.pop(0)
        if len(word) > 1 and all(letter in ALONE for letter in word[1:]):
            options.append(word)
        elif word[1:2] and word[1] in WITH_A_WORD:
            options.append(word)
            if len(word) == 2 and rest:
                options.append(rest.pop(0))
        else:
            return None
    if rest[:1] == ["-m"]:
        return ("module", rest[1], rest[2:], options) if len(rest) > 1 and (libraries or not is_library_module(rest[1])) else None
    script = os.path.abspath(os.path.join(folder or "", rest[0])) if rest else ""
    if not os.path.isfile(script) or (not libraries and (is_installed(script) or is_torch(script))):
        return None
    return "script", rest[0], rest[1:], options


def is_this_python(path: str) -> bool:
    """By any of its names, in the same folder: another environment has another PyTorch."""
    found = path if os.sep in path else shutil.which(path)
    if not found or not sys.executable:
        return False
    same = os.path.samefile(found, sys.executable)
    return same and os.path.samefile(os.path.dirname(os.path.abspath(found)), os.path.dirname(os.path.abspath(sys.executable)))


def is_library_module(name: str) -> bool:
    """Whether a module is a library's, or Python's own: pip, the server of a tracker. Nothing is imported for it."""
    import importlib.machinery

    first = name.partition(".")[0]
    if first in sys.stdlib_module_names:
        return True
    found = importlib.machinery.PathFinder.find_spec(first, [os.getcwd(), *sys.path])
    places = [found.origin, *(found.submodule_search_locations or ())] if found else []
    return any(is_installed(place) for place in places if place)


def end_with_parent() -> None:
    """A launcher that is killed would leave it behind."""
    set_signal_of_parents_death = 1
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGKILL)
