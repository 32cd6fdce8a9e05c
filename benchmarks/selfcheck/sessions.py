"""The sessions of a selfcheck: fresh processes that measure one suite. Each is stored when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import MeasurementError, UsageError
from perfguard.model.records import CaseId, CaseResult, Hardware, Reading, Report, Toolchain
from perfguard.session.child import ChildCommand, Request, timers_of
from perfguard.session.child_process import measure_fresh
from perfguard.store.report_file import read_report, save_report

_MADE_BY = "selfcheck-of.json"  # the command that measured the sessions of a folder: its arguments, then where

Progress = Callable[[str], None]


def stored_sessions(folder: Path) -> list[Report]:
    """The session reports in `folder`, oldest first.

    Raises:
        UsageError: one is not a report.
    """
    return [read_report(path) for path in sorted(folder.glob("session-*.json"))]


def measure_sessions(
    command: ChildCommand, request: Request, folder: Path, count: int, *, minutes: float, progress: Progress
) -> list[Report]:
    """Measure until `folder` holds `count` sessions; each is saved when it ends. A session runs the guarded tests that
    the arguments of `command` select, in an order of its own.

    Args:
        request: what the first session reads. The others read the same on the same hardware, with the same timers.
        minutes: time limit of a session.

    Raises:
        UsageError: the folder holds sessions of another command.
        MeasurementError: a process crashed, hung or measured nothing; earlier sessions are kept.
    """
    _claim(folder, command)
    reports = stored_sessions(folder)
    if reports:
        progress(f"{len(reports)} of {count} sessions are there already, in {folder}")
    while len(reports) < count:
        number = len(reports) + 1
        progress(f"session {number} of {count}: a fresh process")
        asked = replace(request, shuffle=True, alone=True)
        if reports:
            asked = replace(asked, slug=reports[0].hardware.slug, timers=timers_of(reports[0].results))
        found, problem = measure_fresh(command, asked, 1, minutes=minutes, progress=lambda _: None)
        if problem or not found:
            raise MeasurementError(
                f"session {number}: {problem}\nthe {len(reports)} sessions before it are kept in {folder}; "
                "mend the suite and run the same command again"
            )
        report = found[0]
        if not any(result.readings for result in report.results):
            raise MeasurementError(f"session {number}: no case was measured; name tests that use the fixture")
        save_report(folder / f"session-{number:02d}.json", report)
        reports.append(report)
    return reports[:count]


def _claim(folder: Path, command: ChildCommand) -> None:
    """Refuse a folder with sessions of another command, which would be mixed up with ours."""
    path = folder / _MADE_BY
    made_by = msgspec.json.encode([*command.arguments, str(command.folder)])
    if not path.is_file():
        write_atomically(path, made_by)
    elif path.read_bytes() != made_by:
        known = path.read_text(errors="replace")
        raise UsageError(f"{folder}: holds sessions of another command ({known}); use another folder: -o FOLDER")


@dataclass(frozen=True)
class Sample:
    """The results of N sessions of one suite.

    Attributes:
        sessions: for each session, case -> its result with the readings that all sessions have.
        left_out: cases and readings that not every session read alike.
    """

    hardware: Hardware
    toolchain: Toolchain
    sessions: Sequence[Mapping[CaseId, CaseResult]]
    left_out: list[str]


def gather(reports: Sequence[Report]) -> Sample:
    """The cases and readings common to all sessions, with equal inputs and timers.

    Raises:
        UsageError: the reports come from different hardware, power limits or toolchains.
    """
    first = reports[0]
    for number, report in enumerate(reports, 1):
        if _machine(report) != _machine(first):
            raise UsageError(
                f"session {number}: another hardware, power limit or toolchain than session 1 "
                f"({_machine(first)} -> {_machine(report)}); keep one folder for each: --output FOLDER"
            )
    found = [{r.id: r for r in report.results if r.readings} for report in reports]
    sessions: list[dict[CaseId, CaseResult]] = [{} for _ in reports]
    left_out = []
    for case in sorted(set().union(*found)):
        results = [session[case] for session in found if case in session]
        if len(results) < len(reports) or len({result.inputs for result in results}) > 1:
            left_out.append(
                f"{' '.join(case)}: measured in {len(results)} of {len(reports)} sessions, or unlike inputs"
            )
            continue
        read = [{each.metric: each for each in result.readings if not each.rival} for result in results]
        alike = {metric for metric in read[0] if _is_alike([readings.get(metric) for readings in read])}
        for session, result, readings in zip(sessions, results, read, strict=True):
            session[case] = replace(result, readings=[each for each in readings.values() if each.metric in alike])
        others = sorted(set().union(*read) - alike)
        left_out += [f"{' '.join(case)} {metric}: not read alike in all sessions" for metric in others]
    return Sample(first.hardware, first.toolchain, sessions, left_out)


def _machine(report: Report) -> tuple[str, float | None, Toolchain]:
    return report.hardware.slug, report.hardware.power_limit_watts, report.toolchain


def _is_alike(readings: Sequence[Reading | None]) -> bool:
    """Whether all sessions read the metric with one timer, and a time as a time."""
    timers = {reading.timer if reading is not None else "absent" for reading in readings}
    return len(timers) == 1 and all(
        not reading.timed or (isinstance(reading.value, int | float) and 0 < reading.value < math.inf)
        for reading in readings
        if reading is not None
    )
