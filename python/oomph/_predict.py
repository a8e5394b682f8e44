"""``oomph.predict``: what a function takes on a card, found out in a child process on a virtual GPU."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
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
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if "<" in name or module is None:
        raise PredictionError(f"{function!r} cannot be found by name in a child process; define it at the top of a module")
    main = None
    if module == "__main__":
        main = getattr(sys.modules["__main__"], "__file__", None)
        if main is None:
            raise PredictionError(f"{name} is defined in a notebook or a shell; put it into a file, or predict the notebook: oomph predict notebook.ipynb")
        main = os.path.abspath(main)
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
        command = [find_oomph(), "predict", "--format", "json", "--python", sys.executable]
        command += ["--steps", str(steps)] if steps is not None else []
        command += ["--gpu", gpu] if gpu is not None else []
        command += ["--memory", str(memory) if isinstance(memory, str) else f"{memory}B"] if memory is not None else []
        command += ["--conf", conf] if conf is not None else []
        command += ["--output", os.fspath(recording)] if recording is not None else ["--no-recording"]
        ran = subprocess.run([*command, script], capture_output=True, text=True)
    if ran.returncode not in (0, 1) or not ran.stdout:
        raise PredictionError(ran.stderr.strip() or f"oomph predict ended with {ran.returncode}")
    raw = json.loads(ran.stdout)
    return Prediction(
        fits=raw["fits"],
        margin=raw["margin"],
        allocated=raw["peak"]["allocated"],
        reserved=raw["peak"]["reserved"],
        total=raw["total"],
        uncertain=raw["uncertain"],
        raw=raw,
    )
