"""``oomph.plan``: how many of which cards a model needs, and shared in which way. Found out in child processes on virtual ranks."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomph._find import find_oomph
from oomph._predict import PredictionError, name_of
from oomph._progress import on_terminal
from oomph._sizes import text

_START = """\
import pickle, sys
with open({path!r}, "rb") as file:
    places, named, rest = pickle.load(file)
sys.path[:] = places + [place for place in sys.path if place not in places]
from oomph._plan import function_of
from oomph.sharding.trial import train
model, optimizer, batch, loss = (function_of(*name) if name else None for name in named)
given = pickle.loads(rest)
train(model, optimizer, batch or given["batch"], loss or given["loss"])
"""
# How parameters, gradients and the optimizer's state are shared, and which blocks are run again in the backward pass.
HOWS = ("replicate", "hybrid", "shard-kept", "shard", "shard-offload")
CHECKPOINTS = ("none", "blocks")
# In a child that is planned for: a script without a guard calls oomph.plan there again.
_INSIDE = "OOMPH_PLANNING"
# What the script is called in lines to type: the model's own.
_SCRIPT = "train.py"


@dataclass(frozen=True)
class PlannedCards:
    """What was found for one card and one way. ``cards`` is None where it does not fit; ``error`` says why it does not run, and ``unsure`` that it may fit all the same. ``doubts`` are what may make the
    numbers wrong."""

    gpu: str
    way: str
    cards: int | None
    machines: int | None
    total: int | None
    margin: int | None
    sent: int | None
    seconds: tuple[float, float] | None
    error: str | None
    unsure: bool
    doubts: list[str] = field(repr=False)
    launch: dict[str, str | None] | None = field(repr=False)

    def __str__(self) -> str:
        if self.cards is None:
            if self.error is not None:
                return f"{self.gpu}, {self.way}: does not run so ({self.error})"
            fits = "is not known to fit" if self.unsure else "does not fit"
            return f"{self.gpu}, {self.way}: {fits} ({text(self.total or 0)} on each)"
        sent = f", {text(self.sent)} sent per step" if self.sent else ""
        takes = f", {self.seconds[0]:.2g} to {self.seconds[1]:.2g} s per step by estimate" if self.seconds else ""
        return f"{self.cards} × {self.gpu}, {self.way}: {text(self.total or 0)} on each{sent}{takes}"


@dataclass(frozen=True)
class CardPlan:
    """What was planned: ``rows`` has every card and way, the best first. ``raw`` is all that ``oomph plan --format json`` says."""

    rows: list[PlannedCards]
    raw: dict[str, Any] = field(repr=False)

    @property
    def best(self) -> PlannedCards | None:
        """The one with the fewest cards; None if nothing fits."""
        return self.rows[0] if self.rows and self.rows[0].cards is not None else None

    def __str__(self) -> str:
        lines = [str(row) for row in self.rows]
        if self.best is not None and self.best.launch is not None:
            lines += ["", *(f"{name}: {typed}" for name, typed in self.best.launch.items() if typed)]
        return "\n".join(lines)


def plan(
    model: Callable[[], Any],
    optimizer: Callable[[Any], Any],
    batch: Any,
    *,
    gpus: Sequence[str],
    loss: Callable[..., Any] | None = None,
    ranks: str | int | Sequence[int] = "1..8",
    per_node: int | None = None,
    how: Sequence[str] | None = None,
    checkpoint: Sequence[str] = ("none", "blocks"),
    conf: str | None = None,
) -> CardPlan:
    """Says how many of which GPUs a model needs to train, and shared in which way, without any of them.

    ``model()`` gives the model, on the CPU or on the meta device, ``optimizer(parameters)`` its optimizer, and ``batch`` is what one rank gets, or a function that gives it. ``loss`` is as for `oomph.fit`.
    Functions must be importable by name. ``ranks`` is a range ("1..64"), a number or a list; ``per_node`` how many are on one machine.

    ``how`` names the ways: ``"replicate"`` (DistributedDataParallel), ``"shard"`` (FSDP2, parameters gathered block by block), ``"shard-kept"`` (gathered ones are kept until the backward pass), ``"shard-offload"``
    (parts in host memory) and ``"hybrid"`` (sharded within machines, replicated across; HSDP). By default all but ``"shard-kept"`` that apply. ``checkpoint`` says whether blocks are run again in the backward pass.

    >>> print(oomph.plan(make_model, make_optimizer, make_batch, gpus=["t4", "a100-80gb"], loss=loss_fn))  # doctest: +SKIP
    """
    if os.environ.get(_INSIDE):
        raise PredictionError('oomph.plan was called by the program that it plans: put the call under `if __name__ == "__main__":`')
    gpus, checkpoint = _listed("gpus", gpus), _listed("checkpoint", checkpoint, CHECKPOINTS)
    counts = _counts(ranks)
    named = [name_of(model), name_of(optimizer), name_of(batch) if callable(batch) else None, name_of(loss) if loss is not None and hasattr(loss, "__qualname__") else None]
    given = {"batch": None if callable(batch) else batch, "loss": None if named[3] else loss}
    try:
        rest = pickle.dumps(given)
    except Exception as error:
        raise PredictionError(f"the batch or the loss cannot be passed to a child process: {error}; give a function of a module that makes the batch") from error
    ways = _listed("how", how, HOWS) if how is not None else _ways_that_apply(counts, per_node or 8)
    with tempfile.TemporaryDirectory(prefix="oomph-plan-") as folder:
        packed, script = os.path.join(folder, "call.pickle"), os.path.join(folder, "plan.py")
        with open(packed, "wb") as file:
            pickle.dump((sys.path, named, rest), file)
        with open(script, "w") as file:
            file.write(_START.format(path=packed))
        options = ["--python", sys.executable, "--gpus", ",".join(gpus), "--ranks", counts]
        options += ["--per-node", str(per_node)] if per_node is not None else []
        options += ["--conf", conf] if conf is not None else []
        options += ["--sweep", f"--how={','.join(ways)}", "--sweep", f"--checkpoint={','.join(checkpoint)}"]
        raw = _ran([find_oomph(), "plan", "--format", "json", *options, script])
    rows = [_row(row, script) for row in raw["rows"]]
    return CardPlan(rows, raw)


def _listed(name: str, given: str | Sequence[str], known: Sequence[str] = ()) -> list[str]:
    """One name stands for a list of it."""
    listed = [given] if isinstance(given, str) else list(given)
    strange = [one for one in listed if known and one not in known]
    if strange or not listed:
        raise ValueError(f"{name}={given!r}: it takes {', '.join(map(repr, known)) or 'names of cards, such as t4'}")
    return listed


def _counts(ranks: str | int | Sequence[int]) -> str:
    counts = ranks if isinstance(ranks, str) else ",".join(map(str, [ranks] if isinstance(ranks, (int, float)) else ranks))
    if not re.fullmatch(r"\s*\d+\s*(\.\.=?\s*\d+\s*|(,\s*\d+\s*)*)", counts):
        raise ValueError(f'ranks={ranks!r}: it takes a range such as "1..64", a number, or a list of numbers')
    return counts


def _ran(command: list[str]) -> dict[str, Any]:
    """It takes minutes: which ways are run is shown on the way."""
    line, said = on_terminal(), []
    environment = {**os.environ, _INSIDE: "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process, tempfile.TemporaryFile("w+") as out:
        assert process.stdout is not None and process.stderr is not None
        # The answer comes at the end, in one piece that may be larger than a pipe holds.
        copied = threading.Thread(target=shutil.copyfileobj, args=(process.stdout, out))
        copied.start()
        try:
            for said_now in process.stderr:
                said.append(said_now)
                line.say(f"oomph: {said_now.strip()}")
        except BaseException:
            # Interrupted: it ends what it has started.
            process.terminate()
            raise
        finally:
            line.close()
            copied.join()
        out.seek(0)
        answer = out.read()
    if not answer:
        raise PredictionError("".join(said).strip() or f"oomph plan ended with {process.returncode}")
    found: dict[str, Any] = json.loads(answer)
    return found


def function_of(main: str | None, module: str, name: str) -> Any:
    """In the child: what `name_of` has named."""
    if main is not None:
        found: Any = _names_of(main)
        first, *parts = name.split(".")
        found = found[first]
    else:
        import importlib

        found, parts = importlib.import_module(module), name.split(".")
    for part in parts:
        found = getattr(found, part)
    return found


_MAINS: dict[str, dict[str, Any]] = {}


def _names_of(path: str) -> dict[str, Any]:
    """A script's names. It is run once, as a module would be."""
    if path not in _MAINS:
        import runpy

        _MAINS[path] = runpy.run_path(path, run_name="__oomph_main__")
    return _MAINS[path]


