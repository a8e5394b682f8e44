"""Further runs of a program are forked from a spare interpreter: they say what fresh processes say, and nothing of it stays."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

# What a library that is installed leaves each time that it is imported, and a program each time that it begins.
NOTES = "import os\nwith open(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'notes'), 'a') as file:\n    file.write(__name__ + '\\n')\n"
# Beside it, modules of the program's own.
OF_ITS_OWN = {"settings": "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"}
PROGRAM = f"""
{NOTES}
import argparse, sys
assert not {{"torch", "quiet", "asking"}}.intersection(sys.modules)
FIRST
import quiet
import torch
import asking
assert sys.modules["quiet"] is quiet and os.environ.get("SET_BY_QUIET") == "yes" and quiet.__spec__.name == "quiet"
words = argparse.ArgumentParser()
words.add_argument("--batch-size", type=int)
batch = words.parse_args().batch_size
model = torch.nn.Linear(1000, 1000 * batch, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(batch, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
LAST
"""


@pytest.fixture
def swept(oomph, warm, tmp_path):
    """Sweeps over batches, from a spare interpreter or without; gives the exit code, both outputs, what was noted, and how many interpreters were started."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "quiet.py").write_text(NOTES + "os.environ['SET_BY_QUIET'] = 'yes'\n")
    (installed / "asking.py").write_text(NOTES + "import torch\ntorch.cuda.is_available()\n")
    for name, text in OF_ITS_OWN.items():
        (tmp_path / f"{name}.py").write_text(text)
    # Run by each interpreter that starts.
    (installed / "sitecustomize.py").write_text("import os\nif 'OOMPH_PREDICT' in os.environ:\n    " + NOTES.replace("\n", "\n    "))
    # Too long for the path of a socket: there is no spare then.
    long = tmp_path / ("long" * 25)
    long.mkdir()

    def run(values, *options, spare=True, first="", last=""):
        (tmp_path / "program.py").write_text(PROGRAM.replace("FIRST", first).replace("LAST", last))
        for path in (tmp_path / "notes", installed / "notes"):
            path.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(installed), "TMPDIR": str(tmp_path if spare else long)}
        words = ["predict", "--gpu", "t4", "--python", warm(sys.executable), "--format", "json", "--sweep", f"--batch-size={values}", *options, "program.py"]
        answer = oomph(*words, cwd=tmp_path, env=environment, timeout=300)
        noted = [line for path in (tmp_path / "notes", installed / "notes") if path.exists() for line in path.read_text().splitlines()]
        return answer, {name: noted.count(name) for name in ("__main__", "quiet", "asking")}, noted.count("sitecustomize")

    return run


def test_the_runs_of_a_sweep_are_those_of_fresh_processes(swept):
    warm, noted, started = swept("1,2,3")
    # The library is imported by the first run and by the spare; one that looks at the card by each run, which may have another.
    assert (noted, started) == ({"__main__": 3, "quiet": 2, "asking": 3}, 1), warm
    fresh, noted, started = swept("1,2,3", spare=False)
    assert (noted, started) == ({"__main__": 3, "quiet": 3, "asking": 3}, 3)
    assert warm == fresh and fresh[0] == 0 and fresh[1].count('"peak"') == 3


def test_a_program_that_sets_variables_imports_in_its_own_environment(swept):
    # Its text says so: nothing is imported before it has run once.
    openly, noted, started = swept("1,2", first="os.environ['OMP_NUM_THREADS'] = '1'")
    assert (noted, started) == ({"__main__": 2, "quiet": 2, "asking": 2}, 1), openly
    # Nothing says so: the first run begins again, and no other is forked.
    hidden, noted, _ = swept("1,2", first="import settings")
    assert noted["__main__"] == 3 and noted["asking"] == 2
    assert hidden == openly and openly[0] == 0


def test_each_run_has_all_its_time(swept, tmp_path):
    first = "import signal, time\nwith open('left', 'a') as file:\n    print(signal.getitimer(signal.ITIMER_REAL)[0], file=file)\ntime.sleep(2)"
    answer, _, started = swept("1,2", "--timeout", "1000", first=first)
    assert answer[0] == 0 and started == 1
    # The second waits for nothing; the first has imported PyTorch by then.
    assert 998.5 < float((tmp_path / "left").read_text().split()[1]) <= 1000


def test_a_run_that_is_killed_is_told_of_as_such(swept):
    last = "if batch == 2: os.kill(os.getpid(), 9)"
    # After the steps that are asked for.
    (warm, _, started), (fresh, _, more) = swept("1,2,3", last=last), swept("1,2,3", last=last, spare=False)
    assert (started, more) == (1, 2) and warm == fresh
    assert "(signal: 9 (SIGKILL)) before it had left what was asked for: this machine's own memory ran out, most likely" in fresh[2]


def ended(pid):
    """Whether nothing of a process is left, but for its end that nobody asked for."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("how", ["Ctrl-C", "kill -9"])
def test_nothing_is_left_of_a_spare_and_its_run(oomph, tmp_path, how):
    told = tmp_path / "told"
    (tmp_path / "program.py").write_text(
        f"import os, sys, time\nassert not {{'torch', 'torch._C', 'numpy'}}.intersection(sys.modules)\nimport numpy, torch\ntorch.zeros(1, device='cuda')\nif sys.argv[-1] == '2':\n"
        f"    open({str(told)!r} + '.part', 'w').write(f'{{os.getpid()}} {{os.getppid()}} {{os.getpgrp()}}')\n"
        f"    os.rename({str(told)!r} + '.part', {str(told)!r})\n    time.sleep(300)\n"
    )
    command = [oomph.binary, "predict", "--gpu", "t4", "--python", sys.executable, "--sweep", "--batch-size=1,2", "program.py"]
    listening = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=listening)
    try:
        until = time.monotonic() + 120
        while not told.exists() and running.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        program, spare, group = map(int, told.read_text().split())
        assert spare != running.pid and group == running.pid
        if how == "Ctrl-C":
            os.killpg(running.pid, signal.SIGINT)
            assert running.wait(timeout=60) == 130
            assert ended(program) and ended(spare)
        else:
            running.kill()
            running.wait()
            while not (ended(program) and ended(spare)) and time.monotonic() < until:
                time.sleep(0.02)
            assert ended(program) and ended(spare)
    finally:
        running.kill()
        running.wait()
