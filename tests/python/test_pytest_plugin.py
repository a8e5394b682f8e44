"""The pytest plugin: marked tests run on the virtual GPU, and what they take and do there is reported as theirs. Real runs of pytest, in folders of their own."""

import os
import re
import subprocess
import sys
import textwrap
import venv
import xml.etree.ElementTree

import pytest
import tomllib
from conftest import COMMAND, ROOT

MIB, GIB = 1 << 20, 1 << 30

# Children are started with what a run of pytest takes for its Python. pytest-xdist starts its workers so too, and needs the real one.
CONFTEST = """
    import os, sys
    import pytest

    if "-n" not in sys.argv or "PYTEST_XDIST_WORKER" in os.environ:
        sys.executable = {python!r}
        # A warm Python serves none with variables of its own.
        for name in ("PYTEST_XDIST_TESTRUNUID", "PYTEST_XDIST_WORKER_COUNT"):
            os.environ.pop(name, None)

    def pytest_addoption(parser):
        parser.addoption("--width", type=int, default=1)

    @pytest.fixture(scope="session")
    def width(request):
        return request.config.getoption("--width")
"""
TESTS = """
    import os
    import pytest
    from steps import step

    @pytest.fixture(scope="module")
    def in_this_process():
        yield os.getpid()

    def test_of_this_process(in_this_process):
        assert in_this_process == os.getpid()

    @pytest.mark.gpu_memory("1GiB", gpu="t4")
    @pytest.mark.parametrize("width", [2048, 8192])
    def test_width(width):
        print(f"width is {width}")
        step(width)

    @pytest.mark.gpu_memory(2 << 30, gpu="rtx-4090")
    class TestClass:
        def test_options_and_fixtures(self, width, tmp_path, in_this_process):
            assert width == 1024 and in_this_process == os.getpid()
            (tmp_path / "kept").write_text("here")
            assert step(width).weight.shape == (1024, 1024)

        @pytest.mark.gpu_memory("512MiB")
        def test_own_assertion(self):
            weight = step(1024).weight
            assert weight.shape == (3, 4), "not that shape"

        @pytest.mark.gpu_memory("512MiB", gpu="t4")
        def test_expected(self):
            with pytest.raises(RuntimeError, match="out of memory"):
                step(16384)

        @pytest.mark.skip(reason="not today")
        def test_skipped(self):
            step(8192)
"""
STEPS = """
    import torch

    def step(width):
        model = torch.nn.Linear(width, width, bias=False, device="cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(64, width, device="cuda")).sum().backward()
        optimizer.step()
        return model
"""
NO_GPU = """
    import pytest

    @pytest.mark.gpu_memory(gpu="t4")
    def test_without_a_gpu():
        import torch
        assert torch.ones(2).sum() == 2

    def test_other():
        pass
"""


@pytest.fixture
def project(tmp_path):
    """Writes files, and runs pytest over them with the plugin; gives the completed process."""

    def run(files, *words, plugin=("-p", "oomph.pytest"), python=None, **environment):
        for name, source in files.items():
            (tmp_path / name).write_text(textwrap.dedent(source).replace("{python!r}", repr(str(python))))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        path = os.pathsep.join([str(ROOT / "python"), *environment.pop("path", [])])
        environment = {**inherited, "PYTHONPATH": path, "OOMPH_COMMAND": COMMAND, "COLUMNS": "150", **environment}
        command = [sys.executable, "-m", "pytest", "--strict-markers", *plugin, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)

    return run


def outcomes(done):
    return dict(re.findall(r"^(?:FAILED|PASSED|SKIPPED|ERROR) (?:\[1\] )?(\S+)(.*)$", done.stdout, re.MULTILINE))


def test_a_mark_fails_what_does_not_fit_and_passes_what_does(project, warm, tmp_path):
    files = {"conftest.py": CONFTEST, "test_steps.py": TESTS, "steps.py": STEPS}
    words = ["-rA", "--width=1024", f"--basetemp={tmp_path / 'base'}", "--junit-xml=results.xml"]
    done = project(files, *words, python=warm(sys.executable))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 4 passed, 1 skipped" in done.stdout, done.stdout
    # Weights, gradients and Adam's state of 16 MiB each, Adam's temporaries; and the context of a T4, 105 MiB.
    rows = {name: (size, rest) for name, size, rest in re.findall(r"^(test_steps\S+) +(\S+ \S+)  +(of .*)$", done.stdout, re.MULTILINE)}
    assert {name.rpartition("::")[2]: rest for name, (_, rest) in rows.items()} == {
        "test_width[2048]": "of 1.00 GiB  on a virtual Tesla T4",
        "test_width[8192]": "of 1.00 GiB  on a virtual Tesla T4: does not fit",
        "test_options_and_fixtures": "of 2.00 GiB  on a virtual NVIDIA GeForce RTX 4090",
        "test_expected": "of 512 MiB  on a virtual Tesla T4: runs out of memory, as the test expects",
        "test_own_assertion": "of 512 MiB  on a virtual card of compute capability 8.0",
    }
    properties = {
        case.get("name"): {one.get("name"): one.get("value") for one in case.iter("property")} for case in xml.etree.ElementTree.parse(tmp_path / "results.xml").iter("testcase")
    }
    small, large = (properties[f"test_width[{width}]"] for width in (2048, 8192))
    assert (105 + 5 * 16) * MIB < int(small["gpu_memory_bytes"]) < (105 + 5 * 16 + 40) * MIB
    assert 105 * MIB + 5 * 256 * MIB < int(large["gpu_memory_bytes"]) < 105 * MIB + 5 * 256 * MIB + 40 * MIB
    assert (small["gpu_memory"], large["gpu_memory"], large["gpu_memory_limit_bytes"]) == ("fits", "does not fit", str(GIB))
    # The test's own frames and output, what it needs, on which line, and what would help.
    failed = done.stdout.partition("test_width[8192] ___")[2].partition("test_own_assertion ___")[0]
    assert re.search(r"steps\.py:8: in step\n +optimizer\.step\(\)", failed) and "OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB" in failed
    assert "_oomph_virtual" not in failed and "width is 8192" in failed
    needs = re.search(r"^does not fit: it needs (1\.\d\d GiB) on a virtual Tesla T4, \d+ MiB more than 1\.00 GiB$", failed, re.MULTILINE)
    assert needs and needs[1] == rows["test_steps.py::test_width[8192]"][0], failed
    assert re.search(r"^  memory ran out at steps\.py:8 step$", failed, re.MULTILINE), failed
    assert re.search(r"^  OM306: .*Adam's state 512 MiB.*$", failed, re.MULTILINE) and "  fix (safe): " in failed, failed
    said = outcomes(done)
    assert said["test_steps.py::test_width[8192]"].startswith(f" - does not fit: it needs {needs[1]} on a virtual Tesla T4"), said
    assert said["test_steps.py::TestClass::test_own_assertion"].startswith(" - AssertionError: not that shape"), said
    assert re.search(r"^> +assert weight\.shape == \(3, 4\), \"not that shape\"$", done.stdout, re.MULTILINE)
    assert "not today" in done.stdout
    assert [path.read_text() for path in (tmp_path / "base").rglob("kept")] == ["here"]


