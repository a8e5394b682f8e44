"""``oomph run --ram --attach``: a process that runs already is recorded, goes on as if nothing had been, and where that may not be, it is said why.

Where the machine forbids to attach (a container without SYS_PTRACE, Yama), each test that would holds the command to the error that says so.
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from conftest import A_SAMPLE

MIB = 1 << 20
# Waits for a line, and comes to Python meanwhile.
TOLD = "import select, sys\ndef told():\n    print('ready', flush=True)\n    while not select.select([sys.stdin], [], [], 0.02)[0]: pass\n    return sys.stdin.readline()\n"


class Running:
    """A program that waits for lines, and the command that records it."""

    def __init__(self, oomph, folder, text):
        self.oomph, self.folder = oomph, folder
        (folder / "load.py").write_text(TOLD + textwrap.dedent(text).lstrip("\n"))
        self.program = subprocess.Popen([sys.executable, "load.py"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready()

    def ready(self):
        assert self.program.stdout.readline() == "ready\n"

    def tell(self):
        self.program.stdin.write("go\n")
        self.program.stdin.flush()

    def attach(self, *options):
        """The command once it records; None where it may not, and says so."""
        command = [str(self.oomph.binary), "run", "--ram", "--attach", str(self.program.pid), *options]
        # A command that is killed leaves its folder.
        recording = subprocess.Popen(command, cwd=self.folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(self.folder)})
        said = recording.stderr.readline()
        if f"oomph: recording the RAM of process {self.program.pid} (load)" in said:
            assert "what it held before is in the kernel's count only" in recording.stderr.readline()
            return recording
        rest = recording.communicate(timeout=60)[1]
        assert "may not be attached to" in said and "\nhint: " in rest, said + rest
        assert recording.returncode == 2
        assert self.ends() == 0
        return None

    def ends(self):
        """Its exit code, if nothing more is told."""
        self.program.stdin.close()
        return self.program.wait(60)


@pytest.fixture
def running(oomph, tmp_path):
    all_of_them = []

    def start(text):
        all_of_them.append(Running(oomph, tmp_path, text))
        return all_of_them[-1]

    yield start
    for one in all_of_them:
        one.program.kill()
        with one.program:
            pass


def lines(oomph, path):
    """Bytes by line of load.py."""
    code, out, err = oomph("explain", "--format", "json", path)
    assert code == 0, err
    places = ((line["place"], line["bytes"]) for line in json.loads(out)["host"]["lines"])
    return {place["line"]: size for place, size in places if place and place["file"].endswith("load.py")}


ARRAYS = """
    before = bytearray(30 << 20)
    told()
    import numpy as np
    kept = [np.ones(100 << 17)]
    told()
    print("held", len(before) + kept[0].nbytes)
    """


@pytest.mark.parametrize("end", ["--seconds", "Ctrl-C", "the process", "kill -9"])
def test_a_line_is_named_whatever_ends_the_recording(oomph, tmp_path, running, end):
    running = running(ARRAYS)
    recording = running.attach(*(["--seconds", "3"] if end == "--seconds" else []))
    if recording is None:
        return
    running.tell()
    running.ready()
    if end == "Ctrl-C":
        recording.send_signal(signal.SIGINT)
    if end == "kill -9":
        recording.kill()
    if end == "the process":
        assert running.ends() == 0
    said = recording.communicate(timeout=60)[1]
    assert recording.returncode == (-signal.SIGKILL if end == "kill -9" else 0), said
    if end != "kill -9":
        peak = re.search(r"load-ram\.oomph has RAM: peak (\d+) MiB asked for, (?:\d+ MiB to )?(\d+) MiB counted by the kernel\nNext: oomph explain load-ram\.oomph\n", said)
        assert 100 <= int(peak[1]) < 115 and int(peak[2]) >= 130, said
    found = lines(oomph, tmp_path / "load-ram.oomph")
    # What was held before has no line.
    assert found[9] == pytest.approx(100 * MIB, abs=A_SAMPLE) and 6 not in found
    assert running.program.poll() in (None, 0)
    if end != "the process":
        assert running.ends() == 0
    assert running.program.stdout.read() == f"held {130 * MIB}\n"


BUSY = """
    import hashlib, os, queue, signal, threading, time
    ticks, counts, stop = [0], {}, threading.Event()
    for one in (signal.SIGALRM, signal.SIGRTMIN + 3):
        signal.signal(one, lambda *_: ticks.__setitem__(0, ticks[0] + 1))
    right = hashlib.sha256(b"a" * 100_000).digest()

    def counted(work):
        def repeat():
            counts[work.__name__] = 0
            while not stop.is_set():
                work()
                counts[work.__name__] += 1
        return threading.Thread(target=repeat)

    def sleeps(): time.sleep(0.001)
    def signals(): os.kill(os.getpid(), signal.SIGRTMIN + 3); time.sleep(0.002)
    def hashes(): assert hashlib.sha256(b"a" * 100_000).digest() == right
    def pipes():
        r, w = os.pipe()
        feed = threading.Thread(target=lambda: (time.sleep(0.001), os.write(w, b"x")))
        feed.start()
        assert os.read(r, 10) == b"x"
        feed.join(); os.close(r); os.close(w)
    def waits():
        items = queue.Queue()
        feed = threading.Thread(target=lambda: (time.sleep(0.001), items.put(7)))
        feed.start()
        assert items.get() == 7
        feed.join()

    threads = [counted(work) for work in (sleeps, signals, hashes, pipes, waits)]
    [one.start() for one in threads]
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    print("ready", flush=True)
    while not stop.is_set():
        assert abs(sum([float(i) * 1.5 for i in range(2000)]) - 2998500.0) < 1e-3
    signal.setitimer(signal.ITIMER_REAL, 0)
    [one.join() for one in threads]
    print("right", ticks[0] > 10 and all(count > 3 for count in counts.values()), len(counts))
    """


def test_a_busy_process_of_many_threads_and_signals_is_attached_to_again_and_again(oomph, tmp_path, running):
    running = running(BUSY)
    for _ in range(10):
        recording = running.attach("--output", "busy.oomph")
        if recording is None:
            return
        recording.send_signal(signal.SIGINT)
        said = recording.communicate(timeout=60)[1]
        assert recording.returncode == 0 and "busy.oomph has RAM: peak " in said, said
    assert running.ends() == 0
    assert running.program.stdout.read() == "right True 5\n"


def test_a_main_thread_that_waits_for_another_is_woken(oomph, tmp_path, running):
    running = running(
        """
        import threading
        def work():
            told()
            kept = bytearray(50 << 20)
            told()
        one = threading.Thread(target=work)
        one.start()
        one.join()
        """
    )
    recording = running.attach()
    if recording is None:
        return
    running.tell()
    running.ready()
    recording.send_signal(signal.SIGINT)
    assert recording.wait(60) == 0
    assert lines(oomph, tmp_path / "load-ram.oomph")[9] == pytest.approx(50 * MIB, abs=A_SAMPLE)
    assert running.ends() == 0


def test_a_process_that_becomes_another_program_is_left_alone(oomph, tmp_path, running):
    running = running("import os\nkept = None\ntold()\nkept = bytearray(50 << 20)\nos.execv(sys.executable, [sys.executable, '-c', 'import sys; print(sys.stdin.read())'])")
    recording = running.attach()
    if recording is None:
        return
    running.tell()
    said = recording.communicate(timeout=60)[1]
    assert recording.returncode == 0 and "load-ram.oomph has RAM: peak 50." in said, said
    assert lines(oomph, tmp_path / "load-ram.oomph")[9] == pytest.approx(50 * MIB, abs=A_SAMPLE)
    assert running.ends() == 0


def test_one_that_never_comes_to_python_is_given_up(oomph, tmp_path, running):
    running = running("import time\nprint('ready', flush=True)\ntime.sleep(5)\nprint(any('oomph' in line for line in open('/proc/self/maps')))")
    command = [str(oomph.binary), "run", "--ram", "--attach", str(running.program.pid)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as recording:
        said = recording.stderr.readline()
        if "may not be attached to" in said:
            return
        assert f"the main thread of process {running.program.pid} waits (s" in said and "Ctrl-C gives up" in said
        recording.send_signal(signal.SIGINT)
        assert "nothing was recorded" in recording.stderr.read()
    assert recording.returncode == 128 + signal.SIGINT
    assert os.listdir(tmp_path) == ["load.py"]
    assert running.ends() == 0
    assert running.program.stdout.read() == "False\n"


def test_why_not_is_said(oomph, tmp_path, running):
    def refused(*options):
        code, out, err = oomph("run", *options, cwd=tmp_path)
        assert code == 2 and out == ""
        return err

    with subprocess.Popen(["sleep", "60"]) as sleep:
        assert f"error: process {sleep.pid} (sleep) is no Python\n\nhint: pgrep" in refused("--ram", "--attach", str(sleep.pid))
        sleep.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, sleep.pid, os.WSTOPPED)
        assert "is stopped" in refused("--ram", "--attach", str(sleep.pid))
        sleep.kill()
        sleep.wait()
    assert f"error: there is no process {sleep.pid}" in refused("--ram", "--attach", str(sleep.pid))
    assert "--attach records RAM" in refused("--attach", str(os.getpid()))
    assert "--attach names it" in refused("--ram", "--seconds", "3", "load.py")
    assert "cannot be used with" in refused("--ram", "--attach", "1", "load.py")
    (tmp_path / "load.py").write_text("import sys; print('on', flush=True); sys.stdin.read()")
    command = [str(oomph.binary), "run", "--ram", "--python", sys.executable, "load.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        run.stdout.readline()
        children = open(f"/proc/{run.pid}/task/{run.pid}/children").read().split()
        (python,) = [child for child in children if b"load.py" in open(f"/proc/{child}/cmdline", "rb").read()]
        said = refused("--ram", "--attach", python)
        assert "by oomph run --ram already" in said and f"oomph explain {tmp_path}/load-ram.oomph" in said or "may not be attached to" in said
        run.stdin.close()
    assert not list(tmp_path.glob("load-ram-*"))


def test_there_is_one_recording_at_a_time(oomph, tmp_path, running):
    running = running("told()")
    first = running.attach()
    if first is None:
        return
    command = [str(oomph.binary), "run", "--ram", "--attach", str(running.program.pid), "--output", "other.oomph"]
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert second.returncode == 2 and "is being recorded already" in second.stderr
    assert not (tmp_path / "other.oomph").exists()
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 0
