"""``oomph fit SCRIPT``: what ``oomph.fit`` would do for a script that trains, and the lines to change in it.

Runs inside the script's own process, on a virtual card with unlimited memory: ``watching`` has seen the first step, ``source`` reads it, and once the script is
stopped the same search as ``oomph.fit``'s runs on its live model. What is found goes to the command as plain data. Values are not known on a
virtual GPU, so that the losses of parts make that of the whole is judged by the kind of the loss; ``oomph.fit`` tries it with numbers.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import torch

from oomph._sizes import text
from oomph.fitting.errors import FitError
from oomph.fitting.fit import Fit, FitPlan
from oomph.fitting.losses.counts import Counted, Weighing, batch_norms
from oomph.fitting.losses.loss_of import LossOf
from oomph.fitting.planning import words
from oomph.fitting.planning.card import Card, bytes_on, room_on
from oomph.fitting.planning.child import Trials, plan
from oomph.fitting.planning.costs import assumed_speeds
from oomph.fitting.planning.plan import Plan
from oomph.fitting.planning.search import Found
from oomph.fitting.running.batches import moved
from oomph.fitting.script.source import Reader, Step
from oomph.fitting.script.watching import Graph, Place, Seen, graph_of, tensors_in
from oomph.fitting.techniques.host import host_room
from oomph.live.library_code import is_installed

# What the script holds besides the step is worth a word from here on.
_MUCH = 64 << 20

_BY_HAND = """\
def loss_fn(model, batch):
    inputs, targets = batch
    return <the loss of model(inputs) and targets, the mean over the batch>
fit = oomph.fit(model, optimizer, loss=loss_fn, batch=(inputs, targets))
loss = fit.step((inputs, targets))        # forward, backward, optimizer.step and zero_grad"""

# Loops of libraries, and what is said to them instead.
_CALLBACKS = {"transformers": "FitCallback", "lightning": "FitLightning", "pytorch_lightning": "FitLightning"}


class Refused(FitError):
    """No plan for this script: why, and lines that may help."""

    def __init__(self, why: str, by_hand: str = "") -> None:
        super().__init__(why)
        self.by_hand = by_hand


