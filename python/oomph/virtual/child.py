"""Starts a program on the virtual GPU, records it, stops it when enough was seen, and writes down what happened.

Enough are some steps, and what ``phases`` sees after them. Run by ``oomph predict`` as ``python -c ...`` with a description in
``OOMPH_PREDICT`` (JSON): ``kind`` (script, module or notebook), ``target``, ``args``, ``steps``, ``until`` (steps, validation or end), ``recorder`` (its library; without, nothing but the facts is left),
``folder`` for what is left behind: ``recording.oomph`` and ``facts.json``. ``target`` and ``args`` have a letter for each byte (``handed.rs`` of the crate ``oomph-stage``). A change that is tried adds ``source`` (a file of JSON:
other texts for files) and ``forwards`` (another number for those than for steps). ``seconds``: when it is stopped in any case; ``more`` and ``longest``: what to do where batches differ
(``batches``); ``accounts``: whether to say what a step of a rank takes beside memory (``accounts``); ``awaited``: a ``file`` that is not written yet, modules to import ``ahead`` of that, and the ``process`` without which nobody needs it; ``started``: by a program that was started before (``following``). Where the program may be run again, ``spare`` says where a spare interpreter waits for that.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import io
import json
import os
import signal
import sys
import threading
import time
import types

from . import own_frames, spare, substitute
from .following import Following
from .frames import chain
from .imports import AfterImport
from .library_code import is_installed, is_torch
from .out_of_memory import is_out_of_memory
from .phases import CutShort
from .ram import learn_lines, learn_pinned, leave_out
from .utf8 import as_json

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    from torch.nn import Module
    from torch.optim import Optimizer

    from .accounts import Accounts
    from .backward import Backward
    from .batches import Batches
    from .objects import Objects
    from .phases import Phases
    from .reads import Reads
    from .recorded import Recorded
    from .values import Values

_HERE = os.path.dirname(os.path.abspath(__file__))
# Where all steps are run: after as many, the longest batch is asked for.
LEAST_STEPS = 3
# Characters of an error that are kept.
ERROR = 2000


class Stop(BaseException):
    """Enough was seen. Not an Exception: programs catch those."""


class Run:
    """One program."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.facts: dict[str, Any] = {"status": "finished", "steps": 0, "forwards": 0, "notes": []}
        self.optimizers: dict[int, int] = {}
        self.trained: dict[int, list[str]] = {}
        self.groups: set[tuple[int, int, int]] = set()
        self.has_flat_parameters = False
        self.objects: Objects | None = None
        self.process = os.getpid()
        self.stopped = 0
        self.written = False
        self.writing = threading.RLock()
        self.compiled = False
        self.began = time.time()
        # None until the program has come so far, and used only later.
        self.phases: Phases | Any = None
        self.batches: Batches | Any = None
        self.following: Following | Any = None
        self.values: Values | Any = None
        self.reads: Reads | Any = None
        self.backward: Backward | Any = None
        self.torch: types.ModuleType | Any = None
        self.accounts: Accounts | None = None
        self.recorded: Recorded | None = None
        self.died_of_memory = False
        self.imports: spare.Imports | None = None

    # -- PyTorch

    def torch_is_here(self, torch: types.ModuleType) -> None:
        """Called once PyTorch has been imported, before the program goes on."""
        learn_pinned()
        self.torch = torch
        self.facts["torch"] = torch.__version__
        if self.task.get("recorder"):
            from .recorded import Recorded

            self.recorded = Recorded(torch, self.task["recorder"], os.path.join(self.task["folder"], "recording.oomph"), self.facts["notes"])
        torch.cuda._lazy_call(self.cuda_is_here)
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        self.watch_forwards(torch)
        from . import backward, batches, checkpoints, deepspeed_ops, older_compiler, phases, reads, unseen, values

        self.phases = phases.Phases(self, torch)
        self.batches = batches.Batches(self, torch)

        library = ctypes.CDLL("liboomph_cuda.so")
        library.oomph_script_read.argtypes = [ctypes.c_int64]
        library.oomph_advance_random.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        library.oomph_peak.restype = ctypes.c_uint64
        library.oomph_guessed.restype = ctypes.c_uint64
        library.oomph_managed.restype = ctypes.c_uint64
        library.oomph_unmodelled.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.oomph_unmodelled.restype = ctypes.c_size_t
        library.oomph_refused.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.oomph_refused.restype = ctypes.c_size_t
        library.oomph_nccl_calls.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.oomph_nccl_calls.restype = ctypes.c_size_t
        library.oomph_nccl_sizes.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.oomph_nccl_sizes.restype = ctypes.c_size_t
        library.oomph_estimated.restype = None
        library.oomph_tried.restype = None
        library.oomph_settled_peak.restype = ctypes.c_uint64
        library.oomph_nccl.restype = None
        self.library = library
        self.reads = reads.Reads()
        self.backward = backward.Backward(torch, self.recorded.recorder if self.recorded is not None else None)
        self.values = values.Values(library, self.reads, self.backward, **self.task.get("values", {}))
        leave_the_compiler_out(torch, type(self.values).__torch_dispatch__)
        reads.watch(torch, self.values, self.reads)
        values.avoid_detours(self.values)
        unseen.watch(self.values)
        deepspeed_ops.watch(self)
        checkpoints.leave_copies_out()
        library.oomph_guard(1)
        # These insides may change; without them the mode stays on in backward passes.
        with contextlib.suppress(AttributeError):
            self.backward.follow(torch, self.values, library)
        if library.oomph_has_bytes():
            self.values.__enter__()
            older_compiler.let_it_compile(self.values)
        else:
            self.facts["notes"].append("address space is limited here (ulimit -v): no value is known, all are zero")
        from . import ranks

        world = self.task.get("world")
        ranks.stay_in_this_process(torch, world, self)
        if world:
            ranks.prepare(torch, world, self)
            if self.task.get("accounts"):
                from . import accounts

                self.accounts = accounts.Accounts(torch, self)
                self.values.account = self.accounts.operation

    def cuda_is_here(self) -> None:
        self.phases.started = time.time()
        if self.imports is not None:
            self.imports.end()
        if self.recorded is not None:
            self.recorded.begin()
        self.check_kernels(self.torch.cuda.get_device_capability(), self.torch.cuda.get_arch_list())

    def check_kernels(self, capability: tuple[int, int], known: list[str]) -> None:
        """Notes a card that this PyTorch has no kernels for. Binaries serve their major version, sources all later ones."""
        have = capability[0] * 10 + capability[1]

        def serves(name: str) -> bool:
            kind, _, text = name.partition("_")
            number = int("".join(filter(str.isdigit, text)) or 0)
            return number <= have and (kind == "compute" or number // 10 == have // 10)

        if known and not any(map(serves, known)):
            self.facts["notes"].append(f"this PyTorch has no kernels for compute capability {capability[0]}.{capability[1]} (it has {', '.join(known)}): on the card it would fail")

    # -- steps

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.stopped:
            self.stop()

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        counts = self.optimizers
        counts[id(optimizer)] = counts.get(id(optimizer), 0) + 1
        if id(optimizer) not in self.trained and self.task.get("world"):
            self.trained[id(optimizer)] = shapes_of(optimizer)
            # As FSDP 1 marks them.
            self.has_flat_parameters |= any(getattr(one, "_fsdp_flattened", False) for group in optimizer.param_groups for one in group["params"])
        if max(counts.values()) > self.facts["steps"]:
            self.facts["steps"] = max(counts.values())
            if self.accounts is not None:
                self.accounts.end_of_step(optimizer)
            self.batches.step_is_done(self.facts["steps"])
        self.phases.reach("training")
        wanted = self.task.get("steps", 0)
        if self.phases.began is not None:
            # Where forwards were enough at first, the steps that follow are run as well.
            if self.facts["steps"] > wanted and self.phases.after_step():
                self.stop()
            return
        # With several optimizers, those that were seen before get as many steps.
        # One that stepped long ago, and not since, does not hold the others up.
        least = wanted or LEAST_STEPS
        if (min(counts.values()) >= least or max(counts.values()) >= 4 * least) and not self.batches.go_on() and wanted:
            self.enough()

    def enough(self) -> None:
        """The wanted steps are done: on to what follows, or not."""
        if self.task.get("until", "steps") == "steps":
            self.stop()
        else:
            self.phases.begin()

    def watch_forwards(self, torch: Any) -> None:
        """Counts forwards until there is an optimizer, whose steps count instead, or a compiled model, which hooks disturb."""
        watching = torch.nn.modules.module.register_module_forward_hook(self.after_forward)

        def ends_watching(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                watching.remove()
                self.compiled |= function.__name__ == "compile"
                return function(*args, **kwargs)

            return wrapper

        torch.optim.Optimizer.__init__ = ends_watching(torch.optim.Optimizer.__init__)
        torch.compile = ends_watching(torch.compile)

    def after_forward(self, module: Module, args: tuple[Any, ...], output: Any) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and (is_torch(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_HERE)):
            frame = frame.f_back
        if frame is None or is_installed(frame.f_code.co_filename) or self.torch.is_grad_enabled():
            return
        # Inside another module's forward (PyTorch's own containers too), it is a part of something larger.
        if any(name == "forward" for name in self._callers(sys._getframe(1))):
            return
        self.facts["forwards"] += 1
        self.batches.step_is_done(self.facts["forwards"])
        self.phases.reach("inference")
        wanted, lines = self.task.get("forwards", self.task.get("steps", 0)), self.distinct(frame)
        if self.phases.began is not None:
            if self.phases.after_inference((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)):
                self.stop()
        elif wanted and self.facts["forwards"] >= wanted * lines and not self.batches.go_on():
            self.enough()

    @staticmethod
    def _callers(frame: types.FrameType | None) -> Iterator[str]:
        while frame is not None:
            yield frame.f_code.co_name
            frame = frame.f_back

    def distinct(self, frame: types.FrameType) -> int:
        """How many lines of the program have called models so far: each gets its number of forwards."""
        lines: set[tuple[types.CodeType, int]] = self.__dict__.setdefault("_lines", set())
        lines.add((frame.f_code, frame.f_lineno))
        return len(lines)

    def watch_exit(self) -> None:
        """os._exit ends the process without a trace. Forked processes have theirs."""
        leave, process = os._exit, os.getpid()

        @functools.wraps(leave)
        def _exit(status: int) -> NoReturn:
            if os.getpid() == process and not self.written:
                if status:
                    self.failed(f"the program ended with exit code {status}")
                try:
                    self.write()
                finally:
                    leave(status)
            leave(status)

        os._exit = _exit

    def stop_after(self, seconds: int) -> None:
        """However far it is then. Only the main thread hears of it."""

        def time_is_up(*_: object) -> None:
            self.following.end_child()
            if not self.written:
                self.facts["timed_out"] = True
                self.stop()

        signal.signal(signal.SIGALRM, time_is_up)
        signal.alarm(seconds)

    def stop(self) -> NoReturn:
        self.facts["status"] = "stopped"
        self.write()
        self.stopped += 1
        if self.stopped > 3:
            # The program may catch even this.
            leave(0)
        raise Stop()

    def leave_it(self) -> NoReturn:
        """From another thread, where the program does not come by a place to stop at."""
        self.facts["status"] = "stopped"
        self.stopped += 1
        self.write()
        leave(0)

    def failed(self, error: str, status: str = "failed") -> None:
        """What a program fails of after the wanted steps is not known to be its own fault: values are not true here. Memory is."""
        if self.phases is None or self.phases.began is None or status == "out_of_memory":
            self.facts.update(status=status, error=error)
        elif not self.written:
            self.facts["status"] = "stopped"
            self.facts["notes"].append(f"after the steps that were asked for, it failed, and what follows is not known: {error}")

    # -- what is left behind

    def write(self) -> None:
        """Once: what comes after a stop is the program's way out."""
        with self.writing:
            if not self.written:
                self.written = True
                self.write_facts()

    def write_facts(self) -> None:
        facts, torch = self.facts, self.torch
        if torch is None:
            facts["cuda"] = False
        else:
            if self.values is not None:
                while self.values in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
                    torch.utils._python_dispatch._pop_mode()
            facts["cuda"] = torch.cuda.is_initialized()
        if facts["cuda"]:
            if self.recorded is not None:
                self.recorded.end(self.died_of_memory)
            facts["devices"] = [self.device(index) for index in range(torch.cuda.device_count())]
            facts["open_sizes"] = self.reads.open_sizes
            facts["values"] = self.values.spent()
            if facts["status"] == "failed":
                facts["made_up"], facts["more_helps"], facts["plain_helps"] = self.reads.last(), self.reads.more_helps, self.reads.plain_helps()
            facts["reads"] = [*self.reads.report(), *filter(None, [facts.pop("growth", None)])]
            calls = (line.rsplit(" ", 1) for line in lines_of(self.library.oomph_unmodelled))
            facts["unmodelled"] = [{"name": name, "count": int(count)} for name, count in calls]
            facts["refused"] = self.refused()
            estimated = (ctypes.c_uint64 * 3)()
            self.library.oomph_estimated(estimated)
            if estimated[0]:
                facts["estimated"] = dict(zip(("count", "largest", "most"), estimated, strict=True))
            tried = (ctypes.c_uint64 * 3)()
            self.library.oomph_tried(tried)
            if tried[0]:
                facts["tried"] = dict(zip(("count", "less", "more"), tried, strict=True))
            facts["managed"] = int(self.library.oomph_managed())
            nccl = (ctypes.c_uint64 * 3)()
            self.library.oomph_nccl(nccl)
            if nccl[0]:
                sizes = (map(int, line.split()) for line in lines_of(self.library.oomph_nccl_sizes))
                facts["nccl"] = dict(zip(("communicators", "taken", "most"), nccl, strict=True))
                facts["nccl"]["sizes"] = [dict(zip(("ranks", "on_one_machine", "count"), size, strict=True)) for size in sizes]
            if self.task.get("world"):
                from . import ranks

                facts["among"] = ranks.among(torch, self)
                facts["step"] = self.accounts and self.accounts.step
                facts["starts_ranks"] = self.task.get("starts_ranks", False)
                ranks.add_chances(torch, self)
            facts["memory_config"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""
            self.phases.finish()
            facts["batches"] = self.batches.report()
            facts["reached"] = {"phases": self.phases.reached, "cut": self.phases.cut, "doing": self.phases.doing}
        elif self.objects is not None:
            facts["among"] = {"received": self.objects.received}
        path = os.path.join(self.task["folder"], "facts.json")
        # A program that starts another is not the one that is asked about, if that has used the GPU.
        if not facts["cuda"] and (self.task.get("started") or os.path.exists(path)):
            return
        with open(path + ".part", "wb") as file:
            file.write(as_json(facts))
        os.replace(path + ".part", path)

    def refused(self) -> list[dict[str, Any]]:
        """Libraries that do not take the virtual GPU, with the numbers of their versions."""
        lines = lines_of(self.library.oomph_refused) if self.values is not None else ()
        return [{"library": library, "version": int(version)} for library, version in map(str.split, lines)]

    def nccl_calls(self) -> list[str]:
        """Each as text: the function, the ranks of its communicator, how often, and the bytes that it was given."""
        return lines_of(self.library.oomph_nccl_calls)

    def device(self, index: int) -> dict[str, int]:
        stats = self.torch.cuda.memory_stats(index)
        get = lambda name: int(stats.get(name, 0))
        return {
            "peak_allocated": get("allocated_bytes.all.peak"),
            "peak_reserved": get("reserved_bytes.all.peak"),
            "allocated": get("allocated_bytes.all.current"),
            "reserved": get("reserved_bytes.all.current"),
            "retries": get("num_alloc_retries"),
            "ooms": get("num_ooms"),
            "peak_driver": int(self.library.oomph_peak(index)),
            "peak_settled": int(self.library.oomph_settled_peak(index)),
        }


def shapes_of(optimizer: Optimizer) -> list[str]:
    """What an optimizer trains: shapes, types, and how ranks share them. Of what is sharded the whole: the last shard may be smaller than the first."""
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    return [f"{tuple(one.shape)} {one.dtype} {getattr(one, 'placements', '')}" for one in parameters]


def lines_of(function: Callable[..., int]) -> list[str]:
    """What a function of the virtual GPU writes: as many bytes as it says."""
    size = function(None, 0)
    text = ctypes.create_string_buffer(size + 1)
    function(text, size)
    return text.value.decode(errors="replace").splitlines()


def leave_the_compiler_out(torch: types.ModuleType, dispatch: Callable[..., Any]) -> None:
    """PyTorch imports its compiler, for seconds, only to say that some functions are not to be compiled: modes, optimizers and each of their steps,
    checkpoints. That is said when the program imports it by itself."""
    from torch.utils.checkpoint import checkpoint

    optimizer = torch.optim.Optimizer
    wrapped = (dispatch, optimizer.zero_grad, optimizer.add_param_group, checkpoint)
    functions = [function.__wrapped__ for function in wrapped if hasattr(function, "__wrapped__")]
    if "torch._dynamo" in sys.modules:
        return
    for function in functions:
        setattr(function, "__dynamo_disable", function)

    def compiler_is_here(_: types.ModuleType) -> None:
        for function in functions:
            if getattr(function, "__dynamo_disable", None) is function:
                delattr(function, "__dynamo_disable")

    sys.meta_path.insert(0, AfterImport("torch._dynamo", compiler_is_here))
    for kind in vars(torch.optim).values():
        step = vars(kind).get("step") if isinstance(kind, type) and issubclass(kind, optimizer) else None
        # By the name of its code, which a wrapper does not take over: others wrap their steps in no_grad.
        if getattr(getattr(step, "__code__", None), "co_name", "") == "_use_grad" and hasattr(step, "__wrapped__"):
            kind.step = without_graph_breaks(torch, step)


def without_graph_breaks(torch: types.ModuleType, step: Any) -> Callable[..., Any]:
    """An optimizer's step without the breaks around it, which speak to the compiler, as long as nobody has imported that."""
    plain = step.__wrapped__

    @functools.wraps(plain)
    def stepping(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" in sys.modules:
            return step(self, *args, **kwargs)
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return stepping


def run_file(path: str, name: str = "__main__") -> None:
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    text: str | bytes | None = substitute.text_of(path)
    if text is None:
        with io.open_code(path) as file:
            text = file.read()
    # What this file imports of the future is not for the program.
    exec(compile(text, path, "exec", dont_inherit=True), main.__dict__)


def run_module(name: str) -> None:
    import runpy

    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_notebook(path: str) -> None:
    """The code cells one after another, in one namespace. Shell commands are left out, magics are taken off."""
    with open(path, encoding="utf-8") as file:
        notebook = json.load(file)
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__dict__["display"] = print
    sys.modules["__main__"] = main
    import linecache

    number = 0
    for cell in notebook.get("cells", []):
        if cell.get("cell_type") != "code":
            continue
        number += 1
        source = cell.get("source", "")
        other = substitute.text_of(path, number)
        text = notebook_cell(other if other is not None else "".join(source) if isinstance(source, list) else source)
        name = f"{path}[{number}]"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


def notebook_cell(text: str) -> str:
    lines = text.splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and first.split()[0] not in ("%%time", "%%timeit", "%%capture", "%%prun"):
        return "\n".join("pass" if not line.strip() else f"# {line}" for line in lines)
    out = []
    for line in lines:
        bare = line.lstrip()
        indent = line[: len(line) - len(bare)]
        if bare.startswith(("%%", "!")):
            line = f"{indent}pass  # {bare}"
        elif bare.startswith("%"):
            word, _, rest = bare[1:].partition(" ")
            line = f"{indent}{rest}" if word in ("time", "timeit", "prun") and rest else f"{indent}pass  # {bare}"
        out.append(line)
    return "\n".join(out) + "\n"


def main(kind: type[Run] = Run) -> NoReturn:
    began = time.monotonic()
    learn_lines()
    leave_out(_HERE + os.sep)
    task = json.loads(os.environ.pop("OOMPH_PREDICT"))
    imports: spare.Imports | None = None
    if "spare" in task:
        task, imports = spare.ready(task)
        if imports is not None and not imports.is_first:
            # The spare has waited for this run.
            began = time.monotonic()
        # Not for programs that this one starts.
        task.pop("spare", None)
    run = kind(task)
    run.imports = imports
    be_killed_first()
    # Not in that of this run: a path that is longer than multiprocessing's own may be too long.
    keep_sockets_in(os.path.dirname(task["folder"]))
    if task.get("world"):
        from . import ranks

        ranks.announce(task["world"])
    if imports is not None:
        imports.hide()
    sys.meta_path.insert(0, AfterImport("torch", run.torch_is_here))
    run.watch_exit()
    run.following = Following(run)
    if "source" in task:
        with open(task["source"], encoding="utf-8") as file:
            substitute.install(json.load(file))
    if "seconds" in task:
        run.stop_after(max(1, task["seconds"] - int(time.monotonic() - began)))
    target, *arguments = (os.fsdecode(word.encode("latin-1")) for word in (task["target"], *task["args"]))
    sys.argv = [target, *arguments]
    code = 0
    started = time.time()
    try:
        if "awaited" in task:
            wait_for(**task["awaited"])
            started = time.time()
        if task["kind"] == "module":
            sys.path.insert(0, os.getcwd())
            run_module(target)
        elif task["kind"] == "notebook":
            sys.path.insert(0, os.path.dirname(os.path.abspath(target)))
            run_notebook(os.path.abspath(target))
        else:
            # As Python itself does: where the file truly lies, unless it is told to leave that out.
            if not getattr(sys.flags, "safe_path", False):
                sys.path.insert(0, os.path.dirname(os.path.realpath(target)))
            run_file(os.path.abspath(target))
    except Stop:
        pass
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else (0 if error.code is None else 1)
        if code:
            if not run.written:
                run.failed(f"the program ended with exit code {code}")
            if not isinstance(error.code, int):
                print(error.code, file=sys.stderr)
    except BaseException as error:
        # After a stop, what falls over on the way out does not matter.
        if not run.stopped:
            failed(run, error)
            code = 1
    try:
        run.facts["seconds"] = round(time.time() - started, 3)
        run.write()
    except BaseException:
        # Leaving would swallow it.
        import traceback

        traceback.print_exc()
        code = code or 1
    finally:
        leave(code if isinstance(code, int) else 1)


def wait_for(file: str, process: int, **_: Any) -> None:
    """A file that is written by another process. Oomph's, which may have started this one by way of others, ends it if that fails."""
    while not os.path.exists(file):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            leave(1)
        except PermissionError:
            pass
        time.sleep(0.02)


# A program whose threads never end would not have ended either; what it waits for is not what is asked.
PATIENCE = 10


def be_killed_first() -> None:
    """A prediction that fills the machine's own memory is what the kernel ends then, and nobody else's program."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


# The longest path of a socket, and at least as much as multiprocessing puts behind the folder: where it has to, Python takes another.
_LONGEST_SOCKET, _OF_MULTIPROCESSING = 107, 24


def keep_sockets_in(folder: str) -> None:
    """Where workers have their sockets: each makes a folder of its own (``pymp-…``) otherwise, and one that is ended does not remove it. This one goes with oomph."""

    def process_is_here(process: types.ModuleType) -> None:
        if len(os.fsencode(folder)) + _OF_MULTIPROCESSING <= _LONGEST_SOCKET:
            process.current_process()._config["tempdir"] = folder

    if "multiprocessing.process" in sys.modules:
        process_is_here(sys.modules["multiprocessing.process"])
    else:
        sys.meta_path.insert(0, AfterImport("multiprocessing.process", process_is_here))


def leave(code: int) -> NoReturn:
    """Ends the process as Python would, but without taking CUDA down: threads end, files are written, workers go."""

    def finish() -> None:
        # Only the main thread may set handlers; what is called at the end takes itself to be in it.
        signals: Any = signal
        signals.signal = lambda number, handler: signal.SIG_DFL
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()

    end_workers()
    last = threading.Thread(target=finish, daemon=True)
    last.start()
    last.join(PATIENCE)
    files = kinds_of_files()
    gc.unfreeze()
    for thing in gc.get_objects():
        # Not by their classes themselves, which may have a hash of their own.
        if id(type(thing)) in files:
            with contextlib.suppress(Exception):
                if not thing.closed and thing.writable():
                    thing.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def kinds_of_files() -> set[int]:
    """The ids of all classes of files. To ask each of a million objects whether it is a file takes a second."""
    kinds: set[int] = set()
    found = [*io.IOBase.__bases__]
    while found:
        kind = found.pop()
        if id(kind) not in kinds:
            kinds.add(id(kind))
            found.extend(type.__subclasses__(kind))
    return kinds


def end_workers() -> None:
    """Python ends daemonic processes too, but waits for each worker of a DataLoader first. Those that a fork server has
    started would never notice that this process is gone."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    # PyTorch would raise an error for each worker that ends like this. Not available in other threads than the first.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(Exception):
        for child in process.active_children():
            # A process that was forked by hand knows of its parent's workers.
            if child.daemon and child._parent_pid == os.getpid():
                child.terminate()


def failed(run: Run, error: BaseException) -> None:
    run.died_of_memory = any(is_out_of_memory(one) for one in chain(error))
    if any(isinstance(one, CutShort) for one in chain(error)):
        return run.failed("its data were cut short, and it draws them with next(), which has no end")
    words = f"{type(error).__name__}: {error}"
    # Some print a whole tensor.
    words = words if len(words) <= ERROR else f"{words[:ERROR]} …"
    run.failed(words, "out_of_memory" if is_out_of_memory(error) else "failed")
    # What fails behind a library that refuses its device is that library's doing, which the command says.
    if not run.refused():
        print(own_frames.formatted(error), end="", file=sys.stderr)
