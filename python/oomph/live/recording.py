"""One recording of this process: begins when CUDA does, hears of steps and of out-of-memories, ends with the program.

Steps are reported by the optimizers themselves, and so are the kinds of blocks: parameters, gradients and optimizer state are the
tensors that an optimizer has, not a guess. Frozen weights and adapters are those of the modules that there are at the first step.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import sys

from . import frames, generated, native, others
from .handlers import Handlers
from .out_of_memory import is_out_of_memory
from .utf8 import encoded
from .weights import frozen_and_adapters, pieces

TYPE_CHECKING = False

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from torch import Tensor
    from torch.optim import Optimizer

    from .census import Turns

    # Where memory begins, and how long it is, by device.
    Places = dict[int, dict[int, int]]

# Nothing that ran out of memory has ended the program, as `oomph explain` knows it.
WENT_ON = b"oomph.went_on"
# Which cell of a notebook a file is, as `oomph explain` knows it: this, the number, the file.
CELL = "oomph.cell"
# A recording does not fill the disk.
MOST_BYTES = 2 << 30
# Names that are tried until one is nobody's.
MOST_NAMES = 999
# The kinds of blocks are reported for the first steps, then for steps that are new, at most one in so many.
STEPS_REPORTED = 4
ONE_IN = 16

_attached: Attachment | None = None


class Recording:
    """A recording under way, or ended."""

    def __init__(self, path: str | os.PathLike[str], most_bytes: int = MOST_BYTES, whole: bool = False, claimed: bool = False) -> None:
        """``whole``: steps that go as one before are written too, see the crate ``oomph-record``. ``claimed``: `oomph run` keeps the file for this process."""
        self.claimed = claimed
        self.path = os.path.abspath(os.fspath(path))
        self.most_bytes = most_bytes
        self.in_whole = whole
        self.active = False
        # The name that was asked for, if somebody else writes it.
        self.taken: str | None = None
        self.whole: bool | None = None
        self.steps = 0
        self.out_of_memories = 0
        # The other ranks' watchers know of the first.
        self.told = False
        self.counts: tuple[int, ...] = (0, 0, 0, 0)
        self.reports_kinds = True
        self.since_reported = 0
        # Where the weights of adapters are, by device: they are reported as such.
        self.adapters: Places | None = None
        self.process = os.getpid()
        self.recorder: native.Native = None  # type: ignore[assignment]  # until it begins, and nobody asks before
        self.guard: ctypes.PyDLL | None = None
        self.cells: set[str] = set()
        # Called if the file could not be written to its end.
        self.on_cut: Callable[[], None] | None = None
        self.censuses: Turns = None  # type: ignore[assignment]  # as the recorder

    def begin(self, recorder: native.Native) -> None:
        """CUDA is initialized: records from here on, and first lists what is allocated already."""
        import torch

        # Not before: most processes of a program never come here, and it takes a while to import.
        from .census import Turns

        self.censuses = Turns()
        self.recorder = recorder
        self.start(recorder)
        self.active = True
        snapshot = torch.cuda.memory._snapshot()
        for device, segments in by_device(snapshot).items():
            recorder.state(device, segments, at_the_end=False)
        recorder.settings(json.dumps({"known": True, "settings": snapshot.get("allocator_settings", {})}))
        recorder.mark_peak()
        self.report_cards(torch)
        atexit.register(self.stop)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            # Workers leave without Python's own exit, but not without this.
            util.Finalize(None, self.stop, exitpriority=100)

    def start(self, recorder: native.Native) -> None:
        """Begins the file, or one of a similar name if somebody writes it: ``path`` says which."""
        stem, end = os.path.splitext(self.path)
        for number in range(1, MOST_NAMES + 1):
            path = self.path if number == 1 else f"{stem}-{number}{end}"
            try:
                recorder.start(path, self.most_bytes, self.in_whole, self.claimed and number == 1)
            except OSError as error:
                # What is no recording stays, also where it has the name that would be next.
                if error.errno != errno.EBUSY and (number == 1 or error.errno not in native.REFUSED):
                    raise
                busy = error
                continue
            self.taken = self.path if number > 1 else None
            self.path = path
            return
        raise busy

    def report_cards(self, torch: ModuleType) -> None:
        """For whoever looks from outside, where a virtual card cannot be seen."""
        with contextlib.suppress(Exception):
            for device in range(torch.cuda.device_count()):
                card = torch.cuda.get_device_properties(device)
                self.recorder.card(device, card.name, card.total_memory, "OOMPH_VIRTUAL_GPU" in os.environ)

    # -- what happens

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.active:
            return
        if self.reports_kinds:
            self.report_gradients(optimizer)
        if self.guard is not None:
            self.guard.oomph_guard_phase(0)
        self.recorder.step(self.name_of(optimizer), False)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.active:
            return
        if self.reports_kinds:
            self.report_state(optimizer)
        if self.guard is not None:
            self.guard.oomph_guard_phase(1)
        self.steps += 1
        is_new = self.recorder.step(self.name_of(optimizer), True)
        self.since_reported = 0 if self.reports_kinds else self.since_reported + 1
        self.reports_kinds = self.steps < STEPS_REPORTED or (is_new and self.since_reported >= ONE_IN)

    @staticmethod
    def name_of(optimizer: Optimizer) -> bytes:
        return f"Optimizer.step#{type(optimizer).__name__}.step".encode()

    def report_gradients(self, optimizer: Optimizer) -> None:
        self.report_frozen()
        parameters: Places = {}
        gradients: Places = {}
        with contextlib.suppress(Exception):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    note(parameters, parameter)
                    note(gradients, parameter.grad)
        learning = self.adapters or {}
        adapters = {device: {at: size for at, size in places.items() if at in learning.get(device, ())} for device, places in parameters.items()}
        others = {device: {at: size for at, size in places.items() if at not in adapters[device]} for device, places in parameters.items()}
        self.report_kinds(adapters, native.ADAPTER)
        self.report_kinds(others, native.PARAMETER)
        self.report_kinds(gradients, native.GRADIENT)

    def report_frozen(self) -> None:
        """Once: the optimizers know nothing of weights that do not learn."""
        if self.adapters is not None:
            return
        self.adapters = {}
        frozen: Places = {}
        with contextlib.suppress(Exception):
            torch = sys.modules["torch"]
            still, learning = frozen_and_adapters(torch)
            for parameter in learning:
                note(self.adapters, parameter)
            for parameter in still:
                for piece in pieces(parameter, torch):
                    note(frozen, piece)
        self.report_kinds(frozen, native.FROZEN)

    def report_state(self, optimizer: Optimizer) -> None:
        state: Places = {}
        with contextlib.suppress(Exception):
            for of_parameter in optimizer.state.values():
                for value in of_parameter.values() if isinstance(of_parameter, dict) else ():
                    for piece in pieces(value, sys.modules["torch"]):
                        note(state, piece)
        self.report_kinds(state, native.OPTIMIZER_STATE)

    def report_kinds(self, found: Places, kind: int) -> None:
        self.recorder.kinds({device: list(places) for device, places in found.items()}, kind)
        if self.guard is not None:
            for places in found.values():
                for address, size in places.items():
                    self.guard.oomph_guard_kind(address, size, kind)

    def out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        """PyTorch's observer: called before it raises, in the thread that asked."""
        if self.active and os.getpid() == self.process:
            self.out_of_memories += 1
            # A prediction says it of each rank, and has no others.
            if not self.in_whole and not self.told:
                self.told = others.tell(asked, free, sys._getframe())
            # Before the first step nobody has said it yet.
            self.report_frozen()
            # Three frames are ours: this one, the one that calls it, and the one that it calls.
            self.recorder.out_of_memory(device, asked, free, 3)
            self.mark_cells()
            census = self.censuses.take(sys.modules["torch"], device, asked, total, free)
            if census is not None:
                self.recorder.census(census)

    def mark_cells(self) -> None:
        """Says which cells of a notebook files are. At an out-of-memory too: it is explained while the recording goes on."""
        with contextlib.suppress(Exception):
            for file, number in cells():
                if file not in self.cells:
                    self.cells.add(file)
                    self.recorder.mark(encoded(f"{CELL} {number} {file}"))

    def stop(self, died: bool | None = None) -> None:
        """Ends the recording with the final state. Once. ``died``: whether an out-of-memory has ended the program, if somebody knows."""
        if not self.active or os.getpid() != self.process:
            return
        self.active = False
        atexit.unregister(self.stop)
        if self.out_of_memories and not (died_of_it() if died is None else died):
            self.recorder.mark(WENT_ON)
        self.mark_cells()
        with contextlib.suppress(Exception):
            import torch

            for device, segments in by_device(torch.cuda.memory._snapshot()).items():
                self.recorder.state(device, segments, at_the_end=True)
        self.counts = self.recorder.counts()
        self.whole = self.recorder.stop()
        if not self.whole and self.on_cut is not None:
            self.on_cut()


