"""Fresh processes: each measures the named tests once more and writes its readings; the parent judges.

A session is the unit of inference: a second measurement in the same process would repeat its error. Parent and child
share a folder. The parent's report in it is the request, whose timers are used again; the child adds its own report.
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

from perfguard.model.errors import UsageError
from perfguard.model.records import CaseResult, Report, Session
from perfguard.model.units import counted, format_minutes
from perfguard.store.report_file import read_report, save_report

SESSION_OPTION = "--perfguard-session"
REQUEST = "request.json"
ANSWER = "session.json"
TESTS = "tests.txt"  # tests to run, one a line; without it those that the arguments select
TIMES_ONLY = "times-only"  # file in a session's folder that requests times only
PROGRESS_SECONDS = 20.0  # between two progress messages of a measuring process
_STOP_SECONDS = 5.0  # until a process that was asked to end is killed


@dataclass(frozen=True)
class Command:
    """The command that starts pytest again as this run was started, for other tests.

    Attributes:
        arguments: the parent's own, without the program (`given_arguments`).
        folder: the parent's working folder.
        extra: options of the fresh processes alone.
        root: folder that node ids are relative to; `folder` if left out.
    """

    arguments: tuple[str, ...]
    folder: Path
    extra: tuple[str, ...] = ()
    root: Path | None = None

    def select(self, session_folder: Path, nodeids: Sequence[str]) -> None:
        """Write the tests of the next process with absolute paths, which hold wherever pytest was started."""
        root = self.folder if self.root is None else self.root
        text = "".join(f"{root / nodeid}\n" for nodeid in nodeids)
        (session_folder / TESTS).write_text(text, encoding="utf-8")

    def line(self, session_folder: Path) -> list[str]:
        """The whole command of one fresh process, which itself drops the options not meant for it
        (`perfguard.pytest_plugin.child_options`)."""
        line = [sys.executable, "-m", "pytest", *self.arguments, *self.extra]
        return [*line, "--color=no", f"{SESSION_OPTION}={session_folder}"]


def given_arguments(arguments: Sequence[str], folder: Path) -> tuple[str, ...]:
    """pytest's arguments, with those in files (`@args.txt`, one argument a line) expanded.

    A checkout of another commit may lack the file. A missing file stays as it is, and pytest reports it.
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
    """Reports of fresh processes, in order. `problem` is the reason if there are fewer than requested."""

    reports: list[Report] = field(default_factory=list)
    problem: str = ""

    @property
    def sessions(self) -> list[Session]:
        """The processes' readings for the report, reduced to what judging and recording need."""
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
    """Progress messages while fresh processes measure `tests` tests each."""

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

    A process that crashes, hangs or measures nothing ends the series; earlier reports are kept. On interrupt the child
    is stopped before the interrupt is raised again.
    """
    fresh = FreshSessions()
    said = Progress(len(nodeids), count)
    with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
        folder = Path(name)
        save_report(folder / REQUEST, request)
        if not exact:
            (folder / TIMES_ONLY).touch()
        for number in range(1, count + 1):
            # Orders differ, so that after-effects of a case on the next one (clocks, heat, caches) differ from process
            # to process.
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
    """A process's answer in its session folder; None if it measured nothing.

    Args:
        slug: hardware that it had to measure; empty if unknown.

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
    """Number of tests in an answer, which grows while its process measures."""
    try:
        return len({result.case.nodeid for result in read_report(answer).results})
    except UsageError:
        return 0


def environment() -> dict[str, str]:
    """This process's environment without the variables that make pytest a worker of pytest-xdist."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}


def run_fresh(
    line: list[str],
    folder: Path,
    minutes: float,
    variables: Mapping[str, str] | None = None,
    tell: Callable[[], None] = lambda: None,
) -> str:
    """Run one fresh process and return "" if it ended by itself, otherwise the problem with its last output. While it
    runs, `tell` is called at intervals."""
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
    if process.returncode in (0, 1):  # 1: a test failed there; its other readings are valid
        return ""
    last = "\n".join(output.strip().splitlines()[-15:])
    return f"a fresh process ended with status {process.returncode}:\n{last}"


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop the process and its children: it leads a process group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second for members of the group that outlive the leader
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
