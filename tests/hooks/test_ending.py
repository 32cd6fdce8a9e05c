"""How a run ends whose verdicts came late, or that was cut short."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfguard import __version__
from perfguard.config import Config, Settings
from perfguard.hardware.fake import FakeDevice
from perfguard.hooks.ending import Ending, add_verdict, cut_short
from perfguard.records import Case, CaseResult, Verdict, Word
from perfguard.run import Run, open_run

CASES = [Case("suite", f"double[{n}]", "forward", f"test_suite.py::test_double[{n}]") for n in (1, 2, 3)]
FIRST, SECOND, THIRD = CASES


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return open_run(Config(root=tmp_path, settings=Settings()), FakeDevice(seed=1), ["suite"], __version__)


def told(run: Run, late: list[str]) -> list[Any]:
    reports: list[Any] = []
    hook = SimpleNamespace(pytest_runtest_logreport=lambda report: reports.append(report))
    ending = Ending(run.config)
    ending._run = run
    ending._tell_late(SimpleNamespace(config=SimpleNamespace(hook=hook)), run, late)  # type: ignore[arg-type]
    return reports


def test_a_test_that_had_passed_fails_once_more(run: Run) -> None:
    add_verdict(run, FIRST, Verdict(Word.PASS, "launches"))
    add_verdict(run, FIRST, Verdict(Word.CHANGED, "device_time_us", reason="the suite says so"))
    add_verdict(run, SECOND, Verdict(Word.PASS, "launches"))
    (report,) = told(run, [FIRST.nodeid, SECOND.nodeid])
    assert (report.nodeid, report.when, report.outcome) == (FIRST.nodeid, "teardown", "failed")
    assert "the suite says so" in report.longrepr
    assert "double[1]/forward on fake-gpu" in report.longrepr


def test_what_an_early_end_leaves_open_is_named(run: Run) -> None:
    verdicts = [Verdict(Word.PASS, "launches"), Verdict(Word.SUSPECT, "device_time_us", reason="+5 %", ratio=1.05)]
    run.results["suite", FIRST.key] = CaseResult(case=FIRST, verdicts=verdicts)
    add_verdict(run, SECOND, Verdict(Word.BROKEN, reason="hangs"))
    cut_short(run, CASES, "the run ended")
    found = {result.case.name: result.verdicts for result in run.results.values()}
    assert [verdict.word for verdict in found["double[1]"]] == [Word.PASS, Word.UNRESOLVED]
    assert found["double[1]"][1].reason == "not confirmed: the run ended (+5 %)"
    assert [verdict.word for verdict in found["double[2]"]] == [Word.BROKEN]
    assert found["double[3]"] == [Verdict(Word.UNRESOLVED, reason="not measured: the run ended")]