def died_of_it() -> bool:
    """Whether an out-of-memory is what goes through this frame, or what has ended the program."""
    errors = [sys.exc_info()[1], getattr(sys, "last_value", None)]
    return any(is_out_of_memory(one) for error in errors for one in frames.chain(error))


def cells() -> list[tuple[str, int]]:
    """The files that IPython pretends its cells to be, each with the number that people know it by."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return []
    numbers = getattr(shell.compile, "_filename_map", None)
    if isinstance(numbers, dict):
        return list(numbers.items())
    # Before IPython 8 they are not kept, but a cell's text gives its file's name again.
    found: dict[str, int] = {}
    with contextlib.suppress(Exception):
        for texts in (shell.history_manager.input_hist_raw, shell.history_manager.input_hist_parsed):
            for number, text in enumerate(texts):
                found[shell.compile.get_code_name(text, text, number)] = number
    return list(found.items())


def by_device(snapshot: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    devices: dict[int, list[dict[str, Any]]] = {}
    for segment in snapshot["segments"]:
        devices.setdefault(segment["device"], []).append(segment)
    return devices


def note(found: Places, tensor: Tensor | None) -> None:
    """Where a tensor's memory begins, and how long it is, by device."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    if tensor is None or not getattr(tensor, "is_cuda", False):
        return
    storage = tensor.untyped_storage()
    try:
        address = storage.data_ptr()
    except RuntimeError:
        return  # It only wraps others, and has no memory of its own.
    if address:
        found.setdefault(tensor.get_device(), {})[address] = storage.nbytes()


