"""Batches that differ in shape, the longest of them, runs that take too long, and programs that start themselves anew: `oomph predict` on each."""

import pytest

# Texts that are padded to the longest of their batch, as a shuffled loader would. LENGTHS says how long each of 8 x 50 is.
PADDED = """
import random

import numpy
import torch
from torch.utils.data import DataLoader


class Texts(torch.utils.data.Dataset):
    lengths = LENGTHS

    def __len__(self):
        return 400

    def __getitem__(self, index):
        # As augmentation does.
        random.random(), numpy.random.rand(), torch.rand(1)
        return torch.randint(1000, (self.lengths(index),))


torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(1000, 64), torch.nn.Linear(64, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Texts(), batch_size=8, shuffle=SHUFFLE, collate_fn=lambda batch: torch.nn.utils.rnn.pad_sequence(batch, batch_first=True))
for batch in loader:
    print("drew", tuple(batch.shape), torch.rand(1).item(), random.random(), numpy.random.rand(), flush=True)
    model(batch.cuda()).logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def padded(lengths, shuffle=False):
    return PADDED.replace("LENGTHS", f"staticmethod(lambda index: {lengths})").replace("SHUFFLE", str(shuffle))


# One text of 512 among those of 64: in the last of 50 batches, or in the third.
LATE, EARLY = ("512 if index == AT else 64".replace("AT", at) for at in ("395", "20"))


@pytest.fixture
def ran(predict, tmp_path):
    """Predicts a script of these lines, in a folder of its own."""

    def run(text, *options, **more):
        (tmp_path / "train.py").write_text(text.lstrip("\n"))
        return predict(*options, "train.py", cwd=tmp_path, **{"gpu": "t4", **more})

    return run


def drew(predicted):
    return [line for line in predicted.err.splitlines() if line.startswith("drew")]


def whats(predicted):
    return [one["what"] for one in predicted.reported["uncertain"]]


def test_the_longest_batch_takes_what_it_takes_where_it_comes_early(ran):
    longest = ran(padded(LATE), "--longest", "--until", "steps")
    early = ran(padded(EARLY), "--until", "steps")
    assert (longest.reported["steps"], early.reported["steps"]) == (4, 3), longest.err
    assert longest.peak == early.peak
    batches = longest.reported["batches"]
    allocated, reserved = longest.peak
    assert batches["longest"] == {"shape": [8, 512], "drawn": 50, "of": 50, "ran": True, "allocated": allocated, "reserved": reserved}
    assert batches["peak"] == {"step": 4, "batch": None, "shape": [8, 512]}
    # What the three steps before it say alone is no answer.
    assert ran(padded(LATE), "--steps", "3", "--until", "steps").peak[0] < allocated / 3
    # What the program met by itself: the peak's batch, and that a longer may come.
    assert early.reported["batches"]["peak"] == {"step": 3, "batch": 3, "shape": [8, 512]}
    assert whats(early) == ["batches", "not_reached"]


def test_what_the_program_draws_by_chance_stays_as_it_is(ran):
    longest, without = ran(padded(LATE, True), "--longest", "--until", "steps"), ran(padded(LATE, True), "--steps", "4", "--until", "steps")
    numbers = [[line.partition(") ")[2] for line in drew(one)] for one in (longest, without)]
    assert numbers[0] == numbers[1] and len(numbers[0]) == 4, longest.err
    assert "drew (8, 512)" in drew(longest)[3] and "drew (8, 64)" in drew(without)[3]


def test_batches_that_differ_are_run_until_the_peak_has_stopped_growing(ran):
    # The sixth batch has the longest text; then it becomes quiet.
    text = padded("90 if index == 42 else 20 + index % 13")
    predicted = ran(text, format="text")
    out = " ".join(predicted.out.split())
    assert "fits so far: 16 training steps; batches differ in shape, and the longest was not run" in out, predicted.out
    assert "batches differ: the peak came with batch 6, 8 × 90, in step 6" in out
    assert "--longest runs the longest of the loader" in out
    # Asked for three, it runs three, and says what it saw.
    three = ran(text, "--steps", "3", "--until", "steps").reported
    assert (three["steps"], three["batches"]["vary"], three["batches"]["settled"]) == (3, True, False)


def test_a_loop_without_a_loader_is_seen_to_differ(ran):
    predicted = ran(
        """
import torch

model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    model(torch.randn(64 + 16 * (step % 7), 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    batches = predicted.reported["batches"]
    assert batches["vary"] and batches["settled"] and batches["shapes"] == 7, predicted.reported
    assert batches["peak"] == {"step": 7, "batch": None, "shape": [160, 256]}


def test_what_cannot_be_drawn_through_is_said(ran):
    text = padded("64").replace("shuffle=False, ", "").replace("data.Dataset", "data.IterableDataset")
    text = text.replace("    def __getitem__(self, index):", "    def __iter__(self):\n        return map(self.one, range(400))\n\n    def one(self, index):")
    predicted = ran(text, "--longest")
    assert "the longest batch was not run: the loader's dataset is iterable, and what is drawn from it is gone" in [one["why"] for one in predicted.reported["uncertain"]]
    assert predicted.code == 0


@pytest.mark.parametrize("heard", [True, False])
def test_a_run_that_takes_too_long_is_stopped(ran, heard):
    deaf = "" if heard else "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
    predicted = ran(f"{deaf}import torch\nx = torch.empty(3 << 20, device='cuda')\nwhile True:\n    pass\n", "--timeout", "2")
    reported = predicted.reported
    assert (predicted.code, reported["fits"], reported["timed_out"], reported["ended"]) == (2, None, True, "stopped"), predicted.err
    assert reported["peak"] == {"allocated": 12 << 20, "reserved": 12 << 20}
    assert reported["error"] == "the time was up: it was stopped after 2 s"


ANEW = """
import os
import sys

if "again" not in sys.argv:
    sys.argv.append("again")
    START
import torch

x = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.parametrize(
    "start",
    [
        "os.execv(sys.executable, [sys.executable, *sys.argv])",
        # As it is done to set what must be there before a process begins.
        "os.execve(sys.executable, [sys.executable, '-u', *sys.argv], {'PATH': os.environ['PATH'], 'LD_PRELOAD': 'libm.so.6'})",
        "import subprocess; sys.exit(subprocess.run([sys.executable, *sys.argv]).returncode)",
    ],
)
def test_a_program_that_starts_itself_anew_is_followed(tmp_path, predict, start):
    (tmp_path / "train.py").write_text(ANEW.replace("START", start))
    predicted = predict("train.py", "40", cwd=tmp_path, gpu="t4")
    assert predicted.code == 0, predicted.err
    assert (predicted.reported["ended"], predicted.reported["peak"]["allocated"]) == ("finished", 40 << 20)


def test_what_a_program_starts_is_named(ran):
    predicted = ran("import os\nos.system('true train_inner.py --lr 1')\n")
    assert (predicted.code, predicted.reported) == (2, None)
    assert "hint: it starts: true train_inner.py --lr 1; predict that" in predicted.err
