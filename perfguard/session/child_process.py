"""A live child, from its start to its end: its output is in a file, and its end is a problem in words, or none.

A session is the unit of inference: a second measurement in the same process would repeat its error. So each of several
fresh processes measures the requested tests once more, one after another; the parent judges.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from msgspec.structs import replace

from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import CaseResult, Report, Session
from perfguard.model.units import counted, format_minutes
from perfguard.session.child import ChildCommand, Request, read_answer, write_request

if TYPE_CHECKING:
    from perfguard.session.fork_server import Forked, ForkServer

TOO_LONG = "took longer than"  # Marks the problem of a process that was stopped.
_GOOD = (0, 1, 5)  # 1: a test failed there, and its other readings are valid; 5: no tests.
_OUTPUT = "output.txt"
_LAST_LINES = 15
_ERRORS = ("ERROR: ", "E   ")  # pytest begins usage errors and lines of exceptions so.
_STOP_SECONDS = 5.0  # Seconds until a process that was asked to end is killed.


class Reply(NamedTuple):
    """What a child came to: its report, None if it measured nothing; the reason if it ended early or had to be stopped;
    whether it died, so that its last test may be to blame."""

    report: Report | None
    problem: str = ""
    died: bool = False


@dataclass
class Child:
    """A process that this one has started, at the head of a process group. As a context manager, it is stopped.

    Attributes:
        name: describes it in messages.
        folder: holds its request, its output and its answer.
    """

    name: str
    folder: Path
    process: subprocess.Popen[bytes] | Forked
    died: bool = False

    @classmethod
    def start(
        cls,
        name: str,
        command: ChildCommand,
        folder: Path,
        asked: Request | str,
        *,
        variables: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        server: ForkServer | None = None,
        **attributes: Any,
    ) -> Self:
        """Start pytest with a request, or a command of the shell, in the place of `command`.

        Args:
            variables: of its environment, besides this process's.
            pass_fds: file descriptors that it inherits.
            server: forks it, in a worktree; None: a new process starts.
            attributes: those that a subclass adds.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(asked, Request):
            write_request(folder, asked, command.worktree)
        with open(folder / _OUTPUT, "wb") as output:
            if server is not None:
                return cls(name, folder, server.fork(command, folder, output.fileno(), pass_fds), **attributes)
            line = asked if isinstance(asked, str) else command.line(folder)
            options: dict[str, Any] = {"shell": isinstance(asked, str), "pass_fds": pass_fds}
            process = command.popen(line, variables, stdout=output, stderr=subprocess.STDOUT, **options)
        return cls(name, folder, process, **attributes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def wait(self, minutes: float, why: str = " ([tool.perfguard] session_minutes)") -> str:
        """Wait for its end; returns the problem, with its last output, if it did not end in order within the limit.
        `why`: the end of the problem if it did not end at all."""
        try:
            status = self.process.wait(60 * minutes)
        except subprocess.TimeoutExpired:
            return f"{self.name} {TOO_LONG} {minutes:g} minutes{why}"
        if status in _GOOD:
            return ""
        if status == ExitStatus.USAGE_ERROR:
            return could_not_start(self.name, self._output)
        self.died = True
        how = f"ended with status {status}" if status > 0 else f"was killed by {signal.Signals(-status).name}"
        return f"{self.name}: pytest {how}{self.last_output()}"

    def last_output(self) -> str:
        """The end of its output, which usually holds the reason of its end, to be appended to a sentence."""
        lines = _last_lines(self._output)
        return ":\n" + "\n".join(f"    {line}" for line in lines) if lines else ""

    def report(self, slug: str) -> Report | None:
        """Its answer; None if it measured nothing.

        Raises:
            UsageError: it measured other hardware than `slug`.
        """
        try:
            return read_answer(self.folder, slug)
        except UsageError as error:
            raise UsageError(f"{self.name} {error}") from error

    def stop(self) -> None:
        """End it and its own children, if it still runs."""
        stop(self.process)

    @property
    def _output(self) -> str:
        try:
            return (self.folder / _OUTPUT).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


def ask_child(
    command: ChildCommand,
    request: Request,
    minutes: float,
    *,
    name: str = "the fresh process",
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    server: ForkServer | None = None,
) -> Reply:
    """Let one child answer `request` within `minutes`, in a `folder` of its own by default."""
    with contextlib.ExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="perfguard-")))
        child = stack.enter_context(Child.start(name, command, folder, request, variables=variables, server=server))
        problem = child.wait(minutes)
        try:
            return Reply(child.report(request.slug), problem, child.died)
        except UsageError as error:
            return Reply(None, str(error))


def could_not_start(name: str, output: str) -> str:
    """The problem of a child whose arguments or files pytest refused: its error first, then its last lines."""
    lines = _last_lines(output)
    errors = (line.partition(" ")[2].strip() for line in reversed(lines) if line.startswith(_ERRORS))
    return "\n".join([f"{name}: pytest could not start: {next(filter(None, errors), 'see its output')}", *lines])


def _last_lines(output: str) -> list[str]:
    return output.strip().splitlines()[-_LAST_LINES:]


def stop(process: subprocess.Popen[Any] | Forked) -> None:
    """Stop a process and its children: it leads a process group of its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):  # SIGKILL ends members that outlive the leader.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)


# -- one child after another -------------------------------------------------------------------------------------------


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
    started, tests = time.monotonic(), counted(len(request.tests or ()), "test")
    for number in range(1, count + 1):
        step = f"fresh process {number} of {count}: {tests}" if count > 1 else f"fresh process: {tests}"
        if number > 1:
            seconds = time.monotonic() - started
            left = seconds / (number - 1) * (count - number + 1)
            step += f", {format_minutes(seconds)} elapsed, about {format_minutes(left)} to go"
        progress(step)
        reply = ask_child(command, request, minutes)
        reports += [] if reply.report is None else [reply.report]
        if reply.problem or reply.report is None:
            return reports, reply.problem or "the fresh process measured nothing"
    return reports, ""
