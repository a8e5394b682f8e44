"""The pytest plugin: ``@pytest.mark.gpu_memory("6GiB", gpu="t4")`` fails a test that would not fit, without a GPU; ``@pytest.mark.ram_memory("200MiB")`` one that asks for more RAM.

A test that is marked so for the GPU is not run in this process, and its fixtures are not either: `oomph.predict` runs it in a child on the virtual GPU, where `oomph._pytest_child` is
pytest again, for this test alone. What it reports there is reported here, with what it took. Whether it fits is the prediction's to say.

The entry point ``pytest11`` has every pytest import this where oomph is installed, so nothing is done, or imported, until a test has the mark.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from oomph._find import find_oomph
from oomph._sizes import size_in_bytes, text

MARK, RAM = "gpu_memory", "ram_memory"
_HELP = "the card of gpu_memory marks that name none: t4, rtx-4090 … (`oomph gpus` lists them)"

# What would have the child select other tests than its one, write over the files of this run, ask at a terminal that it does not have, or deal its test out.
_SELECTING: dict[str, Any] = dict(keyword="", markexpr="", deselect=None, lf=False, failedfirst=False, newfirst=False, stepwise=False, stepwise_skip=False, file_or_dir=[])
_WRITING: dict[str, Any] = dict(cacheclear=False, xmlpath=None, log_file=os.devnull, basetemp=None, pastebin=None, debug=None, cov_source=[], report_log=None, htmlpath=None)
_ASKING: dict[str, Any] = dict(usepdb=False, trace=False, capture="fd", maxfail=0, plugins=[])
_DEALING: dict[str, Any] = dict(numprocesses=None, maxprocesses=None, dist="no", tx=[], looponfail=False)
_PLUGINS_NOT_FOR_THE_CHILD = ("terminal", "xdist", "xdist.looponfail", "junitxml", "pytest_cov", "html", "pytest_jsonreport", "pytest_reportlog")


class Asked(NamedTuple):
    """What a mark asks for, as `oomph.predict` takes it."""

    gpu: str | None
    memory: int | None
    conf: str | None


class _NotKnown(Exception):
    """The test could not be run on the virtual GPU; the message says why."""


def gpu_memory(limit: int | str | None = None, *, gpu: str | None = None, conf: str | None = None) -> tuple[int | str | None, str | None, str | None]:
    """The arguments of the mark, by Python's own rules and with its own errors."""
    return limit, gpu, conf


def pytest_addoption(parser: Any) -> None:
    parser.getgroup("oomph").addoption("--oomph-gpu", metavar="NAME", help=_HELP)
    parser.addini("oomph_gpu", _HELP)


def pytest_configure(config: Any) -> None:
    meaning = "run the test on a virtual GPU, and fail it if it needs more than the limit, or than the card has (oomph)"
    config.addinivalue_line("markers", f"{RAM}(limit): fail the test if it asks for more RAM than the limit at once while it is called (oomph)")
    config.addinivalue_line("markers", f"{MARK}(limit=None, *, gpu=None, conf=None): {meaning}")


def pytest_collection_finish(session: Any) -> None:
    """A mark that asks for nothing sensible ends the run before its first test. A worker of pytest-xdist cannot: there the test itself says it."""
    if hasattr(session.config, "workerinput"):
        return
    wrong = {}
    for item in session.items:
        try:
            _asked(item)
            if (mark := item.get_closest_marker(RAM)) is not None:
                from oomph._pytest_ram import limit

                limit(item, mark)
        except ValueError as error:
            wrong[item.nodeid] = error
    if wrong:
        raise pytest.UsageError("\n".join(f"{nodeid}: {error}" for nodeid, error in wrong.items()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool | None:
    if item.get_closest_marker(MARK) is None or item.config.pluginmanager.has_plugin("oomph-child") or item.config.getoption("setuponly", False):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        hook.pytest_runtest_logreport(report=report)
    # Nothing of this test was set up here, but what tests before it have left for it may be needed by no other.
    leaving = item.session.shouldfail or item.session.shouldstop
    ended = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(None if leaving else nextitem), when="teardown")
    if ended.excinfo is not None:
        hook.pytest_runtest_logreport(report=hook.pytest_runtest_makereport(item=item, call=ended))
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    mark = item.get_closest_marker(RAM)
    if mark is None:
        yield
        return
    from oomph._pytest_ram import call

    yield from call(item, mark)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What each marked test takes: passed ones too, so that a limit can be set by it."""
    for title, row_of in (("gpu memory", _row), ("ram memory", _row_of_ram)):
        # The last report of a test, of its teardown, is under no name, and says the same.
        rows = {row for name, reports in terminalreporter.stats.items() if name for report in reports if (row := row_of(report)) is not None}
        if not rows:
            continue
        terminalreporter.section(title)
        widths = [max(map(len, column)) for column in zip(*rows)]
        for name, *numbers, rest in sorted(rows):
            sizes = "  ".join(number.rjust(width) for number, width in zip(numbers, widths[1:]))
            terminalreporter.line(f"{name.ljust(widths[0])}  {sizes}  {rest}".rstrip())


# -- what a mark asks for


def _asked(item: Any) -> Asked | None:
    """None without a mark; ValueError with what is wrong in it, and what to write."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return None
    try:
        limit, gpu, conf = gpu_memory(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise ValueError(f'{error}; write @pytest.mark.{MARK}("6GiB", gpu="t4")') from None
    gpu = gpu or item.config.getoption("--oomph-gpu") or item.config.getini("oomph_gpu") or None
    if limit is None and gpu is None:
        raise ValueError(f'{MARK}: which card, or how much memory? write @pytest.mark.{MARK}("6GiB", gpu="t4"), or set oomph_gpu in the settings of pytest')
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, str))):
        raise ValueError(f'{MARK}: the limit is a number of bytes, or "6GiB", not {limit!r}')
    try:
        memory = size_in_bytes(limit) if limit is not None else None
    except ValueError as error:
        raise ValueError(f"{MARK}: {error}") from None
    if gpu is not None:
        title, has = _card(gpu)
        if memory is not None and memory > has:
            raise ValueError(f"{MARK}: a limit of {text(memory)} is more than a {title} has ({text(has)}); leave the limit out, or name a larger card")
    return Asked(gpu, memory, conf)


