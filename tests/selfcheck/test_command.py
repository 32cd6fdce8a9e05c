"""Stored sessions judged again from end to end, and what the command refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.selfcheck import __main__ as command
from benchmarks.selfcheck.__main__ import main
from benchmarks.selfcheck.findings import SCHEMA, Findings
from perfguard import ExitStatus
from perfguard.model.errors import MeasurementError
from perfguard.model.records import Report
from perfguard.store.report_file import save_report
from tests.selfcheck.simulated import HARDWARE, simulated_sessions

CPU = msgspec.structs.replace(HARDWARE, vendor="cpu", slug="cpu-test", target="cpu")


def store(folder: Path, reports: list[Report], **fields: Any) -> Path:
    for number, report in enumerate(reports, 1):
        save_report(folder / f"session-{number:02d}.json", msgspec.structs.replace(report, **fields))
    return folder


def judge(folder: Path, *arguments: str) -> int:
    return main(["--from", str(folder), "--suites", "20", *arguments])


def test_quiet_sessions_keep_the_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, simulated_sessions(12, 30, noise=0.001), hardware=CPU)
    assert judge(tmp_path, "-o", str(tmp_path / "out")) == ExitStatus.PASSED
    out = capsys.readouterr().out
    assert "undecided: at most" not in out  # promised of GPUs alone
    assert "BROKEN" not in out
    path = tmp_path / "out" / "selfcheck.json"
    assert f"results: {path}" in out
    found = msgspec.json.decode(path.read_bytes(), type=Findings)
    assert (found.schema, found.sessions, found.cases, found.timed_cases) == (SCHEMA, 12, 30, 30)
    assert (found.suites.slower.trials, found.seconds_per_case) == (20, pytest.approx(0.1))
    assert (found.first_session[:10], found.last_session[:10]) == ("2026-11-01", "2026-11-12")


def test_a_sample_that_breaks_a_promise_is_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here the sessions themselves differ: half of them launch one kernel more."""
    reports = simulated_sessions(12, 12)
    for number, report in enumerate(reports[::2]):
        results = [
            msgspec.structs.replace(
                each, readings=[msgspec.structs.replace(each.readings[0], value=2), *each.readings[1:]]
            )
            for each in report.results
        ]
        reports[2 * number] = msgspec.structs.replace(report, results=results)
    store(tmp_path, reports)
    assert judge(tmp_path) == ExitStatus.TESTS_FAILED
    out = capsys.readouterr().out
    assert "BROKEN     false alarms: at most 1 % of sessions, exact metrics: 12 of 12" in out
    assert "session 2: suite case[000]/forward: launches 2 -> 1" in out


def test_nothing_timed_is_nothing_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    untimed = [
        msgspec.structs.replace(
            report, results=[msgspec.structs.replace(r, readings=r.readings[:1]) for r in report.results]
        )
        for report in simulated_sessions(9, 2)
    ]
    assert judge(store(tmp_path, untimed, hardware=CPU)) == ExitStatus.NOTHING_MEASURED
    assert "no timed case was measured alike" in capsys.readouterr().err


def test_too_few_sessions_and_contradictions_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, simulated_sessions(8, 2))
    assert judge(tmp_path) == judge(tmp_path, "--", "tests") == judge(tmp_path / "absent") == ExitStatus.USAGE_ERROR
    said = capsys.readouterr().err
    assert "8 sessions; a judgement needs 9 (three process pairs of three sessions" in said
    assert "--from: judges stored sessions and starts no pytest; leave the arguments after -- out" in said
    assert "absent: 0 sessions; a judgement needs 9" in said
    for given in (["--sessions", "8"], ["--sessions", "many"], ["--suites", "0"]):
        with pytest.raises(SystemExit, match="2"):
            main(given)
        assert "give a whole number of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (KeyboardInterrupt(), ExitStatus.INTERRUPTED, "are kept: the same command goes on from there"),
        (MeasurementError("session 1: hung"), ExitStatus.NOTHING_MEASURED, "session 1: hung"),
    ],
)
def test_a_measurement_that_ends_early(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    status: ExitStatus,
    said: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "measure_sessions", fail)
    assert main(["--", "tests", "--perfguard-device", "fake"]) == status
    assert said in capsys.readouterr().err
