"""The RAM guard raises where the machine would have killed, and the black box tells what a killed process did.

Real processes, and real control groups where this machine lets one be made; the trees of other machines' /proc and /sys are made of files.
"""

import contextlib
import json
import math
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

from conftest import PYTHON_2_11  # noqa: E402
from oomph import _black_box, _cgroups, _ram, _sizes  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
# What a test says first in its child: room of 300 MiB, and what it measures with.
GUARDED = """
import gc, os, resource, sys, time
import oomph
from oomph import _ram
LIMIT = _ram.used() + (300 << 20)
def soft(): return resource.getrlimit(resource.RLIMIT_DATA)[0]
"""


def environment(state):
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "XDG_STATE_HOME": str(state)}


@pytest.fixture
def child(tmp_path):
    """Runs Python code in a process of its own."""

    def run(code, before="", command=(sys.executable,), **options):
        code = before + GUARDED + textwrap.dedent(code)
        options = {"capture_output": True, "text": True, "timeout": 120, "env": environment(tmp_path), **options}
        return subprocess.run([*command, "-c", code], **options)

    return run


def lines(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# Limits


def tree(root, cgroup, mountinfo, files, memory="MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\nSwapFree: 0 kB\n"):
    """A machine made of files: 64 GiB, of which 48 are free."""
    everything = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo, "proc/meminfo": memory, **files}
    everything.setdefault("proc/self/status", "RssAnon: 1024 kB\nRssFile: 4096 kB\nRssShmem: 512 kB\nVmSwap: 256 kB\nVmData: 2048 kB\n")
    for path, text in everything.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def group2(folder, limit="max", high="max", current=0, cache=0, **more):
    files = {"memory.max": limit, "memory.high": high, "memory.current": current, "memory.stat": f"anon 1\ninactive_file {cache}\nactive_file 0\n"}
    return {f"sys/fs/cgroup/{folder}/{name}": f"{text}\n" for name, text in {**files, **more}.items()}


def group1(folder, limit, usage, cache=0, above=(1 << 63) - 4096):
    stat = f"cache 1\ninactive_file 7\nhierarchical_memory_limit {above}\ntotal_inactive_file {cache}\ntotal_active_file 0\n"
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage, "memory.stat": stat, "memory.oom_control": "oom_kill_disable 0\noom_kill 3\n"}
    return {f"sys/fs/cgroup/memory/{folder}/{name}": f"{text}\n" for name, text in files.items()}


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
HUGE = (1 << 63) - 4096

