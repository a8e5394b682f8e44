"""RAM by line within a process: ``oomph.profile_ram``, ``oomph.record(ram=True)`` and the mark of pytest, held to what NumPy was asked for; and the cell magic, in live kernels."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest
from conftest import A_SAMPLE, COMMAND, ROOT
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from test_notebook import PYTHONS, Kernel, without_colours

MIB = 1 << 20

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}
HEAD = "import oomph, sys\nimport numpy as np\n"


@pytest.fixture
def run(tmp_path):
    """Runs a program, which begins at line 3 of load.py: what it printed. It must leave nothing in its temporary folder."""
    (tmp_path / "tmp").mkdir()

    def run(text, *before, code=0):
        (tmp_path / "load.py").write_text(HEAD + textwrap.dedent(text).lstrip("\n"))
        done = subprocess.run([*before, sys.executable, "load.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**ENVIRONMENT, "TMPDIR": str(tmp_path / "tmp")})
        assert done.returncode == code, done.stderr
        assert before or os.listdir(tmp_path / "tmp") == []
        return done

    return run


class About(str):
    """So many MiB: a sample of small objects, of which there are some in every line, may be among them."""

    def __eq__(self, other):
        return abs(float(self.split()[0]) - float(other.split()[0])) < 0.5

    __hash__ = str.__hash__


def rows(said):
    """What a table says: bytes by line, and the lines of the source."""
    held, source = {}, {}
    for line in said.splitlines():
        if found := re.match(r" *(\d+) +(?:([\d.]+ [KMG]?i?B)(?: ± [\d.]+ [KMG]?i?B)? +(?:≥ )?\d+(?:  |$))?(.*)$", line):
            number, size, words = found.groups()
            source[int(number)] = words.strip()
            # Of small blocks one in so many is seen, and stands for all: wherever Python made a few there may be such a row, or none.
            if size is not None and size.endswith("MiB"):
                held[int(number)] = About(size)
        elif re.match(r" *\d+$", line):
            source[int(line)] = ""
    return held, source


def test_a_function_by_line(run):
    done = run(
        """
        def table(mib):
            return np.ones(mib << 17)

        @oomph.profile_ram
        def load():
            first = np.ones(20 << 17)
            gone = np.ones(7 << 17)
            del gone
            made = table(30)

            small = [bytes(1000) for _ in range(20_000)]
            return first

        kept = load()
        print(kept.nbytes, load.__name__)
        """
    )
    assert done.stdout == f"{20 * MIB} load\n"
    head, *_ = done.stderr.splitlines()
    assert head == "oomph: RAM of load (load.py:6), held at the peak of this call, of what was allocated since it began"
    held, source = rows(done.stderr)
    assert sorted(source) == list(range(6, 15)) and source[12] == "" and source[9] == "gone = np.ones(7 << 17)"
    # Line 11 has what it called.
    assert sorted(held) == [8, 11, 13] and held[8] == "20.0 MiB" and held[11].startswith("30.")
    # 1033 bytes each and the list: 19.9 MiB, of which samples are taken.
    assert re.search(r"13  [\d.]+ MiB ± [\d.]+ MiB +≥ \d+  ", done.stderr)
    assert re.search(r"Where functions called from here held it:\n  30\.\d MiB(?: ± [\d.]+ KiB)? at load\.py:4 table\n", done.stderr)
    assert re.search(r"In all: [67]\d\.\d MiB ± \d\.\d+ MiB\n", done.stderr)


def test_a_block_by_line_and_its_numbers(run, tmp_path):
    done = run(
        """
        before = np.ones(50 << 17)
        with oomph.profile_ram("merging", path="kept.oomph") as merging:
            one = np.ones(8 << 17)
            both = np.concatenate([one, one])
            assert merging.peak is None
        after = np.ones(60 << 17)
        with oomph.profile_ram(quiet=True) as other:
            one = np.ones(9 << 17); both = None
        print(merging.peak, merging.lines[5], merging.lines[6], other.peak, *other.lines)
        """
    )
    peak, one, both, other, *lines = map(int, done.stdout.split())
    assert 8 * MIB <= one < 8 * MIB + A_SAMPLE and 16 * MIB <= both < 16 * MIB + A_SAMPLE and 24 * MIB <= peak < 24 * MIB + A_SAMPLE
    assert 9 * MIB <= other < 9 * MIB + A_SAMPLE and 10 in lines
    assert done.stderr.startswith("oomph: RAM of merging (load.py:4), held at the peak") and done.stderr.count("oomph: RAM of") == 1
    assert rows(done.stderr)[0] == {5: "8.00 MiB", 6: "16.0 MiB"}
    assert done.stderr.endswith("Next: oomph explain kept.oomph\n") and (tmp_path / "kept.oomph").exists()


def test_all_kinds_of_functions(run):
    done = run(
        """
        import asyncio

        class Thing:
            @oomph.profile_ram
            def method(self, mib):
                kept = np.ones(mib << 17)

            @oomph.profile_ram
            @staticmethod
            def static():
                kept = np.ones(2 << 17)

            @oomph.profile_ram()
            @classmethod
            def of_class(cls):
                kept = np.ones(3 << 17)
                raise KeyError("mine")

        @oomph.profile_ram
        def generator():
            kept = np.ones(4 << 17)
            try:
                got = yield 1
            except ValueError:
                more = np.ones(5 << 17)
                got = yield 2
            return got

        @oomph.profile_ram
        async def coroutine():
            kept = np.ones(6 << 17)
            await asyncio.sleep(0)
            return 6

        @oomph.profile_ram
        async def values():
            kept = np.ones(7 << 17)
            got = yield 1
            await asyncio.sleep(0)
            yield got

        def delegating():
            print((yield from generator()))

        Thing().method(1)
        Thing.static()
        try:
            Thing.of_class()
        except KeyError as error:
            print(error)
        going = delegating()
        print(next(going), going.throw(ValueError), next(going, "end"))
        print(asyncio.run(coroutine()))

        async def all_values():
            each = values()
            return [await anext(each), await each.asend("sent"), [one async for one in each]]

        print(asyncio.run(all_values()))
        closed = generator()
        next(closed)
        closed.close()
        """
    )
    assert done.stdout == "'mine'\nNone\n1 2 end\n6\n[1, 'sent', []]\n"
    tables = done.stderr.split("oomph: RAM of ")[1:]
    names = [table.partition(" ")[0] for table in tables]
    assert names == ["Thing.method", "Thing.static", "Thing.of_class", "generator", "coroutine", "values", "generator"]
    sizes = [list(rows(table)[0].values()) for table in tables]
    assert sizes == [["1.00 MiB"], ["2.00 MiB"], ["3.00 MiB"], ["4.00 MiB", "5.00 MiB"], ["6.00 MiB"], ["7.00 MiB"], ["4.00 MiB"]]


def test_calls_within_and_beside_each_other(run):
    done = run(
        """
        import os, threading

        @oomph.profile_ram
        def inner(depth):
            kept = np.ones(1 << 17)
            return inner(depth - 1) if depth else kept

        @oomph.profile_ram
        def outer():
            kept = np.ones(2 << 17)
            inner(2)

        @oomph.profile_ram
        def waiting():
            kept = np.ones(3 << 17)
            begun.set()
            ended.wait()
            if os.fork() == 0:
                os._exit(len(str(inner(0))) and 0)
            assert os.wait()[1] == 0

        outer()
        begun, ended = threading.Event(), threading.Event()
        thread = threading.Thread(target=waiting)
        thread.start()
        begun.wait()
        inner(0)
        inner(0)
        ended.set()
        thread.join()
        inner(0)
        """
    )
    tables = done.stderr.split("oomph: ")[1:]
    assert [table.partition(" (load.py")[0] for table in tables if "not profiled" not in table and "os.fork" not in table][:2] == ["RAM of outer", "RAM of inner"]
    assert "held at the peak of outer (load.py:10)" in tables[1]
    assert rows(tables[0])[0] == {12: "2.00 MiB", 13: "3.00 MiB"} and rows(tables[1])[0] == {7: "3.00 MiB"}
    said = "oomph: inner (load.py:5) is not profiled: another call is being profiled, and there is one recording of RAM at a time\n"
    assert done.stderr.count(said) == 1
    assert sum(table.startswith("RAM of waiting (load.py:15), held at the peak of this call") for table in tables) == 1
    assert tables[-1].startswith("RAM of inner (load.py:5), held at the peak of this call") and rows(tables[-1])[0] == {7: "1.00 MiB"}


def test_code_without_source_and_what_is_no_function(run):
    done = run(
        """
        names = {"np": np}
        exec(compile("def made():\\n    return np.ones(1 << 17)", "nowhere.py", "exec"), names)
        kept = oomph.profile_ram(names["made"])()
        for wrong in (len, int, 3):
            try:
                oomph.profile_ram(wrong)
            except TypeError as error:
                print(error)
        """
    )
    assert rows(done.stderr)[0] == {2: "1.00 MiB"}
    assert done.stdout == "".join(f"profile_ram takes a function that is written in Python, not {wrong!r}\n" for wrong in (len, int, 3))


def test_libraries_that_are_loaded_meanwhile_are_recorded_too(run, tmp_path):
    (tmp_path / "late.py").write_text("@__import__('oomph').profile_ram\ndef load():\n    import numpy\n    kept = numpy.ones(40 << 17)\nload()\n")
    done = subprocess.run([sys.executable, "late.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    held, _ = rows(done.stderr)
    assert held[4] == "40.0 MiB", done.stderr
    code = "import ctypes, importlib.machinery as machinery; print(ctypes._dlopen.__module__, machinery.ExtensionFileLoader.exec_module.__module__)"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert run(f"with oomph.profile_ram(quiet=True):\n    pass\n{code}").stdout == plain


def test_under_oomph_run_it_goes_on_and_that_is_said(run, oomph, tmp_path):
    done = run(
        """
        @oomph.profile_ram
        def load():
            return np.ones(20 << 17)

        load()
        kept = load()
        with oomph.record("mine.oomph", ram=True) as recording:
            more = np.ones(30 << 17)
        print(recording.ram_path, recording.active)
        """,
        COMMAND,
        "run",
        "--ram",
        "--python",
    )
    assert done.stdout == f"{tmp_path / 'load-ram.oomph'} False\n"
    assert done.stderr.count("oomph: load (load.py:3) is not profiled: oomph run --ram records the RAM of this process already\n") == 1
    assert f"oomph: RAM is recorded by oomph run already, to {tmp_path / 'load-ram.oomph'}: that goes on\n" in done.stderr
    assert not list(tmp_path.glob("mine*"))
    assert explained(oomph, tmp_path / "load-ram.oomph")[5] == pytest.approx(20 * MIB, abs=MIB)


def explained(oomph, path):
    """Bytes by line."""
    code, out, err = oomph("explain", "--format", "json", path)
    assert code in (0, 1), err
    return {line["place"]["line"]: line["bytes"] for line in json.loads(out)["host"]["lines"] if line["place"] and line["place"]["file"].endswith("load.py")}


def test_record_needs_no_pytorch(run, oomph, tmp_path):
    (tmp_path / "taken-ram.oomph").write_text("mine")
    done = run(
        """
        before = np.ones(50 << 17)
        with oomph.record("first.oomph", ram=True) as first:
            kept = np.ones(20 << 17)
            assert first.active and first.path.endswith("first.oomph") and "load.py:5 <module>" in first.explain()
            with oomph.profile_ram("within"):
                pass
        assert not first.active
        second = oomph.record("second.oomph", ram=True, quiet=True)
        third = oomph.record("third.oomph", ram=True, quiet=True)
        assert third.active and not second.active and "torch" not in sys.modules
        kept = np.ones(30 << 17)
        third.stop()
        try:
            oomph.record("taken.oomph", ram=True)
        except oomph.RecordingError as error:
            print(error)
        print(sys.meta_path[0])
        with oomph.record("raised.oomph", ram=True, quiet=True):
            kept = np.ones(1 << 50)
        """,
        code=1,
    )
    path = tmp_path / "first-ram.oomph"
    assert re.search(rf"oomph: recorded RAM to {path}: 2\d\.\d MiB asked for at the peak\nNext: oomph explain {path}\n", done.stderr)
    assert "second" not in done.stderr and "third" not in done.stderr and "CUDA" not in done.stderr
    assert "oomph: within (load.py:7) is not profiled: the RAM of this process is being recorded already\n" in done.stderr
    assert explained(oomph, path)[5] == pytest.approx(20 * MIB, abs=MIB)
    assert explained(oomph, tmp_path / "third-ram.oomph")[13] == pytest.approx(30 * MIB, abs=MIB)
    said, first = done.stdout.splitlines()
    assert said == f"{tmp_path / 'taken-ram.oomph'} cannot be written: exists already, and is no recording of oomph's" and "AfterImport" not in first
    assert (tmp_path / "taken-ram.oomph").read_text() == "mine"
    assert done.stderr.index("MemoryError") < done.stderr.index("raised-ram.oomph (RAM")


def test_record_takes_a_pytorch_that_comes_later(run, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.15.0+cpu'\nclass version:\n    cuda = None\n")
    done = run(
        """
        with oomph.record("first.oomph", ram=True, quiet=True) as first:
            import torch
            assert first.active
        with oomph.record("second.oomph", ram=True, quiet=True) as second:
            pass
        print(torch.__version__)
        """
    )
    assert done.stdout == "2.15.0+cpu\n" and (tmp_path / "second-ram.oomph").exists()


TESTS = """
    import unittest
    import numpy as np
    import pytest

    @pytest.fixture
    def large():
        return np.ones(80 << 17)

    @pytest.mark.ram_memory("50MiB")
    def test_within(large):
        kept = np.ones(40 << 17)

    @pytest.mark.ram_memory(50 << 20)
    def test_too_much():
        one = np.ones(40 << 17)
        two = np.ones(24 << 17)

    @pytest.mark.ram_memory("1MiB")
    def test_own_error():
        kept = np.ones(40 << 17)
        assert kept.sum() == 0, "not that sum"

    @pytest.mark.ram_memory("1MiB")
    @pytest.mark.xfail(strict=True)
    def test_expected():
        kept = np.ones(40 << 17)

    @pytest.mark.ram_memory("10MiB")
    class TestCase(unittest.TestCase):
        def test_of_unittest(self):
            kept = np.ones(12 << 17)

    def test_without():
        pass
