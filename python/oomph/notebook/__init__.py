"""The notebook: what ``%load_ext oomph`` puts into IPython, and takes out again.

After a cell that changed memory, a line; after a cell that failed, its frames cleared, and after an out-of-memory an explanation;
the magics ``%oomph`` and ``%%oomph``. Hooks only: measuring, naming, freeing and explaining are elsewhere. Works in IPython 7.34 to 9.
"""

from __future__ import annotations

import gc
from typing import Any

from oomph import _black_box, _ram
from oomph._measure import gpus, ram
from oomph._sizes import MIB, text
from oomph.live.frames import chain, release
from oomph.live.out_of_memory import is_out_of_memory
from oomph.notebook._line import Mark, line
from oomph.notebook._magics import register, unregister
from oomph.notebook._own_error import OwnErrors
from oomph.notebook._recorded import running_recording
from oomph.notebook._show import Explained, say

# RAM that came back with a failed cell's frames is reported from here on; less is noise.
_MUCH_RAM = 64 * MIB

_loaded: Notebook | None = None


def load(shell: Any) -> None:
    """Starts; a second time does nothing."""
    global _loaded
    if _loaded is None:
        _loaded = Notebook(shell)
        _loaded.start()


def unload(shell: Any) -> None:
    """Takes everything out again."""
    global _loaded
    if _loaded is not None:
        _loaded.stop()
        _loaded = None


class Notebook:
    """The hooks of one IPython."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.own_errors = OwnErrors(shell)
        self.mode = "on"
        self.after_the_traceback: Explained | None = None
        self.last_recording: str | None = None
        self._mark: Mark | None = None
        self._guard: Any = None

    def start(self) -> None:
        self.shell.events.register("pre_run_cell", self._before)
        self.shell.events.register("post_run_cell", self._after)
        register(self)
        # A kernel that is killed takes everything with it. A guard that the user set is left as it is.
        if _ram._guard is None:
            self._guard = _ram.guard_ram()

    def stop(self) -> None:
        self.shell.events.unregister("pre_run_cell", self._before)
        self.shell.events.unregister("post_run_cell", self._after)
        unregister(self.shell)
        _black_box.note("")
        if self._guard is not None:
            self._guard.stop()

    def _before(self, info: Any = None) -> None:
        _black_box.note(self._running(info))
        self._mark = Mark.before_a_cell() if self.mode != "off" else None

    def _running(self, info: Any) -> str:
        """What the black box says was running: the cell's number and its first line."""
        lines = (getattr(info, "raw_cell", None) or "").strip().splitlines()
        # Shell commands carry passwords.
        first = lines[0].strip() if lines and not lines[0].lstrip().startswith(("!", "%")) else ""
        return f"cell [{self.shell.execution_count}]" + (f": {first[:60]}" if first else "")

    def _after(self, result: Any) -> None:
        _black_box.note("")
        self.own_errors.forget()
        mark, self._mark = self._mark, None
        if self.mode == "off":
            self.after_the_traceback = None
            return
        error = result.error_in_exec or result.error_before_exec
        if error is not None:
            self._failed(error)
        # The cell that loads the extension has no beginning.
        if mark is not None and self.mode == "on":
            said = line(mark, Mark.now())
            if said is not None:
                say(said)

    def _failed(self, error: BaseException) -> None:
        memory_ran_out = any(is_out_of_memory(one) for one in chain(error))
        if memory_ran_out:
            self._explain()
        # A debugger wants to see the frames.
        if self.shell.call_pdb:
            return
        gpu, own = _held()
        release(error)
        if memory_ran_out:
            gc.collect()
        gpu_now, own_now = _held()
        back = [f"{text(gpu - gpu_now)} of GPU memory"] if gpu > gpu_now else []
        back += [f"{text(own - own_now)} of RAM"] if own - own_now >= _MUCH_RAM else []
        if back:
            say(f"oomph: freed {' and '.join(back)} that the failed cell's variables held")

    def _explain(self) -> None:
        explained, self.after_the_traceback = self.after_the_traceback, None
        if explained is None:
            path = running_recording()
            explained = Explained(path) if path is not None else None
        if explained is not None:
            explained.show()
            return
        from oomph._who import who

        # Before the frames are cleared: they may be what held most of it.
        say(f"{who(top=5)}\nTo see why it ran out, put %%oomph at the top of the cell and run it again")


def _held() -> tuple[int, int]:
    return sum(device.allocated for device in gpus()), ram().used
