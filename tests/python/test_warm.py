"""A warm Python is what it stands in for: it says the same of a program, and gives way where it could not."""

import os
import subprocess
import sys

import pytest
from warm import AT_FIRST

# What is in memory before the program asks for it, which only a forked process has.
WARM = "'torch._C' in sys.modules and 'torch' not in sys.modules"


@pytest.fixture
def started(warm, oomph, tmp_path):
    """Runs a program on the virtual GPU with a Python; gives the completed process."""

    def run(text, *words, python=None, options=("--no-recording",), **more):
        (tmp_path / "program.py").write_text(text)
        command = [oomph.binary, "run", "--quiet", *options, "--gpu", "t4", "--python", python or warm(sys.executable), "program.py", *words]
        # Without what imports of other tests have set.
        return subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=300, **{"env": AT_FIRST, **more})

    return run


@pytest.mark.parametrize("program", ["plain_loop.py", "hf_trainer.py", "lightning_fit.py", "vit.py"])
def test_a_prediction_is_that_of_a_fresh_process(predict, program):
    """Also where a library that the program imports is in memory before oomph has changed PyTorch."""
    fresh, warm = predict(program, python=sys.executable), predict(program)
    assert (fresh.reported, fresh.code) == (warm.reported, warm.code)
    if program == "plain_loop.py":
        # Others print what they took.
        assert fresh.err == warm.err


PROGRAM = f"""
import os, sys
print({WARM}, __name__, __file__, sys.argv, sys.path[0] == os.getcwd(), os.environ["ASKED"], input())
import torch
print(torch.cuda.get_device_name(), torch.cuda.device_count(), torch.zeros(4, device="cuda").shape, torch.__spec__.name)
sys.exit(7)
"""


def test_a_program_has_its_words_environment_files_and_end(started):
    warm, fresh = (started(PROGRAM, "--lr", "1", python=python, input="said\n", env={**AT_FIRST, "ASKED": "yes"}) for python in (None, sys.executable))
    assert warm.returncode == fresh.returncode == 7 and warm.stderr == fresh.stderr
    # A variable that no list names is a reason for a process of its own.
    assert warm.stdout == fresh.stdout and fresh.stdout.startswith("False __main__ ")


def test_it_is_warm_and_an_error_is_told_as_python_does(started):
    text = f"import sys\nprint({WARM})\nimport torch\ntorch.zeros(1, device='cuda')\nraise ValueError('of mine')\n"
    warm, fresh = (started(text, python=python) for python in (None, sys.executable))
    assert (warm.stdout, fresh.stdout) == ("True\n", "False\n")
    assert (warm.returncode, warm.stderr) == (fresh.returncode, fresh.stderr)
    assert fresh.stderr.endswith("ValueError: of mine\n")


def test_who_dies_of_a_signal_dies_of_it(started):
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    warm, fresh = (started(text, python=python) for python in (None, sys.executable))
    assert warm.returncode == fresh.returncode != 0


def test_a_recording_is_made(started, tmp_path, explain):
    text = "import torch\nkept = [torch.zeros(1 << 20, device='cuda') for _ in range(3)]\n"
    done = started(text, options=("--output", "made.oomph"))
    assert done.returncode == 0, done.stderr
    (device,) = explain(tmp_path / "made.oomph")["devices"]
    assert device["peak"]["allocated"] == 3 << 22
    (line,) = device["at_peak"]["by_line"]
    assert (os.path.basename(line["file"]), line["line"]) == ("program.py", 2)
