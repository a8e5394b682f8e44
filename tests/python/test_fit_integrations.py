"""`oomph.FitCallback`, `oomph.FitLightning` and `oomph.fit_accelerate`: the same training as without them, in parts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")

from oomph.fitting.errors import FitError  # noqa: E402
from oomph.fitting.planning.plan import Plan  # noqa: E402

# Other tests run beside this one, and threads that wait for each other wait for them too.
torch.set_num_threads(1)

VOCABULARY, WIDTH, STEPS, BATCH = 37, 16, 20, 6


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.one, self.two = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden):
        return hidden + self.two(torch.nn.functional.gelu(self.one(self.norm(hidden))))


class Model(torch.nn.Module):
    """Predicts the next token; gives its loss like a model of transformers, the count of targets included where it is reported."""

    def __init__(self):
        super().__init__()
        self.config = None  # The Trainer asks for one.
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def logits(self, input_ids):
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Counting(Model):
    def forward(self, input_ids, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.logits(input_ids)
        if labels is None:
            return {"logits": logits}
        how = "mean" if num_items_in_batch is None else "sum"
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction=how)
        return {"loss": loss if num_items_in_batch is None else loss / num_items_in_batch, "logits": logits}


class Averaging(Model):
    def forward(self, input_ids, labels=None):
        logits = self.logits(input_ids)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def sentences(count: int) -> list[dict[str, list[int]]]:
    """Of very different lengths, so that parts have very different numbers of targets."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for index in range(count):
        length = 2 + (index * 7) % 11
        tokens = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
        rows.append({"input_ids": tokens, "labels": [*tokens[1:], 1]})
    return rows


def padded(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    return {
        "input_ids": torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]),
        "labels": torch.tensor([row["labels"] + [-100] * (longest - len(row["labels"])) for row in rows]),
    }


def same(ours, theirs, tolerance=1e-5):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=tolerance, atol=1e-6)


CUT = Plan(micro=2, checkpoint=("blocks.0", "blocks.2"))


# -- transformers


def trained(folder, callbacks=(), model_class=None, trainer_class=None, **arguments):
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    model = (model_class or Counting)()
    settings = dict(per_device_train_batch_size=BATCH, max_steps=STEPS, logging_steps=1, learning_rate=1e-2, report_to=[], disable_tqdm=True, use_cpu=True)
    settings |= dict(save_strategy="no", seed=1, warmup_steps=3) | arguments
    args = TrainingArguments(output_dir=str(folder), remove_unused_columns=False, **settings)
    data = dict(train_dataset=sentences(50), eval_dataset=sentences(9), data_collator=padded)
    trainer = (trainer_class or Trainer)(model=model, args=args, callbacks=list(callbacks), **data)
    trainer.train()
    return trainer


def reported(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("model_class", [Counting, Averaging])
def test_a_trainer_trains_as_without_the_callback(tmp_path, model_class, accumulate):
    pytest.importorskip("transformers")
    from oomph.fitting.adapters.hugging_face import FitCallback

    plain = trained(tmp_path, model_class=model_class, gradient_accumulation_steps=accumulate)
    callback = FitCallback(plan=CUT, quiet=True)
    fitted = trained(tmp_path, [callback], model_class=model_class, gradient_accumulation_steps=accumulate)
    assert callback.plan.chosen == CUT
    assert fitted.state.global_step == plain.state.global_step == STEPS == callback.fit.steps
    for key in ("loss", "learning_rate", "grad_norm"):
        same(reported(fitted, key), reported(plain, key), 2e-4 if key == "grad_norm" else 1e-5)
    same(list(fitted.model.parameters()), list(plain.model.parameters()), 1e-4)
    assert "training_step" not in vars(fitted) and "step" not in vars(fitted.optimizer.optimizer), "everything is taken back"


def test_losses_of_people_and_label_smoothing_stay_in_force(tmp_path):
    pytest.importorskip("transformers")
    from oomph.fitting.adapters.hugging_face import FitCallback
    from transformers import Trainer

    class Penalised(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
            outputs = model(input_ids=inputs["input_ids"])
            loss = torch.nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), inputs["labels"].flatten()) * 3
            return (loss, outputs) if return_outputs else loss

    plain = trained(tmp_path, trainer_class=Penalised, max_steps=5)
    fitted = trained(tmp_path, [FitCallback(plan=CUT, quiet=True)], trainer_class=Penalised, max_steps=5)
    same(reported(fitted, "loss"), reported(plain, "loss"))
    plain = trained(tmp_path, label_smoothing_factor=0.1, max_steps=5)
    fitted = trained(tmp_path, [FitCallback(plan=CUT, quiet=True)], label_smoothing_factor=0.1, max_steps=5)
    same(reported(fitted, "loss"), reported(plain, "loss"))


