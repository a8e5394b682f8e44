"""Snapshots that try to hurt the reader, under limits on memory and time.

All of `attacks/make.py`'s files, those too large to commit included. Each is refused (exit 2) or read safely, within
seconds and within a small multiple of its size; nothing is executed. Crowds, which have as many of everything as fit, are reported and tuned as well.
"""

import json
import subprocess
import sys

import pytest
from conftest import ROOT, slowness

EXPECTED = json.loads((ROOT / "attacks" / "expected.json").read_text())["files"]
# What the program itself needs, threads' stacks and buffers included.
FLOOR = 32 << 20
# A byte of input can be an opcode, and an opcode a value on a stack, in a list and in the memo.
MULTIPLE = 40
SECONDS = 20


# Making them takes longer than reading them: made once, written into a folder and compared with those that are committed.
MAKE = """
import sys
sys.path.insert(0, sys.argv[1])
import make

made = make.all_attacks()
make.all_attacks = lambda: made
for what in sys.argv[2:]:
    sys.argv[1:] = [what]
    make.main()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with every attack, and what was said of those that are committed."""
    folder = tmp_path_factory.mktemp("attacks")
    command = [sys.executable, "-B", "-c", MAKE, ROOT / "attacks", folder, "--check"]
    return folder, subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("verb", ["explain", "report", "tune"])
def test_every_attack(oomph, made, tmp_path, verb):
    folder, _ = made
    assert len(EXPECTED) >= 325
    names = [name for name in EXPECTED if verb == "explain" or name.startswith("crowd_")]
    # A process starts out with the memory high-water mark of the one that forked it: measured from a small one.
    measure = subprocess.run(
        [sys.executable, "-S", str(ROOT / "tests" / "python" / "measure.py"), oomph.binary, str(tmp_path), str(SECONDS), verb],
        input="\n".join(str(folder / name) for name in names),
        capture_output=True,
        text=True,
        check=True,
    )
    wrong = []
    for name, line in zip(names, measure.stdout.splitlines(), strict=True):
        path, verdict = folder / name, EXPECTED[name]
        code, err, memory, seconds = json.loads(line)
        size = path.stat().st_size
        # What is compressed may unpack to 16 MiB before it is looked at askance.
        packed = name.endswith((".gz", ".xz", ".zst", ".oomph"))
        most = FLOOR + MULTIPLE * size + (10 * (16 << 20) if packed else 0)
        if code not in ((2,) if verdict == "refused" else (0, 1, 2)):
            wrong.append(f"{name}: exit {code}, expected {verdict}: {err[-200:]}")
        if "panicked" in err or code < 0:
            wrong.append(f"{name}: crashed: {err[-300:]}")
        if memory > most:
            wrong.append(f"{name}: {memory >> 20} MiB for {size} bytes")
        if seconds > SECONDS and seconds > SECONDS * slowness():
            wrong.append(f"{name}: {seconds:.0f} s")
    assert not wrong, "\n".join(wrong)
    assert not list(tmp_path.iterdir()), "an attack ran"


def test_attacks_are_what_make_py_makes(made):
    _, done = made
    assert done.returncode == 0, done.stderr


def test_the_table_of_the_security_page_has_every_attack():
    """Its numbers are measured by attacks/measure.py; that none is missing is held here."""
    page = (ROOT / "SECURITY.md").read_text()
    table = page.split("<!-- attacks: made by attacks/measure.py -->")[1].split("<!-- end of attacks -->")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| `")]
    assert rows == [f"`{name}`" for name in EXPECTED]
    assert "panic" not in table and "exit" not in table
    assert f"{len(EXPECTED)} hostile files" in page
