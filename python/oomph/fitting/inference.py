"""``oomph.fit_inference``: makes forward passes and text generation fit a GPU: in parts, and with the cache or weights in host memory.

The same manners as ``oomph.fit``: a child on the virtual GPU runs candidates (``planning.inference_search``), the cheapest that fits is applied
(``running.inference``), and an out-of-memory leads one rung down without losing what is done. What changes numerics has to be allowed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

from oomph._sizes import text
from oomph.fitting.errors import FitError
from oomph.fitting.planning.asking import NoAnswer, ask
from oomph.fitting.planning.card import Card, Room, asked_for, bytes_on, here, named, room_here, room_on
from oomph.fitting.planning.inference_plan import InferencePlan
from oomph.fitting.planning.payload import NotPackable, pack
from oomph.fitting.running.batches import refuse_what_gives_batches, samples
from oomph.fitting.running.inference import FitInference
from oomph.fitting.techniques.host import host_room
from oomph.fitting.techniques.inference import ALLOWED


def fit_inference(
    model: nn.Module,
    batch: Any,
    *,
    generate: dict[str, Any] | None = None,
    budget: str | int = "auto",
    gpu: str | None = None,
    allow: Iterable[str] = (),
    to: str | None = None,
    quiet: bool = False,
) -> FitInference:
    """Makes forward passes, or generation, fit the GPU, and runs them.

    >>> fit = oomph.fit_inference(model, batch=example)  # doctest: +SKIP
    >>> output = fit(batch)  # doctest: +SKIP

    ``batch`` is an example as large as they come. ``generate=dict(max_new_tokens=...)`` plans for ``fit.generate``. ``budget`` and ``gpu``
    are as in ``oomph.fit``. The model may be on the CPU: it is moved, as far as it fits. ``to="cpu"`` takes outputs off the GPU, part by
    part. ``allow`` names what may change numerics: "bf16-weights", "8bit-weights", "4bit-weights", "8bit-cache", and "pruning",
    which drops two of every four weights where the card can leave them out (what that does to the results is for you to measure).
    """
    allow = tuple(allow)
    for name in allow:
        if name not in ALLOWED:
            raise FitError(f"allow has {name!r}; what can be allowed is {', '.join(map(repr, ALLOWED))}")
    if "8bit-cache" in allow and importlib.util.find_spec("hqq") is None:
        raise FitError("a cache in 8 bits needs a package\n\nhint: pip install hqq")
    if generate is not None and "max_new_tokens" not in generate and "max_length" not in generate:
        raise FitError("how long sequences get decides over memory: say generate=dict(max_new_tokens=...)")
    budget = asked_for(budget)
    refuse_what_gives_batches(batch)
    count = samples(batch)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    if not on_gpu and gpu is None:
        fitted = FitInference(model, device, InferencePlan(), count, to)
        fitted.notes.append("there is no GPU here: nothing was planned")
        return fitted

    card = here(device) if on_gpu else named(cast(str, gpu))
    if on_gpu:
        wanted = named(gpu).memory if gpu is not None and budget == "auto" else budget
        room = room_here(device, card, wanted, bytes_on(device, model, batch))
    else:
        room = room_on(card, budget)
    plan, notes = InferencePlan(), []
    try:
        said = _ask({"model": model, "batch": batch, "generate": generate, "to": to}, room, card, allow)
    except (NotPackable, NoAnswer) as error:
        if not on_gpu:
            raise
        notes = [f"could not be predicted: {error}", "it is run as it is, and memory is saved when it runs out"]
    else:
        if said["chosen"] is None:
            words, least = InferencePlan(**said["least"]).words(count, said["blocks"]), room.needed_for(said["reserved"])
            why = "".join(f"\n{note}" for note in said["notes"])
            raise FitError(f"nothing fits: what needs least is {words}, and it needs a budget of {text(least)}{why}", least)
        plan = InferencePlan(**said["chosen"])
        notes = [f"{text(said['reserved'])} of {text(room.limit)} predicted on {card.title}; {said['tried']} plans were tried", *said["notes"]]
    fitted = FitInference(model, device, plan, count, to, apply=on_gpu, fraction=room.fraction if on_gpu else None)
    fitted.notes += notes if on_gpu else [*notes, "there is no GPU here: parts are run on the CPU, and nothing else of the plan is done"]
    if not quiet:
        print(f"oomph.fit_inference: {fitted.plan}", file=sys.stderr)
    return fitted


def _ask(things: dict[str, Any], room: Room, card: Card, allow: tuple[str, ...]) -> dict[str, Any]:
    options = {"limit": room.usable, "host": host_room(), "allow": list(allow)}
    payload = pack(things, onto_gpu=True)
    return ask("oomph.fitting.planning.inference_search:plan_in_child", payload, options, gpu=card.name, what="planning inference")
