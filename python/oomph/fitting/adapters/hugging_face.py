"""``oomph.FitCallback``: a fit inside the Trainer of transformers.

The Trainer's own ``training_step`` is called for each part, with ``accelerator.backward`` weighing the part's loss: what people override in their Trainer
stays in force, and batches, steps, schedules and logs are those of the plain Trainer.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Callable, Iterable
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from oomph.fitting.adapters.accelerating import PreparedFit, PreparedLoss
from oomph.fitting.adapters.loops import missing, replaced
from oomph.fitting.errors import FitError
from oomph.fitting.fit import FitPlan
from oomph.fitting.planning.payload import NotPackable, pack
from oomph.fitting.planning.plan import Plan
from oomph.fitting.running.batches import cuts, samples, take
from oomph.fitting.running.ranks import without_ddp
from oomph.fitting.running.repeating import release_memory
from oomph.live.out_of_memory import is_out_of_memory

try:
    from transformers import TrainerCallback
except ImportError:
    TrainerCallback = object

# Of a Trainer: large, bound to this process, or nothing to do with its loss.
_STAYS_HERE = {"model", "model_wrapped", "accelerator", "optimizer", "lr_scheduler", "train_dataset", "eval_dataset", "data_collator"}
_STAYS_HERE |= {"callback_handler", "state", "control", "training_step", "prediction_step", "_memory_tracker", "processing_class", "tokenizer"}
_STAYS_HERE |= {"model_init", "compute_metrics", "args", "deepspeed", "preprocess_logits_for_metrics", "_tr_loss", "optimizer_cls_and_kwargs"}


class FitCallback(TrainerCallback):
    """``Trainer(..., callbacks=[oomph.FitCallback()])``: training fits the GPU, with the same batches, steps, losses and schedule.

    It plans with the first batch of ``train()``; samples that are longer than those come in smaller parts. ``train_sampling_strategy="group_by_length"``
    (``group_by_length=True`` before transformers 5) brings the longest batch first. Arguments are those of ``oomph.fit``. ``callback.plan`` says what is done.
    """

    def __init__(
        self,
        *,
        budget: str | int = "auto",
        gpu: str | None = None,
        allow: Iterable[str] = (),
        plan: Plan | dict[str, Any] | None = None,
        quiet: bool = False,
    ) -> None:
        if TrainerCallback is object:
            raise missing("transformers", "oomph.FitCallback")
        self.budget, self.gpu, self.allow, self.given, self.quiet = budget, gpu, tuple(allow), plan, quiet
        self.fit: PreparedFit | None = None
        self._inside = contextlib.ExitStack()
        # Samples of an evaluation that fit at once, since one has run out of memory.
        self._evaluated_at_once: int | None = None

    @property
    def plan(self) -> FitPlan | None:
        """What is done and why, once training has begun."""
        return self.fit.plan if self.fit is not None else None

    # -- what the Trainer calls

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._leave()
        self.fit = None
        trainer = _caller(self)
        if getattr(args, "n_gpu", 1) > 1:
            raise FitError("the Trainer spreads each batch over several GPUs (nn.DataParallel): start it with torchrun, or name one GPU in CUDA_VISIBLE_DEVICES")
        self._inside.enter_context(replaced(trainer, "training_step", functools.partial(self._training_step, trainer, trainer.training_step)))
        self._inside.enter_context(replaced(trainer, "prediction_step", functools.partial(self._prediction_step, trainer, trainer.prediction_step)))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.fit is not None:
            self.fit.after_update()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._leave()

    def _leave(self) -> None:
        """Trainer, model and optimizer as they were. The plan stays available."""
        self._inside.close()
        if self.fit is not None:
            self.fit.close()

    # -- training

    def _training_step(self, trainer: Any, plain: Callable[..., torch.Tensor], model: torch.nn.Module, inputs: Any, *counted: Any, **named: Any) -> torch.Tensor:
        # Ranks are brought together at the end of the batch, and not within its last backward pass.
        model = without_ddp(model)
        if self.fit is None:
            # As the Trainer's own step begins: what from_pretrained gave is in evaluation until then, without checkpoints.
            model.train()
            # How many targets all the batches of an update have: their losses are divided by it, and so are those of parts.
            items = named.get("num_items_in_batch", counted[0] if counted else None)
            loss_of = PreparedLoss(TrainerLoss(trainer, items), trainer.accelerator, accumulates=trainer.args.gradient_accumulation_steps > 1)
            fit = PreparedFit(trainer.accelerator, model, trainer.optimizer, loss_of, inputs, self.allow, trainer.args.max_grad_norm or None)
            fit.start(budget=self.budget, gpu=self.gpu, plan=self.given, quiet=self.quiet)
            self.fit = fit

        def through(part: Any, weigh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
            weighed = []
            backward = trainer.accelerator.backward

            def backward_weighed(loss: torch.Tensor, **kwargs: Any) -> None:
                weighed.append(True)
                backward(weigh(loss), **kwargs)

            with replaced(trainer.accelerator, "backward", backward_weighed):
                loss = plain(model, part, *counted, **named)
            if len(weighed) != 1:
                name = type(trainer).__name__
                raise FitError(f"{name}.training_step calls accelerator.backward {len(weighed)} times: a batch can be run in parts where it does once")
            return loss

        return self.fit.run(inputs, through, last=trainer.accelerator.sync_gradients)

    # -- evaluation

    def _prediction_step(self, trainer: Any, plain: Callable[..., Any], model: torch.nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """As it is, until memory runs out; then in parts."""
        while True:
            try:
                size = self._evaluated_at_once
                if size is None or size >= samples(inputs):
                    return plain(model, inputs, *args, **kwargs)
                return self._in_parts(trainer, plain, model, inputs, size, *args, **kwargs)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                traceback.clear_frames(error.__traceback__)
                failed = error.with_traceback(None)
            size = min(samples(inputs), self._evaluated_at_once or samples(inputs))
            if size == 1:
                raise FitError("memory ran out in the evaluation of one sample") from failed
            self._evaluated_at_once = -(-size // 2)
            print(f"oomph.fit: out of memory in evaluation; {self._evaluated_at_once} samples at once from now on", file=sys.stderr)
            release_memory(trainer.args.device)

    def _in_parts(self, trainer: Any, plain: Callable[..., Any], model: torch.nn.Module, inputs: Any, size: int, *args: Any, **kwargs: Any) -> Any:
        from transformers.trainer_pt_utils import nested_concat

        count = samples(inputs)
        total, losses, gathered = 0.0, 0.0, (None, None)
        for start, stop in cuts(count, -(-count // size)):
            part = take(inputs, start, stop)
            weight = _targets(trainer, part, stop - start)
            loss, *rest = plain(model, part, *args, **kwargs)
            if loss is not None and weight:
                total, losses = total + weight, losses + loss * weight
            gathered = tuple(new if old is None else nested_concat(old, new, padding_index=-100) for old, new in zip(gathered, rest))
        return (losses / total if total else loss, *gathered)


def fit_trainer(trainer: Any, **options: Any) -> FitCallback:
    """Adds a ``FitCallback`` with these options to a Trainer that is there already."""
    callback = FitCallback(**options)
    trainer.add_callback(callback)
    return callback


class TrainerLoss:
    """``Trainer.compute_loss``. In a child process a Trainer stands for it that has what is needed for the loss, and no data."""

    def __init__(self, trainer: Any, items: Any) -> None:
        self.trainer, self.items = trainer, items
        self._stands_in = False

    def __call__(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if self._stands_in:
            self.trainer.model = self.trainer.model_wrapped = model
        named = {} if self.items is None else {"num_items_in_batch": self.items}
        with self.trainer.compute_loss_context_manager():
            return self.trainer.compute_loss(model, self.trainer._prepare_inputs(batch), **named)

    def __getstate__(self) -> dict[str, Any]:
        trainer = self.trainer
        attributes = {name: value for name, value in vars(trainer).items() if name not in _STAYS_HERE and _can_be_sent(value)}
        # Arguments know their device by asking the process that they are in, so that only what they say is sent.
        said = {name: value for name, value in vars(trainer.args).items() if not name.startswith("_") and _is_plain(value)}
        return {"kind": type(trainer), "attributes": attributes, "args": said, "processes": trainer.accelerator.num_processes, "items": self.items}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.items = state["items"]
        self.trainer = trainer = object.__new__(state["kind"])
        vars(trainer).update(state["attributes"])
        trainer.args = SimpleNamespace(**{"n_gpu": 1, "world_size": 1, "device": torch.device("cuda"), **state["args"]})
        trainer.accelerator = _Accelerator(state["processes"])
        self._stands_in = True


class _Accelerator:
    """Stands for accelerate's in a child process, which is alone: what losses and their metrics ask for."""

    is_main_process = is_local_main_process = True
    process_index = local_process_index = 0
    parallelism_config = deepspeed_plugin = scaler = None
    is_fsdp2 = False
    mixed_precision = "no"

    def __init__(self, processes: int) -> None:
        self.num_processes = processes
        self.device = torch.device("cuda")

    def unwrap_model(self, model: Any, *_: Any, **__: Any) -> Any:
        return model

    def gather(self, tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    gather_for_metrics = reduce = pad_across_processes = gather

    def autocast(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def wait_for_everyone(self) -> None:
        """There is nobody else."""


def _can_be_sent(value: Any) -> bool:
    try:
        pack(value)
    except NotPackable:
        return False
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _targets(trainer: Any, part: Any, size: int) -> float:
    """What the mean over a part is a mean of: targets where the Trainer counts them, otherwise samples."""
    count = getattr(trainer, "_get_num_items_in_batch", None)
    items = count([part], trainer.args.device) if count is not None else None
    return float(size if items is None else items)


def _caller(callback: FitCallback) -> Any:
    """The Trainer that calls: it does not hand itself to callbacks, so it is looked for among those who called."""
    from transformers import Trainer

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer) and callback in caller.callback_handler.callbacks:
            return caller
        frame = frame.f_back
    raise FitError("oomph.FitCallback was not called by a transformers.Trainer")
