"""`oomph fit` as its users meet it: the plan for a script, the lines to change in it, and what it cannot plan."""

import ast
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")
from oomph.fitting.script.source import _runs_once

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20

# Trains on the device that is named; says its losses.
CRITERION = """
import sys
import torch
from torch import nn

device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(16384, 64).to(device)
    y = torch.randint(10, (16384,)).to(device)
    opt.zero_grad()
    out = net(x)
    loss = criterion(out, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    print("loss", loss.item())
"""

# As Hugging Face models are used, in a class, with something after the step that needs its result.
KEYWORDS = """
import sys
import torch
from torch import nn


class Output(dict):
    __getattr__ = dict.get


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)) for _ in range(3)])
        self.head = nn.Linear(64, 1000)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer(x)
        logits = self.head(x)
        return Output(loss=nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits=logits)


class Loop:
    def __init__(self, device):
        torch.manual_seed(0)
        self.device = device
        self.model = Net().to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def run(self):
        for step in range(3):
            ids = torch.randint(1000, (32, 128)).to(self.device)
            batch = {"input_ids": ids, "labels": ids}
            outputs = self.model(**batch)
            loss = outputs.loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            print("loss", loss.item())
        print(outputs.logits.shape)


Loop(sys.argv[1] if len(sys.argv) > 1 else "cuda").run()
"""

# Mixed precision, accumulation, samples taken of something larger, several losses: the lines become a function.
MIXED = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data, labels = torch.randn(8192, 64), torch.randint(10, (8192,))
smoothing = 0.1
accumulate = 2


def train(size):
    for i in range(0, 8192, size):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = net(data[i : i + size].to(device))
            logits = logits / 2
            print("shape", tuple(logits.shape))
            target = labels[i : i + size].to(device)
            loss = F.cross_entropy(logits, target, label_smoothing=smoothing)
            loss = loss + 1e-4 * logits.square().mean()
            loss = loss / accumulate
        loss.backward()
        if i // size % accumulate == 1:
            opt.step()
            opt.zero_grad()


train(2048)
"""

# The batch has no name.
NAMELESS = """
import sys
import torch

device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    loss = model(torch.randn(16384, 64).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""

# What changes results and targets in place, and a division that is no accumulation.
IN_PLACE = """
import sys
import torch
import torch.nn.functional as F

device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
temperature = 0.5
seen = []
for step in range(3):
    x, y = torch.randn(16384, 64).to(device), torch.randint(10, (16384,)).to(device)
    banned = (torch.rand(16384, 10) > 0.9).to(device)
    logits = net(x)
    logits[banned] = -1e4
    logits.clamp_(max=2.0)
    logits[:, 0] *= 0.5
    y[y == 3] = -100
    seen.append(logits.shape)
    print("shape", logits.shape)
    loss = F.cross_entropy(logits, y)
    loss = loss / temperature
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("loss", loss.item())
"""

# What happens between the model and backward is put in for DONE.
UNCLEAR = """
import torch
import torch.nn.functional as F


def relabel(targets):
    targets.fill_(1)


net = torch.nn.Linear(64, 10).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    x, y = torch.randn(64, 64).cuda(), torch.randint(10, (64,)).cuda()
    logits = net(x)
    DONE
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

SCALED = """
import sys
import torch
import torch.nn.functional as F

device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
kind = torch.float16 if device == "cuda" else torch.bfloat16
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
half = torch.amp.GradScaler(device)
for step in range(3):
    x, y = torch.randn(16384, 64).to(device), torch.randint(10, (16384,)).to(device)
    opt.zero_grad()
    with torch.autocast(device, kind):
        logits = net(x)
    loss = F.cross_entropy(logits.float(), y)
    half.scale(loss).backward()
    half.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    half.step(opt)
    half.update()
    print("loss", loss.item())
"""

# A function that is called for every epoch, with a loss that each epoch weighs in another way, and a script that has something called fit.
EPOCHS = """
import sys
import torch
import torch.nn.functional as F

device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
torch.manual_seed(0)


def train_epoch(net, opt, fit, weight):
    for step in range(3):
        x, y = torch.randn(64, 16).to(device), torch.randint(10, (64,)).to(device)
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y) * weight
        loss.backward()
        opt.step()
        print("loss", loss.item())


def main():
    for fold in range(2):
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)).to(device)
        opt = torch.optim.Adam(net.parameters())
        for epoch in range(3):
            train_epoch(net, opt, None, 1.0 / (epoch + 1))


main()
"""

# A method that is called for every batch.
BATCHES = """
import sys
import torch
import torch.nn.functional as F

device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
torch.manual_seed(0)


class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(16, 10).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train_step(self, x, y):
        self.opt.zero_grad()
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        self.opt.step()
        return loss

    def run(self):
        for step in range(4):
            loss = self.train_step(torch.randn(64, 16).to(device), torch.randint(10, (64,)).to(device))
            print("loss", loss.item())


