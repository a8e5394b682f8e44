"""`oomph predict` as its users meet it: what it says, what it writes, how it fails, and which values it keeps true."""

import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import pytest
from conftest import PYTHON_2_11, ROOT, Predicted

MIB = 1 << 20
BLOCK = 64 * MIB

# Its memory is a plain function of its argument: blocks of 64 MiB, each a segment of its own.
BLOCKS = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=3)
blocks = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(parser.parse_args().n)]
print("made", len(blocks))
"""

TRAIN = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "done")
"""


@pytest.fixture
def script(tmp_path):
    """Writes a script of these lines; gives its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(text.lstrip("\n"))
        return path

    return write


@pytest.fixture
def answers(predict, script, tmp_path):
    """Runs a script that assigns to `answers`; gives what it assigned, as the script itself saw it."""

    def run(text, **options):
        left = tmp_path / "answers.json"
        path = script(text + f"\nimport json\njson.dump(answers, open({str(left)!r}, 'w'))\n")
        predicted = predict("--steps", "0", path, cwd=tmp_path, **options)
        assert predicted.code == 0, predicted.err
        return json.loads(left.read_text()), predicted

    return run


def card(oomph, name):
    code, out, err = oomph("gpus", name, "--format", "json")
    assert code == 0, err
    (found,) = json.loads(out)["gpus"]
    return found


# --- what it says -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(predict, tmp_path_factory):
    """A small training loop, predicted once for several tests: (prediction, recording). Its folder for temporary files is beside the recording."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "temporary").mkdir()
    (folder / "train.py").write_text(TRAIN.lstrip("\n"))
    environment = {"TMPDIR": str(folder / "temporary")}
    return predict("--until", "steps", "train.py", gpu="t4", cwd=folder, recording=folder / "train.oomph", env=environment), folder / "train.oomph"


def test_json_has_the_documented_keys(trained):
    reported = trained[0].reported
    assert set(reported) == {
        "schema_version", "program", "gpu", "rank", "like_rank", "fits", "close", "margin", "peak", "context", "total", "needs", "ended", "error",
        "steps", "forwards", "reached", "timed_out", "batches", "ooms", "retries", "step", "where", "kinds", "findings", "uncertain", "unmodelled_calls", "estimated", "range", "nccl", "managed", "host", "torch", "alloc_conf", "recording",
    }  # fmt: skip
    assert reported["schema_version"] == 1
    assert reported["program"] == "train.py"
    assert set(reported["gpu"]) == {"name", "title", "memory", "compute_capability"}
    assert (reported["fits"], reported["close"], reported["needs"], reported["rank"], reported["error"]) == (True, False, None, None, None)
    assert (reported["steps"], reported["ended"], reported["ooms"], reported["retries"]) == (3, "stopped", 0, 0)
    assert reported["reached"] == {"steps": 3, "forwards": 0, "phases": ["training"], "loops_cut": 0, "finished": False}
    assert [one["what"] for one in reported["uncertain"]] == ["not_reached"] and reported["unmodelled_calls"] == []
    assert reported["estimated"] is None, "cuDNN is there"
    assert reported["recording"] == str(trained[1])


def test_the_peak_is_named_by_step_line_and_kind(trained):
    reported = trained[0].reported
    assert reported["step"] in (1, 2, 3)
    assert reported["where"]["own"] and os.path.basename(reported["where"]["file"]) == "train.py"
    kinds = {kind["kind"]: kind["bytes"] for kind in reported["kinds"]}
    weights = 4 * (1024 * 4096 + 4096 + 4096 * 1024 + 1024)
    assert kinds["parameters"] == weights
    assert kinds["optimizer_state"] == pytest.approx(2 * weights, rel=0.001)
    assert sum(kinds.values()) == reported["peak"]["allocated"]


def test_total_and_margin_add_up(trained):
    reported = trained[0].reported
    # Nothing but PyTorch's allocator takes memory here.
    assert reported["total"] == reported["context"] + reported["peak"]["reserved"]
    assert reported["margin"] == reported["gpu"]["memory"] - reported["total"]
    assert reported["peak"]["allocated"] <= reported["peak"]["reserved"]


def test_stdout_holds_the_result_and_stderr_what_the_script_prints(trained):
    predicted = trained[0]
    assert predicted.code == 0
    assert "done" not in predicted.out
    # The third step's optimizer is where it stops.
    assert re.findall(r"step (\d) done", predicted.err) == ["0", "1"]


def test_without_a_number_of_steps_it_runs_to_its_end(predict, script):
    finished = predict("--steps", "0", script(TRAIN)).reported
    assert (finished["steps"], finished["ended"]) == (10, "finished")


def test_text_says_the_answer_first_and_names_the_recording_after_the_script_and_the_card(oomph, script, tmp_path):
    code, out, err = oomph("predict", "--gpu", "t4", "--python", sys.executable, script(BLOCKS), cwd=tmp_path)
    assert code == 0, err
    first, _, second = out.splitlines()[:3]
    assert "on a virtual Tesla T4, 14.6 GiB: ran to its end" in first
    assert second == "fits: 14.3 GiB of 14.6 GiB stay free"
    assert "Recording: script-t4.oomph" in out.splitlines()
    assert (tmp_path / "script-t4.oomph").stat().st_size > 0