def test_workers_of_xdist_report_the_same(project, warm, tmp_path):
    source = TESTS.replace('"1GiB", gpu="t4"', '"256MiB"') + "    @pytest.mark.gpu_memory(14)\n    def test_slip():\n        step(1)\n"
    words = ["-n", "2", "-k", "2048 or slip", "--oomph-gpu=t4"]
    done = project({"conftest.py": CONFTEST, "test_steps.py": source, "steps.py": STEPS}, *words, python=warm(sys.executable))
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert re.search(r"^test_steps\.py::test_width\[2048\] +\d+ MiB  +of 256 MiB  on a virtual Tesla T4$", done.stdout, re.MULTILINE), done.stdout
    assert 'gpu_memory: 14 bytes? write "14GiB" or "14MiB"' in done.stdout


def test_what_is_not_known_fails_with_the_reason(project, warm, tmp_path):
    files = {"conftest.py": CONFTEST, "test_other.py": NO_GPU}
    done = project(files, "-x", python=warm(sys.executable))
    assert "the program used no GPU: it never called torch.cuda" in done.stdout and "1 failed in" in done.stdout, done.stdout
    venv.create(tmp_path / "bare", with_pip=False)
    bare = tmp_path / "bare" / "bin" / "python"
    done = project(files, python=bare)
    assert f"error: {bare} has no PyTorch\n\nhint: install it (pip install torch)" in done.stdout and "1 failed, 1 passed" in done.stdout, done.stdout
    done = project(files, "-m", "not gpu_memory", python=bare)
    assert done.returncode == 0 and "1 passed, 1 deselected" in done.stdout, done.stdout


@pytest.mark.parametrize(
    "mark, said",
    [
        ('"6 parsecs", gpu="t4"', "gpu_memory: 'parsecs' is not a unit; use KiB, MiB, GiB or KB, MB, GB"),
        ('14, gpu="t4"', 'gpu_memory: 14 bytes? write "14GiB" or "14MiB"'),
        ("", 'gpu_memory: which card, or how much memory? write @pytest.mark.gpu_memory("6GiB", gpu="t4"), or set oomph_gpu in the settings of pytest'),
        ('"20GiB", gpu="t4"', "gpu_memory: a limit of 20.0 GiB is more than a Tesla T4 has (14.6 GiB); leave the limit out, or name a larger card"),
        ('gpu="nosuch"', 'there is no card "nosuch" in the catalogue; `oomph gpus` lists the cards, and says how to add one'),
        ('"6GiB", card="t4"', 'gpu_memory() got an unexpected keyword argument \'card\'; write @pytest.mark.gpu_memory("6GiB", gpu="t4")'),
    ],
)
def test_a_wrong_mark_ends_the_run_before_it_begins(mark, said, project):
    source = f"import pytest\ndef test_first(): print('begun')\n@pytest.mark.gpu_memory({mark})\ndef test_marked(): pass\n"
    done = project({"test_marked.py": source}, "-s")
    assert done.returncode == 4 and f"ERROR: test_marked.py::test_marked: {said}\n" in done.stderr, done.stdout + done.stderr
    assert "begun" not in done.stdout


def test_oomph_brings_the_plugin_by_itself_and_nothing_else(project, tmp_path):
    """As pip lays it out: an entry point of the name that pyproject.toml has. Without a marked test nothing of oomph's is run or imported."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "site" / "oomph-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: oomph\nVersion: 0.1.0\n")
    (folder / "entry_points.txt").write_text("".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups.items()))
    source = """
        import sys

        def test_light():
            ours = {name for name in sys.modules if name.startswith("oomph")}
            assert ours == {"oomph", "oomph._find", "oomph._sizes", "oomph.pytest"}
            assert "torch" not in sys.modules
    """
    environment = {"path": [str(tmp_path / "site")], "OOMPH_COMMAND": "/nowhere/oomph"}
    done = project({"test_light.py": source}, plugin=(), **environment)
    assert done.returncode == 0 and "1 passed" in done.stdout and "gpu memory" not in done.stdout, done.stdout
    shown = project({}, "--markers", plugin=(), **environment).stdout
    assert "@pytest.mark.gpu_memory(limit=None, *, gpu=None, conf=None): run the test on a virtual GPU, and fail it if" in shown
