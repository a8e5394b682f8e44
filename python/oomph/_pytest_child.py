"""What runs a marked test in the child of `oomph.pytest`: pytest once more, for one test, on the virtual GPU.

Gives the reports of it away in a file. Decides nothing: whether the test fits is the prediction's to say, and what a report looks like is pytest's.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest


def run_test(options: dict[str, Any], arguments: list[str], nodeid: str, folder: str, written: str) -> None:
    """Runs the test of that name. If it dies of memory, so does this: then oomph finds out what it would have needed."""
    from _pytest.config import Config

    os.chdir(folder)
    # As pytest-xdist starts its workers: options of conftest files come along, whatever their names.
    config = Config.fromdictargs(options, arguments)
    watch = _Watch(config, nodeid)
    config.pluginmanager.register(watch, "oomph-child")
    try:
        config.hook.pytest_cmdline_main(config=config)
    except Exception as error:
        watch.errors.append(f"{type(error).__name__}: {error}")
    # A test that did not fit is run again, on a card without a limit: what it does there is no result.
    with contextlib.suppress(FileExistsError), open(written, "xb") as file:
        pickle.dump((watch.reports, watch.errors), file)
    if watch.out_of_memory is not None:
        raise watch.out_of_memory


class _Watch:
    """A plugin that keeps what happens to one test."""

    def __init__(self, config: Any, nodeid: str) -> None:
        self.config, self.nodeid = config, nodeid
        self.reports: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.out_of_memory: BaseException | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid == self.nodeid][:1]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.errors.append(report.longreprtext)

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.errors.append(str(excrepr))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Iterator[Any]:
        from oomph.live.out_of_memory import is_out_of_memory

        style = self.config.option.tbstyle
        if call.excinfo is not None:
            _leave_out_own_frames(call.excinfo.value)
            if is_out_of_memory(call.excinfo.value):
                self.out_of_memory = self.out_of_memory or call.excinfo.value
                # The long form shows arguments, and to show a tensor takes memory of the card, which is to be as it was.
                self.config.option.tbstyle = "short" if style in ("auto", "long") else style
        try:
            return (yield)
        finally:
            self.config.option.tbstyle = style

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))
        # One that is expected, and no failure, is no death.
        if hasattr(report, "wasxfail"):
            self.out_of_memory = None


def _leave_out_own_frames(error: BaseException | None) -> None:
    """Takes the virtual GPU out of an error's frames, and out of those of the errors before it: they are not there on a real one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        entry = error.__traceback__
        while entry is not None:
            while entry.tb_next is not None and entry.tb_next.tb_frame.f_globals.get("__name__", "").startswith(("_oomph_virtual.", "_oomph_live.")):
                entry.tb_next = entry.tb_next.tb_next
            entry = entry.tb_next
        error = error.__cause__ or error.__context__
