"""Fresh processes: each measures the named tests once more and writes its readings; the parent judges.

A session is the unit of inference: re-measuring inside the accused process would repeat its error. Parent and
child share a folder: the parent's report lies there as the request (its timers are to be used again), the
child adds its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfguard.errors import UsageError
from perfguard.records import CaseResult, Report
from perfguard.reports import read_report, save_report

SESSION_OPTION = "--perfguard-session"
REQUEST = "request.json"
ANSWER = "session.json"

# Options of the parent's command line that must not reach a fresh process: they select, repeat, report or stop.
_WITH_VALUE = (
    "-k", "-m", "-n", "-r", "--deselect", "--dist", "--durations", "--junit-prefix", "--junit-xml", "--junitxml",
    "--log-file", "--maxfail", "--numprocesses", "--perfguard-reason", "--benchmark-json", "--report-log", "--tb",
    "--html", "--color",
)  # fmt: skip
_FLAGS = (
    "-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first", "--sw",
    "--stepwise", "--pdb", "--trace", "-v", "-vv", "-q", "-s", "--perfguard-update", "--collect-only", "--co",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    """How to start pytest again as this run was started, for other tests.

    Attributes:
        arguments: the parent's own, without the program.
        positional: those of them that select tests.
        folder: where the parent was started.
    """

    arguments: tuple[str, ...]
    positional: tuple[str, ...]
    folder: Path
    extra: tuple[str, ...] = ()

    def line(self, nodeids_file: Path, session_folder: Path) -> list[str]:
        """The whole command of one fresh process."""
        kept = list(_kept(self.arguments, self.positional))
        return [
            sys.executable, "-m", "pytest", *kept, *self.extra, "-q", "-p", "no:cacheprovider", "--color=no",
            f"{SESSION_OPTION}={session_folder}", f"@{nodeids_file}",
        ]  # fmt: skip


def _kept(arguments: Sequence[str], positional: Sequence[str]) -> Iterator[str]:
    skip_value = False
    for argument in arguments:
        name = argument.split("=", 1)[0]
        glued = len(argument) > 2 and argument[:2] in ("-k", "-m", "-n", "-r")  # -n4, -rA
        if skip_value:
            skip_value = False
        elif argument in _WITH_VALUE:
            skip_value = True
        elif not (glued or argument in positional or name in _WITH_VALUE or name in _FLAGS):
            yield argument


@dataclass
class FreshSessions:
    """What fresh processes measured, in order; `problem` says why there are fewer than asked for."""

    reports: list[Report] = field(default_factory=list)
    problem: str = ""

    def of(self, suite: str, key: str) -> list[CaseResult]:
        """The results of one case, oldest first; sessions that did not measure it are left out."""
        return [
            result
            for report in self.reports
            for result in report.results
            if result.case.suite == suite and result.case.key == key and result.readings
        ]


def measure_fresh(
    command: Command,
    request: Report,
    nodeids: Sequence[str],
    count: int,
    *,
    minutes: float,
    progress: Callable[[str], None],
) -> FreshSessions:
    """Measure `nodeids` in `count` fresh processes, one after another, each at most `minutes` long.

    A process that crashes, hangs or measures nothing ends the series; what came before is kept. On interrupt the
    child is stopped before the interrupt goes on.
    """
    fresh = FreshSessions()
    with tempfile.TemporaryDirectory(prefix="perfguard-") as name:
        folder = Path(name)
        selection = folder / "tests.txt"
        selection.write_text("\n".join(nodeids) + "\n", encoding="utf-8")
        save_report(folder / REQUEST, request)
        for number in range(1, count + 1):
            progress(f"fresh process {number} of {count}: {len(nodeids)} test{'s' * (len(nodeids) != 1)}")
            fresh.problem = _run(command.line(selection, folder), command.folder, minutes)
            try:
                report = read_report(folder / ANSWER)
            except UsageError:
                fresh.problem = fresh.problem or "the fresh process measured nothing"
                break
            fresh.reports.append(report)
            if fresh.problem:
                break
            (folder / ANSWER).unlink()
    return fresh


def _run(line: list[str], folder: Path, minutes: float) -> str:
    """Run one fresh process; empty when it ended by itself, else what went wrong with its last words."""
    with subprocess.Popen(
        line, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            _stop(process)
            return f"a fresh process took longer than {minutes:g} minutes ([tool.perfguard] session_minutes)"
        except BaseException:
            _stop(process)
            raise
    if process.returncode in (0, 1):  # 1: a test of its own failed there; its other readings stand
        return ""
    last = "\n".join(output.strip().splitlines()[-15:])
    return f"a fresh process ended with status {process.returncode}:\n{last}"


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop the process and whatever it started: it leads a process group of its own."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return
