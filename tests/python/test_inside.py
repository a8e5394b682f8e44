"""What a process under oomph says of itself while it runs: the file that `oomph top` reads. On the virtual GPU, beside PyTorch's own counters."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import COMMAND, ROOT

# The package as it lies here, with the command as built.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}
ENVIRONMENT.pop("OOMPH_STATUS_FOLDER", None)

# What PyTorch counts, then a wait for the test to have looked.
PAUSE = """
import json, os, sys
import torch

most = 0


def pause(**more):
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    peak = max(most, torch.cuda.max_memory_allocated())
    said = {"pid": os.getpid(), "allocated": allocated, "reserved": reserved, "peak": peak, **more}
    # One write: ranks share the pipe, and print may write the end of a line by itself.
    os.write(1, (json.dumps(said) + os.linesep).encode())
    sys.stdin.readline()
"""


class Program:
    """A program under `oomph run` that says what PyTorch counts whenever it pauses."""

    def __init__(self, folder, text, *options, words=("train.py",), **environment):
        self.text = PAUSE + textwrap.dedent(text)
        (folder / "train.py").write_text(self.text)
        command = [COMMAND, "run", "--gpu", "t4", "--python", sys.executable, *options, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=folder, env={**ENVIRONMENT, **environment}, **pipes)

    def paused(self):
        return json.loads(self.process.stdout.readline())

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def line_of(self, text):
        """The number of the one line that has this in it."""
        (number,) = [number for number, line in enumerate(self.text.splitlines(), 1) if text in line]
        return number

    def end(self):
        self.process.stdin.close()
        self.process.stdout.read()
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path):
    begun = []

    def start(*arguments, **environment):
        begun.append(Program(tmp_path, *arguments, **environment))
        return begun[-1]

    yield start
    for program in begun:
        program.process.stdin.close()
        if program.process.poll() is None:
            program.process.terminate()
        program.process.wait(60)
        program.process.stdout.close()


def until(condition):
    """What a condition gives once it gives something."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail("it never came true")


def reported(folder, pid):
    """The file of a process, if it is there. It is always whole."""
    try:
        text = (folder / f"{pid}.json").read_text()
    except FileNotFoundError:
        return None
    return json.loads(text)


def said(folder, expected, steps):
    """What a process says once it says what PyTorch counts."""

    def condition():
        inside = reported(folder, expected["pid"])
        if inside is None or inside["steps"] != steps or not inside["devices"]:
            return None
        (device,) = inside["devices"]
        return inside if all(device[key] == expected[key] for key in ("allocated", "reserved", "peak")) else None

    try:
        return until(condition)
    except pytest.fail.Exception:
        pytest.fail(f"PyTorch counts {expected}, {steps} steps; said is {reported(folder, expected['pid'])}")


def start_ticks(pid):
    """Field 22."""
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])


STEPS = """
    kept = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    pause()
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 128)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())


    def step(number):
        global most
        rows = torch.randn(8192, 1024, device="cuda")
        loss = model(rows).square().mean()
        if number in (1, 40):
            pause(last=last)
        del rows
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peak = torch.cuda.max_memory_allocated()
        most = max(most, peak)
        torch.cuda.reset_peak_memory_stats()
        return peak


    for number in range(41):
        last = step(number)
    pause(last=last)
    del model, optimizer, kept
    torch.cuda.empty_cache()
    pause()
"""


def test_the_numbers_are_pytorchs_own_and_the_lines_the_programs(start, tmp_path):
    folder = tmp_path / "status"
    program = start(STEPS, OOMPH_STATUS_FOLDER=str(folder))
    at = program.line_of

    # Before anything is trained.
    torch = program.paused()
    inside = said(folder, torch, steps=0)
    assert inside["pid"] == torch["pid"] and inside["start_ticks"] == start_ticks(torch["pid"])
    assert abs(inside["time"] / 1000 - time.time()) < 60
    assert inside["recording"] == str(tmp_path / "train.oomph")
    (device,) = inside["devices"]
    assert (device["device"], device["name"], device["is_virtual"]) == (0, "Tesla T4", True)
    assert 14 << 30 < device["total"] < 16 << 30
    assert "last_peak" not in device
    assert device["lines"] == [{"place": f"train.py:{at('kept = torch')} <module>", "bytes": 40 << 20}]
    assert folder.stat().st_mode & 0o777 == 0o700
    program.go_on()

    # In the midst of a step that is written, and of one that goes as those before it.
    forward = f"train.py:{at('loss = model')} step"
    for steps in (1, 40):
        torch = program.paused()
        (device,) = said(folder, torch, steps)["devices"]
        assert device["last_peak"] == torch["last"]
        lines = {line["place"]: line["bytes"] for line in device["lines"]}
        assert device["lines"][0]["place"] == forward
        # What the ReLU gave is kept for the backward pass, and what the model gave; the loss takes the smallest block.
        assert lines[forward] == 4 * 8192 * (4096 + 128) + 512
        assert lines[f"train.py:{at('rows = torch')} step"] == 4 * 8192 * 1024
        assert lines[f"train.py:{at('kept = torch')} <module>"] == 40 << 20
        weights = 4 * (1024 * 4096 + 4096 + 4096 * 128 + 128)
        assert lines[f"train.py:{at('model = torch')} <module>"] == weights
        # Two moments for each weight.
        assert lines[f"train.py:{at('optimizer.step()')} step"] == 2 * weights
        assert lines["backward pass"] == weights
        assert [line["bytes"] for line in device["lines"]] == sorted(lines.values(), reverse=True)
        program.go_on()

    # Between two steps, then with the cache given back.
    torch = program.paused()
    (device,) = said(folder, torch, steps=41)["devices"]
    assert device["last_peak"] == torch["last"]
    assert forward not in [line["place"] for line in device["lines"]]
    program.go_on()
    torch = program.paused()
    assert torch["reserved"] < 30 << 20
    said(folder, torch, steps=41)
    assert [file.name for file in folder.iterdir()] == [f"{torch['pid']}.json"]

    # Gone with the program.
    assert program.end() == 0
    assert list(folder.iterdir()) == []


