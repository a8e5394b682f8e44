"""`oomph explain --fix` and `oomph predict --fix`: which way to write a change is shown, what is said of it, and that applying it does what was said.

What each change looks like is in test_patching.py.
"""

import json
import subprocess
import sys

import pytest
from conftest import COMMAND

# What is kept is a dict, which no text says: `.cpu()` behind it, the first way, breaks the program.
SNAPSHOTS = """
import torch

model = torch.nn.Linear(4096, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def snapshot():
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


snapshots = []
for epoch in range(24):
    loss = model(torch.randn(8, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    snapshots.append(snapshot())
print(len(snapshots))
"""
# Whatever is done to the closure breaks it: the loss is inside.
CLOSURES = """
import torch

model = torch.nn.Linear(2048, 2048).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pending = []


def later(write):
    pending.append(write)


for step in range(40):
    loss = model(torch.randn(8192, 2048, device="cuda")).square().mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    later(lambda loss=loss: print(loss.item()))
for write in pending:
    write()
"""


@pytest.fixture
def oomph(tmp_path):
    def run(*words, **options):
        return subprocess.run([COMMAND, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=300, **options)

    return run


@pytest.fixture
def card(warm):
    """A T4 with less memory."""
    return lambda size: ["--gpu", "t4", "--memory", size, "--python", warm(sys.executable)]


def test_the_way_that_runs_is_shown_and_git_applies_it(oomph, card, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SNAPSHOTS)
    # As it is, it does not fit.
    done = oomph("predict", *card("1GiB"), "--steps", "0", "--fix", "-o", "train.oomph", "train.py")
    assert done.returncode == 1, done.stderr
    assert "+    snapshots.append({key: value.cpu() for key, value in snapshot().items()})" in done.stdout
    assert "fits a Tesla T4 (1.00 GiB)" in " ".join(done.stdout.split())
    assert "Apply it: oomph explain --fix --format patch --way 2 train.oomph | git apply" in done.stdout
    assert script.read_text() == SNAPSHOTS
    # From the recording it is the same.
    said = json.loads(oomph("explain", "--fix", *card("1GiB"), "--format", "json", "train.oomph", "--", "train.py").stdout)["patch"]
    assert (said["way"], said["checked"]["fits"], said["checked"]["fits_without"]) == (2, True, False)
    assert said["checked"]["without"]["status"] == "out_of_memory" and said["checked"]["reached"]["status"] == "finished"
    patch = oomph("explain", "--fix", "--format", "patch", "--way", "2", "train.oomph").stdout
    assert patch == said["diff"]
    subprocess.run(["git", "apply"], input=patch, text=True, cwd=tmp_path, check=True)
    # Applied, it takes what was said.
    again = json.loads(oomph("predict", *card("1GiB"), "--steps", "0", "--format", "json", "--no-recording", "train.py").stdout)
    assert (again["fits"], again["total"]) == (True, said["checked"]["total"])


def test_a_change_that_breaks_the_program_is_not_shown(oomph, card, tmp_path):
    (tmp_path / "train.py").write_text(CLOSURES)
    done = oomph("predict", *card("1GiB"), "--steps", "0", "--fix", "-o", "train.oomph", "train.py")
    assert "no change is offered: the program does not run with what was tried (AttributeError" in done.stderr
    assert "A change for it" not in done.stdout and "Out of memory" in done.stdout
    said = oomph("explain", "--fix", *card("1GiB"), "--format", "json", "train.oomph", "--", "train.py")
    reported = json.loads(said.stdout)
    assert reported["patch"] is None and reported["no_patch"].startswith("the program does not run with what was tried (AttributeError")
    refused = oomph("explain", "--fix", "--format", "patch", "--way", "9", "train.oomph")
    assert refused.returncode == 2 and "there is no way 9 to write it" in refused.stderr
