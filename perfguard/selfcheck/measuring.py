"""Measures a suite in fresh processes and stores each session, so that an interrupted selfcheck can resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from perfguard.model.atomic_files import write_atomically
from perfguard.model.errors import MeasurementError, UsageError
from perfguard.model.records import SCHEMA, CaseResult, Hardware, Report, Toolchain
from perfguard.session.child_answer import RIVALS, UNREAD
from perfguard.session.fresh_processes import Command, given_arguments, measure_fresh
from perfguard.store.report_file import read_report, save_report

DEVICE_OPTION = "--perfguard-device"
_PLUGIN = "perfguard.selfcheck.guarded_only"
_MADE_BY = "selfcheck-of.json"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class SuiteCommand(Command):
    """pytest with the user's own arguments, unchanged, so that they select the measured tests.

    `rivals`: whether other methods read the cases, too. `unread`: timed metrics to leave out.
    """

    rivals: bool = True
    unread: tuple[str, ...] = ()

    def line(self, session_folder: Path) -> list[str]:
        """The command of one session. Also writes files into its folder that request rivals and list unread metrics."""
        if self.rivals:
            (session_folder / RIVALS).touch()
        (session_folder / UNREAD).write_text("\n".join(self.unread), encoding="utf-8")
        return super().line(session_folder)


class _MadeBy(Struct, frozen=True):
    """The command that measured the sessions of a folder."""

    arguments: list[str]
    directory: str


def suite_command(arguments: Sequence[str], directory: Path, device: str) -> SuiteCommand:
    """The command for a session on `device` in `directory`."""
    extra = ("-p", _PLUGIN, f"{DEVICE_OPTION}={device}")
    return SuiteCommand(given_arguments(arguments, directory), directory, extra)


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
    command: SuiteCommand,
    folder: Path,
    count: int,
    *,
    minutes: float,
    progress: Progress,
    timers_of: Callable[[Report], Report] = lambda report: report,
    exact: bool = True,
) -> list[Report]:
    """Measure until `folder` holds `count` sessions; each is saved when it ends.

    Args:
        minutes: time limit of a session.
        timers_of: converts the first session's report to the request that sets the timers of the others.
        exact: whether the sessions read exact metrics, too.

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
        request = timers_of(reports[0]) if reports else _NOTHING
        fresh = measure_fresh(command, request, (), 1, minutes=minutes, progress=lambda _: None, exact=exact)
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


def _claim(folder: Path, command: SuiteCommand) -> None:
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


_NOTHING = Report(
    schema=SCHEMA,
    hardware=Hardware(slug="", vendor="unknown", name="unknown", architecture="unknown"),
    toolchain=Toolchain(),
    started="",
)


def with_timers(request: Report, same: Callable[[CaseResult], CaseResult | None]) -> Report:
    """`request` with the readings, and so the timers, of the case that `same` returns for each case."""
    results = [
        msgspec.structs.replace(result, readings=other.readings) if (other := same(result)) is not None else result
        for result in request.results
    ]
    return msgspec.structs.replace(request, results=results)