class Script:
    """One script: what is kept of it once it has stepped, and the answer after its end."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.step: Step | None = None
        self.refused: Refused | None = None
        self.optimizer: Any = None
        self.backwards = 0
        self.autocast: tuple[str, Any] | None = None

    def first_step(self, seen: Seen) -> None:
        """While the script's names are still there: its step, as functions and tensors."""
        self.optimizer, self.backwards = seen.optimizers[0], seen.backwards
        try:
            self.reader = Reader(seen, self.optimizer, self._arguments(seen))
            self.step = self.reader.read()
        except FitError as error:
            place = seen.backward.file if seen.backward is not None else ""
            self.refused = Refused(self._in_library(place)) if is_installed(place) else Refused(str(error), _BY_HAND)
        except SyntaxError as error:
            self.refused = Refused(f"the source cannot be read: {error}", _BY_HAND)
        self.autocast = seen.backward.autocast if seen.backward is not None else None
        # What the script's names referred to is freed: it must not stay on the card.
        if seen.backward is not None:
            seen.backward.locals, seen.backward.after, seen.backward.globals, seen.backward.arguments = {}, {}, {}, ()

    def _arguments(self, seen: Seen) -> str:
        more = self._of_budget()
        norm = self._clip(seen)
        if norm is not None:
            more.append(f"clip_grad_norm={norm:g}")
        return "".join(f", {one}" for one in more)

    @staticmethod
    def _clip(seen: Seen) -> float | None:
        return seen.clipped[-1][1] if seen.clipped else None

    def _write_lines(self, step: Step) -> None:
        """What to change; nothing in a library's own loop."""
        place = self.reader.backward
        if not is_installed(place.file):
            self.reader.write_lines(step)
            return
        step.notes.append(self._in_library(place.file))

    def _in_library(self, file: str) -> str:
        """What to do about a loop that is not the script's."""
        library = file.rsplit("-packages/", 1)[-1].split("/", 1)[0]
        found = f"the loop is inside {library}"
        if library not in _CALLBACKS:
            return f"{found} ({os.path.basename(file)}): oomph.fit needs a loop of your own"
        arguments = self._of_budget()
        return f"{found}: give its Trainer callbacks=[oomph.{_CALLBACKS[library]}({', '.join(arguments)})]"

    def _of_budget(self) -> list[str]:
        task = self.task
        more = [f'budget="{task["memory_text"]}"'] if task["memory_text"] else []
        if task["allow"]:
            more.append(f"allow={tuple(task['allow'])!r}".replace("'", '"'))
        return more

    # -- after the script

    def answer(self, seen: Seen, reserved: int, steps: int, failed: str | None) -> dict[str, Any]:
        try:
            self._refuse(seen, failed)
            return self._plan(seen, reserved, steps)
        except Refused as error:
            return {"why": str(error), "by_hand": error.by_hand, "places": self._places(seen)}
        except FitError as error:
            return {"why": str(error), "by_hand": "", "places": self._places(seen)}

    def _refuse(self, seen: Seen, failed: str | None) -> None:
        if failed and not seen.optimizers:
            raise Refused(f"the script failed before its first optimizer step: {failed}")
        if not seen.optimizers:
            raise Refused("no optimizer stepped: there is no training step to plan. oomph predict says what a script takes that does not train")
        if len(seen.optimizers) > 1:
            lines = ", ".join(_short(place) for place in dict.fromkeys(seen.stepped))
            raise Refused(f"{len(seen.optimizers)} optimizers step ({lines}): oomph.fit takes one model and one optimizer. oomph predict says what the script takes as it is")
        if self.refused is not None:
            raise self.refused
        if self.step is None:
            raise Refused("the training step was not seen", _BY_HAND)
        if not any(parameter.is_cuda for parameter in self.step.model.parameters()):
            raise Refused("the model trains on the CPU. Does the script choose its device by an argument? Give it the arguments that make it train on cuda")

    def _plan(self, seen: Seen, reserved: int, steps: int) -> dict[str, Any]:
        step = self.step
        assert step is not None
        card = _card(self.task["card"])
        room = room_on(card, self.task["budget"] or "auto")
        speeds = assumed_speeds(card.multiprocessors, card.capability)
        loss_of = _Within(LossOf(step.loss), self.reader.backward.autocast_around)
        # A scaler is a few numbers: plans are the same with it.
        fitted = Fit(step.model, self.optimizer, loss_of, step.batch, tuple(self.task["allow"]), self._clip(seen))
        self._free_leftovers(step)
        self._check(step, loss_of)
        held = torch.cuda.memory_allocated() - bytes_on(fitted.device, fitted.model, self.optimizer, step.batch)
        self._weigh(fitted)
        self._write_lines(step)
        notes = [*step.notes, *self._seen_in_words(seen, step, held)]
        fitted.plan = FitPlan(Plan(), None, fitted.size, 0, room, card, speeds)
        things = {"model": fitted.model, "optimizer": self.optimizer, "loss_of": loss_of, "batch": step.batch}
        things |= {"weighing": fitted._weighing, "clip_grad_norm": fitted.clip_grad_norm}
        as_it_is = reserved <= room.usable
        if as_it_is:
            trials = Trials(things, speeds, os.devnull)
            plain = trials.measure(Plan())
            found, blocks = Found(plain, plain, plain, [plain], tried=1), len(trials.blocks)
        else:
            fitted._host = host_room()
            *_, said = plan(things, {"facts": fitted._facts(room, card), "speeds": speeds.to_dict(), "progress": os.devnull})
            found, blocks = Found.from_dict(said), said["blocks"]
        fitted.plan.found, fitted.plan.blocks = found, blocks
        fitted._note_what_was_seen()
        if not as_it_is:
            if fitted._weighing is not None:
                notes.append(f"{fitted._weighing.reason}; oomph.fit checks it with numbers when it runs")
            notes += fitted.plan.notes
            if found.chosen is not None and found.chosen.plan == Plan():
                notes.append(f"the plain step fits by itself; the script reserves {text(reserved)} because it keeps results of the step before")
        why_not = [] if found.chosen is not None else str(fitted._does_not_fit(found, room)).splitlines()[1:]
        return {
            "fits": "as it is" if as_it_is else "with a plan" if found.chosen is not None else "not at all",
            "script": {"reserved": reserved, "steps": steps, "held": max(0, held)},
            "room": {"budget": room.budget, "limit": room.limit, "margin": room.margin},
            "least_budget": None if as_it_is else room.needed_for(found.least.reserved, found.least.largest),
            "plan": found.to_dict() | {"samples": fitted.size, "blocks": blocks, "parameters": bytes_on(fitted.device, *fitted.model.parameters())},
            "summary": words.techniques(Plan(), (found.chosen or found.least).plan, fitted.size, blocks),
            "table": words.chain(found.chain, fitted.size, blocks) if found.chosen is not None else [],
            "does_not_fit": why_not,
            "loss": {"text": step.loss_text, "definition": step.definition, "batch": step.batch_text},
            "lines": [line.to_dict() | {"file": _near(line.file)} for line in step.lines],
            "places": self._places(seen),
            "notes": [note for note in dict.fromkeys(notes) if note not in why_not],
        }

    def _free_leftovers(self, step: Step) -> None:
        """Of what the last step of the script left: gradients, optimizer state, and results that its globals still hold."""
        main = sys.modules.get("__main__")
        for name, value in list(vars(main).items()) if main is not None else []:
            results: list[torch.Tensor] = []
            tensors_in(torch, value, results)
            if any(one.grad_fn is not None for one in results):
                delattr(main, name)
            del value
        step.model.zero_grad(set_to_none=True)
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.state.clear()

    def _check(self, step: Step, loss_of: _Within) -> None:
        """Whether the loss that was read is the script's own: autograd must have seen the same operations for both."""
        backward = self.reader.backward
        results: set[Any] = set()

        def note(_module: Any, _given: Any, output: Any) -> None:
            tensors: list[torch.Tensor] = []
            tensors_in(torch, output, tensors)
            results.update(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)

        hooks = [model.register_forward_hook(note) for model in backward.models]
        try:
            with torch.enable_grad():
                graph = graph_of(loss_of(step.model, moved(step.batch, next(step.model.parameters()).device)), results)
        except FitError:
            raise
        except Exception as error:
            raise Refused(f"the loss cannot be read off the source: what was read stops with {type(error).__name__}: {error}", _BY_HAND) from error
        finally:
            for hook in hooks:
                hook.remove()
        different = _difference(backward.graph, graph, step.left_out, bool(step.left_out["MulBackward0"]))
        if different:
            raise Refused(f"the loss cannot be read off lines {backward.called_on} to {backward.backward_on}: {different}", _BY_HAND)

    def _weigh(self, fitted: Fit) -> None:
        """How the losses of parts make that of the whole, by the kind of the loss: values are not known here."""
        norms = batch_norms(fitted.model)
        if fitted.size < 2:
            fitted._not_splittable = "the batch has one sample"
            return
        if norms:
            fitted._not_splittable = f"the model has statistics over the batch ({', '.join(norms[:3])}{' …' if len(norms) > 3 else ''}): parts of a batch give another result"
            return
        with Counted() as counted:
            fitted.loss_of(fitted.model, moved(fitted.example, fitted.device))
        if counted.total() is not None:
            fitted._weighing = Weighing("targets", "the loss is taken for a mean over targets")
        else:
            fitted._weighing = Weighing("samples", "the loss is taken for a mean over samples, which cannot be seen without values")

    def _seen_in_words(self, seen: Seen, step: Step, held: int) -> list[str]:
        notes = []
        if self.backwards > 1:
            notes.append(f"the script calls backward {self.backwards} times for a step: with oomph.fit, give the whole batch at once and let it be cut, without dividing the loss")
        if seen.scalers and "scaler=" in self.reader.arguments:
            notes.append("the script's GradScaler goes to oomph.fit: fit.step scales the loss, unscales before it clips, steps and updates with it")
        if self.autocast is not None:
            notes.append(f"the step is planned as it is, under autocast in {str(self.autocast[1]).removeprefix('torch.')}")
        if held > _MUCH:
            notes.append(f"besides the step, the script holds {text(held)} on the GPU; that is counted in every plan")
        return notes

    def _places(self, seen: Seen) -> dict[str, Any]:
        backward = seen.backward
        made = seen.made.get(id(self.optimizer)) if self.optimizer is not None else None
        return {
            "optimizer": made and _place(made),
            "model_call": backward and {"file": _near(backward.file), "line": backward.called_on},
            "backward": backward and {"file": _near(backward.file), "line": backward.backward_on},
            "optimizer_step": _place(seen.stepped[0]) if seen.stepped else None,
            "zero_grad": _place(seen.zeroed[0]) if seen.zeroed else None,
        }


