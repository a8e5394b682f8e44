"""Snapshots that try to hurt the reader, under limits on memory and time.

All of `attacks/make.py`'s files, those too large to commit included. Each is refused (exit 2) or read safely, within
seconds and within a small multiple of its size; nothing is executed.
"""

import json
import os
import resource
import subprocess
import sys
import time

import pytest
from conftest import ROOT

EXPECTED = json.loads((ROOT / "attacks" / "expected.json").read_text())["files"]
# What the program itself needs, threads' stacks and buffers included.
FLOOR = 64 << 20
# A byte of input can be an opcode, and an opcode a value on a stack, in a list and in the memo.
MULTIPLE = 60
SECONDS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    subprocess.run([sys.executable, str(ROOT / "attacks" / "make.py"), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return folder


def measure(binary, path, cwd):
    """Exit code, stderr, peak resident bytes and seconds of one explanation."""
    start = time.monotonic()
    process = subprocess.Popen(
        [binary, "explain", str(path)],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS)),
    )
    err = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status), err, usage.ru_maxrss * 1024, time.monotonic() - start


def test_every_attack(oomph, folder, tmp_path):
    assert len(EXPECTED) >= 280
    wrong = []
    for name, verdict in EXPECTED.items():
        path = folder / name
        code, err, memory, seconds = measure(oomph.binary, path, tmp_path)
        size = path.stat().st_size
        # What is compressed may unpack to 64 MiB before it is looked at askance.
        packed = name.endswith((".gz", ".xz", ".zst"))
        most = FLOOR + MULTIPLE * size + (MULTIPLE * (64 << 20) // 4 if packed else 0)
        if code not in ((2,) if verdict == "refused" else (0, 1, 2)):
            wrong.append(f"{name}: exit {code}, expected {verdict}: {err[-200:]}")
        if "panicked" in err or code < 0:
            wrong.append(f"{name}: crashed: {err[-300:]}")
        if memory > most:
            wrong.append(f"{name}: {memory >> 20} MiB for {size} bytes")
        if seconds > SECONDS:
            wrong.append(f"{name}: {seconds:.0f} s")
    assert not wrong, "\n".join(wrong)
    assert not list(tmp_path.iterdir()), "an attack ran"


def test_attacks_are_what_make_py_makes():
    subprocess.run([sys.executable, str(ROOT / "attacks" / "make.py"), "--check"], check=True, stdout=subprocess.DEVNULL)