# --- the recording ----------------------------------------------------------------------------------------


def test_the_recording_is_explained(trained, explain):
    reported, explained = trained[0].reported, explain(trained[1])
    (device,) = explained["devices"]
    assert device["peak"]["allocated"] == reported["peak"]["allocated"]
    assert device["peak"]["reserved"] == reported["peak"]["reserved"]
    assert (device["steps"]["count"], device["completeness"]["complete"]) == (3, True)


def test_the_recording_is_replayed_as_it_was(trained, oomph):
    code, out, err = oomph("replay", "--format", "json", trained[1])
    assert code == 0, err
    replayed = json.loads(out)
    assert (replayed["fits"], replayed["exact"]) == ("yes", True)
    assert (replayed["address_mismatches"], replayed["other_differences"]) == (0, 0)
    assert replayed["peak"] == replayed["recorded"]["peak"]
    assert replayed["peak"]["reserved"] == trained[0].reported["peak"]["reserved"]


def test_the_recording_is_tuned_and_compared(trained, oomph):
    peak = trained[0].reported["peak"]
    code, out, err = oomph("tune", "--format", "json", trained[1])
    assert code == 0, err
    assert json.loads(out)["trials"][0]["peak"]["reserved"] == peak["reserved"]
    assert json.loads(out)["least_memory"] <= peak["reserved"]
    code, out, err = oomph("diff", "--format", "json", trained[1], trained[1])
    assert code == 0, err
    (device,) = json.loads(out)["devices"]
    assert device["before"] == device["after"] and device["by_line"] == []
    assert device["after"]["allocated"] == peak["allocated"]


def test_allocations_of_the_backward_pass_have_forward_lines(predict, script, explain, tmp_path):
    path = script("""
import torch

weight = torch.zeros(4096, 4096, device="cuda", requires_grad=True)
x = torch.zeros(4096, 4096, device="cuda")
y = x @ weight  # line 5: 64 MiB now; two gradients of 64 MiB, of y and of the weight, in the backward pass
y.sum().backward()  # line 6
""")
    recording = tmp_path / "backward.oomph"
    assert predict(path, gpu="t4", recording=recording).code == 0
    (device,) = explain(recording)["devices"]
    lines = {row["line"]: row for row in device["at_peak"]["by_line"] if row["file"] == str(path)}
    assert lines[3]["bytes"] == lines[4]["bytes"] == 64 * MIB
    # cuBLAS's workspace is made on this line too.
    assert 3 * 64 * MIB <= lines[5]["bytes"] < 4 * 64 * MIB
    assert 6 not in lines or lines[6]["bytes"] < MIB


GROWS = """
import oomph
import torch

torch.cuda.init()
with oomph.record("other.oomph") as recording, torch.profiler.record_function("growing"):
    blocks = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
    del blocks[2:]
    torch.cuda.empty_cache()
    blocks.append(torch.empty(90 << 20, dtype=torch.uint8, device="cuda"))
print("recorded to", recording.path)
"""


def test_expandable_segments_ranges_and_recordings_of_the_script_s_own(predict, script, explain, oomph, tmp_path):
    """What only a prediction's recorder hears of, and that there is one recorder."""
    recording = tmp_path / "grows.oomph"
    environment = {"PYTHONPATH": str(ROOT / "python")}
    predicted = predict("--conf", "expandable_segments:True", script(GROWS), gpu="t4", cwd=tmp_path, recording=recording, env=environment)
    assert predicted.code == 0, predicted.err
    assert "recording.oomph" in predicted.err and not (tmp_path / "other.oomph").exists()
    code, out, err = oomph("replay", "--format", "json", recording)
    assert code == 0, err
    assert (json.loads(out)["exact"], json.loads(out)["address_mismatches"]) == (True, 0)
    (device,) = explain(recording)["devices"]
    assert device["peak"]["reserved"] == predicted.reported["peak"]["reserved"]
    snapshot = tmp_path / "grows.json"
    assert oomph("convert", recording, "-o", snapshot)[0] == 0
    reported = json.loads(snapshot.read_text())["external_annotations"]
    assert [(one["stage"], one["name"]) for one in reported if one["name"] == "growing"] == [("START", "growing"), ("END", "growing")]


# --- searching --------------------------------------------------------------------------------------------


# Of a T4: room for its context and two blocks, so that few runs find it.
LITTLE = "256MiB"


@pytest.fixture(scope="module")
def boundary(oomph):
    """The most blocks that fit in so little."""
    most = (256 * MIB - card(oomph, "t4")["context"]) // BLOCK
    assert most == 2
    return most


