"""Stored sessions judged again from end to end, and what the command refuses."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfguard import ExitStatus
from perfguard.model.errors import MeasurementError, UsageError
from perfguard.model.records import Report
from perfguard.selfcheck import command, running
from perfguard.selfcheck.findings import SCHEMA, Findings
from perfguard.selfcheck.running import Request, selfcheck
from perfguard.store.report_file import save_report
from tests.selfcheck.simulated import HARDWARE, simulated_sessions

CPU = msgspec.structs.replace(HARDWARE, vendor="cpu", slug="cpu-test", target="cpu")


def store(folder: Path, reports: list[Report], **fields: Any) -> Path:
    for number, report in enumerate(reports, 1):
        save_report(folder / f"session-{number:02d}.json", msgspec.structs.replace(report, **fields))
    return folder


def judge(folder: Path, **fields: Any) -> int:
    return selfcheck(Request(folder, stored=folder, suites=20, **fields))


def test_quiet_sessions_keep_the_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, simulated_sessions(12, 30, noise=0.001), hardware=CPU)
    assert judge(tmp_path, output=tmp_path / "out") == ExitStatus.PASSED
    out = capsys.readouterr().out
    assert "a real kernel made slower: not run: needs a GPU" in out
    assert "not shown  power: at least 95 % at 3 %, real kernel: not run: needs a GPU" in out
    assert "undecided: at most" not in out  # promised of GPUs alone
    assert "BROKEN" not in out
    path = tmp_path / "out" / "selfcheck.json"
    assert f"results: {path}" in out
    found = msgspec.json.decode(path.read_bytes(), type=Findings)
    assert (found.sessions, found.cases, found.timed_cases, found.stored) == (12, 30, 30, 5)
    assert (found.schema, found.apart.most_pairs, found.resampled.slower_suites.trials) == (SCHEMA, 4, 20)
    assert (found.first_session[:10], found.last_session[:10]) == ("2026-11-01", "2026-11-12")


def test_a_sample_that_breaks_a_promise_is_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here the sessions themselves differ: half of them launch one kernel more."""
    reports = simulated_sessions(12, 12)
    for number, report in enumerate(reports[::2]):
        results = [
            msgspec.structs.replace(result, readings=[msgspec.structs.replace(result.readings[0], value=2)])
            for result in report.results
        ]
        results = [
            msgspec.structs.replace(new, readings=[*new.readings, *old.readings[1:]])
            for new, old in zip(results, report.results, strict=True)
        ]
        reports[2 * number] = msgspec.structs.replace(report, results=results)
    store(tmp_path, reports)
    assert judge(tmp_path) == ExitStatus.TESTS_FAILED
    out = capsys.readouterr().out
    assert "BROKEN     false alarms: at most 1 % of sessions, exact metrics: 12 of 12" in out
    assert "session 2: suite case[000]/forward: launches 2 -> 1" in out
    assert f"not measured: {tmp_path / 'delayed'} is not there" in out


def test_nothing_timed_is_nothing_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = simulated_sessions(9, 2)
    untimed = [
        msgspec.structs.replace(
            report, results=[msgspec.structs.replace(r, readings=r.readings[:1]) for r in report.results]
        )
        for report in reports
    ]
    store(tmp_path, untimed, hardware=CPU)
    assert judge(tmp_path) == ExitStatus.NOTHING_MEASURED
    assert "no timed case was measured alike" in capsys.readouterr().err


def test_too_few_sessions_and_contradictions_are_refused(tmp_path: Path) -> None:
    store(tmp_path, simulated_sessions(8, 2))
    with pytest.raises(UsageError, match=r"8 sessions: a judgement needs 9 \(three process pairs of three sessions"):
        judge(tmp_path)
    with pytest.raises(UsageError, match=r"^--sessions 8: a judgement needs 9"):
        selfcheck(Request(tmp_path, sessions=8))
    with pytest.raises(UsageError, match=r"^--from: .*leave the arguments after -- out"):
        judge(tmp_path, arguments=("tests",))
    with pytest.raises(UsageError, match="no such folder"):
        selfcheck(Request(tmp_path, stored=tmp_path / "absent"))


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

    monkeypatch.setattr(running, "measure_sessions", fail)
    asked = Request(tmp_path, arguments=("tests", "--perfguard-device", "fake"))
    assert selfcheck(asked) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--sessions", "1"], ["--sessions", "many"], ["--suites", "0"]])
def test_counts_that_cannot_be_are_refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(given)
    assert "give a whole number" in capsys.readouterr().err


def test_what_stands_behind_two_dashes_is_pytests() -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args(["--sessions", "12", "--", "tests", "-k", "a or b"])
    assert (options.sessions, options.suites, options.pytest_arguments) == (12, 300, ["tests", "-k", "a or b"])