class Fails:
    """Out of memory, the first times that it is asked."""

    def __init__(self, times):
        self.times = times

    def __call__(self, *_):
        if self.times:
            self.times -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. (made up by a test)")


def test_out_of_memory_in_the_second_batch_of_an_update_repeats_both(tmp_path):
    pytest.importorskip("transformers")
    from oomph.fitting.adapters.hugging_face import FitCallback
    from transformers import TrainerCallback

    class FailLater(TrainerCallback):
        def on_substep_end(self, args, state, control, model=None, **_):
            if state.global_step == 2:
                # In the middle of a backward pass: some gradients have been added, others not.
                fail = Fails(1)
                model.blocks[1].register_full_backward_hook(fail)

    plain = trained(tmp_path, gradient_accumulation_steps=2, max_steps=6)
    callback = FitCallback(plan=CUT, quiet=True)
    fitted = trained(tmp_path, [callback, FailLater()], gradient_accumulation_steps=2, max_steps=6)
    assert [line.split(":")[0] for line in callback.plan.history] == ["step 3"]
    assert fitted.state.global_step == 6
    same(reported(fitted, "loss"), reported(plain, "loss"))
    same(list(fitted.model.parameters()), list(plain.model.parameters()), 1e-4)


def test_an_evaluation_that_runs_out_of_memory_goes_on_in_parts(tmp_path):
    pytest.importorskip("transformers")
    from oomph.fitting.adapters.hugging_face import FitCallback
    from transformers import Trainer

    settings = dict(max_steps=2, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=5)
    plain = trained(tmp_path, **settings)

    class Tight(Trainer):
        def prediction_step(self, model, inputs, *args, **kwargs):
            if len(inputs["input_ids"]) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. (made up by a test)")
            return super().prediction_step(model, inputs, *args, **kwargs)

    fitted = trained(tmp_path, [FitCallback(plan=Plan(), quiet=True)], trainer_class=Tight, **settings)
    same(reported(fitted, "eval_loss"), reported(plain, "eval_loss"))


# -- Lightning


def module_of(L):
    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.seen = Averaging(), []

        def training_step(self, batch, batch_idx):
            outputs = self.model(**batch)
            self.log("loss", outputs["loss"], on_step=True, on_epoch=True, prog_bar=True)
            return {"loss": outputs["loss"], "first": outputs["logits"][:, 0].detach()}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.seen.append((self.trainer.callback_metrics["loss_step"].clone(), outputs["loss"], outputs["first"]))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7), "interval": "step"}}

    return Module()


def lightning_run(L, folder, callbacks, accumulate=1, module=None, **settings):
    torch.manual_seed(0)
    module = module or module_of(L)
    loader = torch.utils.data.DataLoader(sentences(60), batch_size=BATCH, collate_fn=padded)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", default_root_dir=str(folder))
    trainer = L.Trainer(max_epochs=2, accumulate_grad_batches=accumulate, callbacks=callbacks, **quiet, **{"gradient_clip_val": 1.0, **settings})
    trainer.fit(module, loader)
    return trainer, module