def test_max_finds_the_boundary(predict, script, boundary):
    predicted = predict("--memory", LITTLE, "--max", "--n", script(BLOCKS), gpu="t4")
    reported = predicted.reported
    assert predicted.code == 0, predicted.err
    # 23 MiB stay free, which is not close.
    assert (reported["argument"], reported["largest"], reported["largest_close"]) == ("--n", boundary, None)
    fits = {row["value"]: row["fits"] for row in reported["tried"]}
    assert fits[boundary] is True and fits[boundary + 1] is False
    assert sorted(fits) == list(fits)
    # Doubled until it does not fit, then halved: no more runs than that.
    assert len(fits) <= 2 * (boundary + 1).bit_length()
    assert all(row["peak"]["reserved"] == row["value"] * BLOCK for row in reported["tried"] if row["fits"])


def test_what_only_just_fits_is_told_apart_from_what_is_safely_inside(predict, oomph, script, boundary):
    context = card(oomph, "t4")["context"]
    # 2 MiB stay free with one more block than this would be safe with.
    memory = str(context + (boundary + 1) * BLOCK + 2 * MIB)
    predicted = predict("--memory", memory, "--max", "--n", script(BLOCKS), gpu="t4")
    reported = predicted.reported
    assert (predicted.code, reported["largest"], reported["largest_close"]) == (0, boundary, boundary + 1)
    close = predict("--memory", memory, "--sweep", f"--n={boundary + 1}", script(BLOCKS), gpu="t4", format="text")
    assert (close.code, "none of these is safely inside" in close.out) == (0, True)
    assert f"--n {boundary + 1} fits with only 2.00 MiB to spare: too close to be sure" in close.out


def test_a_sweep_over_a_range_finds_the_boundary(predict, script, boundary):
    reported = predict("--memory", LITTLE, "--sweep", f"--n=1..{boundary + 1}", script(BLOCKS), "--n", "9", gpu="t4").reported
    assert reported["largest"] == boundary
    fits = {row["value"]: row["fits"] for row in reported["tried"]}
    assert fits[1] and fits[boundary] and not fits[boundary + 1]


def test_a_sweep_over_a_list_tries_these_values(predict, script, boundary):
    few, many = boundary - 1, boundary + 1
    reported = predict("--memory", LITTLE, "--sweep", f"--n={few},{many}", script(BLOCKS), gpu="t4").reported
    assert [(row["value"], row["fits"]) for row in reported["tried"]] == [(few, True), (many, False)]
    assert reported["largest"] == few


def test_a_sweep_in_which_nothing_fits(predict, script):
    predicted = predict("--memory", LITTLE, "--sweep", "--n=50", script(BLOCKS), gpu="t4")
    assert (predicted.code, predicted.reported["largest"]) == (1, None)


def test_a_sweep_that_cannot_be_understood(predict, script):
    predicted = predict("--sweep", "--n=9..4", script(BLOCKS), gpu="t4")
    assert predicted.code == 2 and "9..4 is empty" in predicted.err


def test_several_cards_are_one_table_of_few_runs(predict, script):
    # 18.75 GiB: too much for a T4, which runs twice (without end, and short); the A100s are alike and run once.
    predicted = predict("--gpus", "t4,a100-40gb,a100-80gb", script(BLOCKS), "--n", "300", gpu=None)
    rows = {row["gpu"]["name"]: row for row in predicted.reported["predictions"]}
    assert predicted.code == 0  # it fits on one of them
    assert {name: row["fits"] for name, row in rows.items()} == {"t4": False, "a100-40gb": True, "a100-80gb": True}
    assert rows["t4"]["needs"]["reserved"] == rows["a100-40gb"]["peak"]["reserved"] == 300 * BLOCK
    assert rows["a100-80gb"]["margin"] == rows["a100-80gb"]["gpu"]["memory"] - rows["a100-80gb"]["total"]
    assert len(re.findall("running on a virtual", predicted.err)) == 3


# --- options ----------------------------------------------------------------------------------------------


# Says of each block whether its segment is expandable.
SEGMENTS = BLOCKS + 'print([segment["is_expandable"] for segment in torch.cuda.memory._snapshot()["segments"]])'


def test_allocator_settings_are_obeyed(predict, script):
    predicted = predict("--conf", "expandable_segments:True", script(SEGMENTS))
    assert predicted.code == 0 and "[True]" in predicted.err
    assert predicted.reported["alloc_conf"] == "expandable_segments:True"


def test_memory_takes_the_place_of_the_cards_own(predict, script, oomph):
    path = script(SEGMENTS)
    predicted = predict("--memory", "512MiB", path, gpu="t4")
    reported = predicted.reported
    assert (reported["gpu"]["memory"], reported["fits"]) == (512 * MIB, True)
    assert "[False, False, False]" in predicted.err  # without settings
    assert reported["margin"] == 512 * MIB - 3 * BLOCK - card(oomph, "t4")["context"]
    short = predict("--memory", "128MiB", path, gpu=None)
    assert (short.code, short.reported["fits"]) == (1, False)
    assert short.reported["needs"]["reserved"] == 3 * BLOCK
    assert short.reported["margin"] == 128 * MIB - short.reported["needs"]["total"] < 0


