"""Live pytest processes: their start in the worktrees, and their output."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import msgspec

import perfguard
from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import Report
from perfguard.session.fresh_processes import REQUEST, SESSION_OPTION, TESTS, read_answer, stop
from perfguard.session.pairing.interrupts import Interrupts
from perfguard.session.pairing.worker import CONDUCTED, Conducted
from perfguard.session.pairing.worktrees import environment
from perfguard.store.report_file import save_report

# The merge base, a second checkout of it (the control), the working tree. The names have one length, since the length
# of a path or variable can shift a program in memory and so change its time.
Side = Literal["base", "copy", "work"]
SIDES: tuple[Side, ...] = ("base", "copy", "work")

# Imports perfguard first, from PYTHONPATH. Later pytest puts the paths of its `pythonpath` setting before all others,
# and if the repository is perfguard itself, they hold another perfguard.
_PYTEST = "import sys, perfguard, pytest; sys.exit(pytest.main())"
_QUIET = "ignore::pytest.PytestAssertRewriteWarning"  # perfguard is already imported

_GOOD = (0, 1, 5)  # 1: a test failed, as in its report; 5: no tests
_OUTPUT = "output.txt"
_LAST_LINES = 15
_PATIENCE_SECONDS = 60.0
_MOST_PAD = 32 * 2**20  # bytes: the position in memory can decide times, so it is drawn for each process


@dataclass(frozen=True)
class Plan:
    """The plan for starting every worker of a comparison.

    Attributes:
        folder: a temporary folder, with the worktree of each side under its name.
        original: top folder of the user's checkout.
        inside: the command's working folder, relative to `original`.
        arguments: pytest's.
    """

    folder: Path
    original: Path
    inside: Path
    arguments: tuple[str, ...]

    def worktree(self, side: Side) -> Path:
        return self.folder / side

    def relocate(self, text: str, side: Side) -> str:
        """An argument with a path in the user's checkout, changed to the same path in the side's worktree."""
        option, equals, value = text.partition("=")
        path = value if equals and option.startswith("-") else text
        for root in {str(self.original), str(self.original.resolve())}:
            if path == root or path.startswith(f"{root}{os.sep}"):
                moved = f"{self.worktree(side)}{path[len(root) :]}"
                return f"{option}={moved}" if path is value else moved
        return text

    def line(self, side: Side, session: Path) -> list[str]:
        """The command of one worker."""
        line = [sys.executable, "-P", "-c", _PYTEST, *(self.relocate(argument, side) for argument in self.arguments)]
        # Both sides must run the same tests in the same order.
        line += ["-W", _QUIET, "-p", "no:randomly", "--color=no"]
        line.append("--continue-on-collection-errors")  # a broken file affects only its own cases
        return [*line, f"{SESSION_OPTION}={session}"]

    def select(self, side: Side, session: Path, nodeids: Sequence[str]) -> None:
        """Write the tests of a worker, in place of those that the arguments select. Files are named, since pytest
        refuses an unknown node id, and a test may be new or gone."""
        files = dict.fromkeys(self.named(nodeid).partition("::")[0] for nodeid in nodeids)
        there = [file for file in files if self._exists(file, side)]
        (session / TESTS).write_text("".join(f"{file}\n" for file in there), encoding="utf-8")

    def has(self, nodeid: str, side: Side) -> bool:
        """Whether the file of a test exists on a side."""
        return self._exists(self.named(nodeid), side)

    def _exists(self, argument: str, side: Side) -> bool:
        path = Path(self.relocate(argument.partition("::")[0], side))
        return (self.worktree(side) / self.inside / path).exists()

    def named(self, nodeid: str) -> str:
        """The argument that selects the test `nodeid`: node ids are relative to pytest's root directory, arguments to
        its working folder. The root directory is the nearest folder above it in which the test's file is found."""
        path, colons, rest = nodeid.partition("::")
        started = self.worktree("work") / self.inside
        levels = len(self.inside.parts)
        above = next((up for up in range(levels + 1) if Path(started, *[".."] * up, path).exists()), 0)
        return str(Path(*[".."] * above, path)) + colons + rest

    def environment(self, side: Side) -> dict[str, str]:
        """Variables with which the side imports its own code, and all sides import this perfguard."""
        worktree = self.worktree(side)
        inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        paths = [str(self._only_perfguard()), str(worktree)]
        paths += [str(worktree / "src")] * (worktree / "src").is_dir()
        paths += [self.relocate(str(Path(path).absolute()), side) for path in inherited]
        return environment() | {"PYTHONPATH": os.pathsep.join(paths)}

    def _only_perfguard(self) -> Path:
        """A folder with this perfguard alone, since code beside it must not be found."""
        folder = self.folder / "only"
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (folder / "perfguard").symlink_to(Path(perfguard.__file__).parent, target_is_directory=True)
        return folder


