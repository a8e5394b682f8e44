"""What the tests share: the command as built, the fixtures, and predictions on the virtual GPU."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
PROGRAMS = ROOT / "tests" / "programs"
# By how much more than its large blocks recorded RAM may be: small objects, of which there are some in every line, are sampled, and one of them stands for a quarter of this at the most.
A_SAMPLE = 1 << 20
# The PyTorch that the H200's counters in the fixtures were taken with.
PYTHON_2_11 = ROOT / ".venv-torch2.11" / "bin" / "python"

# The package as it is here, beside the command that was built: also where pytest-xdist deals the tests out, which imports the classes of warnings.
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

# The command as built, with the extension module beside it.
COMMAND = os.environ.get("OOMPH") or str(ROOT / "target" / "debug" / "oomph")
os.environ.setdefault("OOMPH_COMMAND", COMMAND)


def slowness():
    """How many times slower this machine is, now, than one for which seconds are promised; at least one. For bars by the clock that were missed: a shared machine may be slower than any."""
    start = time.perf_counter()
    total = 0
    for number in range(3_000_000):
        total += number & 7
    return max(1.0, (time.perf_counter() - start) / 0.3)


# Hundreds of processes import PyTorch here. Where containers forbid Python to keep what it compiled, each compiles all of it again: 11 seconds, not 3.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Downloads are nobody's business here. Libraries read it when they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import tiers  # noqa: E402

# It keeps the environment as it is now: programs that have another cannot be forked.
from warm import Warm  # noqa: E402

# Tests that are started with nohup, or in the background of a shell, ignore these, and so would the programs that they send them to.
for _ignored, _handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_ignored) is signal.SIG_IGN:
        signal.signal(_ignored, _handler)


# The files that take longest, begun first: at the end all workers are then done at about the same time. (pytest-xdist's own order, by the number of
# tests, leaves the few long ones for last: one worker ended minutes after the other.)
LONGEST = (
    "test_predict_programs", "test_predict_values", "test_run", "test_predict", "test_notebook", "test_run_ram", "test_diagnosis", "test_report", "test_fit", "test_plan", "test_grid", "test_fix", "test_census",
    "test_doctor", "test_ram", "test_fit_script", "test_predict_phases", "test_predict_batches", "test_bare", "test_spare", "test_release", "test_top", "test_fit_integrations", "test_profile_ram", "test_data_stream",
    "test_fit_inference", "test_fit_tiles", "test_predict_model", "test_fit_split", "test_fit_memory", "test_data_arrays", "test_exports", "test_doctor_loader",
)  # fmt: skip


def pytest_addoption(parser):
    parser.addoption("--first-tier", action="store_true", help="leave out what tests/second_tier.toml names")
    parser.addoption("--second-tier", action="store_true", help="run nothing else")


class Tiers:
    """How many of the tests that were found are of which tier, and whether the list of the second fits them."""

    def __init__(self):
        self.first, self.second, self.unmatched = [], [], []


TIERS = pytest.StashKey[Tiers]()


def pytest_collection_modifyitems(config, items):
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
    found, second = Tiers(), tiers.Python()
    for item in items:
        (found.second if second.is_second(item.path.name, item.name) else found.first).append(item)
    # Of a file that was given in part, what is not found may be in the rest.
    if not any("::" in word for word in config.args) and not config.option.keyword:
        found.unmatched = second.unmatched({item.path.name for item in items})
    config.stash[TIERS] = found
    for option, left, kept in (("--first-tier", found.second, found.first), ("--second-tier", found.first, found.second)):
        if config.getoption(option):
            config.hook.pytest_deselected(items=left)
            items[:] = kept


def pytest_terminal_summary(terminalreporter, config):
    if found := config.stash.get(TIERS, None):
        terminalreporter.write_line(f"{len(found.first)} tests are of the first tier, {len(found.second)} of the second (tests/second_tier.toml)")


# What may be skipped where OOMPH_NO_SKIPS is set (`make test`), and why. Anything else that a test needs, make builds or installs.
MAY_BE_SKIPPED = {
    "test_a_cuda_context_and_pinned_memory_live_under_the_floor": "needs a real GPU",
    "test_a_folder_that_another_user_made_first_is_refused": "only root can be two users",
}


def _refuse_skip(report, name):
    """A test that is silently not run proves nothing."""
    if os.environ.get("OOMPH_NO_SKIPS") and report.skipped and not hasattr(report, "wasxfail") and name.split("[")[0] not in MAY_BE_SKIPPED:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"skipped, and not on the list of what may be (MAY_BE_SKIPPED in conftest.py): {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    _refuse_skip(report, item.name)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    _refuse_skip(report, collector.name)
    return report


def chosen(request, parameter):
    """The cases of a file's tests that this run has, by the parameter that names them: for what is made once, and only of them."""
    cases = (item.callspec.params for item in request.session.items if item.path == request.path and hasattr(item, "callspec"))
    return list(dict.fromkeys(case[parameter] for case in cases if parameter in case))


@pytest.fixture
def one_thread():
    """Sums are in the same order each time, and a busy machine is not made busier."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def oomph():
    """Runs the command; gives (exit code, stdout, stderr)."""

    def run(*arguments, **options):
        options = {"capture_output": True, "text": True, "timeout": 120, **options}
        done = subprocess.run([COMMAND, *map(str, arguments)], **options)
        return done.returncode, done.stdout, done.stderr

    run.binary = COMMAND
    return run


@pytest.fixture(scope="session")
def explain(oomph):
    """Explains a recording; gives what --format json says."""

    def run(path):
        code, out, err = oomph("explain", "--format", "json", path)
        assert code in (0, 1), err
        return json.loads(out)

    return run


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Gives a Python that has imported PyTorch already, for a real one."""
    folder = tmp_path_factory.getbasetemp()
    # One for all processes of the tests: pytest-xdist gives each a folder in the same one.
    pythons = Warm(COMMAND, (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "warm")
    yield pythons
    pythons.end()


@pytest.fixture(scope="session")
def on_virtual_gpu(oomph, warm):
    """Runs a Python, a warm one unless another is named, on two virtual cards, as its user would; gives the completed process."""

    def run(*words, gpu="t4", python=None, env=None, timeout=300):
        command = [oomph.binary, "run", "--quiet", "--no-recording", "--gpu", gpu, "--devices", "2", python or warm(sys.executable), *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), **(env or {})}
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)

    return run


@dataclass
class Predicted:
    """A prediction: the exit code, both outputs, and what --format json says (None if it says nothing)."""

    code: int
    out: str
    err: str
    reported: dict | None

    @property
    def peak(self):
        return self.reported["peak"]["allocated"], self.reported["peak"]["reserved"]


@pytest.fixture(scope="session")
def predict(oomph, warm):
    """Runs a program on a virtual GPU, with a warm Python unless another is named. What stands before the program's name are options of `oomph predict`."""

    def run(*words, gpu="h200", python=None, cwd=PROGRAMS, format="json", recording=None, env=None, timeout=900):
        kept = ["--output", recording] if recording else ["--no-recording"]
        card = ["--gpu", gpu] if gpu else []
        options = [*card, "--python", python or warm(sys.executable), "--format", format, *kept]
        # Programs take minutes where the machine is shared.
        environment = {**os.environ, **(env or {})}
        code, out, err = oomph("predict", *options, *words, cwd=cwd, env=environment, timeout=timeout)
        reported = json.loads(out) if format == "json" and out else None
        return Predicted(code, out, err, reported)

    return run
