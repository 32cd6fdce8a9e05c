"""Fresh processes: each measures the named tests once more and writes its readings; the parent judges.

A session is the unit of inference: re-measuring inside the accused process would repeat its error. Parent and
child share a folder: the parent's report lies there as the request (its timers are to be used again), the
child adds its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfguard.errors import UsageError
from perfguard.records import CaseResult, Report, Session
from perfguard.reports import read_report, save_report
from perfguard.units import counted, format_minutes

SESSION_OPTION = "--perfguard-session"
REQUEST = "request.json"
ANSWER = "session.json"
TESTS = "tests.txt"  # which tests to run, one a line; without it those that the arguments select
TIMES_ONLY = "times-only"  # a file of this name in a session's folder: its exact metrics are known
PROGRESS_SECONDS = 20.0  # until a process that still measures says how far it is
_STOP_SECONDS = 5.0  # until a process that was asked to end is killed


@dataclass(frozen=True)
class Command:
    """How to start pytest again as this run was started, for other tests.

    Attributes:
        arguments: the parent's own, without the program (`given_arguments`).
        folder: where the parent was started.
        extra: options of the fresh processes alone.
        root: what node ids are relative to; `folder` if left out.
    """

    arguments: tuple[str, ...]
    folder: Path
    extra: tuple[str, ...] = ()
    root: Path | None = None

    def select(self, session_folder: Path, nodeids: Sequence[str]) -> None:
        """Name the tests of the next process, each with its whole path: wherever pytest was started."""
        root = self.folder if self.root is None else self.root
        text = "".join(f"{root / nodeid}\n" for nodeid in nodeids)
        (session_folder / TESTS).write_text(text, encoding="utf-8")

    def line(self, session_folder: Path) -> list[str]:
        """The whole command of one fresh process. What of it is not meant for it, it leaves out by itself
        (`perfguard.hooks.child`)."""
        line = [sys.executable, "-m", "pytest", *self.arguments, *self.extra]
        return [*line, "--color=no", f"{SESSION_OPTION}={session_folder}"]


def given_arguments(arguments: Sequence[str], folder: Path) -> tuple[str, ...]:
    """pytest's arguments with those that stand in files (`@args.txt`, an argument a line) in their place.

    A checkout of another commit may lack the file. One that is not there stays as it is: pytest says so.
    """
    found: list[str] = []
    for argument in arguments:
        try:
            lines = (folder / argument[1:]).read_text(encoding="utf-8").splitlines() if argument[:1] == "@" else None
        except OSError:
            lines = None
        found += [argument] if lines is None else given_arguments(lines, folder)
    return tuple(found)


@dataclass
class FreshSessions:
    """What fresh processes measured, in order; `problem` says why there are fewer than asked for."""

    reports: list[Report] = field(default_factory=list)
    problem: str = ""

    @property
    def sessions(self) -> list[Session]:
        """For the report: what the processes read, without what judging and recording do not need."""
        return [
            Session([_slim(result) for result in report.results if result.readings], report.hardware.index)
            for report in self.reports
        ]

    @property
    def by_case(self) -> dict[tuple[str, str], list[CaseResult]]:
        """(suite, case key) -> its results, oldest first; sessions that did not measure it are left out."""
        found: dict[tuple[str, str], list[CaseResult]] = {}
        for report in self.reports:
            for result in report.results:
                if result.readings:
                    found.setdefault((result.case.suite, result.case.key), []).append(result)
        return found

    def of(self, suite: str, key: str) -> list[CaseResult]:
        """The results of one case, oldest first; sessions that did not measure it are left out."""
        return [
            result
            for report in self.reports
            for result in report.results
            if result.case.suite == suite and result.case.key == key and result.readings
        ]


def _slim(result: CaseResult) -> CaseResult:
    readings = [replace(reading, blocks=[], note="") for reading in result.readings]
    return CaseResult(result.case, result.inputs, readings=readings)


@dataclass
class Progress:
    """What is said while fresh processes measure `tests` tests each."""

    tests: int
    processes: int
    _started: float = field(default_factory=lambda: time.monotonic())
    _began: float = 0.0

    def line(self, number: int, done: int | None = None) -> str:
        """`fresh process 2 of 5: 7 of 20 tests, 0:41 gone, about 1:50 to go`; without `done` the process begins."""
        now = time.monotonic()
        text = f"fresh process {number} of {self.processes}: "
        if done is None:
            self._began = now
            text += counted(self.tests, "test")
        else:
            text += f"{done} of {counted(self.tests, 'test')}"
        if number > 1:
            each = (self._began - self._started) / (number - 1)
        elif done:
            each = (now - self._began) * self.tests / done
        else:
            return text if done is None else f"{text}, {format_minutes(now - self._started)} gone"
        left = max(0.0, each - (now - self._began)) + each * (self.processes - number)
        return f"{text}, {format_minutes(now - self._started)} gone, about {format_minutes(left)} to go"


def measure_fresh(
    command: Command,
    request: Report,
    nodeids: Sequence[str],
    count: int,
    *,
    minutes: float,
    progress: Callable[[str], None],
    exact: bool = True,
) -> FreshSessions:
    """Measure `nodeids` in `count` fresh processes, one after another, each in an order of its own and at most
    `minutes` long. Without `exact` they read times only.

    A process that crashes, hangs or measures nothing ends the series; what came before is kept. On interrupt the
    child is stopped before the interrupt goes on.
    """
    fresh = FreshSessions()
    said = Progress(len(nodeids), count)
    with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
        folder = Path(name)
        save_report(folder / REQUEST, request)
        if not exact:
            (folder / TIMES_ONLY).touch()
        for number in range(1, count + 1):
            # What a case leaves behind for the next one (clocks, heat, caches) differs from process to process.
            order = random.Random(f"{request.started} {number}").sample(nodeids, len(nodeids))
            if order:
                command.select(folder, order)
            progress(said.line(number))

            def tell(number: int = number) -> None:
                progress(said.line(number, _tests_in(folder / ANSWER)))

            fresh.problem = run_fresh(command.line(folder), command.folder, minutes, tell=tell)
            try:
                report = read_answer(folder, request.hardware.slug)
            except UsageError as error:
                fresh.problem = f"the fresh process {error}"
                break
            if report is None:
                fresh.problem = fresh.problem or "the fresh process measured nothing"
                break
            fresh.reports.append(report)
            if fresh.problem:
                break
            (folder / ANSWER).unlink()
    return fresh


def read_answer(folder: Path, slug: str) -> Report | None:
    """What a process answered into its session folder; None where it measured nothing.

    Args:
        slug: of the hardware that it was to measure; empty where that is not known.

    Raises:
        UsageError: it measured another device; the message lacks its subject, the process.
    """
    try:
        report = read_report(folder / ANSWER)
    except UsageError:
        return None
    there = report.hardware.slug
    if slug not in ("", there):
        raise UsageError(f"measured {there}, this run {slug}; name the device: --perfguard-device")
    return report


def _tests_in(answer: Path) -> int:
    """How many tests an answer holds, which grows while its process measures."""
    try:
        return len({result.case.nodeid for result in read_report(answer).results})
    except UsageError:
        return 0


def environment() -> dict[str, str]:
    """This process's, without what makes pytest a worker of pytest-xdist."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}


def run_fresh(
    line: list[str],
    folder: Path,
    minutes: float,
    variables: Mapping[str, str] | None = None,
    tell: Callable[[], None] = lambda: None,
) -> str:
    """Run one fresh process; empty when it ended by itself, else what went wrong with its last words. While it runs,
    `tell` is called now and then."""
    end = time.monotonic() + 60 * minutes
    with subprocess.Popen(
        line, cwd=folder, env=environment() if variables is None else variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            while True:
                left = max(0.0, end - time.monotonic())
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, _ = process.communicate(timeout=min(left, PROGRESS_SECONDS))
                    break
                if left <= PROGRESS_SECONDS:
                    stop(process)
                    return f"a fresh process took longer than {minutes:g} minutes ([tool.perfguard] session_minutes)"
                tell()
        except BaseException:
            stop(process)
            raise
    if process.returncode in (0, 1):  # 1: a test of its own failed there; its other readings stand
        return ""
    last = "\n".join(output.strip().splitlines()[-15:])
    return f"a fresh process ended with status {process.returncode}:\n{last}"


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop the process and whatever it started: it leads a process group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second for those of the group that outlive the leader
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