MACHINES = {
    "a desktop without limits": ("0::/user.slice/a.scope\n", V2, group2("user.slice/a.scope", current=9 * GIB), "the machine's memory", 64 * GIB, 48 * GIB),
    "a limit on the group itself": ("0::/a\n", V2, group2("a", 8 * GIB, current=3 * GIB), "a/memory.max", 8 * GIB, 5 * GIB),
    "a limit far above": (
        "0::/kubepods.slice/pod1/app\n",
        V2,
        {**group2("kubepods.slice/pod1/app"), **group2("kubepods.slice/pod1", 4 * GIB, current=GIB), **group2("kubepods.slice", 32 * GIB, current=30 * GIB)},
        "kubepods.slice/pod1/memory.max",
        4 * GIB,
        # The neighbours leave less than the pod's own limit does.
        2 * GIB,
    ),
    "throttled before it is killed": ("0::/a\n", V2, group2("a", 8 * GIB, high=6 * GIB, current=GIB), "a/memory.high", 6 * GIB, 5 * GIB),
    "pages of files can be dropped": ("0::/a\n", V2, group2("a", 8 * GIB, current=7 * GIB, cache=4 * GIB), "a/memory.max", 8 * GIB, 5 * GIB),
    "docker with its own namespace": ("0::/\n", V2, group2("", 2 * GIB, current=GIB), "cgroup/memory.max", 2 * GIB, GIB),
    "a path that the namespace hides": ("0::/../../b\n", V2, group2("", 2 * GIB, current=GIB), "cgroup/memory.max", 2 * GIB, GIB),
    "a group mounted as the root": (
        "0::/docker/abc/x\n",
        V2.replace(" / /sys", " /docker/abc /sys"),
        {**group2("x", "max"), **group2("", 3 * GIB, current=GIB)},
        "cgroup/memory.max",
        3 * GIB,
        2 * GIB,
    ),
    "version 1": ("4:memory:/a/b\n", V1, {**group1("a/b", HUGE, GIB), **group1("a", 5 * GIB, 2 * GIB)}, "a/memory.limit_in_bytes", 5 * GIB, 3 * GIB),
    "version 1 in docker": ("4:memory:/docker/abc\n", V1, group1("", 3 * GIB, 2 * GIB, cache=GIB), "memory/memory.limit_in_bytes", 3 * GIB, 2 * GIB),
    "version 1 below a limit that is hidden": ("4:memory:/\n", V1, group1("", HUGE, GIB, above=6 * GIB), "hierarchical_memory_limit", 6 * GIB, 5 * GIB),
    "version 1 without limits": ("4:memory:/a\n", V1, group1("a", HUGE, GIB), "the machine's memory", 64 * GIB, 48 * GIB),
    "both versions": (
        "4:memory,cpu:/a\n0::/user\n",
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" + V1.replace("rw,memory", "rw,cpu,memory"),
        {**group1("a", 5 * GIB, 2 * GIB), "sys/fs/cgroup/unified/user/cgroup.procs": "1\n"},
        "a/memory.limit_in_bytes",
        5 * GIB,
        3 * GIB,
    ),
    "nothing but a machine": ("", "", {}, "the machine's memory", 64 * GIB, 48 * GIB),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_smallest_limit_in_the_ancestry_is_found(tmp_path, machine):
    cgroup, mounts, files, source, limit, left = MACHINES[machine]
    root = tree(tmp_path, cgroup, mounts, files)
    found = _ram.limit(root)
    assert found.bytes == limit and found.source.endswith(source)
    assert _ram.left(root) == left
    assert _ram.used(root) == (1024 + 512 + 256) << 10


def test_swap_that_the_group_may_use_is_left_too(tmp_path):
    memory = "MemTotal: 67108864 kB\nMemAvailable: 50331648 kB\nSwapFree: 8388608 kB\n"
    swap = {"memory.swap.max": 2 * GIB, "memory.swap.current": GIB}
    root = tree(tmp_path, "0::/a\n", V2, group2("a", 8 * GIB, current=3 * GIB, **swap), memory)
    assert _ram.left(root) == 6 * GIB


def test_kills_are_counted_by_both_versions(tmp_path):
    first = tree(tmp_path / "1", "4:memory:/a\n", V1, group1("a", HUGE, GIB))
    events = {"memory.events": "low 0\nhigh 0\nmax 9\noom 5\noom_kill 2\noom_group_kill 0"}
    second = tree(tmp_path / "2", "0::/a\n", V2, group2("a", **events))
    assert [group.oom_kills()[1] for group in _cgroups.groups(first) if group.oom_kills()] == [3]
    assert [group.oom_kills()[1] for group in _cgroups.groups(second) if group.oom_kills()] == [2]


def test_limits_of_this_machine_make_sense():
    assert 0 < _ram.limit().bytes
    assert 0 < _ram.used() < _ram.limit().bytes
    assert 0 <= _ram.left()


# The guard


def test_one_request_that_is_too_large_fails_and_the_program_goes_on(child):
    done = child("""
        import numpy
        kept = numpy.arange(1 << 20)
        guard = oomph.guard_ram(LIMIT)
        for make in (lambda: numpy.ones(2 << 30, numpy.uint8), lambda: bytearray(2 << 30), lambda: [0] * (1 << 28)):
            try:
                make()
                print("made")
            except MemoryError:
                print("MemoryError", _ram.used() < LIMIT)
        print(int(kept.sum()) == (1 << 20) * ((1 << 20) - 1) // 2, len(bytearray(100 << 20)) >> 20)
    """)
    assert lines(done) == ["MemoryError True"] * 3 + ["True 100"]


@pytest.mark.parametrize("piece", ["bytearray(4 << 20)", "[object() for _ in range(100)]", "{'name': str(len(kept)) * 10}", "bytes(3000)"])
def test_a_loop_that_fills_memory_is_stopped_at_the_limit_with_its_data_intact(child, piece):
    done = child(f"""
        kept = []
        oomph.guard_ram(LIMIT, quiet=True)
        try:
            while True:
                kept += [{piece} for _ in range(4)]
        except MemoryError as error:
            time.sleep(0.3)  # A second exception would land in this handler.
            over = _ram.used() - LIMIT
            count = len(kept)
        print(over >> 20, count, sum(1 for one in kept if len(one)))
        kept.clear(); gc.collect(); time.sleep(0.2)
        print(len([bytearray(1 << 20) for _ in range(150)]))
    """)
    first, second = lines(done)
    over, count, whole = map(int, first.split())
    assert -100 <= over <= 64 and count == whole > 10
    assert second == "150"
    assert done.stderr == ""


def test_memory_that_is_touched_after_it_was_mapped_raises_with_the_numbers_once_an_excursion(child):
    done = child("""
        import mmap
        room = [mmap.mmap(-1, 400 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
        oomph.guard_ram(LIMIT, quiet=True)
        def fill(area):
            for at in range(0, 400 << 20, 1 << 20):
                area[at : at + (1 << 20)] = b"x" * (1 << 20)
                time.sleep(0.002)
        for area in room:
            try:
                fill(area)
                print("filled")
            except oomph.RamLimit as error:
                print(error)
                time.sleep(0.3)
                area.close()
                time.sleep(0.3)
    """)
    for line in lines(done):
        assert line.startswith("RAM ") and "(the limit given to guard_ram)" in line and line.endswith("free memory with del and oomph.free()")
    assert len(lines(done)) == 2


def test_the_warning_is_one_line_with_numbers_and_what_to_do(child):
    done = child("""
        oomph.guard_ram(LIMIT, stop=0.99)
        kept = [bytearray(1 << 20) for _ in range(200)]
        time.sleep(0.3)
        kept += [bytearray(1 << 20) for _ in range(2)]
        time.sleep(0.3)
        del kept
    """)
    assert done.returncode == 0 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("oomph: RAM ")
    assert "a MemoryError is raised: free memory with del and oomph.free()" in line


def test_quiet_and_calm_guards_say_nothing(child):
    done = child("""
        with oomph.guard_ram() as guard:
            bytearray(50 << 20)
            time.sleep(0.6)
        with oomph.guard_ram(LIMIT, stop=0.99, quiet=True):
            kept = [bytearray(1 << 20) for _ in range(200)]
            time.sleep(0.3)
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_the_guard_changed_is_put_back(child):
    done = child("""
        import subprocess, _posixsubprocess, threading
        before = soft(), _posixsubprocess.fork_exec, os.system, getattr(subprocess, "_fork_exec", None), threading.active_count()
        def now(): return soft(), _posixsubprocess.fork_exec, os.system, getattr(subprocess, "_fork_exec", None), threading.active_count()
        with oomph.guard_ram(LIMIT):
            print(soft() != before[0], now()[1] is not before[1])
        print(now() == before)
        first = oomph.guard_ram(LIMIT); second = oomph.guard_ram("8 GiB")
        print(threading.active_count() - before[-1])
        first.stop(); first.stop()
        print(soft() != before[0])
        oomph.unguard_ram(); oomph.unguard_ram()
        print(now() == before, os.listdir(os.environ["XDG_STATE_HOME"] + "/oomph/flight"))
    """)
    assert lines(done) == ["True True", "True", "1", "True", "True []"]


def test_a_limit_that_somebody_else_set_is_kept(child):
    done = child("""
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (200 << 20, hard))
        print(_ram.limit().bytes >> 20, _ram.limit().source)
        guard = oomph.guard_ram()
        print(soft() >> 20, _ram.limit().bytes >> 20)
        guard.stop()
        print(soft() >> 20)
        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, hard))
        guard = oomph.guard_ram(LIMIT)
        resource.setrlimit(resource.RLIMIT_DATA, (180 << 20, hard))
        time.sleep(0.3)
        print(soft() >> 20)
        guard.stop()
        print(soft() >> 20)
    """)
    assert lines(done) == ["200 RLIMIT_DATA", "200 200", "200", "180", "180"]


def test_the_limit_is_told_without_the_floor(child):
    done = child("""
        before = _ram.limit()
        oomph.guard_ram(LIMIT)
        print(_ram.limit() == before)
    """)
    assert lines(done) == ["True"]


def test_programs_and_forks_do_not_inherit_the_floor(child):
    done = child("""
        import multiprocessing, pty, subprocess
        def in_child(queue): queue.put(soft())
        if __name__ == "__main__":
            oomph.guard_ram(LIMIT)
            ask = ["bash", "-c", "ulimit -d"]
            said = [subprocess.run(ask, capture_output=True, text=True).stdout.strip()]
            said.append(subprocess.run(ask, stdout=subprocess.PIPE, text=True, close_fds=False).stdout.strip())
            said.append(os.popen("ulimit -d").read().strip())
            sys.stdout.flush(); os.system("ulimit -d")
            os.waitpid(os.posix_spawn("/bin/bash", ask, os.environ), 0)
            queue = multiprocessing.get_context("fork").Queue()
            process = multiprocessing.get_context("fork").Process(target=in_child, args=(queue,))
            process.start(); said.append(queue.get()); process.join()
            print(*said, soft() > 0, sep="\\n")
    """)
    assert lines(done) == ["unlimited"] * 5 + ["-1", "True"]


def test_a_worker_that_was_spawned_does_not_inherit_the_floor(child, tmp_path):
    script = tmp_path / "spawning.py"
    script.write_text(
        GUARDED
        + textwrap.dedent("""
        import multiprocessing
        def work(_): return soft()
        if __name__ == "__main__":
            oomph.guard_ram(LIMIT)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [0]))
    """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment(tmp_path))
    assert lines(done) == ["[-1]"]


def test_nonsense_is_refused():
    for options in ({"warn": 0.9, "stop": 0.8}, {"stop": 1.5}, {"warn": 0}, {"interval": 0}, {"limit": 0}, {"limit": "much"}):
        with pytest.raises(ValueError):
            _ram.guard_ram(**options)
    assert _ram._guard is None


def test_sizes_are_read_and_written_as_by_the_command():
    table = json.loads((ROOT / "crates" / "oomph-words" / "sizes.json").read_text())
    assert [_sizes.text(size) for size, _ in table["written"]] == [words for _, words in table["written"]]
    assert [_sizes.size_in_bytes(typed) for typed, _ in table["read"]] == [size for _, size in table["read"]]
    for typed in (*table["refused"], 14, 0, -1):
        with pytest.raises(ValueError):
            _sizes.size_in_bytes(typed)
    assert _sizes.size_in_bytes(8 * GIB) == 8 * GIB


def test_watching_costs_next_to_nothing(child):
    # Measured here: 0.2 % of a core. The bar leaves room for a slow machine.
    done = child("""
        oomph.guard_ram()
        time.sleep(0.5)
        before = time.process_time()
        time.sleep(3)
        print((time.process_time() - before) / 3)
    """)
    assert float(lines(done)[0]) < 0.02


def test_a_bystander_is_left_alone(child):
    # The machine is full, by others: this process has less than the reserve, and could not mend it.
    done = child("""
        from oomph import _cgroups
        _cgroups.machine = lambda root="/": _cgroups.Memory(64 << 30, 1 << 30, 0)
        oomph.guard_ram()
        time.sleep(0.3)
        print(len(bytearray(500 << 20)) >> 20)
    """)
    assert lines(done) == ["500"] and done.stderr == ""


def test_a_notebook_is_not_interrupted_between_cells(child):
    pytest.importorskip("IPython")
    done = child("""
        from IPython.core.interactiveshell import InteractiveShell
        print(_ram._in_the_program())
        shell = InteractiveShell.instance()
        print(_ram._in_the_program())
        shell.run_cell("from oomph import _ram; print(_ram._in_the_program())")
    """)
    assert lines(done) == ["True", "False", "True"]


@pytest.mark.parametrize("python", [sys.executable, str(PYTHON_2_11)], ids=["this IPython", "Colab's IPython"])
def test_a_cell_that_fills_memory_fails_and_the_kernel_lives(tmp_path, python):
    jupyter = pytest.importorskip("jupyter_client")
    if subprocess.run([python, "-c", "import ipykernel"], capture_output=True).returncode:
        pytest.skip(f"{python} has no ipykernel")
    manager = jupyter.KernelManager()
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = jupyter.kernelspec.KernelSpec(argv=argv, display_name="plain", language="python")
    manager.start_kernel(env=environment(tmp_path))
    client = manager.client()
    client.start_channels()

    def run(code):
        said = []
        # After an error a kernel drops, for a moment, what comes with stop_on_error: a cell that comes quickly would not run.
        reply = client.execute_interactive(textwrap.dedent(code), timeout=120, stop_on_error=False, output_hook=lambda message: said.append(message["content"]))
        assert reply["content"]["status"] in ("ok", "error")
        return reply["content"].get("ename"), "".join(content.get("text", "") for content in said)

    try:
        client.wait_for_ready(timeout=120)
        assert run(GUARDED + "guard = oomph.guard_ram(LIMIT + (900 << 20), quiet=True)") == (None, "")
        for _ in range(2):
            # IPython 7 on Python 3.11 may fail to draw a MemoryError, and then tells of a TypeError of its own.
            drawn = ("RamLimit", "MemoryError", "TypeError") if python == str(PYTHON_2_11) else ("RamLimit", "MemoryError")
            assert run("kept = []\nwhile True: kept.append(bytes(3000))")[0] in drawn
            assert run("filled = len(kept) > 1000; kept.clear(); time.sleep(1.5); print(filled)") == (None, "True\n")
        # A thread that fills memory between cells is no reason to break into the kernel's own loop.
        assert run("""
            import threading
            threading.Thread(target=lambda: (time.sleep(0.5), kept.extend(bytearray(1 << 20) for _ in range(1050)))).start()
        """) == (None, "")
        time.sleep(6)
        assert run("filled = len(kept) > 500; kept.clear(); time.sleep(0.3); print(filled)") == (None, "True\n")
        assert run("guard.stop(); print(soft())") == (None, "-1\n")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_pytorch_maps_a_checkpoint_that_is_larger_than_what_is_left(child, tmp_path):
    pytest.importorskip("safetensors")
    done = child("""
        folder = os.environ["XDG_STATE_HOME"]
        oomph.guard_ram(64 << 30)
        import torch, safetensors, safetensors.torch
        size = 400 << 20
        torch.save({"a": torch.zeros(size, dtype=torch.uint8)}, folder + "/a.pt")
        safetensors.torch.save_file({"a": torch.zeros(size, dtype=torch.uint8)}, folder + "/a.safetensors")
        gc.collect()
        oomph.guard_ram(_ram.used() + (200 << 20))
        first = torch.load(folder + "/a.pt", mmap=True)["a"]
        with safetensors.safe_open(folder + "/a.safetensors", "pt") as file:
            second = file.get_tensor("a")
        print(first[-1].item(), second[-1].item(), soft() > 0)
        try:
            torch.ones(size, dtype=torch.uint8)
        except RuntimeError as error:
            print("can't allocate memory" in str(error))
        oomph.unguard_ram()
        print("from_file" in vars(torch.UntypedStorage))
    """)
    assert lines(done) == ["0 0 True", "True", "False"]


def test_dataloader_workers_start_and_work_under_the_guard(child):
    done = child("""
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, index): return torch.full((1 << 20,), float(index)), soft()
        oomph.guard_ram(_ram.used() + (800 << 20))
        loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2)
        print([(int(batch.sum()) >> 20, set(limits.tolist())) for batch, limits in loader])
    """)
    assert lines(done) == ["[(1, {-1}), (5, {-1}), (9, {-1}), (13, {-1})]"]


# A real control group


@contextlib.contextmanager
def control_group(limit):
    """A group below this process's own, or below one above it, with a limit on memory; skips the test where none can be made."""
    refused = ["no control group of memory is to be seen"]
    for group in _cgroups.groups():
        folder = pathlib.Path(group.folder) / f"oomph-test-{os.getpid()}"
        try:
            folder.mkdir()
            try:
                (folder / ("memory.max" if group.version == 2 else "memory.limit_in_bytes")).write_text(str(limit))
            except OSError:
                folder.rmdir()
                raise
        except OSError as error:
            refused.append(str(error))
            continue
        try:
            yield folder
        finally:
            # The kernel takes a moment to let go of the last process.
            until = time.monotonic() + 20
            while folder.exists() and time.monotonic() < until:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                time.sleep(0.05)
        return
    pytest.skip(f"no control group with a limit can be made here: {refused[-1]}")


