"""The live pytest processes of a pair: their start in the worktrees, output and readings, and signals meanwhile."""

from __future__ import annotations

import contextlib
import random
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

from msgspec.structs import replace

from perfguard.model.errors import ExitStatus, UsageError
from perfguard.model.records import PairReading, ReadingId, Report
from perfguard.session.child import ChildCommand, PairOptions, Request, read_answer, write_request
from perfguard.session.fresh_processes import could_not_start, last_lines, stop

# The merge base, a second checkout of it (the control), the working tree. The names have one length, since the length
# of a path or variable can shift a program in memory and so change its time.
Side = Literal["base", "copy", "work"]
SIDES: tuple[Side, ...] = ("base", "copy", "work")

GOOD = (0, 1, 5)  # 1: a test failed, as in its report; 5: no tests.
_OUTPUT = "output.txt"
_PATIENCE_SECONDS = 60.0
_MOST_PAD = 32 * 2**20  # bytes; the position in memory can decide times, so each process draws its own


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def starting_orders(chance: random.Random) -> list[list[Side]]:
    """The orders in which the sides of as many pairs start: a random Latin square.

    Each side starts once in each position. A position that slows a process down then scatters over the sides.
    Independent draws would slow a given side in all three pairs in one case of 27.
    """
    first = chance.sample(SIDES, len(SIDES))
    return [first[turn:] + first[:turn] for turn in chance.sample(range(len(SIDES)), len(SIDES))]


class Interrupts:
    """Turns the first signal into KeyboardInterrupt while `armed`, and swallows all others.

    ::

        with Interrupts() as interrupts:
            try:
                with interrupts.armed():
                    work()
            finally:
                clean_up()

    No signal interrupts `clean_up()`: the handler disarms itself before it raises, and `armed()` disarms it on
    every other way out; a signal in between raises inside the `try`.
    """

    def __init__(self) -> None:
        self._armed = False
        self._before: dict[signal.Signals, Any] = {}
        self.received = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Only the main thread may set handlers.
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Inside this block a signal raises KeyboardInterrupt, once."""
        try:
            self._armed = True
            self._raise_late()
            yield
        finally:
            self._armed = False

    @contextlib.contextmanager
    def delayed(self) -> Iterator[None]:
        """Inside `armed()`: a signal waits until the end of this block, unless the block raises."""
        self._armed = False
        try:
            yield
        finally:
            self._armed = not self.received
        self._raise_late()

    def _raise_late(self) -> None:
        if self.received:
            self._armed = False
            raise KeyboardInterrupt


@dataclass
class SideProcess:
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
            return f"{describe(self.side)}: pytest did not end after its last test{self.last_output()}"
        if status in GOOD:
            return ""
        if status == ExitStatus.USAGE_ERROR:
            raise UsageError(could_not_start(describe(self.side), _read(self.folder / _OUTPUT)))
        how = f"ended with status {status}" if status > 0 else f"was killed by {signal.Signals(-status).name}"
        return f"{describe(self.side)}: pytest {how}{self.last_output()}"

    def last_output(self) -> str:
        """The end of its output, to be appended to a sentence."""
        return _last_lines(self.folder / _OUTPUT)

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


def foreign_error(module: str, side: Side) -> UsageError:
    """The error of a side that has loaded `module` from the user's checkout."""
    return UsageError(
        f"{module}: loaded by the worker of {describe(side)}, not from its worktree: both sides would measure this one "
        "file. Uninstall the editable install, or name its folder relative to the repository in pytest's pythonpath "
        "(--setup 'pip install …' would change all sides at once)"
    )


def start_process(
    command: ChildCommand, side: Side, folder: Path, request: Request, interrupts: Interrupts, alive: list[SideProcess]
) -> None:
    """Start the process of one side, which answers into `folder`. It is appended to `alive` at once, so that no
    signal can intervene."""
    assert command.worktree is not None
    own, original = str(command.worktree.folder), str(command.worktree.original)
    folder.mkdir(parents=True)
    line = command.line(folder)
    ours, theirs = socket.socketpair()
    with ours, theirs, open(folder / _OUTPUT, "wb") as output:
        pad, preheats = secrets.randbelow(_MOST_PAD), side == SIDES[-1]
        options = PairOptions(theirs.fileno(), own, original, pad, preheats)
        write_request(folder, replace(request, conductor=options))
        with interrupts.delayed():
            process = command.popen(line, stdout=output, stderr=subprocess.STDOUT, pass_fds=[theirs.fileno()])
            alive.append(SideProcess(side, folder, process, Connection(ours.detach())))


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
            process = command.popen(setup, shell=True, stdout=output, stderr=subprocess.STDOUT)
        status: int | str = process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        status = f"none after {minutes:g} minutes"
    finally:
        if process is not None:
            stop(process)
    if status != 0:
        raise UsageError(
            f"--setup {setup!r}: ended with status {status} in the worktree of {describe(side)}; "
            f"correct the command; its output{_last_lines(output_path)}"
        )


def _last_lines(path: Path) -> str:
    """The last lines of an output, on lines of their own."""
    lines = last_lines(_read(path))
    return ":\n" + "\n".join(f"    {line}" for line in lines) if lines else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@dataclass
class PairOutcome:
    """The results of one process pair.

    Attributes:
        readings: results of the wanted metrics that could be measured.
        timers: the timer of every metric that a side announced.
        unread: wanted metrics with too many unreadable blocks.
        uncollected: node id of a test file -> reason why a side could not collect it.
        tests: node ids of the tests that each side collected.
        problem: reason for an early end, otherwise empty.
        lost: the side whose process died, and the node id of the test in which it died; None if unknown.
        seconds: the pair's seconds by activity: `starting` (imports, collection, the device), `tests` (between two
            times), `measuring`, `ending`.
    """

    readings: dict[ReadingId, PairReading] = field(default_factory=dict)
    timers: dict[ReadingId, dict[Side, str]] = field(default_factory=dict)
    unread: set[ReadingId] = field(default_factory=set)
    uncollected: dict[Side, dict[str, str]] = field(default_factory=dict)
    tests: dict[Side, set[str]] = field(default_factory=dict)
    problem: str = ""
    lost: tuple[Side, str] | None = None
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextlib.contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Count the seconds inside as spent on this activity."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[on] += time.monotonic() - started