def test_workers_say_nothing_and_what_a_killed_process_left_is_removed(start, tmp_path):
    folder = tmp_path / "oomph"
    program = start(
        """
        kept = torch.ones(1 << 20, device="cuda")
        loader = torch.utils.data.DataLoader(list(range(64)), num_workers=2, multiprocessing_context="fork", persistent_workers=True)
        numbers = iter(loader)
        next(numbers)
        pause(workers=[worker.pid for worker in numbers._workers])
        """,
        XDG_RUNTIME_DIR=str(tmp_path),
    )
    torch = program.paused()
    said(folder, torch, steps=0)
    assert len(torch["workers"]) == 2 and all(os.path.exists(f"/proc/{worker}") for worker in torch["workers"])
    assert [file.name for file in folder.iterdir() if file.suffix == ".json"] == [f"{torch['pid']}.json"]
    os.kill(torch["pid"], signal.SIGKILL)
    assert program.end() == 137
    # Nobody could take it away; whose it is is known by number and start, and there is no such process.
    left = folder / f"{torch['pid']}.json"
    assert json.loads(left.read_text())["pid"] == torch["pid"]
    with pytest.raises(FileNotFoundError):
        start_ticks(torch["pid"])
    foreign = folder / "4194400.json"
    foreign.write_text("[1, 2, 3]")
    for path in (left, foreign):
        os.utime(path, (time.time() - 120,) * 2)

    # Who reads changes nothing.
    for verb in (["top", "--once"], ["doctor"]):
        subprocess.run([COMMAND, *verb], cwd=tmp_path, env={**ENVIRONMENT, "XDG_RUNTIME_DIR": str(tmp_path)}, capture_output=True, timeout=120)
    assert left.exists() and foreign.exists()

    # The next process removes it, and no file that is not oomph's. It is recorded in a part of it only, and has memory from before.
    program = start(
        """
        import oomph

        before = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        with oomph.record("part.oomph", quiet=True):
            pause()
            within = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
            pause()
        pause()
        """,
        "--no-recording",
        XDG_RUNTIME_DIR=str(tmp_path),
    )
    torch = program.paused()
    inside = said(folder, torch, steps=0)
    assert not left.exists() and foreign.read_text() == "[1, 2, 3]"
    foreign.unlink()
    assert inside["recording"] == str(tmp_path / "part.oomph")
    assert inside["devices"][0]["lines"] == [{"place": "before the recording", "bytes": 3 << 20}]
    program.go_on()
    (device,) = said(folder, program.paused(), steps=0)["devices"]
    place = f"train.py:{program.line_of('within = torch')} <module>"
    assert device["lines"][0] == {"place": place, "bytes": 5 << 20}
    program.go_on()
    torch = program.paused()
    assert list(folder.iterdir()) == []
    assert program.end() == 0


def test_each_rank_says_its_own_where_the_user_has_a_folder(start, tmp_path):
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    launch = f"exec 3<&0; for rank in 0 1; do RANK=$rank WORLD_SIZE=2 {sys.executable} train.py <&3 & done; wait"
    program = start(
        """
        kept = torch.empty((int(os.environ["RANK"]) + 1) << 20, dtype=torch.uint8, device="cuda")
        pause()
        """,
        "--output",
        "train.oomph",
        words=("sh", "-c", launch),
        XDG_RUNTIME_DIR=str(runtime),
    )
    for torch in (program.paused(), program.paused()):
        inside = said(runtime / "oomph", torch, steps=0)
        rank = torch["allocated"] // (1 << 20) - 1
        assert inside["recording"] == str(tmp_path / f"train-rank{rank}.oomph")
    assert len(list((runtime / "oomph").glob("*.json"))) == 2
    assert program.end() == 0
    assert list((runtime / "oomph").iterdir()) == []


def test_where_nothing_can_be_said_the_recording_goes_on(start, tmp_path):
    (tmp_path / "file").touch()
    program = start(
        """
        import time
        import oomph

        for name, folder in (("file", os.path.abspath("file")), ("nowhere", "")):
            os.environ["OOMPH_STATUS_FOLDER"] = folder
            with oomph.record(f"{name}.oomph", quiet=True):
                kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
                time.sleep(0.3)
        """,
        "--no-recording",
        XDG_RUNTIME_DIR=str(tmp_path),
    )
    assert program.end() == 0
    assert not (tmp_path / "oomph").exists()
    for name in ("file", "nowhere"):
        done = subprocess.run([COMMAND, "explain", "--format", "json", f"{name}.oomph"], cwd=tmp_path, capture_output=True, text=True)
        (device,) = json.loads(done.stdout)["devices"]
        assert device["peak"]["allocated"] == (1 << 20 if name == "file" else 2 << 20)