# --- what goes wrong --------------------------------------------------------------------------------------


def test_a_card_that_nobody_knows(predict, script):
    predicted = predict(script(BLOCKS), gpu="h300")
    assert predicted.code == 2 and predicted.out == ""
    assert predicted.err.startswith('error: there is no card "h300" in the catalogue') and "oomph gpus" in predicted.err


def test_no_card_at_all(predict, script):
    predicted = predict(script(BLOCKS), gpu=None)
    assert predicted.code == 2 and "which card?" in predicted.err


def test_a_script_that_is_not_there(predict, tmp_path):
    predicted = predict("missing.py", cwd=tmp_path)
    assert predicted.code == 2
    assert predicted.err.strip() == "error: missing.py: there is no such file"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_script_that_fails_by_itself(predict, script, when):
    """Its own traceback, as it would be without oomph."""
    begins = 'torch.zeros(1, device="cuda")' if when == "after" else "pass"
    path = script(f"""
import torch
{begins}
def broken(x):
    raise ValueError("this is mine")
broken(1)
""")
    predicted = predict(path)
    assert predicted.code == 2
    shown = f"""Traceback (most recent call last):
  File "{path}", line 5, in <module>
    broken(1)
  File "{path}", line 4, in broken
    raise ValueError("this is mine")
ValueError: this is mine
"""
    assert shown in predicted.err
    assert "_oomph_virtual" not in predicted.err and "child.py" not in predicted.err
    assert predicted.reported is None or predicted.reported["fits"] is None


def test_an_error_inside_pytorch_has_no_frames_of_oomph(predict, script):
    path = script("""
import torch
x = torch.zeros(2, 3, device="cuda")
x @ x
""")
    predicted = predict(path)
    assert predicted.code == 2
    assert f'File "{path}", line 3, in <module>' in predicted.err
    assert "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)" in predicted.err
    assert "_oomph_virtual" not in predicted.err and "values.py" not in predicted.err


def test_a_script_that_never_uses_the_gpu(predict, script):
    predicted = predict(script("import torch\nprint(torch.zeros(3).sum())\n"))
    assert predicted.code == 2 and predicted.out == ""
    assert "the program used no GPU" in predicted.err and "hint: " in predicted.err


def test_a_pytorch_without_cuda(predict, script, tmp_path):
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .version import __version__\n")
    (package / "version.py").write_text("__version__ = '2.15.0+cpu'\ncuda = None\n")
    predicted = predict(script(BLOCKS), env={"PYTHONPATH": str(tmp_path / "site")})
    assert predicted.code == 2 and predicted.out == ""
    assert "(2.15.0+cpu) is built without CUDA" in predicted.err
    assert "hint: let oomph fetch the CUDA build of the same version" in predicted.err and "--fetch-torch" in predicted.err


def test_a_python_without_pytorch(predict, script, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    predicted = predict(script(BLOCKS), python=tmp_path / "bare" / "bin" / "python")
    assert predicted.code == 2 and predicted.out == ""
    assert "has no PyTorch" in predicted.err and "pip install torch" in predicted.err


def test_a_python_that_is_not_there(predict, script):
    predicted = predict(script(BLOCKS), python="/nowhere/python")
    assert predicted.code == 2 and "/nowhere/python" in predicted.err and "hint: " in predicted.err


def test_a_program_that_catches_out_of_memory_and_gives_up_does_not_fit(predict, script):
    path = script("""
import torch
try:
    torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("no")
""")
    predicted = predict(path, gpu="t4")
    assert (predicted.code, predicted.reported["fits"], predicted.reported["needs"]["reserved"]) == (1, False, 20 << 30)


def test_out_of_memory_is_pytorchs_own(answers):
    (is_the_class, message), predicted = answers(
        """
import torch
try:
    torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
except RuntimeError as error:
    answers = [type(error) is torch.OutOfMemoryError is torch.cuda.OutOfMemoryError, str(error)]
with torch.no_grad():
    torch.nn.Linear(8, 8, device="cuda")(torch.zeros(8, device="cuda"))
""",
        gpu="t4",
    )
    assert is_the_class
    assert message.startswith("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 14.56 GiB of which 14.46 GiB is free.")
    assert (predicted.reported["fits"], predicted.reported["ooms"]) == (True, 1)
    assert "it adapts to the card" in predicted.reported["uncertain"][0]["why"]


@pytest.mark.parametrize("whom, code", [("everyone", 130), ("oomph", 143)])
def test_nothing_is_left_behind_after_an_interruption(oomph, script, tmp_path, whom, code):
    """Ctrl-C goes to everyone at the terminal; `kill` to oomph alone."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    started = tmp_path / "started"
    path = script(f"import torch, time\ntorch.zeros(1, device='cuda')\nopen({str(started)!r}, 'w')\ntime.sleep(300)\n")
    command = [oomph.binary, "predict", "--gpu", "t4", "--python", sys.executable, path]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    # Tests may run where Ctrl-C is ignored (in the background); here it is as at a terminal.
    listening = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    running = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, preexec_fn=listening,
    )  # fmt: skip
    try:
        until = time.monotonic() + 300
        while not started.exists() and running.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        assert started.exists() and list(temporary.glob("oomph-*"))
        if whom == "everyone":
            os.killpg(running.pid, signal.SIGINT)
        else:
            running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == code
        assert list(temporary.glob("oomph-*")) == []
        assert not list(tmp_path.glob("*.oomph"))
        # Nobody of the group goes on.
        with pytest.raises(ProcessLookupError):
            os.killpg(running.pid, 0)
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        running.wait()


def test_nothing_is_left_behind_after_an_ordinary_run(trained):
    predicted, recording = trained
    assert predicted.code == 0
    assert list((recording.parent / "temporary").glob("oomph-*")) == []


def test_a_temporary_folder_that_the_loader_would_take_apart(predict, script, tmp_path):
    """Libraries are preloaded by a list of paths that is split at spaces and colons."""
    temporary = tmp_path / "my files" / "a:b"
    temporary.mkdir(parents=True)
    predicted = predict(script(BLOCKS), env={"TMPDIR": str(temporary)})
    assert (predicted.code, predicted.reported["peak"]["reserved"]) == (0, 3 * BLOCK)


WORKERS = """
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# Kept: nobody asks the workers to end by themselves.
batches = iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 64)), batch_size=8, num_workers=2))
for (x,) in batches:
    optimizer.zero_grad()
    model(x.cuda()).square().mean().backward()
    optimizer.step()
