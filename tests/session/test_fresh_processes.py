"""Fresh processes: their answers in order; crashes and hangs are told."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import msgspec
import pytest

from perfguard.model.records import CaseResult
from perfguard.session import fresh_processes
from perfguard.session.child import ChildCommand, Request
from perfguard.session.fresh_processes import measure_fresh
from perfguard.store.report_file import save_report
from tests.store.test_report_file import CASE, READINGS, REPORT


class Scripted(ChildCommand):
    """Runs a Python script in place of pytest; the child's folder is its only argument."""

    def line(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", self.arguments[0], str(folder)]


def measure(script: str, folder: Path, minutes: float = 1.0):  # type: ignore[no-untyped-def]
    save_report(folder / "report.json", REPORT)
    prologue = "import pathlib, shutil, sys, time\nfolder = pathlib.Path(sys.argv[1])\n"
    answer = f"shutil.copy({str(folder / 'report.json')!r}, folder / 'answer.json')"
    said: list[str] = []
    script = prologue + script.replace("ANSWER", answer)
    request = Request(REPORT.hardware.slug, tests=["a", "b"])
    fresh = measure_fresh(Scripted((script,), folder), request, 2, exact=1, minutes=minutes, progress=said.append)
    return fresh, said


def test_answers_are_collected_in_order(tmp_path: Path) -> None:
    fresh, said = measure("assert (folder / 'request.json').exists(); ANSWER", tmp_path)
    assert fresh.problem == ""
    assert said[0] == "fresh process 1 of 2: 2 tests"
    assert re.fullmatch(r"fresh process 2 of 2: 2 tests, 0:\d\d gone, about 0:\d\d to go", said[1])
    assert len(said) == 2
    assert fresh.by_case == {("suite", "double[64]/forward"): [CaseResult(case=CASE, readings=READINGS)] * 2}


def test_the_first_processes_alone_read_exact_metrics(tmp_path: Path) -> None:
    """Compiling for five targets in each of five processes took most of a recording."""
    script = f"open({str(tmp_path / 'asked')!r}, 'a').write((folder / 'request.json').read_text() + '\\n'); ANSWER"
    measure(script, tmp_path)
    asked = [msgspec.json.decode(line, type=Request) for line in (tmp_path / "asked").read_text().splitlines()]
    assert [request.exact for request in asked] == [True, False]


def test_a_process_that_takes_long_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_processes, "PROGRESS_SECONDS", 0.5)
    script = "time.sleep(0.7); ANSWER; time.sleep(0.7)"  # the answer grows while it measures
    fresh, said = measure(script, tmp_path)
    assert (fresh.problem, len(fresh.reports)) == ("", 2)
    first, second = ([line for line in said if line.startswith(f"fresh process {number} of 2")] for number in (1, 2))
    # The answer holds one test of two: as long again here, and then a second process.
    assert first[0] == "fresh process 1 of 2: 2 tests"
    assert any(re.fullmatch(r".*: 0 of 2 tests, 0:\d\d gone", line) for line in first)
    assert any(re.fullmatch(r".*: 1 of 2 tests, 0:\d\d gone, about 0:\d\d to go", line) for line in first)
    assert all(re.fullmatch(r".*: (. of )?2 tests, 0:\d\d gone, about 0:\d\d to go", line) for line in second)


def test_what_is_left_is_told_from_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(fresh_processes.time, "monotonic", lambda: now)
    progress = fresh_processes.Progress(tests=20, processes=5)
    assert progress.line(1) == "fresh process 1 of 5: 20 tests"
    now = 130.0
    assert progress.line(1, done=5) == "fresh process 1 of 5: 5 of 20 tests, 0:30 gone, about 9:30 to go"
    now = 220.0
    assert progress.line(2) == "fresh process 2 of 5: 20 tests, 2:00 gone, about 8:00 to go"
    now = 280.0
    assert progress.line(2, done=9) == "fresh process 2 of 5: 9 of 20 tests, 3:00 gone, about 7:00 to go"
    now = 400.0  # longer than the first one
    assert progress.line(2, done=20) == "fresh process 2 of 5: 20 of 20 tests, 5:00 gone, about 6:00 to go"


def test_an_answer_of_another_device_is_refused(tmp_path: Path) -> None:
    other = msgspec.structs.replace(REPORT, hardware=msgspec.structs.replace(REPORT.hardware, slug="cpu-other"))
    save_report(tmp_path / "other.json", other)
    fresh, _ = measure(f"shutil.copy({str(tmp_path / 'other.json')!r}, folder / 'answer.json')", tmp_path)
    assert fresh.reports == []
    assert fresh.problem == (
        f"the fresh process measured cpu-other, this run {REPORT.hardware.slug}; name the device: --perfguard-device"
    )


def test_a_crash_keeps_what_it_measured_and_is_told(tmp_path: Path) -> None:
    fresh, said = measure("ANSWER; print('last words'); sys.exit(7)", tmp_path)
    assert len(fresh.reports) == 1
    assert len(said) == 1
    assert "status 7" in fresh.problem
    assert "last words" in fresh.problem


def test_silence_is_told(tmp_path: Path) -> None:
    fresh, _ = measure("pass", tmp_path)
    assert (fresh.reports, fresh.problem) == ([], "the fresh process measured nothing")


def test_a_hanging_process_is_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    fresh, _ = measure("time.sleep(600)", tmp_path, minutes=0.02)
    assert "longer than 0.02 minutes" in fresh.problem
    assert time.monotonic() - started < 60


def test_the_report_gets_what_judging_again_needs(tmp_path: Path) -> None:
    fresh, _ = measure("ANSWER", tmp_path)
    assert len(fresh.sessions) == 2
    for session in fresh.sessions:
        assert session.device == REPORT.hardware.index
        (result,) = session.results
        assert (result.case, result.verdicts) == (CASE, [])
        for slim, whole in zip(result.readings, READINGS, strict=True):
            assert (slim.metric, slim.value, slim.timer, slim.blocks) == (whole.metric, whole.value, whole.timer, [])