class _Within:
    """The loss under the autocast that the script's own step was under."""

    def __init__(self, loss_of: LossOf, autocast: tuple[str, Any] | None) -> None:
        self.loss_of, self.autocast = loss_of, autocast

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        if self.autocast is None or torch.is_autocast_enabled("cuda"):
            return self.loss_of(model, batch)
        with torch.autocast(self.autocast[0], self.autocast[1]):
            return self.loss_of(model, batch)


def _difference(script: Graph, read: Graph, left_out: Counter[str], scaled: bool) -> str:
    """In words; empty if there is none."""
    more, less = script.operations - read.operations - left_out, read.operations - script.operations
    if script.dimensions:
        less -= Counter(["ViewBackward0"])  # A loss of one element is made a number.
    said = []
    if more:
        said.append(f"the script's own also has {_operations(more)}")
    if less:
        said.append(f"what was read has {_operations(less)} which the script's has not")
    if not said and script.dtype != read.dtype and not scaled:
        said.append(f"the script's own is in {str(script.dtype).removeprefix('torch.')}, what was read in {str(read.dtype).removeprefix('torch.')}")
    return "; ".join(said)


def _operations(names: Counter[str]) -> str:
    return ", ".join(name.removesuffix("0").removesuffix("Backward") for name in sorted(names))


def _card(given: dict[str, Any]) -> Card:
    major, minor = map(int, given["compute_capability"].split("."))
    return Card(given["name"], given["title"], given["memory"], given["context"], (major, minor), given["sms"])


def _near(file: str) -> str:
    """Relative to this folder."""
    near = os.path.relpath(file)
    return file if near.startswith("..") else near


def _place(place: Place) -> dict[str, Any]:
    return {"file": _near(place.file), "line": place.line}


def _short(place: Place) -> str:
    return f"{os.path.basename(place.file)}:{place.line}"