"""


def test_no_folder_of_a_worker_is_left_behind(oomph, script, tmp_path):
    """Workers that are ended do not remove the folders of their sockets."""
    path = script(WORKERS)
    # Not below pytest's: the path of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory() as temporary:
        for words in (["predict", "--no-recording", "--until", "steps"], ["fit"]):
            code, _, err = oomph(*words, "--gpu", "t4", "--python", sys.executable, path, cwd=tmp_path, env={**os.environ, "TMPDIR": temporary})
            assert (code, os.listdir(temporary)) == (0, []), err


# --- the recording's file ---------------------------------------------------------------------------------


def test_a_recording_is_written_over_nothing_but_a_recording(oomph, warm, script, tmp_path):
    path = script("open('started', 'w').close()\n")
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "link").symlink_to("notes")
    os.mkfifo(tmp_path / "pipe")
    for words, why in (
        (["-o", "notes"], "notes: exists already, and is no recording of oomph's (--force writes over it)"),
        (["-o", "link"], "link: this is a link, and a recording is not written through one; name the file itself"),
        (["-o", "pipe"], "pipe: this is no file but a pipe, a socket or a device; --no-recording writes none"),
        (["--force", "-o", path.name], f"{path.name}: this is what is run or read; name another file to write to"),
    ):
        code, out, err = oomph("predict", "--gpu", "t4", "--python", warm(sys.executable), *words, path.name, cwd=tmp_path)
        assert (code, out, err) == (2, "", f"error: {why}\n")
    assert not (tmp_path / "started").exists() and (tmp_path / "notes").read_text() == "mine"


def test_a_folder_that_cannot_be_written_takes_nothing_from_the_answer(oomph, warm, script):
    """Nor does a recording that is being written."""
    path = script(BLOCKS)
    # Where root cannot make a file either.
    code, out, err = oomph("predict", "--gpu", "h200", "--python", warm(sys.executable), "--format", "json", path, cwd="/sys")
    reported = json.loads(out)
    assert (code, reported["fits"], reported["peak"]["reserved"], reported["recording"]) == (0, True, 3 * BLOCK, None), err
    assert f"warning: no recording is written: {path.stem}-h200.oomph: " in err


def test_a_recording_that_somebody_writes_is_left_to_them(oomph, warm, script, tmp_path):
    path = script(BLOCKS)
    with open(tmp_path / f"{path.stem}-h200.oomph", "wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_SH)
        code, out, err = oomph("predict", "--gpu", "h200", "--python", warm(sys.executable), "--format", "json", path, cwd=tmp_path)
        assert os.fstat(theirs.fileno()).st_size == 0
    assert (code, json.loads(out)["recording"]) == (0, f"{path.stem}-h200-2.oomph"), err
    assert (tmp_path / f"{path.stem}-h200-2.oomph").stat().st_size > 0 and (tmp_path / f"{path.stem}-h200.oomph").stat().st_size == 0


def test_what_is_no_text_reaches_the_script_unchanged(oomph, warm, explain, tmp_path):
    """Names of files and arguments are bytes. The script runs out of memory, and an error names its file: all of what is written down has such a name in it."""
    folder = os.path.join(os.fsencode(tmp_path), b"f\xff")
    os.mkdir(folder)
    with open(os.path.join(folder, b"tr\xe9.py"), "w") as file:
        file.write("import os, sys, torch\nprint([os.fsencode(word) for word in [*sys.argv, os.getcwd(), __file__]], file=open('said', 'w'))\n")
        file.write("kept = torch.empty(1 << 28, device='cuda')\ntry:\n    torch.empty(1 << 40, device='cuda')\nfinally:\n    raise RuntimeError(__file__)\n")
    words = [os.fsdecode(b"tr\xe9.py"), os.fsdecode(b"a\x80\xffb")]
    code, out, err = oomph("predict", "--gpu", "t4", "--python", warm(sys.executable), "--format", "json", *words, cwd=folder)
    with open(os.path.join(folder, b"said")) as file:
        assert file.read() == repr([b"tr\xe9.py", b"a\x80\xffb", folder, os.path.join(folder, b"tr\xe9.py")]) + "\n", err
    assert (code, json.loads(out)["peak"]["allocated"]) == (1, 4 << 28), err
    (device,) = explain(os.fsdecode(os.path.join(folder, b"tr\xe9-t4.oomph")))["devices"]
    assert device["at_peak"]["by_line"][0]["file"].endswith("/f\ufffd/tr\ufffd.py")


# --- the card ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t4", "rtx-4090", "h200"])
def test_properties_are_the_catalogues_and_the_total_is_what_the_driver_handed_out(answers, oomph, name):
    """Memory that PyTorch's allocator does not know of counts as well."""
    (answer, (free, memory)), predicted = answers(
        """
import torch
properties = torch.cuda.get_device_properties(0)
answers = [{
    "count": torch.cuda.device_count(),
    "available": torch.cuda.is_available(),
    "name": torch.cuda.get_device_name(),
    "memory": properties.total_memory,
    "capability": "%d.%d" % torch.cuda.get_device_capability(),
    "sms": properties.multi_processor_count,
    "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    "info": torch.cuda.mem_get_info(),
    "allocated": torch.cuda.memory_allocated(),
}]
"""
        + BLOCKS
        + "answers.append(torch.cuda.mem_get_info())",
        gpu=name,
    )
    known = card(oomph, name)
    assert answer == {
        "count": 1,
        "available": True,
        "name": known["title"],
        "memory": known["memory"],
        "capability": known["compute_capability"],
        "sms": known["sms"],
        "bf16": name != "t4",
        "info": [known["memory"] - known["context"], known["memory"]],
        "allocated": 0,
    }
    reported = predicted.reported
    assert memory == reported["gpu"]["memory"]
    assert memory - free == reported["total"] == reported["context"] + 3 * BLOCK
    assert predicted.peak == (3 * BLOCK, 3 * BLOCK)