def _ways_that_apply(counts: str, per_node: int) -> list[str]:
    most = max(int(count) for count in counts.replace("..", ",").replace("=", "").split(","))
    # The order is that of preference where all else is equal.
    several = ["hybrid"] if most > per_node else []
    return ["replicate", *several, "shard", "shard-offload"] if most > 1 else ["replicate", "shard-offload"]


def _row(row: dict[str, Any], script: str) -> PlannedCards:
    launch = row["launch"]
    if launch is not None:
        # As it stands in a command: quoted where it must be.
        launch = {name: typed and typed.replace(f"{shlex.quote(script)} {row['way']}", _SCRIPT) for name, typed in launch.items()}
    sent, seconds = row["sent"], row["seconds"]
    return PlannedCards(
        gpu=row["gpu"],
        way=row["way"].replace("--how ", "").replace(" --checkpoint none", "").replace(" --checkpoint blocks", ", blocks checkpointed"),
        cards=row["cards"],
        machines=row["machines"],
        total=row["total"],
        margin=row["margin"],
        sent=sent and sent["within"] + sent["between"],
        seconds=seconds and (seconds["low"], seconds["high"]),
        error=row["error"],
        unsure=bool(row["unsure"]),
        doubts=row["doubts"],
        launch=launch,
    )
