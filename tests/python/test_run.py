"""`oomph run` and `oomph.record`: what is recorded, what reaches the program, and what a kill leaves. On the virtual GPU."""

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import COMMAND, PYTHON_2_11, ROOT

# The package as it lies here, with the command as built.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}

TRAIN = """
import sys
import torch

model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def step(rows=1024):
    loss = model(torch.randn(rows, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
    step()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""
WEIGHTS = 4 * (512 * 2048 + 2048 + 2048 * 512 + 512)


@pytest.fixture
def script(tmp_path):
    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    return write


@pytest.fixture
def run(warm, tmp_path):
    """Runs `oomph run` in an empty folder, with a warm Python unless another is named or there is no card; gives what subprocess.run gives."""

    def run(*words, gpu="t4", python=None, **options):
        card = ["--gpu", gpu] if gpu else []
        python = python or (warm(sys.executable) if gpu else sys.executable)
        command = [COMMAND, "run", "--python", str(python), *card, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **{"env": ENVIRONMENT, "cwd": tmp_path, **options})

    return run


def explained(path):
    done = subprocess.run([COMMAND, "explain", "--format", "json", str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


# --- what is recorded -------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", [sys.executable, PYTHON_2_11])
def test_peaks_are_pytorchs_own_and_steps_and_kinds_are_known(run, script, tmp_path, python):
    done = run(script(TRAIN), python=python)
    assert done.returncode == 0, done.stderr
    allocated, reserved = map(int, done.stdout.split())
    (device,) = explained(tmp_path / "train.oomph")["devices"]
    assert device["peak"]["allocated"] == allocated
    assert device["peak"]["reserved"] == reserved
    assert device["steps"]["found_by"] == "annotations"
    assert device["steps"]["count"] + device["steps"]["repeated"] == 20
    kinds = {kind["kind"]: kind["bytes"] for kind in device["at_peak"]["by_kind"]}
    assert kinds["parameters"] == WEIGHTS
    assert kinds["gradients"] == WEIGHTS
    # Two moments for each weight; a step counter for each on the CPU.
    assert kinds["optimizer_state"] == 2 * WEIGHTS
    assert "train.oomph has device 0" in done.stderr and "20 steps" in done.stderr
    assert done.stderr.rstrip().endswith("Next: oomph explain train.oomph")


def test_a_steady_program_leaves_a_small_recording(run, script, tmp_path):
    assert run(script(TRAIN), "3").returncode == 0
    few = (tmp_path / "train.oomph").stat().st_size
    assert run(script(TRAIN), "500").returncode == 0
    assert (tmp_path / "train.oomph").stat().st_size < 1.5 * few
    steps = explained(tmp_path / "train.oomph")["devices"][0]["steps"]
    assert steps["repeated"] >= 490 and steps["count"] + steps["repeated"] == 500


def test_lines_are_those_of_the_program(run, script, tmp_path):
    path = script("import torch\n\n\ndef größe():\n    return torch.empty(1 << 26, device='cuda')\n\n\nkept = größe()\n", "дом.py")
    assert run(path).returncode == 0
    line = explained(tmp_path / "дом.oomph")["devices"][0]["at_peak"]["by_line"][0]
    assert (os.path.basename(line["file"]), line["line"], line["function"], line["bytes"]) == ("дом.py", 5, "größe", 4 << 26)


def test_expandable_segments_are_followed(run, script, tmp_path):
    done = run(script(TRAIN), env={**ENVIRONMENT, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    allocated, reserved = map(int, done.stdout.split())
    (device,) = explained(tmp_path / "train.oomph")["devices"]
    assert device["peak"]["allocated"] == allocated
    assert device["peak"]["reserved"] == reserved


def test_a_setting_that_changes_in_the_middle_leaves_no_contradiction(run, script, tmp_path):
    # Segments that were mapped go without a word; a later one at the same address says so.
    path = script("""
        import torch
        change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
        kept = []
        for round in range(4):
            change(f"expandable_segments:{round % 2 == 1}")
            kept.append([torch.empty((3 + 2 * round << 20) + i, device="cuda") for i in range(6)])
            if round:
                del kept[0][1:4]
                torch.cuda.empty_cache()
        kept.clear()
        change("expandable_segments:False")
        torch.cuda.empty_cache()
        torch.empty(3 << 20, device="cuda")
        print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    """)
    done = run(path)
    allocated, reserved = map(int, done.stdout.split())
    (device,) = explained(tmp_path / "train.oomph")["devices"]
    assert device["completeness"]["complete"], device["completeness"]
    assert (device["peak"]["allocated"], device["peak"]["reserved"]) == (allocated, reserved)


def test_what_fit_tries_out_is_not_recorded_as_the_program(run, script, tmp_path):
    path = script("""
        import torch, oomph
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(8192, 1024, device="cuda")
        fitted = oomph.fit(model, optimizer, batch=batch, loss=lambda model, x: model(x).square().mean(), budget="420MiB")
        for _ in range(3):
            fitted.step(batch)
        print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    """)
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert sorted(one.name for one in tmp_path.glob("*.oomph")) == ["train.oomph"]
    allocated, reserved = map(int, done.stdout.splitlines()[-1].split())
    (device,) = explained(tmp_path / "train.oomph")["devices"]
    assert device["completeness"]["complete"], device["completeness"]
    assert (device["peak"]["allocated"], device["peak"]["reserved"]) == (allocated, reserved)
    assert "3 steps (complete)" in done.stderr


def test_each_rank_has_its_own_file(run, script, tmp_path):
    script(TRAIN)
    path = script(
        """
        import os, subprocess, sys
        ranks = [subprocess.Popen([sys.executable, "train.py"], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
        sys.exit(max(rank.wait() for rank in ranks))
        """,
        "launcher.py",
    )
    done = run("-o", "out.oomph", path)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.glob("*.oomph")) == ["out-rank0.oomph", "out-rank1.oomph"]
    assert "out-rank0.oomph has device 0" in done.stderr and "out-rank1.oomph has device 0" in done.stderr


def test_a_rank_that_ran_out_is_named_while_the_others_wait_for_it(run, script, tmp_path):
    script(
        """
        import datetime, os, sys, torch, torch.distributed as dist

        ours = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", **ours, timeout=datetime.timedelta(seconds=60))
        held = torch.empty(1 << 28, device="cuda")
        if dist.get_rank() == 1:
            torch.empty(1 << 34, device="cuda")
        try:
            dist.barrier()
        except RuntimeError:
            sys.stderr.write("rank 0 has waited\\n")
        """
    )
    # A launcher that ends nobody: the others wait until the rank is gone, or for their own time-out.
    path = script(
        """
        import os, subprocess, sys
        ranks = [subprocess.Popen([sys.executable, "train.py"], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)]
        sys.exit(max(rank.wait() for rank in ranks))
        """,
        "launcher.py",
    )
    # In a Python of its own: see below.
    done = run("-o", "out.oomph", path, python=sys.executable)
    assert done.returncode == 1, done.stderr
    told = done.stderr.index("oomph: rank 1 of 2 ran out of memory: it asked for 64.0 GiB")
    assert ", at train.py:7 <module>. Unless it goes on as before, the others wait for it" in done.stderr
    assert told < done.stderr.index("rank 0 has waited")
    assert done.stderr.count("of 2 ran out of memory") == 1
    assert f"out-rank1.oomph ran out of memory, asking for 64.0 GiB at {tmp_path.name}/train.py:7 <module>; the other did not." in " ".join(done.stderr.split())


def test_a_fatal_out_of_memory_is_explained_under_pytorchs_error(run, script):
    # In a Python of its own, in which nobody is above the program: an error that is fatal is reported from one that is caught.
    done = run(script(TRAIN + "\nstep(1 << 21)\n"), python=sys.executable)
    assert done.returncode == 1
    error, explanation = done.stderr.index("torch.OutOfMemoryError: CUDA out of memory"), done.stderr.index("error OM3")
    assert error < explanation
    assert "was asked for" in done.stderr and "train.py:" in done.stderr
    assert "train.oomph has device 0" in done.stderr and "ran out of memory 1×" in done.stderr


CAUGHT = """
import torch

torch.empty(1, device="cuda")


def attempt():
    large = torch.empty(6 << 30, dtype=torch.uint8, device="cuda")
    with torch.no_grad():
        inner(large)


def inner(large):
    also = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    torch.empty(20 << 30, dtype=torch.uint8, device="cuda")


before = torch.cuda.memory_allocated()
try:
    attempt()
except torch.OutOfMemoryError as error:
    kept = error
    print(torch.cuda.memory_allocated() - before)
try:
    try:
        attempt()
    except RuntimeError as error:
        raise ValueError("no room") from error
except ValueError:
    print(torch.cuda.memory_allocated() - before)
"""


@pytest.mark.parametrize("python", [sys.executable, PYTHON_2_11])
def test_a_handler_finds_the_memory_free_again(run, warm, script, python, tmp_path):
    python = warm(python)
    done = run(script(CAUGHT), python=python)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "0"]), done.stderr
    # Recorded or not.
    assert run("--no-recording", script(CAUGHT), python=python).stdout.split() == ["0", "0"]
    assert [oom["fatal"] for oom in explained(tmp_path / "train.oomph")["devices"][0]["ooms"]] == [False, False]


# --- what reaches the program -----------------------------------------------------------------------------


def test_exit_code_arguments_and_standard_input_are_the_programs(run, script):
    path = script("import sys\nprint(sys.argv[1:], sys.stdin.read(), __name__)\nsys.exit(7)\n")
    done = run(path, "--budget", "x", "-m", gpu=None, input="hello")
    assert (done.returncode, done.stdout) == (7, "['--budget', 'x', '-m'] hello __main__\n")
    assert "nothing was recorded: the program did not use CUDA through PyTorch" in done.stderr


def test_a_module_and_a_command_are_run_too(run, script):
    script("import sys\nprint(sys.argv[1:])\n", "there.py")
    assert run("-m", "there", "x", gpu=None).stdout == "['x']\n"
    assert run("sh", "-c", "echo shell; exit 3", gpu=None).stdout == "shell\n"


def test_the_terminal_is_the_programs(script, tmp_path):
    path = script("import os, sys\nprint(sys.stdin.isatty(), sys.stdout.isatty(), os.get_terminal_size())\n")
    ours, theirs = pty.openpty()
    done = subprocess.Popen([COMMAND, "run", "--python", sys.executable, str(path)], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    assert done.wait(60) == 0
    assert os.read(ours, 1000).startswith(b"True True os.terminal_size")


# All that end a process that does not listen to them, but for those that say that the process itself is broken.
ENDING = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU,
          signal.SIGXFSZ, signal.SIGIO, signal.SIGTERM]  # fmt: skip
# Says which signals it hears of, and ends with the last.
LISTENS = f"""
import signal, sys, time
for number in {[int(one) for one in ENDING]}:
    signal.signal(number, lambda number, frame: (print("heard", number, flush=True), number == {int(signal.SIGTERM)} and sys.exit(5)))
print("ready", flush=True)
time.sleep(60)
"""


def listening(path, folder, **options):
    """`oomph run` of a program that is ready to hear of signals."""
    done = subprocess.Popen(
        [COMMAND, "run", "--python", sys.executable, str(path)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )  # fmt: skip
    assert done.stdout.readline() == "ready\n"
    return done


def test_signals_reach_the_program(script, tmp_path):
    """Those that are sent to oomph alone, as `kill` does."""
    done = listening(script(LISTENS), tmp_path)
    for sent in ENDING:
        done.send_signal(sent)
        assert done.stdout.readline() == f"heard {int(sent)}\n"
    assert (done.stdout.read(), done.wait(60)) == ("", 5)


def test_signals_that_are_sent_to_everybody_do_not_come_twice(script, tmp_path):
    done = listening(script(LISTENS), tmp_path, start_new_session=True)
    for sent in (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGINT):
        os.killpg(done.pid, sent)
        assert done.stdout.readline() == f"heard {int(sent)}\n"
        # A second one would come before what is sent to oomph later.
        done.send_signal(signal.SIGUSR2)
        assert done.stdout.readline() == f"heard {int(signal.SIGUSR2)}\n"
    # To one and then to all, as `timeout` does: both are there before oomph looks, however busy this machine is.
    done.send_signal(signal.SIGSTOP)
    done.send_signal(signal.SIGTERM)
    os.killpg(done.pid, signal.SIGTERM)
    done.send_signal(signal.SIGCONT)
    assert (done.stdout.read(), done.wait(60)) == (f"heard {int(signal.SIGTERM)}\n", 5)


def test_signals_reach_a_program_with_a_process_group_of_its_own(script, tmp_path):
    done = listening(script("import os\nos.setpgid(0, 0)\n" + LISTENS), tmp_path, start_new_session=True)
    os.killpg(done.pid, signal.SIGINT)
    assert done.stdout.readline() == f"heard {int(signal.SIGINT)}\n"
    done.send_signal(signal.SIGTERM)
    assert (done.stdout.read(), done.wait(60)) == (f"heard {int(signal.SIGTERM)}\n", 5)


def test_interrupts_are_the_programs_own_business(script, tmp_path):
    """Ctrl-C goes to everybody at the terminal: the program decides, oomph waits for it."""
    path = script(
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(0.5)
            print("saved", flush=True)
            raise SystemExit(4)
        """
    )
    done = subprocess.Popen(
        [COMMAND, "run", "--python", sys.executable, str(path)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert done.stdout.readline() == "ready\n"
    os.killpg(done.pid, signal.SIGINT)
    assert (done.stdout.read(), done.wait(60)) == ("saved\n", 4)


def test_a_killed_program_is_told_as_a_shell_would(run, script):
    assert run(script("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"), gpu=None).returncode == 137


def test_the_environments_own_sitecustomize_still_runs(run, script, tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'here'\n")
    done = run(script("import sitecustomize\nprint(mine, sitecustomize.__file__)\n"), gpu=None, env={**ENVIRONMENT, "PYTHONPATH": str(folder)})
    assert done.stdout == f"here {folder / 'sitecustomize.py'}\n"


def test_under_a_budget_too_the_users_own_libraries_are_loaded(run, script, tmp_path):
    """After oomph's, and separated as their user has it: by a space here."""
    (library,) = {line.split()[-1] for line in open("/proc/self/maps") if "/libm.so" in line or "/libm-" in line}
    for name in ("mine.so", "other.so"):
        shutil.copy(library, tmp_path / name)
    theirs = f"{tmp_path / 'mine.so'} {tmp_path / 'other.so'}"
    path = script("import os\nprint(os.environ['LD_PRELOAD'])\nprint(any('/mine.so' in line for line in open('/proc/self/maps')))\n")
    done = run("--budget", "4GiB", path, python=sys.executable, env={**ENVIRONMENT, "LD_PRELOAD": theirs})
    preloaded, is_loaded = done.stdout.splitlines()
    ours, mine = preloaded.split(":" + theirs)[0], preloaded.endswith(":" + theirs)
    assert [os.path.basename(one) for one in ours.split(":")][:2] == ["liboomph_guard.so", "liboomph_cuda.so"]
    assert (mine, is_loaded) == (True, "True")


def test_the_path_of_modules_is_the_programs(run, script, tmp_path):
    """An empty entry of PYTHONPATH is the current folder."""
    path = script("import sys\nprint(sys.path)\n")
    for entries in (":/x", "/x:", "/x::/y", ":", "/x:.:/y", ""):
        environment = {**os.environ, "PYTHONPATH": entries}
        alone = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, env=environment, check=True)
        assert run(path, gpu=None, env=environment).stdout == alone.stdout, entries


def test_what_is_no_text_reaches_the_program_unchanged(run, tmp_path):
    """Names of files and arguments are bytes. The script runs out of memory, so that all of what is written down has such a name in it."""
    folder = os.path.join(os.fsencode(tmp_path), b"f\xff")
    os.mkdir(folder)
    with open(os.path.join(folder, b"tr\xe9.py"), "w") as file:
        file.write("import os, sys, torch\nprint([os.fsencode(word) for word in [*sys.argv, os.getcwd()]])\nkept = []\n")
        file.write("while True:\n    kept.append(torch.empty(1 << 28, device='cuda'))\n")
    done = run("-o", os.fsdecode(b"o\xfe.oomph"), os.fsdecode(b"tr\xe9.py"), os.fsdecode(b"a\x80\xffb"), cwd=folder, python=sys.executable)
    assert (done.returncode, done.stdout) == (1, repr([b"tr\xe9.py", b"a\x80\xffb", folder]) + "\n"), done.stderr
    assert sorted(os.listdir(folder)) == [b"o\xfe.oomph", b"tr\xe9.py"]
    read = explained(os.fsdecode(os.path.join(folder, b"o\xfe.oomph")))
    line = read["devices"][0]["at_peak"]["by_line"][0]
    assert (line["file"].endswith("/f\ufffd/tr\ufffd.py"), line["line"], line["bytes"]) == (True, 5, 14 << 30)
    # Who holds what is a text of its own in the recording.
    assert any("`kept` (list of 14)" in finding["title"] for finding in read["findings"])


# --- where the recording goes -----------------------------------------------------------------------------

# Takes so many MiB, says so by a file, and waits for another.
TAKES = """
import os, sys, time
import torch
kept = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
open(sys.argv[2], "w").close()
until = time.monotonic() + 120
while not os.path.exists(sys.argv[3]) and time.monotonic() < until:
    time.sleep(0.01)
"""


def taking(warm, folder, path, mib, made, awaited, **environment):
    command = [COMMAND, "run", "--python", warm(sys.executable), "--gpu", "t4", str(path), str(mib), made, awaited]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, **environment})


def wait_for(path):
    until = time.monotonic() + 120
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert path.exists()


def peak(path):
    return explained(path)["devices"][0]["peak"]["allocated"] >> 20


def test_two_runs_at_once_have_two_recordings(warm, script, tmp_path):
    path = script(TAKES)
    first = taking(warm, tmp_path, path, 400, "a", "b")
    wait_for(tmp_path / "a")
    second = taking(warm, tmp_path, path, 120, "b", "a")
    said = [one.communicate(timeout=120)[1] for one in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    assert sorted(one.name for one in tmp_path.glob("*.oomph")) == ["train-2.oomph", "train.oomph"]
    assert (peak(tmp_path / "train.oomph"), peak(tmp_path / "train-2.oomph")) == (400, 120)
    assert "another run" not in said[0] and "Next: oomph explain train.oomph" in said[0]
    assert said[1].startswith("oomph: train.oomph is being written by another run; this one goes to train-2.oomph\n")
    assert "Next: oomph explain train-2.oomph" in said[1]
    # Both are done: the name is free again.
    third = taking(warm, tmp_path, path, 40, "c", "a")
    assert third.communicate(timeout=120) and peak(tmp_path / "train.oomph") == 40


def test_ranks_write_the_files_of_their_own_run(warm, script, tmp_path):
    path, rank = script(TAKES), {"RANK": "0", "WORLD_SIZE": "2"}
    first = taking(warm, tmp_path, path, 400, "a", "b", **rank)
    wait_for(tmp_path / "a")
    second = taking(warm, tmp_path, path, 120, "b", "a", **rank)
    said = [one.communicate(timeout=120)[1] for one in (first, second)]
    # Nothing is left where nothing was written.
    assert sorted(one.name for one in tmp_path.glob("*.oomph")) == ["train-2-rank0.oomph", "train-rank0.oomph"], said
    assert (peak(tmp_path / "train-rank0.oomph"), peak(tmp_path / "train-2-rank0.oomph")) == (400, 120)


def test_a_program_that_outlives_its_run_keeps_its_recording(warm, script, tmp_path):
    path = script(TAKES)
    killed = taking(warm, tmp_path, path, 400, "a", "end")
    wait_for(tmp_path / "a")
    killed.kill()
    killed.wait(60)
    second = taking(warm, tmp_path, path, 120, "b", "b")
    assert "this one goes to train-2.oomph" in second.communicate(timeout=120)[1]
    (tmp_path / "end").touch()
    # Its standard error is closed when the program has ended.
    assert killed.stderr.read() == ""
    assert (peak(tmp_path / "train.oomph"), peak(tmp_path / "train-2.oomph")) == (400, 120)


STARTED = "open('started', 'w').close()\n"


def refused(done, tmp_path):
    """What is said by a command that has started nothing."""
    assert done.returncode == 2 and not (tmp_path / "started").exists(), done.stderr
    return done.stderr


def test_a_recording_is_written_over_nothing_but_a_recording(run, script, tmp_path):
    path, notes = script(STARTED), tmp_path / "notes"
    notes.write_text("mine")
    (tmp_path / "link").symlink_to("notes")
    (tmp_path / "nowhere").symlink_to("later")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for words, why in (
        (["-o", "notes"], "notes: exists already, and is no recording of oomph's (--force writes over it)"),
        (["-o", "train.py"], "train.py: this is what is run or read; name another file to write to"),
        (["--force", "-o", "./train.py"], "./train.py: this is what is run or read; name another file to write to"),
        (["--force", "-o", "link"], "link: this is a link, and a recording is not written through one; name the file itself"),
        (["-o", "nowhere"], "nowhere: this is a link, and a recording is not written through one; name the file itself"),
        (["-o", "folder"], "folder: this is a folder; name a file in it"),
        (["-o", "pipe"], "pipe: this is no file but a pipe, a socket or a device; --no-recording writes none"),
        (["-o", "/dev/null"], "/dev/null: this is no file but a pipe, a socket or a device; --no-recording writes none"),
        (["-o", "not/there.oomph"], "not/there.oomph: there is no folder not"),
    ):
        assert refused(run(*words, path, gpu=None), tmp_path) == f"error: {why}\n"
    # The usual name is no exception.
    (tmp_path / "train.oomph").write_text("mine too")
    assert refused(run(path, gpu=None), tmp_path) == "error: train.oomph: exists already, and is no recording of oomph's (--force writes over it)\n"
    assert (notes.read_text(), (tmp_path / "train.oomph").read_text(), path.read_text()) == ("mine", "mine too", STARTED)
    assert not (tmp_path / "later").exists()


def test_force_writes_over_what_is_there_when_there_is_something_to_write(run, script, tmp_path):
    notes = tmp_path / "notes"
    notes.write_text("mine")
    assert run("--force", "-o", "notes", script(STARTED), gpu=None).returncode == 0
    assert (tmp_path / "started").exists() and notes.read_text() == "mine"
    assert run("--force", "-o", "notes", script("import torch\nkept = torch.empty(1 << 22, device='cuda')\n")).returncode == 0
    assert peak(notes) == 16


def test_a_folder_that_cannot_be_written_does_not_stop_the_program(run, script):
    # Not by root either.
    done = run(script("print('there')\n"), gpu=None, cwd="/sys")
    assert (done.returncode, done.stdout) == (0, "there\n")
    assert done.stderr.startswith("warning: no recording is written: train.oomph: ") and len(done.stderr.splitlines()) == 1
    assert run("-o", "train.oomph", script("print('there')\n"), gpu=None, cwd="/sys").returncode == 2


def test_without_a_recorder_nothing_is_said_about_cuda(run, script):
    path = script("print('there')\n")
    unknown = "oomph: nothing was recorded: no Python of the program has loaded oomph's recorder, so what it did with CUDA is not known."
    for words in ([sys.executable, "-I", path], [sys.executable, "-E", path], [sys.executable, "-S", path], ["echo", "there"]):
        done = run(*words, gpu=None)
        assert (done.returncode, done.stdout) == (0, "there\n")
        assert done.stderr.startswith(unknown) and "did not use CUDA" not in done.stderr
    assert run(path, gpu=None).stderr == "oomph: nothing was recorded: the program did not use CUDA through PyTorch\n"


def test_a_recording_that_was_removed_is_called_that(run, script):
    done = run(script("import os, torch\nkept = torch.empty(1 << 20, device='cuda')\nos.remove('train.oomph')\n"))
    assert (done.returncode, done.stderr) == (0, "warning: train.oomph is gone: it was removed or renamed while the program ran\n")


# --- what goes wrong --------------------------------------------------------------------------------------


def test_a_script_that_is_not_there(run):
    done = run("nowhere.py", gpu=None)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere.py: there is no such file") and "hint: " in done.stderr


def test_a_script_that_is_not_python(run, script):
    done = run(script("#!/bin/sh\necho 'no\n"), gpu=None)
    assert done.returncode == 1 and "SyntaxError" in done.stderr


def test_a_notebook_is_sent_to_its_kernel(run, script):
    done = run(script("{}", "book.ipynb"), gpu=None)
    assert done.returncode == 2 and "%load_ext oomph" in done.stderr


def test_without_torch_the_program_fails_as_it_would(run, script, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')\n")
    done = run(script("import torch\n"), gpu=None)
    assert done.returncode == 1 and "No module named torch" in done.stderr and "nothing was recorded" in done.stderr


def test_a_full_disk_does_not_stop_the_program(run, script, tmp_path):
    # As much as a file may have here, and no more: Python ignores the signal that comes with it.
    done = run(script("import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n" + TRAIN), "3")
    assert done.returncode == 0 and len(done.stdout.split()) == 2
    assert (tmp_path / "train.oomph").stat().st_size <= 4096
    assert "or the disk is full: of what came later only the end is in it" in done.stderr


def test_a_recording_that_became_too_large_says_so(run, script, tmp_path):
    done = run("--recording-limit", "16KiB", script("import torch\nfor n in range(3000):\n    torch.empty(512 * n, device='cuda')\n"))
    assert done.returncode == 0
    assert (tmp_path / "train.oomph").stat().st_size <= 16 << 10
    assert "--recording-limit" in done.stderr
    completeness = explained(tmp_path / "train.oomph")["devices"][0]["completeness"]
    assert completeness["truncated"] is True


def test_an_out_of_memory_after_the_limit_is_still_explained(run, script):
    path = script(
        """
        import torch
        for n in range(3000):
            torch.empty(512 * n, device="cuda")
        kept = torch.empty(10 << 30, dtype=torch.uint8, device="cuda")
        torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        """
    )
    done = run("--recording-limit", "64KiB", path)
    assert done.returncode == 1
    assert "error OM303: Out of memory: one tensor of 20.0 GiB is made at" in done.stderr and "10.0 GiB" in done.stderr


def test_loops_whose_variables_live_on_are_steady_too(run, script, tmp_path):
    path = script(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(200):
            x = torch.randn(64, 512, device="cuda")
            out = model(x)
            loss = out.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        """
    )
    done = run(path)
    (device,) = explained(tmp_path / "train.oomph")["devices"]
    assert [device["peak"]["allocated"], device["peak"]["reserved"]] == list(map(int, done.stdout.split()))
    assert device["steps"]["repeated"] >= 180


def test_a_search_for_torch_is_not_its_import(run, script):
    path = script("import importlib.util\nassert importlib.util.find_spec('torch')\nimport torch\nkept = torch.zeros(1 << 20, device='cuda')\n")
    assert "train.oomph has device 0" in run(path, python=sys.executable).stderr


def test_closed_descriptors_and_forks_and_tracers_are_survived(run, script, tmp_path):
    path = script(
        """
        import multiprocessing, os, sys, time
        import torch

        def child():
            torch.empty(1 << 20, device="cuda")

        if __name__ == "__main__":
            forked = multiprocessing.get_context("fork").Process(target=child)
            forked.start()
            forked.join()
            kept = [torch.empty(1 << 20, device="cuda")]
            time.sleep(0.3)
            os.closerange(3, 100)
            mine = open("mine.bin", "wb+", buffering=0)
            kept += [torch.empty(1 << 20, device="cuda") for _ in range(50)]
            time.sleep(0.5)
            print(forked.exitcode, os.fstat(mine.fileno()).st_size)
            sys.settrace(lambda *_: None)
            try:
                torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                print("caught")
        """
    )
    done = run(path)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "0", "caught"]), done.stderr
    assert (tmp_path / "mine.bin").stat().st_size == 0
    recordings = sorted(tmp_path.glob("*.oomph"))
    assert len(recordings) == 2
    assert sorted(explained(one)["devices"][0]["peak"]["allocated"] for one in recordings) == [4 << 20, 51 * (4 << 20)]


# --- oomph.record -----------------------------------------------------------------------------------------

BUDDIES = """
import concurrent.futures, os, signal, sys, time
import oomph, oomph._record, torch

# All that is slow, once: the first step of an optimizer imports this.
import torch._dynamo
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512))
oomph._record.library()


def train(path, reported):
    oomph.record(path, quiet=True)
    there = model.cuda()
    optimizer = torch.optim.AdamW(there.parameters())
    for number in range(1 << 30):
        # Not all alike: what is written again and again must be readable too.
        loss = there(torch.randn(1024 + 64 * (number % 7), 512, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        os.pwrite(reported, (number + 1).to_bytes(8, "little"), 0)


def begun(path):
    reported = os.open(path + ".steps", os.O_CREAT | os.O_RDWR)
    child = os.fork()
    if child == 0:
        train(path, reported)
    return child, reported


def ended(child, reported, moment):
    time.sleep(moment)
    steps = int.from_bytes(os.pread(reported, 8, 0), "little")
    time.sleep(0.4)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return steps, int.from_bytes(os.pread(reported, 8, 0), "little")


wishes = [line.split() for line in sys.stdin]
# Some at a time: most of it is waiting. Threads come when all of those are forked, and have gone before the next.
for first in range(0, len(wishes), 4):
    some = wishes[first : first + 4]
    children = [begun(path) for path, _ in some]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for steps in pool.map(ended, *zip(*children), [float(moment) for _, moment in some]):
            print(*steps, flush=True)
"""


def test_a_recording_cut_by_sigkill_at_any_moment_is_readable(run, script, tmp_path):
    dice = random.Random(5)
    moments = [(tmp_path / f"{number}.oomph", dice.uniform(0.0, 1.6)) for number in range(12)]
    wishes = "".join(f"{path} {moment}\n" for path, moment in moments)
    done = run("--no-recording", script(BUDDIES), input=wishes)
    assert done.returncode == 0, done.stderr
    reported = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(reported) == 12 and sum(after > 0 for _, after in reported) >= 6, reported
    for (path, _), (before, after) in zip(moments, reported):
        if not path.exists():
            assert after == 0
            continue
        read = explained(path)
        for device in read["devices"]:
            assert device["completeness"]["truncated"] is True
            steps = device["steps"] or {"count": 0, "repeated": 0}
            # All but the last moments is there: it is written ten times a second.
            assert before - 1 <= steps["count"] + steps["repeated"] <= after + 1
        assert read["devices"] or before == 0


def test_record_ends_with_its_block_and_says_what_to_type(run, script, tmp_path):
    path = script(
        """
        import oomph, torch
        with oomph.record("here.oomph") as recording:
            kept = torch.empty(1 << 20, device="cuda")
            assert recording.active
        assert not recording.active
        later = torch.empty(1 << 24, device="cuda")
        with oomph.record("again.oomph", quiet=True):
            more = torch.empty(1 << 21, device="cuda")
        """
    )
    done = run("--no-recording", path)
    assert done.returncode == 0, done.stderr
    assert f"Next: oomph explain {tmp_path / 'here.oomph'}" in done.stderr and "again" not in done.stderr
    peaks = [explained(tmp_path / name)["devices"][0]["peak"]["allocated"] for name in ("here.oomph", "again.oomph")]
    # What was there before a recording is in it.
    assert peaks == [4 << 20, (4 << 20) + (4 << 24) + (4 << 21)]


def test_record_explains_an_out_of_memory_that_nobody_catches(run, script):
    path = script("import oomph, torch\nwith oomph.record('a.oomph', quiet=True):\n    torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n")
    done = run("--no-recording", path)
    assert done.returncode == 1
    assert done.stderr.index("torch.OutOfMemoryError") < done.stderr.index("error OM303")


def test_record_to_a_place_that_cannot_be_written_says_so_at_once(run, script):
    path = script(
        """
        import oomph, torch
        try:
            oomph.record("/nowhere/x.oomph")
        except oomph.RecordingError as error:
            print(error)
        print(torch.zeros(3, device="cuda").numel())
        """
    )
    assert run("--no-recording", path).stdout == "/nowhere/x.oomph cannot be written: No such file or directory\n3\n"


def test_record_keeps_to_recordings_and_to_files_that_nobody_writes(run, script, tmp_path):
    path = script(
        """
        import fcntl, os, oomph, torch
        for name in ("notes", "link", "pipe"):
            try:
                oomph.record(name)
            except oomph.RecordingError as error:
                print(os.path.basename(str(error)))
        other = open("a.oomph", "wb")
        fcntl.flock(other, fcntl.LOCK_SH)
        with oomph.record("a.oomph") as recording:
            kept = torch.empty(1 << 20, device="cuda")
        print(os.path.basename(recording.path))
        # One that this process writes ends when another begins, whatever its name.
        first = oomph.record("b.oomph", quiet=True)
        with oomph.record("b.oomph", quiet=True) as recording:
            pass
        print(os.path.basename(recording.path), first.active)
        """
    )
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "link").symlink_to("notes")
    os.mkfifo(tmp_path / "pipe")
    done = run("--no-recording", path)
    assert done.stdout.splitlines() == [
        "notes cannot be written: exists already, and is no recording of oomph's",
        "link cannot be written: this is a link, and a recording is not written through one",
        "pipe cannot be written: this is no file, but a pipe or a device",
        "a-2.oomph",
        "b.oomph False",
    ], done.stderr
    assert f"oomph: {tmp_path / 'a.oomph'} is being written by another run; this one goes to {tmp_path / 'a-2.oomph'}\n" in done.stderr
    assert (tmp_path / "notes").read_text() == "mine" and (tmp_path / "a.oomph").stat().st_size == 0
    assert [peak(tmp_path / name) for name in ("a-2.oomph", "b.oomph")] == [4, 4]


def test_record_without_cuda_says_why(script, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.15.0+cpu'\nclass version:\n    cuda = None\n")
    path = script("import oomph\noomph.record()\n")
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
    assert "RecordingError: this PyTorch (2.15.0+cpu) is built without CUDA" in done.stderr


def test_importing_changes_nothing():
    code = """
import sys
before = (list(sys.path), list(sys.meta_path), sys.excepthook, dict(__import__("os").environ))
import oomph
after = (list(sys.path), list(sys.meta_path), sys.excepthook, dict(__import__("os").environ))
assert before == after and "torch" not in sys.modules and "IPython" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)


def test_a_library_that_cannot_be_loaded_stops_nobody(run, script):
    path = script(
        """
        import json, os
        os.remove(json.loads(os.environ["OOMPH_RUN"])["library"])
        import torch
        print(torch.zeros(3, device="cuda").numel())
        """
    )
    done = run(path, python=sys.executable)
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert "nothing was recorded" in done.stderr and "cannot open shared object file" in done.stderr