# --- values -----------------------------------------------------------------------------------------------


@dataclass
class Valued:
    """What programs saw that ran one after another, and the prediction of all."""

    folder: pathlib.Path
    answers: dict
    predicted: Predicted

    def uncertain(self, name):
        """The doubts about one of them."""
        return [one for one in self.predicted.reported["uncertain"] if one["file"] == str(self.folder / f"{name}.py")]


@pytest.fixture(scope="module")
def valued(predict, tmp_path_factory):
    """Programs that assign to `answers`, run in one process: PyTorch takes longer to import than they run."""
    folder = tmp_path_factory.mktemp("values")
    parts = {"integers": INTEGERS, "travels": TRAVELS, "drawn": DRAWN, "unknown": UNKNOWN, "scaled": SCALED, "steered": STEERED}
    for name, text in parts.items():
        (folder / f"{name}.py").write_text(text.lstrip("\n"))
    lines = ["import json, os, runpy, sys", "reported = {name: runpy.run_path(os.path.abspath(name + '.py'))['answers'] for name in sys.argv[1:]}"]
    (folder / "all.py").write_text("\n".join([*lines, "json.dump(reported, open('answers.json', 'w'))\n"]))
    predicted = predict("--steps", "0", "all.py", *parts, cwd=folder)
    assert predicted.code == 0, predicted.err
    return Valued(folder, json.loads((folder / "answers.json").read_text()), predicted)


