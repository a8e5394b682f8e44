"""Predictions where NVIDIA's libraries are not installed, and where only a build of PyTorch without CUDA is: what is stood in for, and what is fetched."""

import sys

import pytest
from bare import without_libraries


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    return without_libraries(tmp_path_factory.mktemp("bare") / "environment", sys.executable)


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


# --- without NVIDIA's libraries ---------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["plain_loop.py", "lstm.py"])
def test_programs_without_convolutions_take_the_same_bytes(predict, bare_python, program):
    full, bare = predict("--until", "steps", program), predict("--until", "steps", program, python=bare_python)
    assert (full.code, bare.code) == (0, 0), bare.err
    for key in ("peak", "total", "fits", "steps", "unmodelled_calls", "uncertain"):
        assert bare.reported[key] == full.reported[key], key
    assert bare.reported["steps"] == 3


def test_libraries_that_are_not_there_say_what_pytorch_was_built_with(predict, bare_python, script):
    words = """
import torch
torch.zeros(1, device="cuda")
print("SAYS", torch.backends.cudnn.version(), torch.cuda.nccl.version(), torch.version.cuda)
maps = open("/proc/self/maps").read()
print("LOADED", sorted({line.split("/")[-1].split(".so")[0] for line in maps.splitlines() if "/nvidia/" in line}))
"""
    full, bare = (predict(script(words), python=python) for python in (None, bare_python))
    said = [next(line for line in one.err.splitlines() if line.startswith("SAYS")) for one in (full, bare)]
    assert said[0] == said[1]
    assert "LOADED []" in bare.err and "libcudnn" in full.err
