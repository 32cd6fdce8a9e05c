"""Measures a suite in fresh processes and stores each session, so that an interrupted selfcheck can resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import MeasurementError, UsageError
from perfguard.model.records import Report
from perfguard.session.child import ChildCommand, Request, Timers, timers_of
from perfguard.session.fresh_processes import measure_fresh
from perfguard.store.report_file import read_report, save_report

_MADE_BY = "selfcheck-of.json"

Progress = Callable[[str], None]


class _MadeBy(Struct, frozen=True):
    """The command that measured the sessions of a folder."""

    arguments: list[str]
    directory: str


def stored_sessions(folder: Path) -> list[Path]:
    """The session reports in `folder`, oldest first."""
    return sorted(folder.glob("session-*.json"))


def read_sessions(folder: Path) -> list[Report]:
    """The stored sessions.

    Raises:
        UsageError: the folder is missing, has no sessions, or has one that is not a report.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; measure first: perfguard selfcheck -o {folder}")
    reports = [read_report(path) for path in stored_sessions(folder)]
    if not reports:
        raise UsageError(f"{folder}: holds no session-*.json; measure first: perfguard selfcheck -o {folder}")
    return reports


def measure_sessions(
    command: ChildCommand,
    request: Request,
    folder: Path,
    count: int,
    *,
    minutes: float,
    progress: Progress,
    timers: Callable[[Report], Timers] = lambda pilot: timers_of(pilot.results),
) -> list[Report]:
    """Measure until `folder` holds `count` sessions; each is saved when it ends. A session runs the guarded tests that
    the arguments of `command` select, in an order of its own.

    Args:
        request: what the first session reads. The others read the same on the same hardware.
        minutes: time limit of a session.
        timers: the timers of the other sessions, from the first one's report.

    Raises:
        UsageError: the folder holds sessions of another command.
        MeasurementError: a process crashed, hung or measured nothing; earlier sessions are kept.
    """
    _claim(folder, command)
    reports = [read_report(path) for path in stored_sessions(folder)]
    if reports:
        progress(f"{len(reports)} of {count} sessions are there already, in {folder}")
    while len(reports) < count:
        number = len(reports) + 1
        progress(f"session {number} of {count}: a fresh process")
        asked = replace(request, shuffle=True)
        if reports:
            asked = replace(asked, slug=reports[0].hardware.slug, timers=timers(reports[0]))
        fresh = measure_fresh(command, asked, 1, minutes=minutes, progress=lambda _: None)
        if fresh.problem or not fresh.reports:
            raise MeasurementError(
                f"session {number}: {fresh.problem}\nthe {len(reports)} sessions before it are kept in {folder}; "
                "mend the suite and run the same command again"
            )
        report = fresh.reports[0]
        if not any(result.readings for result in report.results):
            raise MeasurementError(f"session {number}: no case was measured; name tests that use the fixture")
        save_report(folder / f"session-{number:02d}.json", report)
        reports.append(report)
    return reports[:count]


def _claim(folder: Path, command: ChildCommand) -> None:
    """Refuse a folder with sessions of another command, which would be mixed up with ours."""
    made_by = _MadeBy(list(command.arguments), str(command.folder))
    path = folder / _MADE_BY
    if path.is_file():
        try:
            known = msgspec.json.decode(path.read_bytes(), type=_MadeBy)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{path}: not written by selfcheck ({error}); use another folder: -o FOLDER") from error
        if known != made_by:
            said = " ".join(known.arguments) or "without arguments"
            raise UsageError(
                f"{folder}: holds sessions of another command (pytest {said} in {known.directory}); "
                "use another folder: -o FOLDER"
            )
    else:
        write_atomically(path, msgspec.json.encode(made_by))