INTEGERS = """
import torch
device = "cuda"
mask = torch.arange(10, device=device) % 3 == 0
lengths = torch.tensor([3, 1, 4, 1, 5], device=device)
padded = torch.arange(6, device=device)[None] < lengths[:, None]
big = torch.randn(10, 4096, device=device)
answers = {
    "arange": torch.arange(2, 12, 3, device=device).tolist(),
    "cumsum": torch.arange(5, device=device).cumsum(0).tolist(),
    "positions": (padded.long().cumsum(-1) - 1).clamp(min=0)[2].tolist(),
    "all": [bool(mask.all()), bool((mask | ~mask).all()), bool(mask.any())],
    "nonzero": mask.nonzero().flatten().tolist(),
    "nonzero sizes": list(mask.nonzero().shape),
    "where": [part.tolist() for part in torch.where(padded[:2])],
    "masked": list(big[mask].shape),
    "masked twice": list(torch.zeros(5, 6, 8, device=device)[padded].shape),
    "lengths": lengths.tolist(),
    "longest": lengths.max().item(),
    "sorted": [part.tolist() for part in lengths.sort(descending=True, stable=True)],
    "unique": [part.tolist() for part in lengths.unique(return_counts=True)],
    "bincount": lengths.bincount().tolist(),
    "repeated": torch.arange(5, device=device).repeat_interleave(lengths).tolist(),
    "split": [list(part.shape) for part in big.split(lengths[:3].tolist() + [2])],
    "one_hot": torch.nn.functional.one_hot(lengths, 6)[2].tolist(),
    "equal": [torch.equal(lengths, lengths.clone()), torch.equal(lengths, lengths + 1)],
    "in place": lengths.clone().add_(1).mul_(2).tolist(),
    "slices": lengths.flip(0)[::2].tolist(),
    "cat": torch.cat([lengths[:2], lengths[3:]]).tolist(),
    "gather": lengths.gather(0, torch.tensor([4, 0], device=device)).tolist(),
    "scatter": torch.zeros(6, dtype=torch.long, device=device).scatter_(0, lengths, 1).tolist(),
    "int": [int(lengths[4]), range(10)[lengths[2]]],
    "sparse": [padded.to_sparse()._nnz(), padded.long().to_sparse_csr()._nnz()],
}
"""


def test_small_integers_and_truth_values_are_right(valued):
    answer = valued.answers["integers"]
    assert answer == {
        "arange": [2, 5, 8, 11],
        "cumsum": [0, 1, 3, 6, 10],
        "positions": [0, 1, 2, 3, 3, 3],
        "all": [False, True, True],
        "nonzero": [0, 3, 6, 9],
        "nonzero sizes": [4, 1],
        "where": [[0, 0, 0, 1], [0, 1, 2, 0]],
        "masked": [4, 4096],
        "masked twice": [14, 8],
        "lengths": [3, 1, 4, 1, 5],
        "longest": 5,
        "sorted": [[5, 4, 3, 1, 1], [4, 2, 0, 1, 3]],
        "unique": [[1, 3, 4, 5], [2, 1, 1, 1]],
        "bincount": [0, 2, 0, 1, 1, 1],
        "repeated": [0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 4, 4, 4, 4],
        "split": [[3, 4096], [1, 4096], [4, 4096], [2, 4096]],
        "one_hot": [0, 0, 0, 0, 1, 0],
        "equal": [True, False],
        "in place": [8, 4, 10, 4, 12],
        "slices": [5, 4, 3],
        "cat": [3, 1, 1, 5],
        "gather": [5, 3],
        "scatter": [0, 1, 0, 1, 1, 1],
        "int": [5, 4],
        "sparse": [14, 14],
    }
    # All of it was known, so nothing of it is in doubt.
    assert valued.uncertain("integers") == []


TRAVELS = """
import numpy, torch
integers = torch.tensor([[1, -2], [3, 1 << 40]])
floats = torch.tensor([0.5, -1.25, float("inf")])
pinned = torch.arange(4).pin_memory()
target = torch.empty(4, dtype=torch.long, device="cuda")
target.copy_(pinned, non_blocking=True)
torch.cuda.synchronize()
answers = {
    "integers": integers.cuda().cpu().tolist(),
    "same": torch.equal(integers.cuda().cpu(), integers),
    "floats": floats.cuda().cpu().tolist()[:2],
    "half": floats.cuda().half().float().tolist()[:2],
    "bools": torch.tensor([True, False]).cuda().tolist(),
    "pinned": target.tolist(),
    "numpy": torch.from_numpy(numpy.arange(3, dtype=numpy.int16)).cuda().cpu().numpy().tolist(),
    "transposed": integers.cuda().t().cpu().tolist(),
    "of python": torch.full((2,), 7, device="cuda").tolist(),
}
"""


def test_values_travel_to_the_device_and_back(valued):
    answer = valued.answers["travels"]
    assert answer == {
        "integers": [[1, -2], [3, 1 << 40]],
        "same": True,
        "floats": [0.5, -1.25],
        "half": [0.5, -1.25],
        "bools": [True, False],
        "pinned": [0, 1, 2, 3],
        "numpy": [0, 1, 2],
        "transposed": [[1, 3], [-2, 1 << 40]],
        "of python": [7, 7],
    }


DRAWN = """
import torch
drawn = torch.randint(5, 9, (1000,), device="cuda")
logits = torch.randn(64, 50257, device="cuda")
choice = logits.argmax(-1)
values, best = logits.topk(4, dim=-1)
sample = torch.multinomial(logits.softmax(-1), 1)
answers = {
    "randint": [int(drawn.min()), int(drawn.max()), drawn.unique().tolist()],
    "randperm": sorted(torch.randperm(20, device="cuda").tolist()),
    "argmax": [list(choice.shape), int(choice.min()) >= 0, int(choice.max()) < 50257],
    "topk": [list(best.shape), all(len(set(row)) == 4 for row in best.tolist()), int(best.max()) < 50257],
    "multinomial": [list(sample.shape), 0 <= int(sample.min()) and int(sample.max()) < 50257],
}
"""


