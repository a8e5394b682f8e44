"""``oomph.predict``: what a function takes on a card; ``oomph.predict_model``: what fits of a model. Found out in a child process on a virtual GPU."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oomph._find import find_oomph

_START = """\
import pickle, sys
with open({path!r}, "rb") as file:
    places, main, name, body, args, kwargs = pickle.load(file)
sys.path[:] = places + [place for place in sys.path if place not in places]
if main is not None:
    import runpy
    function = runpy.run_path(main, run_name="__oomph_main__")[name]
else:
    import importlib
    function = importlib.import_module(body)
    for part in name.split("."):
        function = getattr(function, part)
args, kwargs = pickle.loads(args), pickle.loads(kwargs)
function(*args, **kwargs)
"""


class PredictionError(RuntimeError):
    """No prediction could be made; the message says why and what to do."""


@dataclass(frozen=True)
class Prediction:
    """What was predicted. ``raw`` is all that ``oomph predict --format json`` says."""

    fits: bool
    margin: int | None
    allocated: int
    reserved: int
    total: int
    uncertain: list[dict[str, Any]] = field(repr=False)
    raw: dict[str, Any] = field(repr=False)


def predict(
    function: Callable[..., Any],
    *args: Any,
    gpu: str | None = None,
    memory: str | int | None = None,
    steps: int | None = None,
    conf: str | None = None,
    recording: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Prediction:
    """Runs ``function(*args, **kwargs)`` on a virtual GPU, in a child process, and says what it takes.

    The function builds its model and trains on ``cuda`` as it would on a real card; it is stopped after ``steps``
    optimizer steps (3, and more where batches differ in shape) and what follows them. It must be importable by name
    (defined in a module or at the top of a script), and its arguments picklable. Nothing happens in this process, which need not have a GPU, nor PyTorch.

    >>> oomph.predict(train, batch_size=8, gpu="t4").fits  # doctest: +SKIP
    True
    """
    if gpu is None and memory is None:
        raise TypeError('which card? predict(..., gpu="t4"), or memory="12GiB"')
    main, module, name = name_of(function)
    try:
        call = (sys.path, main, name, module, pickle.dumps(args), pickle.dumps(kwargs))
    except Exception as error:
        raise PredictionError(f"the arguments of {name} cannot be passed to a child process: {error}") from error
    with tempfile.TemporaryDirectory(prefix="oomph-call-") as folder:
        packed, script = os.path.join(folder, "call.pickle"), os.path.join(folder, f"{name.rsplit('.', 1)[-1]}.py")
        with open(packed, "wb") as file:
            pickle.dump(call, file)
        with open(script, "w") as file:
            file.write(_START.format(path=packed))
        raw = _run([*_options(gpu, memory, steps, conf, recording), script])
    return Prediction(
        fits=raw["fits"],
        margin=raw["margin"],
        allocated=raw["peak"]["allocated"],
        reserved=raw["peak"]["reserved"],
        total=raw["total"],
        uncertain=raw["uncertain"],
        raw=raw,
    )


def name_of(function: Callable[..., Any]) -> tuple[str | None, str, str]:
    """By what a child process finds a function: the script that was started, if it is in that, its module, and its name there."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if "<" in name or not name or module is None:
        raise PredictionError(f"{function!r} cannot be found by name in a child process; define it at the top of a module")
    if module != "__main__":
        return None, module, name
    main = getattr(sys.modules["__main__"], "__file__", None)
    if main is None:
        raise PredictionError(f"{name} is defined in a notebook or a shell; put it into a file, or predict the notebook: oomph predict notebook.ipynb")
    return os.path.abspath(main), module, name


@dataclass(frozen=True)
class CardFit:
    """What fits on a card. ``run`` is whether the largest sizes were run, or lie on a curve through sizes that were."""

    gpu: str
    fits: bool
    close: bool
    needs: int
    largest_batch: int
    longest_sequence: int
    run: bool


@dataclass(frozen=True)
class ModelPrediction:
    """What was predicted of a model: ``fits`` of the card that was named, ``cards`` of all, ``script`` is what was run. ``raw`` is all that ``oomph predict --format json`` says."""

    fits: bool | None
    cards: list[CardFit]
    script: str = field(repr=False)
    raw: dict[str, Any] = field(repr=False)


def predict_model(
    model: str | os.PathLike[str],
    *,
    train: str = "lora",
    gpu: str | None = None,
    gpus: Sequence[str] | None = None,
    memory: str | int | None = None,
    batch: int = 1,
    sequence: int | None = None,
    conf: str | None = None,
    recording: str | os.PathLike[str] | None = None,
) -> ModelPrediction:
    """Says what training or running a model takes, by its name alone: a name of the Hub, or a folder with its ``config.json``.

    ``train`` is how it is used: ``"qlora"``, ``"lora"``, ``"full"`` or ``"infer"``. Needs what the script needs: transformers, and peft and bitsandbytes for adapters. The Hub is asked for ``config.json``
    at most; weights are neither downloaded nor made. With ``gpus`` several cards are answered for, and ``fits`` is None.

    >>> oomph.predict_model("Qwen/Qwen2.5-7B", train="qlora", gpu="t4").fits  # doctest: +SKIP
    True
    """
    if gpus is None and gpu is None and memory is None:
        raise TypeError('which card? predict_model(..., gpu="t4"), memory="12GiB", or gpus=["t4", "l4"]')
    command = _options(gpu, memory, None, conf, recording) if gpus is None else [*_options(None, None, None, conf, None), "--gpus", ",".join(gpus)]
    command += ["--model", os.fspath(model), "--train", train, "--batch", str(batch)]
    command += ["--sequence", str(sequence)] if sequence is not None else []
    raw = _run(command)
    cards = [
        CardFit(
            gpu=card["gpu"]["name"],
            fits=card["fits"],
            close=card["close"],
            needs=card["needs"]["total"],
            largest_batch=card["largest_batch"],
            longest_sequence=card["longest_sequence"],
            run=card["run"],
        )
        for card in raw["cards"]
    ]
    return ModelPrediction(fits=raw.get("fits"), cards=cards, script=raw["script"], raw=raw)


def _options(gpu: str | None, memory: str | int | None, steps: int | None, conf: str | None, recording: str | os.PathLike[str] | None) -> list[str]:
    """What both take, as the command takes it."""
    options = ["--python", sys.executable]
    options += ["--steps", str(steps)] if steps is not None else []
    options += ["--gpu", gpu] if gpu is not None else []
    options += ["--memory", memory if isinstance(memory, str) else f"{memory}B"] if memory is not None else []
    options += ["--conf", conf] if conf is not None else []
    options += ["--output", os.fspath(recording)] if recording is not None else ["--no-recording"]
    return options


def _run(options: list[str]) -> dict[str, Any]:
    ran = subprocess.run([find_oomph(), "predict", "--format", "json", *options], capture_output=True, text=True)
    if ran.returncode not in (0, 1) or not ran.stdout:
        raise PredictionError(ran.stderr.strip() or f"oomph predict ended with {ran.returncode}")
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer
