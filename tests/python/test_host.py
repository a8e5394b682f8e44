"""oomph.host gives back RAM that was freed, measured from outside, and says what it did."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

import oomph  # noqa: E402
from oomph import _heap, host  # noqa: E402

MIB = 1 << 20
BEFORE = """
import gc, sys, threading
import oomph
from oomph import host
def rss():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Rss:"))
"""


def child(code):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", BEFORE + textwrap.dedent(code)], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_heap_with_holes_is_given_back():
    out = child("""
        start = rss()
        blocks = [bytes(1000 + n % 50) for n in range(200_000)]
        full = rss()
        kept = blocks[::50]  # One in every few pages, to the very end of the heap.
        del blocks
        holes = rss()
        trimmed = host.trim()
        print(full - start, full - holes, holes - rss(), trimmed.returned, trimmed.by["the C library's heap"], trimmed.before - trimmed.after)
        print(trimmed)
    """)
    taken, before_trim, really, returned, by_heap, difference = map(int, out[0].split())
    assert taken > 180 * MIB and before_trim < 0.1 * taken
    assert really >= 0.5 * taken
    assert abs(returned - really) < 2 * MIB and returned == difference and 0 < by_heap <= returned + MIB
    assert out[1].endswith("now (measured)") and "of RAM given back" in out[1]


def test_garbage_in_cycles_is_given_back():
    out = child("""
        gc.disable()
        class Node: pass
        for n in range(50):
            node = Node()
            node.me, node.data = node, bytearray(b"x") * (1 << 20)
        del node
        trimmed = host.trim()
        print(trimmed.returned, trimmed.by["garbage in cycles"])
    """)
    returned, cycles = map(int, out[0].split())
    assert cycles > 45 * MIB and returned > 45 * MIB


def test_steps_that_have_nothing_to_do_are_not_told_and_import_nothing():
    out = child("""
        before = set(sys.modules)
        print(*sorted(host.trim().by), sep=", ")
        print(sorted({"torch", "pyarrow", "polars", "numpy"} & set(sys.modules)))
    """)
    assert out == ["Python's own caches, garbage in cycles, the C library's heap", "[]"]


def test_the_pool_of_pyarrow_is_asked_if_it_is_there(monkeypatch):
    class Pool:
        released = 0

        def release_unused(self):
            Pool.released += 1

    pyarrow = type(sys)("pyarrow")
    pyarrow.MemoryPool, pyarrow.default_memory_pool = Pool, Pool
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    assert "pyarrow's pool" in host.trim().by and Pool.released == 1


def test_arenas_are_limited():
    # Eight threads that allocate at once make as many arenas, mapped in heaps of 64 MiB; with a limit they share.
    code = """
        done = host.arenas({count}) if {count} else None
        start, hold, end = threading.Barrier(9), [], threading.Event()
        def work():
            hold.append([bytearray(700) for _ in range(100)])
            start.wait()
            end.wait()
        for _ in range(8): threading.Thread(target=work).start()
        start.wait()
        heaps = sum(int(line.split("-")[0], 16) % (64 << 20) == 0 and " rw-p 00000000 00:00 0" in line for line in open("/proc/self/maps"))
        end.set()
        print(heaps, done)
    """
    free, _ = child(code.format(count=0))[0].split(" ", 1)
    one, words = child(code.format(count=1))[0].split(" ", 1)
    assert int(free) >= 4 and int(one) <= 1
    assert words == "malloc makes no more than 1 arena from now on; those that exist stay"
    with pytest.raises(ValueError, match="at least one arena"):
        host.arenas(0)


def test_what_is_frozen_is_not_written_to_by_collections_in_a_fork():
    code = """
        import os
        things = [[n] for n in range(400_000)]
        done = host.freeze_for_fork() if {freeze} else None
        here, there = os.pipe()
        if os.fork() == 0:
            def private():
                with open("/proc/self/smaps_rollup") as file:
                    return next(int(line.split()[1]) << 10 for line in file if line.startswith("Private_Dirty:"))
            before = private()
            gc.collect()
            os.write(there, str(private() - before).encode())
            os._exit(0)
        os.wait()
        print(os.read(here, 100).decode(), done)
    """
    without, _ = child(code.format(freeze=False))[0].split(" ", 1)
    frozen, words = child(code.format(freeze=True))[0].split(" ", 1)
    assert int(without) > 20 * MIB and int(frozen) < 0.2 * int(without)
    assert "objects are frozen" in words


def test_without_glibc_nothing_is_done_and_that_is_said(monkeypatch):
    monkeypatch.setattr(_heap, "_c_library", lambda: object())
    trimmed = host.trim()
    assert "the C library's heap" not in trimmed.by and "only glibc" in str(trimmed) and "only glibc" in trimmed._repr_html_()
    done = host.arenas(2)
    assert not done and str(done) == "nothing is changed: the C library is not glibc, and has no arenas"


def test_the_module_is_there_without_an_import_of_its_own():
    assert child("print(oomph.host.trim().after > 0, 'host' in dir(oomph), 'host' in oomph.__all__)") == ["True True True"]
    assert oomph.host is host
