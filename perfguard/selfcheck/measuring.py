"""Sessions of a suite in fresh processes, each kept in a folder, so that a cut-short selfcheck goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from perfguard.answering import RIVALS, UNREAD
from perfguard.errors import MeasurementError, UsageError
from perfguard.records import SCHEMA, CaseResult, Hardware, Report, Toolchain
from perfguard.reports import read_report, save_report, write_atomically
from perfguard.sessions import Command, given_arguments, measure_fresh

DEVICE_OPTION = "--perfguard-device"
_PLUGIN = "perfguard.selfcheck.guarded_only"
_MADE_BY = "selfcheck-of.json"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class SuiteCommand(Command):
    """pytest with the user's own arguments, unchanged: what they select is what is measured.

    `rivals`: whether other methods read the cases, too. `unread`: timed metrics that are left out.
    """

    rivals: bool = True
    unread: tuple[str, ...] = ()

    def line(self, session_folder: Path) -> list[str]:
        """The command of one session; its folder is told here what else is wanted, and what is not."""
        if self.rivals:
            (session_folder / RIVALS).touch()
        (session_folder / UNREAD).write_text("\n".join(self.unread), encoding="utf-8")
        return super().line(session_folder)


class _MadeBy(Struct, frozen=True):
    """What the sessions of a folder measured."""

    arguments: list[str]
    directory: str


def suite_command(arguments: Sequence[str], directory: Path, device: str) -> SuiteCommand:
    """How a session on `device` is started in `directory`."""
    extra = ("-p", _PLUGIN, f"{DEVICE_OPTION}={device}")
    return SuiteCommand(given_arguments(arguments, directory), directory, extra)


def stored_sessions(folder: Path) -> list[Path]:
    """The session reports in `folder`, oldest first."""
    return sorted(folder.glob("session-*.json"))


def read_sessions(folder: Path) -> list[Report]:
    """The stored sessions.

    Raises:
        UsageError: the folder is not there, holds none, or holds one that is no report.
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
    """Measure until `folder` holds `count` sessions, each saved as soon as it is through.

    Args:
        minutes: after this a session is given up.
        timers_of: from the first session's report to the request of the others, whose timers they use.
        exact: whether the sessions read exact metrics, too.

    Raises:
        UsageError: the folder holds sessions of something else.
        MeasurementError: a process crashed, hung or measured nothing; what was measured before is kept.
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
    """Sessions of two suites in one folder would be taken for one."""
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
    """`request` in which each case asks for the readings, and so the timers, of the case that `same` names."""
    results = [
        msgspec.structs.replace(result, readings=other.readings) if (other := same(result)) is not None else result
        for result in request.results
    ]
    return msgspec.structs.replace(request, results=results)