FILL = {
    "one request": "kept = bytearray(1 << 30)",
    "large pieces": "while True: kept.append(bytearray(8 << 20))",
    "small pieces": "while True: kept.append([object() for _ in range(100)])",
}


@pytest.mark.parametrize("how", FILL)
def test_the_guard_raises_where_the_kernel_kills(child, how):
    fill = f"kept = []\ntry:\n    {FILL[how]}\nexcept MemoryError as error:\n    print('MemoryError', _ram.used() > 0)\n"
    with control_group(400 * MIB) as folder:
        enter = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
        killed = child(fill, before=enter)
        assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
        guarded = child("guard = oomph.guard_ram(quiet=True); print(_ram.limit().bytes >> 20)\n" + fill, before=enter)
        assert lines(guarded) == ["400", "MemoryError True"]


def test_memory_of_others_in_the_group_counts(child, tmp_path):
    with control_group(600 * MIB) as folder:
        enter = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
        code = enter + "kept = bytearray(300 << 20); print('ready', flush=True); input()"
        other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout.readline() == "ready\n"
            done = child(
                """
                guard = oomph.guard_ram(quiet=True)
                try:
                    bytearray(300 << 20)
                except MemoryError:
                    print("MemoryError", len(bytearray(150 << 20)) >> 20)
            """,
                before=enter,
            )
        finally:
            other.communicate("\n", timeout=60)
    assert lines(done) == ["MemoryError 150"]


