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
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import CaseResult, Report, Session
from perfguard.model.units import counted, format_minutes
from perfguard.session.child import ANSWER, ChildCommand, Request, read_answer, write_request

DIED = "ended with status"  # Marks the problem of a process that crashed or was killed.
TOO_LONG = "took longer than"  # The same of one that was stopped.
_LAST_LINES = 15
_ERRORS = ("ERROR: ", "E   ")  # pytest begins usage errors and lines of exceptions so.
_STOP_SECONDS = 5.0  # Seconds until a process that was asked to end is killed.


class Tell(Protocol):
    """Reports the step that begins. `passing`: the step matters only while it lasts. `detail`: it is shown only under
    -v."""

    def __call__(self, text: str, *, passing: bool = False, detail: bool = False) -> None: ...


def session_of(results: Iterable[CaseResult], device: int) -> Session:
    """The readings of a process or launch of ranks, reduced to those that judging and recording need."""
    return Session([_slim(result) for result in results if result.readings], device)


def _slim(result: CaseResult) -> CaseResult:
    readings = [replace(reading, blocks=[], note="") for reading in result.readings]
    return CaseResult(result.case, result.inputs, readings=readings, verdicts=result.verdicts, ranks=result.ranks)


def measure_fresh(
    command: ChildCommand, request: Request, count: int, *, minutes: float, progress: Callable[[str], None]
) -> tuple[list[Report], str]:
    """Let `count` children answer `request`, one after another, each at most `minutes` long.

    Returns:
        Their reports, in order, and the reason if there are fewer than requested.

    A child that crashes, hangs or measures nothing ends the series; earlier reports are kept. On interrupt the child is
    stopped before the interrupt is raised again.
    """
    reports: list[Report] = []
    problem = ""
    started, tests = time.monotonic(), counted(len(request.tests or ()), "test")
    with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
        folder = Path(name)
        for number in range(1, count + 1):
            write_request(folder, request)
            step = f"fresh process {number} of {count}: {tests}" if count > 1 else f"fresh process: {tests}"
            if number > 1:
                seconds = time.monotonic() - started
                left = seconds / (number - 1) * (count - number + 1)
                step += f", {format_minutes(seconds)} elapsed, about {format_minutes(left)} to go"
            progress(step)
            problem = run_fresh(command, folder, minutes)
            try:
                report = read_answer(folder, request.slug)
            except UsageError as error:
                problem = f"the fresh process {error}"
                break
            if report is None:
                problem = problem or "the fresh process measured nothing"
                break
            reports.append(report)
            if problem:
                break
            (folder / ANSWER).unlink()
    return reports, problem


def run_fresh(
    command: ChildCommand,
    folder: Path,
    minutes: float,
    variables: Mapping[str, str] | None = None,
    *,
    name: str = "a fresh process",
    good: Collection[int] = (0, 1),  # 1: a test failed there; its other readings are valid.
) -> str:
    """Run one child, with `variables` of its own, and return "" if it ended with a `good` status, otherwise the problem
    with its last output. `name` describes the child."""
    with command.popen(
        command.line(folder), variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            output, _ = process.communicate(timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            stop(process)
            return f"{name} {TOO_LONG} {minutes:g} minutes ([tool.perfguard] session_minutes)"
        except BaseException:
            stop(process)
            raise
    if process.returncode in good:
        return ""
    if process.returncode == ExitStatus.USAGE_ERROR:
        return could_not_start(name, output)
    return "\n".join([f"{name} {DIED} {process.returncode}:", *last_lines(output)])


def could_not_start(name: str, output: str) -> str:
    """The problem of a child whose arguments or files pytest refused: its error first, then its last lines."""
    lines = last_lines(output)
    errors = (line.partition(" ")[2].strip() for line in reversed(lines) if line.startswith(_ERRORS))
    return "\n".join([f"{name}: pytest could not start: {next(filter(None, errors), 'see its output')}", *lines])


def last_lines(output: str) -> list[str]:
    """The end of what a child wrote, which usually holds the reason of its end."""
    return output.strip().splitlines()[-_LAST_LINES:]


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop the process and its children: it leads a process group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # SIGKILL ends members that outlive the leader.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
