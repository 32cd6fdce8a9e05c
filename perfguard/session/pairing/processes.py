"""Live pytest processes: their start in the worktrees, and their output."""

from __future__ import annotations

import secrets
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import Report
from perfguard.session.child import ChildCommand, Conductor, Request, read_answer, write_request
from perfguard.session.fresh_processes import stop
from perfguard.session.pairing.interrupts import Interrupts

# The merge base, a second checkout of it (the control), the working tree. The names have one length, since the length
# of a path or variable can shift a program in memory and so change its time.
Side = Literal["base", "copy", "work"]
SIDES: tuple[Side, ...] = ("base", "copy", "work")

_GOOD = (0, 1, 5)  # 1: a test failed, as in its report; 5: no tests
_OUTPUT = "output.txt"
_LAST_LINES = 15
_PATIENCE_SECONDS = 60.0
_MOST_PAD = 32 * 2**20  # bytes: the position in memory can decide times, so it is drawn for each process


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


def start_worker(
    command: ChildCommand, side: Side, session: Path, request: Request, interrupts: Interrupts, started: list[Worker]
) -> None:
    """Start the worker of one side, which answers into `session`. It is appended to `started` at once, so that no
    signal can intervene."""
    assert command.worktree is not None
    own, original = str(command.worktree.folder), str(command.worktree.original)
    session.mkdir(parents=True)
    line, variables = command.line(session), command.environment()
    ours, theirs = socket.socketpair()
    with ours, theirs, open(session / _OUTPUT, "wb") as output:
        conductor = Conductor(theirs.fileno(), own, original, secrets.randbelow(_MOST_PAD))
        write_request(session, replace(request, conductor=conductor))
        with interrupts.delayed():
            process = subprocess.Popen(
                line, cwd=command.start, env=variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[theirs.fileno()],
            )  # fmt: skip
            started.append(Worker(side, session, process, Connection(ours.detach())))


def run_setup(command: ChildCommand, side: Side, setup: str, minutes: float, interrupts: Interrupts) -> None:
    """Run the user's `setup` by the shell in the worktree of one side.

    Raises:
        UsageError: it failed, or took longer than `minutes`.
    """
    assert command.worktree is not None
    output_path = command.worktree.folder.with_name(f"setup-{side}.txt")
    process = None
    try:
        with open(output_path, "wb") as output, interrupts.delayed():
            process = subprocess.Popen(
                setup, shell=True, cwd=command.start, env=command.environment(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
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
            f"--setup {setup!r}: ended with status {status} in the worktree of {describe(side)}; "
            f"mend the command; it said:\n{last}"
        )