@pytest.mark.parametrize("name, accumulate", [("lightning.pytorch", 1), ("pytorch_lightning", 3)])
def test_lightning_trains_as_without_the_callback(tmp_path, name, accumulate):
    L = pytest.importorskip(name)
    from oomph.fitting.adapters.lightning import FitLightning

    plain, module = lightning_run(L, tmp_path, [], accumulate)
    callback = FitLightning(plan=Plan(micro=2, checkpoint=("model.blocks.1",)), quiet=True)
    fitted, ours = lightning_run(L, tmp_path, [callback], accumulate)
    assert fitted.global_step == plain.global_step == callback.fit.steps
    assert fitted.lr_scheduler_configs[0].scheduler.last_epoch == plain.lr_scheduler_configs[0].scheduler.last_epoch
    assert len(ours.seen) == 20
    for one, other in zip(ours.seen, module.seen):
        same(one, other, 1e-4)
    same([fitted.callback_metrics["loss_epoch"]], [plain.callback_metrics["loss_epoch"]])
    same(list(ours.parameters()), list(module.parameters()), 1e-4)


def test_optimisation_by_hand_is_refused(tmp_path):
    L = pytest.importorskip("lightning.pytorch")
    from oomph.fitting.adapters.lightning import FitLightning

    module = module_of(L)
    module.automatic_optimization = False
    with pytest.raises(FitError, match="automatic_optimization = False.*oomph.micro_batches"):
        lightning_run(L, tmp_path, [FitLightning(quiet=True)], module=module, gradient_clip_val=None)


# -- Accelerate


def accelerated(fit: bool, accumulate: int, precision="no"):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision)
    model = Averaging()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    loader = torch.utils.data.DataLoader(sentences(60), batch_size=BATCH, collate_fn=padded)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    losses = []
    if fit:
        from oomph.fitting.adapters.accelerating import fit_accelerate

        fitted = fit_accelerate(accelerator, model, optimizer, batch=padded(sentences(BATCH)), clip_grad_norm=1.0, plan=CUT, quiet=True)
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                if fit:
                    losses.append(fitted.step(batch))
                else:
                    loss = model(**batch)["loss"]
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.detach())
                scheduler.step()
    return losses, list(accelerator.unwrap_model(model).parameters()), optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("accumulate, precision, tolerance", [(1, "no", 1e-5), (2, "no", 1e-5), (1, "bf16", 2e-2)])
def test_a_loop_with_accelerate_trains_as_without(accumulate, precision, tolerance):
    pytest.importorskip("accelerate")
    losses, parameters, rate = accelerated(False, accumulate, precision)
    our_losses, our_parameters, our_rate = accelerated(True, accumulate, precision)
    same(our_losses, losses, tolerance)
    assert our_rate == pytest.approx(rate)
    if precision == "no":
        same(our_parameters, parameters, 1e-4)


def test_a_fit_with_accelerate_is_given_back_to_who_asks_in_the_same_way():
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState
    from oomph.fitting.adapters.accelerating import fit_accelerate

    AcceleratorState._reset_state(True)
    accelerator, model = accelerate.Accelerator(cpu=True), torch.nn.Linear(4, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))
    batch = (torch.ones(6, 4), torch.ones(6, 2))

    def epoch(weight, **more):
        loss = lambda net, batch: (net(batch[0]) - batch[1]).square().mean() * weight
        return fit_accelerate(accelerator, model, optimizer, **{"loss": loss, "batch": batch, "plan": Plan(micro=3), "reuse": True, "quiet": True, **more})

    first = epoch(1.0)
    expected = 2 * (model(batch[0]) - batch[1]).square().mean().item()
    assert epoch(2.0) is first and first.step(batch).item() == pytest.approx(expected, rel=2e-6)
    with pytest.raises(FitError, match="budget='abc'"):
        epoch(1.0, budget="abc")
    assert epoch(1.0, budget="1GiB") is not first


def test_an_optimizer_that_was_not_prepared_is_refused():
    accelerate = pytest.importorskip("accelerate")
    from oomph.fitting.adapters.accelerating import fit_accelerate

    model = Averaging()
    with pytest.raises(FitError, match="was not prepared"):
        fit_accelerate(accelerate.Accelerator(cpu=True), model, torch.optim.SGD(model.parameters(), lr=0.1), batch=padded(sentences(4)))


# -- what is common


@pytest.mark.parametrize(
    "module, name, hides, line",
    [
        ("hugging_face", "FitCallback", ("transformers",), "transformers"),
        ("lightning", "FitLightning", ("lightning.pytorch", "pytorch_lightning"), "lightning"),
    ],
)
def test_a_library_that_is_missing_is_named(monkeypatch, module, name, hides, line):
    for hidden in hides:
        monkeypatch.setitem(sys.modules, hidden, None)
    spec = importlib.util.spec_from_file_location("another_copy", ROOT / f"python/oomph/fitting/adapters/{module}.py")
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    with pytest.raises(FitError, match=f"(?s){name}.*pip install {line}$"):
        getattr(copy, name)()