@functools.cache
def _card(name: str) -> tuple[str, int]:
    """The name and the memory of a card, by the command's catalogue."""
    try:
        ran = subprocess.run([find_oomph(), "gpus", "--format", "json", name], capture_output=True, text=True)
    except OSError as error:
        raise ValueError(str(error)) from None
    if ran.returncode != 0:
        raise ValueError(ran.stderr.strip().removeprefix("error: "))
    (card,) = json.loads(ran.stdout)["gpus"]
    return card["title"], card["memory"]


# -- the child


def _reports(item: Any) -> list[Any]:
    """What the test did in the child, as pytest reports it; one report that fails, if that cannot be said."""
    began = time.time()
    try:
        reports, raw = _in_a_child(item)
    except (ValueError, OSError, _NotKnown) as error:
        took = time.time() - began
        return [pytest.TestReport(item.nodeid, item.location, {MARK: 1}, "failed", str(error), "call", duration=took, start=began, stop=began + took)]
    # Of the child's time, what pytest there did not see is the way to the test.
    reports[0].duration = max(time.time() - began - sum(report.duration for report in reports[1:]), 0)
    if raw is not None:
        told = next((report for report in reports if report.failed), None) or next((report for report in reports if report.when == "call"), reports[-1])
        # The XML takes them from the last report of a test, everything else from the one that tells how it went.
        for report in reports[reports.index(told) :]:
            report.user_properties += _properties(raw)
        if not raw["fits"] and told.failed:
            _explain(told, raw, item)
    return reports


def _in_a_child(item: Any) -> tuple[list[Any], dict[str, Any] | None]:
    from oomph._predict import PredictionError, predict
    from oomph._pytest_child import run_test

    asked, config = _asked(item), item.config
    assert asked is not None
    with tempfile.TemporaryDirectory(prefix="oomph-pytest-") as folder:
        written = os.path.join(folder, "reports.pickle")
        arguments = [*_arguments(item, folder), f"{item.path}{item.nodeid[item.nodeid.find('::') :] if '::' in item.nodeid else ''}"]
        options = {name: value for name, value in vars(config.option).items() if _plain(value)} | _SELECTING | _WRITING | _ASKING | _DEALING
        raw, error = None, None
        try:
            # All of it: a test ends by itself.
            raw = predict(run_test, options, arguments, item.nodeid, str(config.invocation_params.dir), written, **asked._asdict(), steps=0).raw
        except PredictionError as failed:
            error = str(failed)
        try:
            with open(written, "rb") as file:
                left, errors = pickle.load(file)
        except FileNotFoundError:
            left, errors = [], []
    reports = [config.hook.pytest_report_from_serializable(config=config, data=data) for data in left]
    if errors or not reports:
        raise _NotKnown("\n".join(errors) or error or "the test was not found in the child process")
    # A test that is skipped, or fails of itself, needs no GPU for that.
    if error is not None and all(report.passed for report in reports):
        raise _NotKnown(error)
    return reports, raw


def _arguments(item: Any, folder: str) -> Iterator[str]:
    """The words of the child's pytest: what it reads before it takes options from elsewhere."""
    config = item.config
    for plugin in [*config.getoption("plugins", []), *(f"no:{name}" for name in _PLUGINS_NOT_FOR_THE_CHILD)]:
        yield from ("-p", plugin)
    yield f"--rootdir={config.rootpath}"
    if config.inipath is not None:
        yield from ("-c", str(config.inipath))
    yield from ("-o", f"cache_dir={os.path.join(folder, 'cache')}")
    # Beside the folders of other tests, where it is looked for after a failure.
    factory = getattr(config, "_tmp_path_factory", None)
    yield f"--basetemp={factory.mktemp(MARK) if factory is not None else os.path.join(folder, 'tmp')}"


