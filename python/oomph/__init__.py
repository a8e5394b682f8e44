"""oomph: where did my GPU memory go, why did it run out, and will it fit before I pay for the GPU?

The package carries the command ``oomph``; ``python -m oomph`` runs it where the scripts folder is not on the path.
``oomph.predict`` says what a function takes on a card, without the card, ``oomph.predict_model`` what fits of a model, ``oomph.plan`` how many of which cards one needs; ``oomph.who`` what holds GPU memory now, ``oomph.free`` frees
what has no name; ``oomph.fit`` makes a training step fit, with the same result; ``oomph.record`` records; ``oomph.report`` shows it; ``oomph.profile_ram`` says which lines of a function hold RAM, ``oomph.guard_ram`` turns a kill
for RAM into a MemoryError; ``oomph.data`` is for data that does not fit in RAM, ``oomph.doctor`` says what a DataLoader takes, ``oomph.host`` gives
RAM back; ``%load_ext oomph`` is for notebooks. Importing changes nothing.
"""

from __future__ import annotations

import importlib

# What typing says too; importing it takes longer than all else that the command does before it begins.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from oomph import data, host
    from oomph._doctor import doctor
    from oomph._find import find_oomph
    from oomph._free import Freed, free
    from oomph._plan import CardPlan, PlannedCards, plan
    from oomph._predict import CardFit, ModelPrediction, Prediction, PredictionError, predict, predict_model
    from oomph._profile_ram import RamProfile, profile_ram
    from oomph._ram import RamGuard, RamLimit, guard_ram, unguard_ram
    from oomph._record import Recording, record
    from oomph._recorders import RecordingError
    from oomph._report import Report, ReportError, report
    from oomph._who import Holder, Holders, who
    from oomph.fitting.adapters.accelerating import fit_accelerate
    from oomph.fitting.adapters.hugging_face import FitCallback, fit_trainer
    from oomph.fitting.adapters.lightning import FitLightning
    from oomph.fitting.called import fit
    from oomph.fitting.errors import FitError
    from oomph.fitting.fit import Fit
    from oomph.fitting.inference import fit_inference
    from oomph.fitting.planning.plan import Plan
    from oomph.fitting.running.batches import micro_batches
    from oomph.fitting.running.largest_batch import find_batch

__all__ = [
    "CardFit",
    "Freed",
    "Holder",
    "Holders",
    "ModelPrediction",
    "Prediction",
    "PredictionError",
    "RamGuard",
    "RamLimit",
    "RamProfile",
    "Recording",
    "RecordingError",
    "Report",
    "ReportError",
]
__all__ += ["Fit", "FitCallback", "FitError", "FitLightning", "Plan", "find_batch", "fit", "fit_accelerate", "fit_inference", "fit_trainer", "micro_batches"]
__all__ += ["CardPlan", "PlannedCards", "data", "doctor", "find_oomph", "free", "guard_ram", "host", "plan", "predict", "predict_model"]
__all__ += ["profile_ram", "record", "report", "unguard_ram", "who"]

# Imported when they are first asked for: name -> module.
_LATER = {"Freed": "oomph._free", "free": "oomph._free", "Holder": "oomph._who", "Holders": "oomph._who", "who": "oomph._who"}
_LATER.update({"find_oomph": "oomph._find", **dict.fromkeys(("Prediction", "PredictionError", "predict", "CardFit", "ModelPrediction", "predict_model"), "oomph._predict")})
_LATER.update(dict.fromkeys(("CardPlan", "PlannedCards", "plan"), "oomph._plan"))
_LATER.update(dict.fromkeys(("RamProfile", "profile_ram"), "oomph._profile_ram"))
_LATER.update({"Recording": "oomph._record", "record": "oomph._record", "RecordingError": "oomph._recorders"})
_LATER.update(dict.fromkeys(("Report", "ReportError", "report"), "oomph._report"))
_LATER.update(dict.fromkeys(("RamGuard", "RamLimit", "guard_ram", "unguard_ram"), "oomph._ram"))
_LATER.update({"Fit": "oomph.fitting.fit", "fit": "oomph.fitting.called", "FitError": "oomph.fitting.errors", "Plan": "oomph.fitting.planning.plan"})
_LATER.update({"find_batch": "oomph.fitting.running.largest_batch", "fit_inference": "oomph.fitting.inference", "micro_batches": "oomph.fitting.running.batches"})
_LATER.update({"FitCallback": "oomph.fitting.adapters.hugging_face", "fit_trainer": "oomph.fitting.adapters.hugging_face", "FitLightning": "oomph.fitting.adapters.lightning"})
_LATER.update({"doctor": "oomph._doctor", "fit_accelerate": "oomph.fitting.adapters.accelerating"})
# Modules that are used by their names, imported likewise.
_PARTS = ("data", "host")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return value
    if name in _PARTS:
        return importlib.import_module(f"oomph.{name}")
    raise AttributeError(f"module 'oomph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_PARTS})


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext oomph`` calls."""
    from oomph.notebook import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext oomph`` calls."""
    from oomph.notebook import unload

    unload(shell)