"""


@pytest.fixture
def tested(tmp_path):
    def tested(text, *options):
        (tmp_path / "test_it.py").write_text(textwrap.dedent(text))
        plugin = [] if installed() else ["-p", "oomph.pytest"]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--strict-markers", *plugin, *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env={**ENVIRONMENT, "COLUMNS": "150"})

    return tested


def installed():
    from importlib.metadata import entry_points

    return any(one.value == "oomph.pytest" for one in entry_points(group="pytest11"))


def test_a_marked_test_fails_if_it_asks_for_more(tested):
    done = tested(TESTS, "-rA")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 failed, 2 passed, 1 xfailed" in done.stdout
    wrong = re.search(
        r"asked for 64\.\d MiB(?: ± .*)? of RAM at once, 14\.\d MiB more than 50\.0 MiB; held then:\n  40\.\d MiB(?: ± [\d.]+ KiB)? at test_it\.py:16 test_too_much\n  24\.\d MiB(?: ± [\d.]+ KiB)? at test_it\.py:17 ",
        done.stdout,
    )
    assert wrong is not None, done.stdout
    assert "not that sum" in done.stdout
    summary = done.stdout[done.stdout.index(" ram memory ") :]
    for name, size, limit in (
        ("test_within", "40", "50.0"),
        ("test_too_much", "64", "50.0"),
        ("test_own_error", "40", "1.00"),
        ("test_expected", "40", "1.00"),
        ("TestCase::test_of_unittest", "12", "10.0"),
    ):
        assert re.search(rf"test_it\.py::{name} +{size}\.\d+ MiB +of {limit} MiB  of RAM asked for at once\n", summary), name
    assert "test_without " not in summary.partition("short test summary")[0]


@pytest.mark.parametrize(
    "mark, said",
    [
        ("ram_memory", "missing 1 required positional argument: 'limit'; write @pytest.mark.ram_memory(\"200MiB\")"),
        ("ram_memory(1.5)", 'ram_memory: the limit is a number of bytes, or "200MiB", not 1.5'),
        ("ram_memory(200)", 'ram_memory: 200 bytes? write "200GiB" or "200MiB"'),
        ("ram_memory('200 pounds')", "ram_memory: 'pounds' is not a unit"),
        ("ram_memory('1GiB')\n@pytest.mark.gpu_memory('1GiB')", "ram_memory: a test with gpu_memory runs on a virtual GPU"),
    ],
)
def test_a_mark_that_asks_for_nothing_sensible_ends_the_run(tested, mark, said):
    done = tested(f"import pytest\n@pytest.mark.{mark}\ndef test_it():\n    pass\n")
    assert done.returncode == 4 and said in done.stderr, done.stdout + done.stderr


def test_a_limit_that_cannot_be_looked_at_fails_the_test(tested):
    text = "import pytest, oomph._ram_recorder as recorder\nrecorder.library = lambda of: '/nowhere.so'\n@pytest.mark.ram_memory('1GiB')\ndef test_it():\n    pass\n"
    done = tested(text)
    assert done.returncode == 1 and "the RAM of this test is not known: the recorder of RAM cannot be loaded: /nowhere.so" in done.stdout, done.stdout


class PlainKernel(Kernel):
    """A live kernel without a GPU."""

    def __init__(self, python):
        self.manager = KernelManager()
        self.manager._kernel_spec = KernelSpec(argv=[python, "-m", "ipykernel_launcher", "-f", "{connection_file}"], display_name="plain", language="python")
        self.manager.start_kernel(env=ENVIRONMENT)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=300)


@pytest.mark.parametrize("on", PYTHONS)
def test_a_cell_by_line(on):
    kernel = PlainKernel(PYTHONS[on])
    try:
        kernel.run("import json\nimport numpy as np\n%load_ext oomph\n%oomph quiet")
        kernel.run("def table(mib):\n    return np.ones(mib << 17)")
        cell = kernel.run("%%oomph_ram  # this one\n# what it makes\none = np.ones(20 << 17)\ntwo = table(30)\nlen(one) * 8")
        assert cell.result["text/plain"] == str(20 * MIB)
        (shown,) = cell.shown
        lines = shown["text/plain"].splitlines()
        assert lines[0] == "oomph: RAM of this cell, held at its peak, of what was allocated since it began"
        held, source = rows("\n".join(lines[:6]))
        assert held[2] == "20.0 MiB" and held[3].startswith("30.") and len(held) == 2, "a line has what it called"
        assert source == {1: "# what it makes", 2: "one = np.ones(20 << 17)", 3: "two = table(30)", 4: "len(one) * 8"}
        assert any(re.fullmatch(r"  30\.\d MiB(?: ± [\d.]+ KiB)? at cell \[2\]:2 table", line) for line in lines) and lines[-1].startswith("In all: 50.")
        assert shown["text/html"].startswith("<pre ") and "np.ones(20 &lt;&lt; 17)" in shown["text/html"]

        failed = kernel.run("%%oomph_ram\nthree = np.ones(9 << 17)\n1 / 0", fails="ZeroDivisionError")
        assert rows(failed.said)[0] == {1: "9.00 MiB"}
        assert "_run_measured" not in failed.traceback and "1 / 0" in without_colours(failed.traceback).replace("1/0", "1 / 0")
        assert "takes no words, and got 'twice'" in kernel.run("%%oomph_ram twice\n1", fails="UsageError").stderr
        kernel.run("%unload_ext oomph")
        assert not kernel.value("'oomph_ram' in get_ipython().magics_manager.magics['cell']")
    finally:
        kernel.stop()