def test_what_is_drawn_is_within_its_range(valued):
    answer = valued.answers["drawn"]
    assert answer == {
        "randint": [5, 8, [5, 6, 7, 8]],
        "randperm": list(range(20)),
        "argmax": [[64], True, True],
        "topk": [[64, 4], True, True],
        "multinomial": [[64, 1], True],
    }


UNKNOWN = """
import torch
x = torch.randn(512, 4096, device="cuda")
loss = (x @ x.T).mean()
answers = {
    "loss": [bool(torch.isfinite(loss)), bool(torch.isnan(loss)), bool(torch.isinf(loss))],
    "rows": [bool(torch.isfinite(x[0]).all()), bool(torch.isnan(x[0]).any()), bool(x[0].isinf().any())],
}
"""


def test_what_is_not_known_is_finite(valued):
    """Programs look for infinities and stop: `if not torch.isfinite(loss): raise`."""
    answer = valued.answers["unknown"]
    assert answer == {"loss": [True, False, False], "rows": [True, False, False]}


SCALED = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
answers = [scaler.get_scale()]
for _ in range(4):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(8, 64, device="cuda")).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    answers.append(scaler.get_scale())
"""


def test_the_loss_scale_is_that_of_a_healthy_program(valued):
    answer = valued.answers["scaled"]
    assert answer == [1024.0, 1024.0, 2048.0, 2048.0, 4096.0]


STEERED = """
import torch

x = torch.randn(2048, 2048, device="cuda", requires_grad=True)
# Gradients of gradients are not followed.
(slope,) = torch.autograd.grad(
    (x ** 3).sum(),
    x,
    create_graph=True,
)

slope.sum().backward()
x = x.grad

loss = (x @ x).mean().item()
print("printing", loss, "is harmless")
if loss < 3:  # line 16
    torch.empty(1 << 20, device="cuda")
rows = x[x[:, 0] > 0]  # line 18: how many is not known, the most is taken
assert len(rows) in (0, 2048)
answers = None
"""


def test_lines_that_steer_by_what_is_not_known_are_named(valued):
    assert [(one["line"], one["what"]) for one in valued.uncertain("steered")] == [(16, "branch"), (18, "size")]


ATTENTION = """
import json
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x, mask):
        q, k, v = (part.unflatten(-1, (8, 32)).transpose(1, 2) for part in self.first(x).chunk(3, -1))
        return self.last(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))

torch.manual_seed(0)
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 1024, 256, device="cuda")
mask = torch.zeros(1, 1, 1024, 1024, device="cuda")
with sdpa_kernel(SDPBackend.MATH):
    for _ in range(3):
        optimizer.zero_grad()
        model(x, mask).square().mean().backward()
        optimizer.step()
reported = torch.cuda.memory_stats()
print("TOOK", reported["allocated_bytes.large_pool.allocated"], reported["allocated_bytes.all.peak"], reported["reserved_bytes.all.peak"], flush=True)
"""


@pytest.mark.parametrize("python", [pytest.param(sys.executable, id="newest"), pytest.param(PYTHON_2_11, id="2.11")])
def test_attention_in_parts_takes_what_it_takes_without_oomph_watching(predict, on_virtual_gpu, warm, tmp_path, python):
    """PyTorch adds the mask to a copy of the scores where a mode is active, and in place otherwise: 128 MiB more are asked for in every step. Peaks need not show it; holes do."""
    script = tmp_path / "attention.py"
    script.write_text(ATTENTION)
    plain = on_virtual_gpu(script, gpu="h200", python=warm(python))
    watched = predict("--steps", "0", script, python=warm(python))
    assert watched.code == 0, watched.err
    reported = [re.findall(r"TOOK (\d+) (\d+) (\d+)", text)[-1] for text in (plain.stdout, watched.out + watched.err)]
    assert reported[0] == reported[1]


def test_verbose_says_what_was_found_staged_and_started_and_nothing_is_said_otherwise(oomph, warm, script, tmp_path):
    program = script("import torch\ntorch.empty(1000, device='cuda')\n")
    words = ["predict", "--gpu", "t4", "--python", warm(sys.executable), "--no-recording", program]
    quiet = oomph(*words)
    code, out, err = oomph("-v", *words)
    assert (quiet[0], code) == (0, 0) and quiet[1] == out
    for said in ("found PyTorch", "staged the virtual GPU", 'on a virtual GPU gpu="t4"', "starting program=", "ended status=exit status: 0", "it left status="):
        assert said in err and said not in quiet[2], said
    assert "LD_PRELOAD" not in err
    by_variable = oomph(*words, "--token=hidden", env={**os.environ, "OOMPH_LOG": "oomph_stage=debug"})
    assert "LD_PRELOAD" in by_variable[2] and "it left" not in by_variable[2]
    assert "hidden" not in by_variable[2], "arguments may hold secrets"
    code, out, err = oomph(*words, env={**os.environ, "OOMPH_LOG": "oomph=loud"})
    assert code == 2 and "OOMPH_LOG" in err
