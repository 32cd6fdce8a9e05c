"""Sessions are stored one by one, a cut-short series goes on, and only what all sessions read alike is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.selfcheck.sessions import gather, measure_sessions, stored_sessions
from perfguard.model.errors import MeasurementError, UsageError
from perfguard.model.records import Report, Toolchain
from perfguard.session.child import ChildCommand, Request, read_request, timers_of
from perfguard.store.report_file import save_report
from tests.selfcheck.simulated import HARDWARE, simulated_sessions

replace = msgspec.structs.replace
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
    # The script leaves a trace and its request each time, and crashes the third time.
    script = (
        "trace = answer.with_name('trace'); trace.open('a').write('x')\n"
        "assert trace.read_text() != 'xxx'\nshutil.copy(folder / 'request.json', answer.parent)\n" + ANSWER
    )
    measure(tmp_path, script, 1)
    asked = Request(shuffle=True, alone=True, unread=["host_time_us"], parent=os.getpid())
    assert read_request(tmp_path) == asked
    with pytest.raises(MeasurementError, match=r"^session 3: (?s:.)*the 2 sessions before it are kept in .*again$"):
        measure(tmp_path, script, 4)
    reports, said = measure(tmp_path, script, 4)
    assert len(reports) == len(stored_sessions(tmp_path / "out")) == 4
    assert said[0].startswith("2 of 4 sessions are there already")
    timers = timers_of(reports[0].results)  # later sessions use those of the first
    assert read_request(tmp_path) == replace(asked, slug=HARDWARE.slug, timers=timers)
    assert len(measure(tmp_path, script, 3)[0]) == 3
    assert (tmp_path / "trace").read_text() == "x" * 5  # nothing is measured twice


def test_a_folder_of_another_command_and_a_session_without_readings_are_refused(tmp_path: Path) -> None:
    measure(tmp_path, ANSWER, 1)
    with pytest.raises(UsageError, match=r"holds sessions of another command (?s:.)*use another folder: -o FOLDER$"):
        measure(tmp_path, ANSWER + "pass", 2)
    emptied = ANSWER + (
        "import json; path = folder / 'answer.json'; report = json.loads(path.read_text())\n"
        "report['results'] = []; path.write_text(json.dumps(report))"
    )
    (tmp_path / "other").mkdir()
    with pytest.raises(MeasurementError, match=r"^session 1: no case was measured"):
        measure(tmp_path / "other", emptied, 1)


def changed(report: Report, case: int, **fields: object) -> Report:
    results = list(report.results)
    results[case] = replace(results[case], **fields)
    return replace(report, results=results)


def test_what_differs_between_sessions_is_left_out_and_named() -> None:
    first, second, third = simulated_sessions(3, 5)
    second = changed(second, 0, readings=[])
    second = changed(second, 1, inputs="float32[5]")
    count, time = third.results[2].readings
    third = changed(third, 2, readings=[count, replace(time, timer="other")])
    third = changed(third, 3, readings=[count, replace(time, value=0.0)])
    sample = gather([first, second, third])
    assert len(sample.sessions) == 3
    metrics = [
        {key: [each.metric for each in result.readings] for (_, key), result in session.items()}
        for session in sample.sessions
    ]
    shared = {"case[002]/forward": ["launches"], "case[003]/forward": ["launches"],
              "case[004]/forward": ["launches", "span_us"]}  # fmt: skip
    assert metrics == [shared] * 3
    assert sample.left_out == [
        "suite case[000]/forward: measured in 2 of 3 sessions, or unlike inputs",
        "suite case[001]/forward: measured in 3 of 3 sessions, or unlike inputs",
        "suite case[002]/forward span_us: not read alike in all sessions",
        "suite case[003]/forward span_us: not read alike in all sessions",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"hardware": replace(HARDWARE, slug="other-gpu")},
        {"hardware": replace(HARDWARE, power_limit_watts=300.0)},
        {"toolchain": Toolchain(torch="2.12.0")},
    ],
)
def test_sessions_of_another_machine_are_refused(fields: dict[str, object]) -> None:
    first, second = simulated_sessions(2, 1)
    with pytest.raises(UsageError, match=r"^session 2: another hardware, power limit or .*--output"):
        gather([first, replace(second, **fields)])