Trainer().run()
"""

GAN = """
import torch
from torch import nn

maker, judge = nn.Linear(16, 64).cuda(), nn.Linear(64, 1).cuda()
first, second = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
for step in range(5):
    fake = maker(torch.randn(8, 16, device="cuda"))
    (judge(fake.detach()).mean() - judge(torch.randn(8, 64, device="cuda")).mean()).backward()
    second.step()
    (-judge(fake).mean()).backward()
    first.step()
"""


@pytest.fixture
def fit(oomph, warm, tmp_path):
    """Plans for a script; gives the exit code, what --format json says (None if nothing), stdout and stderr."""

    def run(text, *options, format="json", arguments=()):
        path = text if isinstance(text, pathlib.Path) else tmp_path / "train.py"
        if path != text:
            path.write_text(text.lstrip("\n"))
        words = ["fit", *options, "--python", warm(sys.executable), "--format", format, path.name, *arguments]
        code, out, err = oomph(*words, cwd=path.parent, timeout=600)
        return code, json.loads(out) if format == "json" and out else None, out, err

    return run


def changed(path, lines):
    """The script with the lines changed as it was asked for."""
    source = path.read_text().splitlines()
    gone = {number for line in lines if line["kind"] == "remove" for number in range(line["line"], line["end_line"] + 1)}
    out = []
    for number, text in enumerate(source, 1):
        out += [line["text"] for line in lines if line["kind"] == "add" and line["line"] == number]
        out += [] if number in gone else [text]
    return "\n".join(out) + "\n"


# Does what oomph.fit promises without planning: the loop, with the loss as oomph.fit takes it. Runs scripts one after another.
STAND_IN = """
import runpy, sys
import oomph
import torch
from oomph.fitting.losses.loss_of import LossOf

class Fit:
    def __init__(self, model, optimizer, loss, clip, scaler):
        self.model, self.optimizer, self.loss_of, self.clip = model, optimizer, LossOf(loss), clip
        self.scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)

    def step(self, batch):
        loss = self.loss_of(self.model, batch)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

oomph.fit = lambda model, optimizer, loss, batch, budget=None, clip_grad_norm=None, scaler=None: Fit(model, optimizer, loss, clip_grad_norm, scaler)
for script in sys.argv[1:]:
    print("script", script)
    sys.argv = [script, "cpu"]
    runpy.run_path(script, run_name="__main__")
"""


# oomph.fit itself, which takes a plan that is given: says how often it was planned.
COUNTED = """
import runpy, sys
import oomph
from oomph.fitting.fit import Fit

planned, apply, fit = [], Fit._apply_given, oomph.fit
Fit._apply_given = lambda self, plan: (planned.append(1), apply(self, plan))[1]
oomph.fit = lambda *given, **more: fit(*given, plan=oomph.Plan(), quiet=True, **more)
for script in sys.argv[1:]:
    print("script", script)
    sys.argv = [script, "cpu"]
    runpy.run_path(script, run_name="__main__")