class Attachment:
    """What is put into PyTorch once a process, and serves one recording after another."""

    def __init__(self, torch: ModuleType, library: str, guard: ctypes.PyDLL | None = None, lets_go: bool = True) -> None:
        self.recorder = native.Native(library)
        generated.watch(self.recorder)
        self.current: Recording | None = None
        # `oomph run` has begun the current one, and wants it to the end of the program.
        self.is_of_run = False
        self.guard = guard
        self.lets_go = lets_go
        self.handlers: Handlers | None = None
        self.observes = False
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)

    def begin(self, recording: Recording) -> None:
        """With CUDA initialised."""
        import torch

        backend = torch.cuda.memory.get_allocator_backend()
        if backend != "native":
            raise RuntimeError(f"PyTorch's allocator is {backend} here: only its native one can be recorded")
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
            raise RuntimeError("PYTORCH_NO_CUDA_MEMORY_CACHING is set: there is no caching allocator to record")
        if not self.recorder.attach():
            raise RuntimeError(f"this PyTorch ({torch.__version__}) has no CUDA allocator that oomph can record")
        self.watch()
        if self.current is not None:
            self.current.stop()
        self.current = recording
        recording.guard = self.guard
        recording.begin(self.recorder)

    def watch(self) -> None:
        """Hears of out-of-memories, and lets go of the frames of one that is caught, recorded or not."""
        import torch

        if not self.observes:
            self.observes = True
            self.handlers = Handlers(torch.cuda.OutOfMemoryError) if self.lets_go else None
            # Observers can be added, but not taken off again. An allocator that is not PyTorch's native one has none.
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_attach_out_of_memory_observer(self.out_of_memory)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.current is not None:
            self.current.before_step(optimizer, args, kwargs)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.current is not None:
            self.current.after_step(optimizer, args, kwargs)

    def out_of_memory(self, device: int, asked: int, total: int, free: int) -> None:
        try:
            if self.current is not None:
                self.current.out_of_memory(device, asked, total, free)
            if self.handlers is not None:
                self.handlers.expect()
        except Exception as error:
            # Nothing of ours takes the place of PyTorch's error.
            print(f"oomph: {error}", file=sys.stderr)


def attachment(torch: ModuleType, library: str, guard: ctypes.PyDLL | None = None, lets_go: bool = True) -> Attachment:
    """The one of this process. ``lets_go``: whether a program finds more memory after an out-of-memory than it would without oomph."""
    global _attached
    if _attached is None:
        _attached = Attachment(torch, library, guard, lets_go)
    return _attached
