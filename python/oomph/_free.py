"""``oomph.free()``: frees all that the program did not name, and says what each step gave back.

Variables are never touched. What holds memory is named by ``oomph.who()``; see `live/roots.py` for the places that IPython has.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from oomph import _heap
from oomph._measure import gpus, ram, torch_on_gpu
from oomph._sizes import signed, text
from oomph.live import roots
from oomph.live.frames import release


@dataclass(frozen=True)
class Step:
    """One step and the bytes that it gave back: of tensors, of what PyTorch took from the GPU, and of RAM."""

    name: str
    allocated: int
    reserved: int
    ram: int


@dataclass(frozen=True)
class Freed:
    """What was given back, by step; what is left is in ``allocated``, ``reserved`` and ``ram_used``."""

    rows: list[Step]
    allocated: int
    reserved: int
    ram_used: int

    def __str__(self) -> str:
        lines = [f"{'given back':<28} {'allocated':>10} {'reserved':>10} {'RAM':>10}"]
        for name, *sizes in self._table():
            lines.append(f"  {name:<26} " + " ".join(f"{size:>10}" for size in sizes))
        lines.append(f"Left: {text(self.allocated)} allocated, {text(self.reserved)} reserved on the GPU, {text(self.ram_used)} RAM")
        return "\n".join(lines)

    __repr__ = __str__

    def _table(self) -> Iterator[tuple[str, ...]]:
        for row in self.rows:
            yield row.name, _given(row.allocated), _given(row.reserved), _given(row.ram)
        totals = (sum(getattr(row, column) for row in self.rows) for column in ("allocated", "reserved", "ram"))
        yield ("in all", *map(_given, totals))

    def _repr_html_(self) -> str:
        right = 'style="text-align:right"'
        body = "".join(
            f'<tr><td style="text-align:left">{html.escape(name)}</td>' + "".join(f"<td {right}>{size}</td>" for size in sizes) + "</tr>" for name, *sizes in self._table()
        )
        head = "<tr><th>given back</th><th>allocated</th><th>reserved</th><th>RAM</th></tr>"
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table><p>{html.escape(str(self).splitlines()[-1])}</p>"


def free(outputs: bool = True, frames: bool = True) -> Freed:
    """Frees displayed values (``outputs``) and the frames of the last errors (``frames``), collects garbage, and returns
    what PyTorch and the C library keep for later. The program's own variables stay.
    """
    running = roots.shell()
    rows: list[Step] = []
    before = _now()
    for name, wanted, action in (
        ("displayed values (Out, _)", outputs, lambda: forget_outputs(running)),
        ("frames of the last errors", frames, lambda: [release(error) for error in roots.exceptions(running)]),
        ("garbage in cycles", True, _heap.collect),
        ("PyTorch's cache", True, _empty_cache),
        ("cache of pinned memory", True, _heap.empty_pinned_cache),
        ("the C library's heap", True, _heap.trim),
    ):
        if not wanted:
            continue
        action()
        after = _now()
        rows.append(Step(name, *(was - now for was, now in zip(before, after))))
        before = after
    return Freed(rows, *before)


def forget_outputs(running: Any | None) -> None:
    """Forgets what IPython keeps of displayed values, and nothing that the user assigned."""
    if running is None:
        return
    hook, names, hidden = running.displayhook, running.user_ns, running.user_ns_hidden
    remembered = names.get("_oh", {})
    for name in [name for name in names if re.fullmatch(r"_\d+", name)]:
        # A variable of the user's may be called _5 too; then it is not what was displayed.
        if names[name] is remembered.get(int(name[1:])):
            del names[name]
            hidden.pop(name, None)
    for name in [name for name in hidden if re.fullmatch(r"_\d+", name)]:
        del hidden[name]
    for name in ("_", "__", "___"):
        if name in names and names[name] is getattr(hook, name, None):
            names[name] = ""
        if name in hidden:
            hidden[name] = ""
        if hasattr(hook, name):
            setattr(hook, name, "")
    remembered.clear()
    if running.last_execution_result is not None:
        running.last_execution_result.result = None


def _now() -> tuple[int, int, int]:
    devices = gpus()
    return sum(device.allocated for device in devices), sum(device.reserved for device in devices), ram().used


def _empty_cache() -> None:
    torch = torch_on_gpu()
    if torch is not None:
        torch.cuda.empty_cache()


def _given(size: int) -> str:
    """What was given back; more memory than before has a sign."""
    return text(size) if size >= 0 else signed(-size)