print("loss of", len(planned), "plans")
"""


def trains_the_same(script, changed_script):
    """Whether both say the same losses, and some. They run on the CPU in one process; each seeds its random numbers."""
    before, after = losses_of(STAND_IN, script, changed_script)
    return len(before) > 0 and before == after


def losses_of(program, script, changed_script):
    command = [sys.executable, "-c", program, script, changed_script]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    _, before, after = done.stdout.split("script ")
    return tuple([line for line in text.splitlines() if line.startswith("loss")] for text in (before, after))


def test_a_script_with_a_criterion_gets_a_plan_and_lines_that_train_the_same(fit, tmp_path):
    code, reported, _, err = fit(CRITERION, "--budget", "530MiB")
    assert code == 0, err
    assert (reported["verdict"], reported["fits"], reported["schema_version"]) == ("with_a_plan", True, 1)
    assert reported["budget"] == 530 * MIB and reported["limit"] < reported["budget"]
    chosen = reported["plan"]["chosen"]
    assert chosen["reserved"] <= reported["limit"] - reported["margin"] < reported["script"]["reserved"]
    assert 0 < chosen["plan"]["micro"] < 16384 and reported["plan"]["samples"] == 16384
    assert reported["script"]["steps"] == 2
    assert reported["loss"] == {"text": "criterion", "definition": "", "batch": "(x, y)"}
    lines = [f"{line['kind']} {line['line']} {line['text'].strip()}" for line in reported["lines"] if line["kind"] == "add"]
    assert lines == [
        "add 1 import oomph",
        "add 10 fit = None",
        'add 14 fit = fit or oomph.fit(net, opt, loss=criterion, batch=(x, y), budget="530MiB", clip_grad_norm=1)\n    loss = fit.step((x, y))',
    ]
    assert [(line["line"], line["end_line"]) for line in reported["lines"] if line["kind"] == "remove"] == [(13, 18)]
    assert reported["places"]["model_call"] == {"file": "train.py", "line": 14}
    assert reported["places"]["backward"] == {"file": "train.py", "line": 16}
    assert reported["places"]["optimizer"] == {"file": "train.py", "line": 9}
    assert reported["places"]["optimizer_step"] == {"file": "train.py", "line": 18}
    new = tmp_path / "changed.py"
    new.write_text(changed(tmp_path / "train.py", reported["lines"]))
    assert trains_the_same(tmp_path / "train.py", new)


def test_a_model_that_gives_its_loss_is_called_with_its_batch(fit, tmp_path):
    code, reported, _, err = fit(KEYWORDS, "--budget", "530MiB")
    assert code == 0, err
    assert reported["loss"] == {"text": "None", "definition": "", "batch": "batch"}
    assert reported["plan"]["blocks"] == 3
    assert any("uses outputs, which fit.step does not give back" in note for note in reported["notes"])
    text = changed(tmp_path / "train.py", reported["lines"])
    assert 'fit = fit or oomph.fit(self.model, self.optimizer, loss=None, batch=batch, budget="530MiB")' in text
    new = tmp_path / "changed.py"
    new.write_text(text.replace("        print(outputs.logits.shape)\n", ""))
    assert trains_the_same(tmp_path / "train.py", new)


def test_other_steps_become_a_function_of_the_scripts_own_lines(fit, tmp_path):
    code, reported, _, err = fit(MIXED, "--budget", "518MiB", "--allow", "bf16")
    assert code == 0, err
    assert reported["loss"]["definition"] == textwrap.dedent("""\
        def loss_fn(model, batch):
            data_part, labels_part = batch
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(data_part.to(device))
                logits = logits / 2
                target = labels_part.to(device)
                loss = F.cross_entropy(logits, target, label_smoothing=smoothing)
                loss = loss + 0.0001 * logits.square().mean()
            return loss""")
    assert reported["loss"]["batch"] == "(data[i:i + size], labels[i:i + size])"
    assert any("backward 2 times" in note for note in reported["notes"])
    assert any(note.startswith("line 20 is no part of the loss and removed") for note in reported["notes"])
    text = changed(tmp_path / "train.py", reported["lines"])
    assert 'budget="518MiB", allow=("bf16",))' in text
    compile(text, "changed.py", "exec")


def test_a_batch_without_a_name_gets_one(fit, tmp_path):
    code, reported, _, err = fit(NAMELESS, "--budget", "518MiB")
    assert code == 0, err
    assert reported["loss"]["batch"] == "inputs"
    assert reported["loss"]["definition"] == "def loss_fn(model, inputs):\n    return model(inputs).square().mean()"
    text = changed(tmp_path / "train.py", reported["lines"])
    assert "    inputs = torch.randn(16384, 64).to(device)\n    fit = fit or oomph.fit(model, optimizer, loss=loss_fn, batch=inputs" in text
    new = tmp_path / "changed.py"
    new.write_text(text)
    assert trains_the_same(tmp_path / "train.py", new)


def test_what_changes_in_place_is_part_of_the_loss(fit, tmp_path):
    code, reported, _, err = fit(IN_PLACE, "--budget", "530MiB")
    assert code == 0, err
    assert reported["loss"]["definition"] == textwrap.dedent("""\
        def loss_fn(model, batch):
            x, banned, y = batch
            y = y.clone()
            logits = model(x)
            logits[banned] = -10000.0
            logits.clamp_(max=2.0)
            logits[:, 0] *= 0.5
            y[y == 3] = -100
            loss = F.cross_entropy(logits, y)
            return loss / temperature""")
    text = changed(tmp_path / "train.py", reported["lines"])
    new = tmp_path / "changed.py"
    new.write_text("\n".join(line for line in text.splitlines() if "logits.shape" not in line))
    assert trains_the_same(tmp_path / "train.py", new)


@pytest.mark.parametrize(
    "done, why",
    [
        ("flat = logits.view(-1); flat.clamp_(max=2.0)", "the script's own also has"),
        ("relabel(y)", "y changed between the model's call and backward, by a statement that is not understood"),
        ("(logits.mean() * 2).backward(retain_graph=True)", "backward is called on lines 14 and 17 for one step"),
    ],
)
def test_what_cannot_be_read_is_refused_with_lines_to_write(fit, done, why):
    code, reported, _, err = fit(UNCLEAR.replace("DONE", done), "--gpu", "t4")
    assert code == 2 and reported["verdict"] == "unknown", err
    assert why in reported["why"] and "oomph.fit(model, optimizer, loss=loss_fn" in reported["by_hand"]


def test_a_gradient_scaler_goes_along(fit, tmp_path):
    code, reported, _, err = fit(SCALED, "--budget", "530MiB")
    assert code == 0, err
    assert any("GradScaler goes to oomph.fit" in note for note in reported["notes"])
    text = changed(tmp_path / "train.py", reported["lines"])
    assert 'fit = fit or oomph.fit(net, opt, loss=loss_fn, batch=(x, y), budget="530MiB", clip_grad_norm=0.5, scaler=half)' in text
    assert not any(gone in text for gone in ("half.scale", "half.unscale_", "half.step", "half.update", "zero_grad", "clip_grad_norm_"))
    new = tmp_path / "changed.py"
    new.write_text(text)
    assert trains_the_same(tmp_path / "train.py", new)


@pytest.mark.parametrize(("script", "plans", "losses"), [(EPOCHS, 2, 18), (BATCHES, 1, 4)], ids=["a function for each epoch", "a method for each batch"])
def test_a_model_is_planned_once_wherever_its_step_is(fit, tmp_path, script, plans, losses):
    code, reported, _, err = fit(script, "--gpu", "t4")
    assert code == 0, err
    new = tmp_path / "changed.py"
    new.write_text(changed(tmp_path / "train.py", reported["lines"]))
    before, after = losses_of(COUNTED, tmp_path / "train.py", new)
    assert after[-1] == f"loss of {plans} plans"
    numbers = [[float(line.split()[1]) for line in lines] for lines in (before, after[:-1])]
    assert len(numbers[0]) == losses and numbers[1] == pytest.approx(numbers[0], rel=1e-6)
    assert reported["notes"] == []


ONCE = {
    "at the top": ("train()", True),
    "in main": ("def main():\n    train()\nif __name__ == '__main__':\n    main()", True),
    "in a loop": ("for epoch in range(3):\n    train()", False),
    "in main in a loop": ("def main():\n    train()\nfor fold in range(3):\n    main()", False),
    "in two places": ("train()\ntrain()", False),
    "in a list": ("[train() for fold in range(3)]", False),
    "given away": ("repeat(train)", False),
    "as a method": ("class Loop:\n    def run(self):\n        train()\nLoop().run()", True),
    "as a method in a loop": ("class Loop:\n    def run(self):\n        train()\nfor fold in range(3):\n    Loop().run()", False),
    "in a function inside another": ("def main():\n    def epoch():\n        train()\n    for number in range(3):\n        epoch()\nmain()", False),
    "by itself": ("def main():\n    train()\n    main()", False),
    "never": ("", False),
}


@pytest.mark.parametrize("how", ONCE)
def test_a_function_that_runs_once_is_told_from_one_that_may_run_again(how):
    calls, once = ONCE[how]
    tree = ast.parse(f"def train():\n    pass\n{calls}\n")
    assert _runs_once(tree, tree.body[0]) is once


def test_what_fits_is_left_alone(fit):
    code, reported, _, err = fit(CRITERION, "--gpu", "t4")
    assert code == 0, err
    assert reported["verdict"] == "as_it_is" and reported["least_budget"] is None
    assert reported["script"]["reserved"] < 512 * MIB


def test_what_does_not_fit_is_told_with_the_least_budget(fit):
    code, reported, _, err = fit(CRITERION, "--budget", "495MiB")
    assert code == 1, err
    assert reported["verdict"] == "not_at_all" and reported["plan"]["chosen"] is None
    assert reported["least_budget"] > 495 * MIB


def test_two_optimizers_are_refused(fit):
    code, reported, _, err = fit(GAN, "--gpu", "t4")
    assert code == 2 and reported["verdict"] == "unknown" and reported["fits"] is None
    assert "2 optimizers step (train.py:9, train.py:11)" in reported["why"] and reported["why"] in err


def test_a_script_that_does_not_train_is_refused(fit):
    code, reported, _, err = fit("import torch\nprint(torch.nn.Linear(4, 4).cuda()(torch.ones(2, 4, device='cuda')).shape)\n", "--gpu", "t4", format="text")
    assert code == 2 and reported is None
    assert "no optimizer stepped" in err


def test_gpt_2_fits_a_t4_with_fewer_logits(fit):
    code, reported, out, err = fit(ROOT / "examples" / "train_gpt2.py", "--gpu", "t4", format="text", arguments=("--batch-size", "16"))
    assert code == 0, err
    first, *rest = out.splitlines()
    assert first.startswith("fits with oomph.fit: ") and "of 14.5 GiB" in first
    assert "logits and cross-entropy in pieces" in out
    assert "train_gpt2.py:77-81  -         logits = model(inputs)" in out
    assert "fit = fit or oomph.fit(model, optimizer, loss=loss_fn, batch=(inputs, targets))" in out
    assert rest[-1].startswith("Next: ")
