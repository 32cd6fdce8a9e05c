"""A pytest plugin, `-p benchmarks.outcomes`: a line for each test in the file `$OUTCOMES`, written as the test ends.

Outcome, processor seconds of setup, call and teardown in this process, node id, and the reason unless the test passed,
separated by tabs. What ended is known even if the run is killed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

_SHOWN = 120  # characters of a reason


class _Outcomes:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcome, self._reason = "passed", ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):  # type: ignore[no-untyped-def]
        self._outcome, self._reason = "passed", ""
        began = time.process_time()
        answer = yield
        self._write(f"{time.process_time() - began:.3f}", item.nodeid)
        return answer

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._outcome, self._reason = report.outcome, _reason(report)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._outcome, self._reason = report.outcome, _reason(report)
            self._write("0", report.nodeid)

    def _write(self, seconds: str, nodeid: str) -> None:
        with self._path.open("a") as file:
            file.write("\t".join([self._outcome, seconds, nodeid, self._reason]) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr
    if isinstance(told, tuple):
        text = told[2]
    else:
        crash = getattr(told, "reprcrash", None)
        text = crash.message if crash is not None else str(told).strip().rpartition("\n")[2]
    return next(iter(text.splitlines()), "").replace("\t", " ")[:_SHOWN]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Outcomes(Path(os.environ["OUTCOMES"])), "outcomes")
