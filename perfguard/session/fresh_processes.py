"""Fresh processes: each measures the requested tests once more, one after another; the parent judges.

A session is the unit of inference: a second measurement in the same process would repeat its error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from perfguard.model.errors import UsageError
from perfguard.model.records import CaseResult, Report, Session
from perfguard.model.units import counted, format_minutes
from perfguard.session.child import ANSWER, ChildCommand, Request, read_answer, write_request
from perfguard.store.report_file import read_report

PROGRESS_SECONDS = 20.0  # between two progress messages of a measuring process
_STOP_SECONDS = 5.0  # until a process that was asked to end is killed


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
    command: ChildCommand, request: Request, count: int, *, exact: int, minutes: float, progress: Callable[[str], None]
) -> FreshSessions:
    """Let `count` children answer `request`, one after another, each at most `minutes` long. The first `exact` of them
    read exact metrics, too.

    A child that crashes, hangs or measures nothing ends the series; earlier reports are kept. On interrupt the child is
    stopped before the interrupt is raised again.
    """
    fresh = FreshSessions()
    said = Progress(len(request.tests or ()), count)
    with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
        folder = Path(name)
        for number in range(1, count + 1):
            write_request(folder, msgspec.structs.replace(request, exact=number <= exact))
            progress(said.line(number))

            def tell(number: int = number) -> None:
                progress(said.line(number, _tests_in(folder / ANSWER)))

            fresh.problem = run_fresh(command, folder, minutes, tell=tell)
            try:
                report = read_answer(folder, request.slug)
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


def _tests_in(answer: Path) -> int:
    """Number of tests in an answer, which grows while its process measures."""
    try:
        return len({result.case.nodeid for result in read_report(answer).results})
    except UsageError:
        return 0


def run_fresh(
    command: ChildCommand,
    folder: Path,
    minutes: float,
    variables: Mapping[str, str] | None = None,
    tell: Callable[[], None] = lambda: None,
) -> str:
    """Run one child, with `variables` of its own, and return "" if it ended by itself, otherwise the problem with its
    last output. While it runs, `tell` is called at intervals."""
    end = time.monotonic() + 60 * minutes
    with subprocess.Popen(
        command.line(folder), cwd=command.start, env={**command.environment(), **(variables or {})},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
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
