"""Sessions are kept one by one; a cut-short series goes on; folders are not mixed up."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfguard.model.errors import MeasurementError, UsageError
from perfguard.model.records import Report
from perfguard.selfcheck.measuring import measure_sessions, read_sessions
from perfguard.session.child import ChildCommand, Request, read_request, timers_of
from perfguard.store.report_file import save_report
from tests.selfcheck.simulated import simulated_sessions

PROLOGUE = "import pathlib, shutil, sys\nfolder, answer = map(pathlib.Path, sys.argv[1:])\n"
ANSWER = "shutil.copy(answer, folder / 'answer.json')\n"


class Scripted(ChildCommand):
    """Runs a Python script in place of pytest."""

    def line(self, folder: Path) -> list[str]:
        answer = str(self.folder / "answer.json")
        return [sys.executable, "-c", PROLOGUE + self.arguments[0], str(folder), answer]


def measure(tmp_path: Path, script: str, count: int) -> tuple[list[Report], list[str]]:
    save_report(tmp_path / "answer.json", simulated_sessions(1, 2)[0])
    said: list[str] = []
    command = Scripted((script,), tmp_path)
    request = Request(unread=["host_time_us"])
    reports = measure_sessions(command, request, tmp_path / "out", count, minutes=1, progress=said.append)
    return reports, said


def test_sessions_are_kept_and_a_cut_short_series_goes_on(tmp_path: Path) -> None:
    # The script leaves a trace each time, and crashes the third time.
    trace = "trace = answer.with_name('trace'); trace.open('a').write('x')\n"
    script = trace + "assert trace.read_text() != 'xxx'\n" + ANSWER
    with pytest.raises(MeasurementError, match=r"^session 3: (?s:.)*the 2 sessions before it are kept in .*again$"):
        measure(tmp_path, script, 4)
    assert len(read_sessions(tmp_path / "out")) == 2
    reports, said = measure(tmp_path, script, 4)
    assert len(reports) == len(read_sessions(tmp_path / "out")) == 4
    assert said[0].startswith("2 of 4 sessions are there already")
    assert (tmp_path / "trace").read_text() == "x" * 5
    assert len(measure(tmp_path, script, 3)[0]) == 3  # nothing is measured again
    assert (tmp_path / "trace").read_text() == "x" * 5


def test_later_sessions_use_the_timers_of_the_first(tmp_path: Path) -> None:
    script = "shutil.copy(folder / 'request.json', answer.parent)\n" + ANSWER
    measure(tmp_path, script, 1)
    assert read_request(tmp_path) == Request(shuffle=True, unread=["host_time_us"])
    first, *_ = measure(tmp_path, script, 2)[0]
    timers = timers_of(first.results)
    assert len(timers) == 1
    assert read_request(tmp_path) == Request(first.hardware.slug, timers, shuffle=True, unread=["host_time_us"])


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder; measure first: perfguard selfcheck -o"):
        read_sessions(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"holds no session-\*.json"):
        read_sessions(tmp_path)
    (tmp_path / "session-01.json").write_text("{")
    with pytest.raises(UsageError, match=r"session-01.json: not a perfguard report"):
        read_sessions(tmp_path)
    measure(tmp_path, ANSWER, 1)
    with pytest.raises(UsageError, match=r"holds sessions of another command (?s:.)*use another folder: -o FOLDER$"):
        measure(tmp_path, ANSWER + "pass", 2)
    (tmp_path / "out" / "selfcheck-of.json").write_text("[]")
    with pytest.raises(UsageError, match=r"selfcheck-of\.json: not written by selfcheck"):
        measure(tmp_path, ANSWER, 2)


def test_a_session_without_a_reading_ends_it(tmp_path: Path) -> None:
    emptied = ANSWER + (
        "import json; path = folder / 'answer.json'; report = json.loads(path.read_text())\n"
        "report['results'] = []; path.write_text(json.dumps(report))"
    )
    with pytest.raises(MeasurementError, match=r"^session 1: no case was measured"):
        measure(tmp_path, emptied, 1)