def test_the_box_of_a_process_that_the_kernel_killed_names_the_kernel(child, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with control_group(400 * MIB) as folder:
        enter = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
        # Shared memory, filled in one call: neither floor nor watchdog can stop that.
        killed = child(
            """
            import ctypes, mmap
            from oomph import _black_box
            area = mmap.mmap(-1, 1 << 30)
            oomph.guard_ram(quiet=True)
            _black_box.note("cell [7]: area[:] = 1")
            time.sleep(0.3)
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(area)), 1, 1 << 30)
        """,
            before=enter,
        )
        assert killed.returncode == -signal.SIGKILL
        reported = child("oomph.guard_ram()", before=enter)
    first, second, *_ = reported.stderr.splitlines()
    assert "while running cell [7]: area[:] = 1: probably killed by the machine's kernel for its memory" in first
    assert first.endswith(", as its count of kills says")
    assert "of 400 MiB" in second


# The black box


@pytest.fixture
def flight(tmp_path, monkeypatch):
    """The folder of the boxes, empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "oomph" / "flight"
    folder.mkdir(parents=True)
    yield folder
    _black_box.close()


def killed(child_code, state, after):
    """Runs the code until it prints, and kills it so many seconds later; gives its process id."""
    process = subprocess.Popen([sys.executable, "-c", GUARDED + textwrap.dedent(child_code)], stdout=subprocess.PIPE, text=True, env=environment(state))
    assert process.stdout.readline() == "ready\n"
    time.sleep(after)
    process.kill()
    process.communicate(timeout=60)
    return process.pid


def test_a_killed_process_is_told_by_the_next_start_and_only_once(flight, child, tmp_path):
    pid = killed(
        """
        from oomph import _black_box
        sys.argv = ["/home/me/train.py", "--token", "SECRET"]
        oomph.guard_ram(quiet=True)
        _black_box.note("cell [3]: model = load()")
        _black_box.warned("RAM is short")
        kept = bytearray(100 << 20)
        time.sleep(0.6)
        print("ready", flush=True)
        time.sleep(60)
    """,
        tmp_path,
        0.1,
    )
    [box] = flight.iterdir()
    assert b"SECRET" not in box.read_bytes() and b"/home/me" not in box.read_bytes()
    assert box.stat().st_mode & 0o777 == 0o600
    reported = child("oomph.guard_ram()").stderr.splitlines()
    assert reported[0].startswith(f"oomph: train.py (process {pid}) ended at ")
    assert reported[0].endswith("while running cell [3]: model = load(): stopped from outside, or crashed")
    assert reported[1].startswith("oomph: its last sample: RAM ") and "(+1" in reported[1]
    assert reported[2] == "oomph: it had been warned: RAM is short"
    assert len(reported) == 3 and list(flight.iterdir()) == []
    assert child("oomph.guard_ram()").stderr == ""


def test_a_box_is_readable_whenever_its_process_is_killed(flight, tmp_path):
    chance = random.Random(5)
    for _ in range(20):
        pid = killed(
            """
            from oomph import _black_box
            _black_box.open_box()
            print("ready", flush=True)
            for number in range(1 << 40):
                _black_box.note(f"cell [{number}]: " + "x" * (number % 150))
                _black_box.sample(number << 20, number << 20, 1 << 60)
        """,
            tmp_path,
            chance.uniform(0, 0.1),
        )
        lines = _black_box.last_words(tell=False)
        assert f"(process {pid})" in lines[0] and "stopped from outside, or crashed" in lines[0]
        assert len(lines) == 2 and "its last sample: RAM " in lines[1]
        assert list(flight.iterdir()) == []


def test_a_process_that_lives_is_not_told_and_one_that_ends_properly_leaves_nothing(flight, child, tmp_path):
    code = "oomph.guard_ram(quiet=True); print('ready', flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", GUARDED + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(tmp_path))
    assert process.stdout.readline() == "ready\n"
    assert _black_box.last_words(tell=False) == []
    assert len(list(flight.iterdir())) == 1
    process.communicate("\n", timeout=60)
    assert process.returncode == 0 and list(flight.iterdir()) == []
    done = child("oomph.guard_ram(); raise SystemExit(3)")
    assert done.returncode == 3 and list(flight.iterdir()) == []
    done = child("oomph.guard_ram(); raise ValueError")
    assert done.returncode == 1 and list(flight.iterdir()) == []


def test_a_fork_does_not_touch_the_box_of_its_parent(flight, child):
    done = child("""
        from oomph import _black_box
        oomph.guard_ram(quiet=True)
        if os.fork() == 0:
            _black_box.note("child"); _black_box.sample(1, 1, 1); oomph.unguard_ram()
            sys.exit(0)
        os.wait()
        [name] = os.listdir(_black_box._folder())
        print(name.startswith(f"{os.getpid()}-"), b"child" in open(f"{_black_box._folder()}/{name}", "rb").read(), _ram._guard is not None)
    """)
    assert lines(done) == ["True False True"]


def finished(flight, monkeypatch, **slots):
    """A box of a process that is gone, as bytes."""
    monkeypatch.setattr(_black_box, "_start_of", lambda pid: 1)
    _black_box.open_box()
    _black_box.sample(3 * GIB, 10 * GIB, 12 * GIB)
    for name, words in slots.items():
        _black_box._box.put(name, words)
    _black_box._box._map and _black_box._box._map.flush()
    data = pathlib.Path(_black_box._box.path).read_bytes()
    _black_box.close()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(flight.parents[1]))
    return data


def old(path):
    os.utime(path, (time.time() - 60,) * 2, follow_symlinks=False)


def test_boxes_that_make_no_sense_are_deleted_without_a_word(flight, monkeypatch):
    whole = finished(flight, monkeypatch)
    chance = random.Random(7)
    header = _black_box._HEADER
    damaged = {
        "empty": b"",
        "cut": whole[:-1],
        "long": whole + b"\0",
        "zeros": bytes(len(whole)),
        "noise": chance.randbytes(len(whole)),
        "no header": b"\0" * 40 + whole[40:],
        "never": _black_box._checked(header.pack(b"oomphbox1\n", 1, 1, math.nan, 0)) + whole[header.size + 4 :],
        "far": _black_box._checked(header.pack(b"oomphbox1\n", 1, 1, 1e300, 0)) + whole[header.size + 4 :],
    }
    for number, data in enumerate(damaged.values()):
        path = flight / f"1-{number}.box"
        path.write_bytes(data)
        old(path)
    (flight / "2-1.box").symlink_to("/etc/passwd")
    os.mkfifo(flight / "2-2.box")
    old(flight / "2-2.box")
    (flight / "2-3.box").mkdir()
    (flight / "notes.txt").write_text("not a box")
    assert _black_box.last_words(tell=False) == []
    assert sorted(path.name for path in flight.iterdir()) == ["2-3.box", "notes.txt"]


def test_damaged_samples_cost_themselves_and_no_more(flight, monkeypatch):
    whole = bytearray(finished(flight, monkeypatch))
    whole[_black_box._RING_AT + 5] ^= 0xFF
    nonsense = struct.pack("<QdQQQQQ", 9, math.inf, *[(1 << 64) - 1] * 5)
    at = _black_box._RING_AT + 10 * (len(nonsense) + 4)
    whole[at : at + len(nonsense) + 4] = _black_box._checked(nonsense)
    (flight / "1-1.box").write_bytes(whole)
    [line] = _black_box.last_words(tell=False)
    assert "stopped from outside, or crashed" in line


def test_text_of_a_box_is_shown_without_control_characters(flight, monkeypatch, capsys):
    (flight / "1-1.box").write_bytes(finished(flight, monkeypatch, note="\x1b[2Jcell\u202e\n\r", program="a\x00b", counter="/etc/passwd"))
    lines = _black_box.last_words()
    assert "a?b (process" in lines[0] and "while running ?[2Jcell???:" in lines[0]
    assert capsys.readouterr().err == "".join(f"oomph: {line}\n" for line in lines)


def test_many_boxes_are_told_in_a_few_lines(flight, monkeypatch):
    whole = finished(flight, monkeypatch)
    for number in range(10):
        (flight / f"1-{number}.box").write_bytes(whole)
    lines = _black_box.last_words(tell=False)
    assert len(lines) == 7 and lines[-1] == "7 more ended before that without closing"
    assert list(flight.iterdir()) == []


def test_a_filesystem_that_refuses_mappings_is_written_as_files_are(flight, monkeypatch):
    def refused(*_):
        raise OSError(19, "No such device")

    monkeypatch.setattr(_black_box.mmap, "mmap", refused)
    whole = finished(flight, monkeypatch, note="cell [1]")
    (flight / "1-1.box").write_bytes(whole)
    first, second = _black_box.last_words(tell=False)
    assert "while running cell [1]" in first
    assert second == "its last sample: RAM 10.0 GiB of 12.0 GiB, 3.00 GiB of it that process"


def test_without_a_folder_nothing_is_recorded_and_nothing_said(child):
    done = child(
        """
        from oomph import _black_box
        oomph.guard_ram(LIMIT)
        _black_box.note("x"); _black_box.sample(1, 2, 3); print(_black_box.last_words())
    """,
        env={**environment("/proc/nowhere")},
    )
    assert lines(done) == ["[]"] and done.stderr == ""


def test_memory_of_the_gpu_is_in_the_box_and_the_virtual_one_needs_none(flight, on_virtual_gpu, tmp_path):
    code = GUARDED + textwrap.dedent("""
        oomph.guard_ram(quiet=True)
        import torch
        kept = torch.empty(100 << 30, dtype=torch.uint8, device="cuda"), torch.ones(100 << 20, dtype=torch.uint8).pin_memory()
        time.sleep(1.5)
        os.kill(os.getpid(), 9)
    """)
    done = on_virtual_gpu("-c", code, gpu="h200", env=environment(tmp_path))
    assert "Error" not in done.stderr
    lines = _black_box.last_words(tell=False)
    assert lines[1].endswith("; GPU 100 GiB allocated, 100 GiB reserved")


@pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="needs a real GPU")
def test_a_cuda_context_and_pinned_memory_live_under_the_floor(child):
    done = child("""
        import torch
        oomph.guard_ram(_ram.used() + (2 << 30), quiet=True)
        before = _ram.Process.now()
        kept = torch.ones(1 << 20, device="cuda")
        pinned = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
        kept += pinned[: 1 << 20].cuda() * 0
        torch.cuda.synchronize()
        after = _ram.Process.now()
        print(int(kept.sum()) == 1 << 20)
        print(f"VmData {(after.mapped - before.mapped) >> 20} MiB more, own {(after.own - before.own) >> 20} MiB more", file=sys.stderr)
    """)
    print(done.stderr)
    assert lines(done) == ["True"]