def _plain(value: Any) -> bool:
    """Whether an option is data that a child can have: not a function, a stream or another thing of this process."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, [*value, *value.values()]))
    if value is None or isinstance(value, (str, bytes, int, float, os.PathLike)):
        try:
            return bool(pickle.dumps(value))
        except Exception:
            return False
    return False


# -- what is said


def _properties(raw: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a report carries of a prediction: through pytest-xdist to the summary, and into the XML of --junit-xml."""
    fits = "close" if raw["close"] else "fits" if raw["fits"] else "does not fit"
    taken = raw["total"] if raw["fits"] else (raw["needs"] or {}).get("total")
    return [(f"{MARK}_bytes", taken), (f"{MARK}_limit_bytes", raw["gpu"]["memory"]), (f"{MARK}_gpu", raw["gpu"]["title"]), (MARK, fits)]


def _row(report: Any) -> tuple[str, str, str, str] | None:
    """A line of the summary, of a report that carries a prediction."""
    said = dict(getattr(report, "user_properties", ()))
    if MARK not in said:
        return None
    taken = "?" if said[f"{MARK}_bytes"] is None else text(said[f"{MARK}_bytes"])
    # What a test catches, or is expected to die of, is its own affair; it is shown all the same.
    remark = {"close": ": fits, too close to be sure", "does not fit": ": does not fit" if report.failed else ": runs out of memory, as the test expects"}.get(said[MARK], "")
    return report.nodeid, taken, f"of {text(said[f'{MARK}_limit_bytes'])}", f"on a virtual {said[f'{MARK}_gpu']}{remark}"


def _row_of_ram(report: Any) -> tuple[str, str, str, str] | None:
    """The same of a report that carries what its test asked for of RAM."""
    said = dict(getattr(report, "user_properties", ()))
    if f"{RAM}_bytes" not in said:
        return None
    return report.nodeid, text(said[f"{RAM}_bytes"]), f"of {text(said[f'{RAM}_limit_bytes'])}", "of RAM asked for at once"


def _explain(report: Any, raw: dict[str, Any], item: Any) -> None:
    """Says at a test's own traceback, which ends in PyTorch's error, what it needs and what would help."""
    limit, needs = raw["gpu"]["memory"], raw["needs"]
    card = f"on a virtual {raw['gpu']['title']}"
    short = f"does not fit: it needs more than {text(limit)} {card}"
    if needs is not None:
        short = f"does not fit: it needs {text(needs['total'])} {card}, {text(needs['total'] - limit)} more than {text(limit)}"
    lines = [short]
    if needs is not None:
        lines += [f"  in tensors {text(needs['allocated'])}, reserved by PyTorch {text(needs['reserved'])}, CUDA context {text(raw['context'])}"]
    if raw["where"] is not None and raw["where"].get("line") is not None:
        lines += [f"  memory ran out at {_place(raw['where'], item)}"]
    if raw["kinds"]:
        lines += ["  held then: " + ", ".join(f"{kind['kind'].replace('_', ' ')} {text(kind['bytes'])}" for kind in raw["kinds"][:4])]
    for finding in raw["findings"][:1]:
        lines += [f"  {finding['code']}: {finding['title']}"]
        lines += [f"    {text(size)} at {place}" for place, size in _places(finding, item)[:3]]
        for fix in finding["fixes"][:3]:
            lines += [f"  fix ({fix['grade'].replace('_', ' ')}): {fix['text']}", *(f"      {line}" for line in (fix["code"] or "").splitlines())]
    lines += [f"  may be wrong: {doubt['why']}" for doubt in raw["uncertain"][:3]]
    longrepr = report.longrepr
    if hasattr(longrepr, "reprcrash") and hasattr(longrepr, "addsection"):
        longrepr.reprcrash.message = short
        longrepr.addsection(MARK.replace("_", " "), "\n".join(lines))
    else:
        # --tb=line and --tb=native have text.
        report.longrepr = "\n".join([str(longrepr), *lines])


def _places(finding: dict[str, Any], item: Any) -> list[tuple[str, int]]:
    """The lines of a finding and what each has, the largest first."""
    sizes: dict[str, int] = {}
    for where in finding["where"]:
        if where.get("line") is not None:
            sizes[_place(where, item)] = sizes.get(_place(where, item), 0) + where["bytes"]
    return sorted(sizes.items(), key=lambda pair: -pair[1])


def _place(where: dict[str, Any], item: Any) -> str:
    file = where["file"]
    root = os.path.join(str(item.config.rootpath), "")
    return f"{file.removeprefix(root)}:{where['line']} {where['function']}"