@dataclass
class Worker:
    """One live process and the connection to it."""

    side: Side
    folder: Path
    process: subprocess.Popen[bytes]
    connection: Connection

    def ended(self) -> str:
        """Wait for the end of a process that hung up. Empty if it ended in order, otherwise the problem.

        Raises:
            UsageError: pytest refused its arguments.
        """
        try:
            status = self.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{describe(self.side)}: pytest did not end after its last test{self.last_words()}"
        if status in _GOOD:
            return ""
        if status == ExitStatus.USAGE_ERROR:
            raise UsageError(f"{describe(self.side)}: pytest could not start{self.last_words()}")
        how = f"ended with status {status}" if status > 0 else f"was killed by {signal.Signals(-status).name}"
        return f"{describe(self.side)}: pytest {how}{self.last_words()}"

    def last_words(self) -> str:
        """The last lines of its output, on lines of their own."""
        try:
            text = (self.folder / _OUTPUT).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        lines = text.strip().splitlines()[-_LAST_LINES:]
        return ":\n" + "\n".join(f"    {line}" for line in lines) if lines else ""

    def report(self, slug: str) -> Report | None:
        """Its report; None if it measured nothing.

        Raises:
            UsageError: it measured other hardware than `slug`.
        """
        try:
            return read_answer(self.folder, slug)
        except UsageError as error:
            raise UsageError(f"{describe(self.side)}: {error}") from error

    def stop(self) -> None:
        """End it and its child processes, if it still runs."""
        self.connection.close()
        stop(self.process)


def describe(side: Side) -> str:
    """The side in words."""
    return {"base": "the base", "copy": "the second checkout of the base", "work": "the working tree"}[side]


@dataclass(frozen=True)
class Asked:
    """The request to the workers of one process pair.

    Attributes:
        request: report with the timers to use again.
        tests: node ids, in the order to run them; None: the user's selection.
        judged: sides on which results are also checked and exact metrics also read. The second checkout of the base is
            not checked, since its results are the base's.
        common_only: whether tests that a side lacks are left out on all sides.
    """

    request: Report
    tests: list[str] | None
    judged: Collection[Side]
    common_only: bool


def start_worker(
    plan: Plan, side: Side, session: Path, asked: Asked, interrupts: Interrupts, started: list[Worker]
) -> None:
    """Start the worker of one side, which answers into `session`. It is appended to `started` at once, so that no
    signal can intervene."""
    session.mkdir(parents=True)
    save_report(session / REQUEST, asked.request)
    line, variables = plan.line(side, session), plan.environment(side)
    if asked.tests is not None:
        plan.select(side, session, asked.tests)
    ours, theirs = socket.socketpair()
    with ours, theirs, open(session / _OUTPUT, "wb") as output:
        conducted = Conducted(
            theirs.fileno(), str(plan.worktree(side)), str(plan.original), side in asked.judged and side != "copy",
            side in asked.judged, secrets.randbelow(_MOST_PAD), asked.tests,
        )  # fmt: skip
        (session / CONDUCTED).write_bytes(msgspec.json.encode(conducted))
        with interrupts.delayed():
            process = subprocess.Popen(
                line, cwd=plan.worktree(side) / plan.inside, env=variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[theirs.fileno()],
            )  # fmt: skip
            started.append(Worker(side, session, process, Connection(ours.detach())))


def run_setup(plan: Plan, side: Side, command: str, minutes: float, interrupts: Interrupts) -> None:
    """Run the user's `command` by the shell in the worktree of one side.

    Raises:
        UsageError: it failed, or took longer than `minutes`.
    """
    variables: Mapping[str, str] = plan.environment(side)
    output_path = plan.folder / f"setup-{side}.txt"
    process = None
    try:
        with open(output_path, "wb") as output, interrupts.delayed():
            process = subprocess.Popen(
                command, shell=True, cwd=plan.worktree(side) / plan.inside, env=variables,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        status: int | str = process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        status = f"none after {minutes:g} minutes"
    finally:
        if process is not None:
            stop(process)
    if status != 0:
        said: Sequence[str] = output_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = "\n".join(f"    {line}" for line in said[-_LAST_LINES:])
        raise UsageError(
            f"--setup {command!r}: ended with status {status} in the worktree of {describe(side)}; "
            f"mend the command; it said:\n{last}"
        )
