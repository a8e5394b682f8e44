"""What comes after the first training steps: `oomph predict` goes on to validation, a save and the next epoch, and says how far it came."""

import os
import sys
import time

import pytest

# An epoch of 1,000 batches: it is seen to its end because the loop over the loader is cut short.
LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(256, 1 << 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train = DataLoader(TensorDataset(torch.randn(4000, 256)), batch_size=4)
validation = DataLoader(TensorDataset(torch.randn(4000, 256)), batch_size=80)
for epoch in range(2):
    model.train()
    for (x,) in train:
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    kept = []
    with torch.no_grad():
        for batch, (x,) in enumerate(validation):
            out = model(x.cuda())
            VALIDATED
    print("validated", batch + 1, "batches")
    torch.save(model.state_dict(), "best.pt")
"""

# A loop of its own, with a teacher without gradients in every step.
OWN = """
import torch

model, teacher = torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 64).cuda().eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    x = torch.randn(4, 64, device="cuda")
    with torch.no_grad():
        target = teacher(x)
    (model(x) - target).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == FAR:
        with torch.no_grad():
            model(x)
"""

TRAINER = """
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return {"input_ids": torch.arange(32), "labels": torch.arange(32)}


model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=64, n_embd=64, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, num_train_epochs=2, report_to="none", disable_tqdm=True,
    eval_strategy="steps", eval_steps=500, save_strategy="steps", save_steps=500,
)
Trainer(model=model, args=arguments, train_dataset=Data(), eval_dataset=Data()).train()
"""

LIGHTNING = """
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(64, 64)

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch, index):
        self.log("loss", self.net(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


loader = lambda: DataLoader(TensorDataset(torch.randn(4000, 64)), batch_size=4)
trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=2, logger=False, enable_progress_bar=False,
                    enable_model_summary=False, num_sanity_val_steps=0)
trainer.fit(Module(), loader(), loader())
"""


@pytest.fixture
def ran(predict, tmp_path):
    """Predicts a script of these lines, in a folder of its own."""

    def run(text, *options, **more):
        (tmp_path / "train.py").write_text(text.lstrip("\n"))
        return predict(*options, "train.py", cwd=tmp_path, **{"gpu": "t4", **more})

    return run


def whats(reported):
    return [one["what"] for one in reported["uncertain"]]


def test_validation_that_dies_is_no_fit(ran):
    dies = LOADER.replace("VALIDATED", 'torch.empty(20 << 30, dtype=torch.uint8, device="cuda")')
    predicted = ran(dies)
    reported = predicted.reported
    assert (predicted.code, reported["fits"], reported["ended"], reported["steps"]) == (1, False, "out_of_memory", 3)
    assert reported["reached"]["phases"] == ["training", "validation"]
    # As it was before: the three steps alone fit, and that is all that is said.
    stopped = ran(dies, "--until", "steps")
    assert (stopped.code, stopped.reported["steps"], whats(stopped.reported)) == (0, 3, ["not_reached"])


def test_a_whole_epoch_is_seen_and_nothing_is_saved(ran, tmp_path):
    (tmp_path / "best.pt").write_text("the weights of a week")
    os.utime(tmp_path / "best.pt")
    predicted = ran(LOADER.replace("VALIDATED", "pass"))
    reported = predicted.reported
    assert (predicted.code, reported["fits"], reported["uncertain"]) == (0, True, []), predicted.err
    assert reported["reached"] == {
        "steps": 5, "forwards": 0, "phases": ["training", "validation", "save", "second_epoch"], "loops_cut": 2, "finished": False,
    }  # fmt: skip
    assert "validated 3 batches" in predicted.err
    assert (tmp_path / "best.pt").read_text() == "the weights of a week"


def test_validation_that_keeps_its_outputs_is_run_until_it_dies(ran):
    # 20 MiB a batch, 50 batches, 2 GiB: fits. Half of that: does not, long after the third batch.
    grows = LOADER.replace("VALIDATED", "kept.append(out)")
    fits, dies = ran(grows, "--memory", "2GiB"), ran(grows, "--memory", "1GiB")
    assert (fits.code, fits.reported["fits"]) == (0, True) and "validated 50 batches" in fits.err
    assert fits.reported["peak"]["allocated"] > 50 * (20 << 20)
    assert (dies.code, dies.reported["ended"], dies.reported["reached"]["phases"]) == (1, "out_of_memory", ["training", "validation"])


def test_memory_that_still_rises_when_the_time_is_over(ran):
    slow = LOADER.replace("VALIDATED", "kept.append(out); import time; time.sleep(1)")
    began = time.time()
    predicted = ran(slow, "--memory", "1GiB")
    reported = predicted.reported
    assert (predicted.code, reported["ended"], whats(reported)) == (0, "stopped", ["growth", "not_reached"])
    growth = reported["uncertain"][0]
    assert growth["why"].startswith("memory still rose by 20 MiB a batch in validation when the limit came, after ")
    assert "more it would not fit" in growth["why"]
    assert growth["line"] == 1 + LOADER.lstrip("\n").splitlines().index("        for batch, (x,) in enumerate(validation):")
    assert time.time() - began < 120


def test_a_loop_of_its_own_is_followed_for_a_while(ran):
    near, far = ran(OWN.replace("FAR", "8")).reported, ran(OWN.replace("FAR", "80"))
    # The teacher is a part of every step; the line below it is not.
    assert (near["reached"]["phases"], near["uncertain"]) == (["training", "validation", "second_epoch"], [])
    assert near["steps"] == 11
    reported = far.reported
    assert (far.code, reported["fits"], reported["reached"]["phases"], reported["steps"]) == (0, True, ["training"], 33)
    assert whats(reported) == ["not_reached"]
    text = ran(OWN.replace("FAR", "80"), format="text").out
    assert "fits so far: 33 training steps; validation was not reached. " in text


def test_a_failure_after_the_steps_is_told(ran):
    predicted = ran(LOADER.replace("VALIDATED", 'raise ValueError("no such metric")'))
    reported = predicted.reported
    assert (predicted.code, reported["fits"], reported["error"]) == (0, True, None)
    assert any("ValueError: no such metric" in one["why"] for one in reported["uncertain"])
    assert "not_reached" in whats(reported)


def test_batches_that_are_drawn_with_next_are_no_failure_of_the_program(ran):
    drawn = LOADER.replace("    for (x,) in train:\n", "    batches = iter(train)\n    while True:\n        (x,) = next(batches)\n")
    predicted = ran(drawn)
    assert (predicted.code, predicted.reported["ended"], predicted.reported["steps"], "Traceback" in predicted.err) == (0, "stopped", 3, False)
    (told,) = [one["why"] for one in predicted.reported["uncertain"] if "it failed" in one["why"]]
    assert told.endswith("its data were cut short, and it draws them with next(), which has no end")


def test_a_file_of_before_is_not_written_over(ran, tmp_path):
    (tmp_path / "metrics.json").write_text("{}")
    predicted = ran(LOADER.replace("VALIDATED", "open('metrics.json', 'w').write('[]'); open('new.txt', 'w')"))
    assert predicted.code == 0, predicted.err
    assert (tmp_path / "metrics.json").read_text() == "{}"
    assert any("stopped before it would write over" in one["why"] for one in predicted.reported["uncertain"])


@pytest.mark.parametrize("text", [pytest.param(TRAINER, id="transformers"), pytest.param(LIGHTNING, id="lightning")])
def test_frameworks_come_to_their_evaluation(ran, text, tmp_path):
    # transformers must not have been imported before oomph has changed what it imports by name.
    predicted = ran(text, python=sys.executable)
    reported = predicted.reported
    assert (predicted.code, reported["fits"]) == (0, True), predicted.err
    assert reported["reached"]["phases"] == ["training", "validation", "save", "second_epoch"]
    assert reported["steps"] == 5
    assert not [*tmp_path.rglob("*.safetensors")], "saves are left out"
