"""One selfcheck from end to end: sessions, their judgement, a real kernel made slower, table and JSON."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfguard import __version__
from perfguard.judge.statistics import MIN_SESSIONS
from perfguard.measure.devices import find_devices
from perfguard.model.atomic_files import write_atomically
from perfguard.model.config import Settings, read_settings
from perfguard.model.errors import ExitStatus, MeasurementError, UsageError
from perfguard.model.records import Report
from perfguard.selfcheck.analysis import (
    judge_apart,
    judge_exact_metrics,
    judge_resampled,
    seconds_per_case,
    shorten,
    timer_noise,
)
from perfguard.selfcheck.draws import least_sessions
from perfguard.selfcheck.findings import SCHEMA, Findings, Injected
from perfguard.selfcheck.injection import inject, judge_injected
from perfguard.selfcheck.judging import timed_cases
from perfguard.selfcheck.measuring import measure_sessions, read_sessions
from perfguard.selfcheck.sample import gather, primary
from perfguard.selfcheck.table import show
from perfguard.session import child
from perfguard.session.child import child_command, named_device
from perfguard.session.device_lock import DeviceLock

RESULT = "selfcheck.json"
_DELAYED = "delayed"


@dataclass(frozen=True)
class Request:
    """Options of the command line. `stored`: judge the sessions of that folder, measure nothing."""

    directory: Path
    sessions: int = 20
    suites: int = 300
    stored: Path | None = None
    output: Path | None = None
    arguments: tuple[str, ...] = ()


def selfcheck(request: Request) -> int:
    """Measure (or read) sessions, judge them, show and write the findings; returns the exit status.

    Raises:
        UsageError: too few sessions, a folder with other contents, or no such folder.
    """
    settings = read_settings(_root(request.directory), device=named_device(request.arguments, request.directory))
    stored = max(settings.sessions, MIN_SESSIONS)
    least = least_sessions(stored)
    if request.stored is not None and request.arguments:
        raise UsageError("--from: judges stored sessions and starts no pytest; leave the arguments after -- out")
    if request.stored is None and request.sessions < least:
        raise UsageError(_too_few(f"--sessions {request.sessions}", stored))
    folder = request.stored or request.output or _root(request.directory) / settings.reports / "selfcheck"
    folder = folder.resolve()
    output = request.output or folder
    try:
        reports = read_sessions(folder) if request.stored else _measure(request, folder, settings)
        if len(reports) < least:
            raise UsageError(_too_few(f"{folder}: {len(reports)} sessions", stored))
        injected, note = _injected(folder / _DELAYED, reports)
    except MeasurementError as error:
        _say(str(error))
        return int(ExitStatus.NOTHING_MEASURED)
    except KeyboardInterrupt:
        _say(f"interrupted; the sessions in {folder} are kept: the same command goes on from there")
        return int(ExitStatus.INTERRUPTED)
    sample = gather(reports)
    if not any(primary(result) for result in sample.sessions[0].values()):
        reasons = "".join(f"\n  {line}" for line in sample.left_out[:10])
        _say(f"{folder}: no timed case was measured alike in every session; nothing to judge{reasons}")
        return int(ExitStatus.NOTHING_MEASURED)
    _say(f"judging process pairs of {len(reports)} sessions, then {request.suites} resampled suites")
    findings = msgspec.structs.replace(analyse(reports, stored, request.suites), injected=injected, injection_note=note)
    write_atomically(output / RESULT, msgspec.json.format(msgspec.json.encode(findings), indent=1))
    show(findings)
    print(f"results: {output / RESULT}")
    kept = [promise.kept for promise in findings.promises()]
    return int(ExitStatus.TESTS_FAILED if False in kept else ExitStatus.PASSED)


def analyse(reports: Sequence[Report], stored: int, suites: int) -> Findings:
    """Evaluate the judge on sessions of one commit. The real kernel's fields stay empty."""
    sample = gather(reports)
    exact, moved = judge_exact_metrics(sample)
    apart, alarms = judge_apart(sample)
    resampled = judge_resampled(sample, stored, suites, _say)
    return Findings(
        schema=SCHEMA,
        perfguard=__version__,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        hardware=sample.hardware,
        toolchain=sample.toolchain,
        commit=reports[0].commit,
        sessions=len(reports),
        first_session=min(report.started for report in reports),
        last_session=max(report.started for report in reports),
        stored=stored,
        cases=len(sample.cases),
        timed_cases=len(timed_cases(sample)),
        left_out=list(sample.left_out),
        seconds_per_case=seconds_per_case(sample),
        timers=timer_noise(sample),
        exact=exact,
        apart=apart,
        alarms=shorten([*moved, *alarms]),
        resampled_cases=resampled.cases,
        resampled=resampled.runs,
        power=resampled.power,
        promised=resampled.promised,
        screen=resampled.screen,
    )


def _too_few(what: str, stored: int) -> str:
    return (
        f"{what}: a judgement needs {least_sessions(stored)} (three process pairs of three sessions each; a record of "
        f"{stored}, [tool.perfguard] sessions, and one more); measure so many or more, 20 by default"
    )


def _measure(request: Request, folder: Path, settings: Settings) -> list[Report]:
    """Measure the suite's sessions, and on a GPU those of the delayed kernel, on one locked device."""
    device, key = next(iter(find_devices(settings.device).items()))
    with DeviceLock(key) as lock:
        lock.acquire(settings.lock_minutes, _say)
        command = child_command(request.arguments, request.directory, device)
        reports = measure_sessions(
            command, child.Request(), folder, request.sessions, minutes=settings.session_minutes, progress=_say
        )
        if not _on_cpu(reports):
            inject(folder / _DELAYED, settings, device, request.sessions, progress=_say)
    return reports


def _injected(folder: Path, reports: Sequence[Report]) -> tuple[list[Injected], str]:
    """The real kernel's results, or an empty list and the reason."""
    if _on_cpu(reports):
        return [], "not run: needs a GPU"
    if not folder.is_dir():
        return [], f"not measured: {folder} is not there"
    injected = judge_injected(folder)
    return injected, "" if injected else f"not judged: too few sessions in {folder}"


def _on_cpu(reports: Sequence[Report]) -> bool:
    return reports[0].hardware.vendor == "cpu"


def _root(directory: Path) -> Path:
    """The folder of the nearest pyproject.toml, else `directory`."""
    return next((path for path in (directory, *directory.parents) if (path / "pyproject.toml").is_file()), directory)


def _say(text: str) -> None:
    print(f"perfguard selfcheck: {text}", file=sys.stderr, flush=True)