ON_TWO_RANKS = """
import os

import torch
from accelerate import Accelerator
from oomph.fitting.adapters.accelerating import fit_accelerate
from test_fit_integrations import BATCH, CUT, Averaging, padded, sentences


def train(fitted):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Averaging()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = torch.utils.data.DataLoader(sentences(48), batch_size=BATCH, collate_fn=padded)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if fitted:
        fit = fit_accelerate(accelerator, model, optimizer, batch=padded(sentences(BATCH)), plan=CUT, quiet=True)
    for batch in loader:
        with accelerator.accumulate(model):
            if fitted:
                fit.step(batch)
            else:
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
    assert accelerator.num_processes == 2
    return list(model.parameters())


for ours, theirs in zip(train(True), train(False)):
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
# A process that ends while the other still talks to it may be aborted, and so may one whose threads of Gloo are not joined yet.
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_two_ranks_train_as_distributed_data_parallel_does(tmp_path):
    pytest.importorskip("accelerate")
    script = tmp_path / "script.py"
    script.write_text(ON_TWO_RANKS)
    places = os.pathsep.join([str(ROOT / "python"), str(ROOT / "tests/python")])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"})
    assert ran.returncode == 0, ran.stderr


# -- on the virtual GPU

ON_A_CARD = """
import json, sys
import torch
import oomph.fitting.fit as fitting
from oomph.fitting.losses.counts import Weighing
from oomph.fitting.adapters.hugging_face import FitCallback
from transformers import Trainer, TrainingArguments

# Values are worth nothing on a virtual GPU, and how parts add up is learnt from values.
fitting.learn_weighing = lambda *_: Weighing("sum")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(256, 2048), torch.nn.Linear(2048, 256)

    def forward(self, hidden):
        return hidden + self.two(torch.nn.functional.gelu(self.one(hidden)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(512, 256), torch.nn.Linear(256, 512)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, input_ids, labels, num_items_in_batch=None, **_):
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        loss = torch.nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten(), reduction="sum")
        return {"loss": loss / num_items_in_batch}


sizes = []


class Watched(Trainer):
    def compute_loss(self, model, inputs, **named):
        sizes.append(len(inputs["input_ids"]))
        return super().compute_loss(model, inputs, **named)


row = {"input_ids": list(range(512)) * 2, "labels": list(range(512)) * 2}
args = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=16, gradient_accumulation_steps=2, max_steps=2, bf16=True, report_to=[], disable_tqdm=True,
    save_strategy="no", remove_unused_columns=False,
)
args.device
args._n_gpu = 1
callback = FitCallback(budget="500MiB")
trainer = Watched(model=Model(), args=args, train_dataset=[row] * 64, callbacks=[callback])
trainer.train()
plan = callback.plan
print(json.dumps({
    "steps": trainer.state.global_step, "sizes": sizes, "micro": plan.chosen.micro, "plain": plan.found.plain.reserved, "predicted": plan.predicted.reserved,
    "limit": plan.room.limit, "margin": plan.room.margin, "reserved": torch.cuda.max_memory_reserved(), "history": plan.history,
}))
"""


def test_a_trainer_is_planned_for_on_the_virtual_gpu_and_keeps_its_steps(on_virtual_gpu, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ON_A_CARD)
    ran = on_virtual_gpu(script, tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["steps"] == 2
    assert 0 < said["micro"] < 16 and said["history"] == []
    # A trial with two samples, then two steps of two batches of sixteen, in parts.
    tried, *trained = said["sizes"]
    assert tried == 2 and sum(trained) == 2 * 2 * 16 and max(trained) <= said["micro"]
    assert said["plain"] > said["limit"] >= said["predicted"]
    # What the process holds already lies in other segments than in the child; the margin is there for that.
    assert abs(said["reserved"] - said["predicted"]) <= said["margin"] and said["reserved"] <= said["limit"]
