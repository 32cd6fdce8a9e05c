"""A launch: pytest runs on several ranks, which report the outcome of each test to the process that started them.

Each rank writes `rank-0.jsonl` (its own number) in the launch's folder, with two lines per test: its start and its
outcome. A rank that ends itself in the middle of a test adds a line with its position. In the parent a thread starts
the ranks and waits for them, and outcomes are read as tests end. If ranks end in the middle of a test, that test is
lost, and another launch runs the tests after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct

from perfguard.model.atomic_files import write_atomically
from perfguard.model.records import CaseResult
from perfguard.ranks.rank_group import launch_environment
from perfguard.session.child import ChildCommand, Request, write_request
from perfguard.session.child_process import stop

_POLL_SECONDS = 0.05
_LAST_LINES = 15
# The first words of lines that faulthandler writes.
_CRASHES, _THREADS = ("Fatal Python error", "Timeout ("), ("Current thread", "Thread 0x")

_HOST = "localhost"
_RECORDED_COLLECTIVES = {"TORCH_FR_BUFFER_SIZE": "2000"}  # It yields to the user's own value.


class Collective(Struct, frozen=True, omit_defaults=True):
    """A collective that a rank has issued: its number within the process group, the shapes that it moves, the group's
    name, and whether it still waits."""

    number: int
    name: str
    sizes: str = ""
    group: str = ""
    pending: bool = False

    @property
    def text(self) -> str:
        """`#3 all_reduce of [[4]]`."""
        return f"#{self.number} {self.name}{f' of {self.sizes}' if self.sizes else ''}"


class RankExit(Struct, frozen=True, omit_defaults=True):
    """The position of a rank that ended itself in the middle of a test.

    Attributes:
        cause: the reason why it ended.
        step: the step of perfguard and the user's line (`describe_step`).
        stack: the calls of its main thread, without those of pytest.
        collective: the last one that it issued; None if it issued none.
    """

    cause: str
    step: str
    stack: str = ""
    collective: Collective | None = None


class RankOutcome(Struct, omit_defaults=True):
    """One test on one rank.

    Attributes:
        nodeid: the test.
        ended: False in the line that is written at its start.
        reports: pytest's reports of its phases, serialised by pytest.
        results: results of its guarded calls, without verdicts.
        broken: the reason why it raised, other than a verdict; otherwise empty.
        unsupported: the reason why this hardware cannot run it, as the test declares; otherwise empty.
        exit: the position of a rank that ended itself.
    """

    nodeid: str
    ended: bool = False
    reports: list[dict[str, Any]] = []
    results: list[CaseResult] = []
    broken: str = ""
    unsupported: str = ""
    exit: RankExit | None = None

    @property
    def phase_outcomes(self) -> list[str]:
        """The outcomes of its phases: passed, failed, skipped."""
        return [str(report["outcome"]) for report in self.reports]


def append_outcome(folder: Path, rank: int, outcome: RankOutcome) -> None:
    """Add a line to the file of a rank, which this process is."""
    with (folder / f"rank-{rank}.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(outcome) + b"\n")


@dataclass
class RankFile:
    """Reads a rank's file while it grows.

    Attributes:
        begun: the tests that the rank has begun.
        ended: the outcomes of the tests that it has ended.
        exit: its position if it ended itself.
    """

    folder: Path
    rank: int
    begun: set[str] = field(default_factory=set)
    ended: dict[str, RankOutcome] = field(default_factory=dict)
    exit: RankExit | None = None
    _position: int = 0

    def read(self) -> Self:
        """Read the lines that are new."""
        try:
            with (self.folder / f"rank-{self.rank}.jsonl").open("rb") as file:
                file.seek(self._position)
                lines = file.read().split(b"\n")[:-1]  # The last line may still grow.
        except FileNotFoundError:
            return self
        self._position += sum(len(line) + 1 for line in lines)
        for line in lines:
            outcome = msgspec.json.decode(line, type=RankOutcome)
            self.begun.add(outcome.nodeid)
            self.exit = outcome.exit
            if outcome.ended:
                self.ended[outcome.nodeid] = outcome
        return self


class Lost(Struct, frozen=True):
    """The ranks of a launch ended before a test did.

    Attributes:
        nodeid: the test; empty if no test had begun.
        exits: the end of each rank that failed, in order, e.g. `exit status 1` or `killed by SIGKILL`.
        output: the last lines of output of the first rank that failed.
    """

    nodeid: str
    exits: dict[int, str] = {}
    output: str = ""


@dataclass(frozen=True)
class Ended:
    """The known outcome of one test.

    Attributes:
        outcomes: the outcomes on the ranks that ended the test.
        lost: the reason why other ranks did not end it; None if all did.
        rank_exits: the positions of the ranks that ended themselves.
    """

    outcomes: dict[int, RankOutcome]
    lost: Lost | None = None
    rank_exits: dict[int, RankExit] = field(default_factory=dict)


class Launched:
    """The tests of one number of ranks, in a folder that several processes share. The process that holds the folder's
    lock drives the launches, on a thread. If it dies, another process continues.

    Args:
        ranks: number of processes.
        tests: node ids, in the order in which they run.
        command: the command that starts pytest again.
        request: the request to every rank, without the tests.
    """

    def __init__(self, folder: Path, ranks: int, tests: Sequence[str], command: ChildCommand, request: Request) -> None:
        self.folder = folder
        self.ranks = ranks
        self._tests = list(tests)
        self._command = command
        self._request = request
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._files: dict[Path, list[RankFile]] = {}
        self._lock = FileLock(folder / "lock", timeout=0)
        folder.mkdir(parents=True, exist_ok=True)

    def _start_if_free(self) -> None:
        """Begin to run the remaining tests, unless another process does so."""
        if self._thread is not None:
            return
        with contextlib.suppress(Timeout):
            self._lock.acquire()
            self._thread = threading.Thread(target=self._drive, name=f"perfguard: {self.ranks} ranks", daemon=True)
            self._thread.start()

    def wait(self, nodeid: str) -> Ended:
        """Wait until all ranks have ended the test, or are gone; returns its outcome."""
        while True:
            final = (self.folder / "done").exists()  # This is read first, because nothing is written after it.
            if not final:
                self._start_if_free()
            ended = self._find(nodeid)
            if ended is not None:
                return ended
            if final:
                raise RuntimeError(f"{nodeid}: no rank was asked for it")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End all ranks."""
        self._stopped = True
        self.join()

    def join(self) -> None:
        """Wait until all tests have ended, if this process drives them."""
        if self._thread is not None:
            self._thread.join()
        self._lock.release()

    def _find(self, nodeid: str) -> Ended | None:
        for launch in self._launches():
            lost = _lost(launch)  # This is read first, because nothing is written after it.
            outcomes = {file.rank: file.ended[nodeid] for file in self._read(launch) if nodeid in file.ended}
            if len(outcomes) == self.ranks:
                return Ended(outcomes)
            if lost is not None and lost.nodeid in (nodeid, ""):
                return Ended(outcomes, lost, {file.rank: file.exit for file in self._read(launch) if file.exit})
        return None

    def _read(self, launch: Path) -> list[RankFile]:
        """The files of all ranks, with the lines that are written so far."""
        if launch not in self._files:
            self._files[launch] = [RankFile(launch, rank) for rank in range(self.ranks)]
        return [file.read() for file in self._files[launch]]

    def _launches(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("launch-*") if path.is_dir())

    def _drive(self) -> None:
        left = [test for test in self._tests if self._find(test) is None]
        try:
            while left and not self._stopped:
                folder = self.folder / f"launch-{len(self._launches()):03}"
                folder.mkdir(parents=True)
                write_request(folder, msgspec.structs.replace(self._request, ranks=self.ranks, tests=left))
                exits, output = self._launch(folder)
                files = [RankFile(folder, rank).read() for rank in range(self.ranks)]
                left = [test for test in left if not all(test in file.ended for file in files)]
                if left:
                    begun = any(left[0] in file.begun for file in files)
                    lost = Lost(left[0] if begun else "", exits, output)
                    write_atomically(folder / "lost.json", msgspec.json.encode(lost))
                    left = left[1:] if lost.nodeid else []
        finally:
            (self.folder / "done").touch()

    def _launch(self, folder: Path) -> tuple[dict[int, str], str]:
        """Run one launch to its end; returns the ends of the ranks that failed, and the output of the first of them."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Public, but not in torch's stubs.

        exits, started = dict[int, str](), list[subprocess.Popen[bytes]]()
        try:
            store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)  # It outlives every rank.
            while len(started) < self.ranks:
                started.append(self._start(folder, len(started), store.port))
            while not (exits or self._stopped) and any(process.poll() is None for process in started):
                time.sleep(_POLL_SECONDS)
                exits = _failed(started)
        except Exception as error:  # For example, no port could be opened.
            return {}, f"the launch failed: {type(error).__name__}: {error}"
        finally:
            for process in started:
                stop(process)
        exits |= _failed(started)
        if not exits:
            return {}, ""
        first = next(iter(exits))
        begun = bool(RankFile(folder, first).read().begun)
        return exits, _tail(folder, first, ["stderr"] if begun else ["stderr", "stdout"])

    def _start(self, folder: Path, rank: int, port: int) -> subprocess.Popen[bytes]:
        """Start one rank, with the variables of torchrun and its share of the cores."""
        given = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // self.ranks)), **_RECORDED_COLLECTIVES}
        given = {name: value for name, value in given.items() if name not in os.environ}
        given |= launch_environment(rank, self.ranks, _HOST, port)
        with (folder / f"{rank}.stdout").open("wb") as out, (folder / f"{rank}.stderr").open("wb") as err:
            return self._command.popen(self._command.line(folder), given, stdout=out, stderr=err)


def _failed(started: Sequence[subprocess.Popen[bytes]]) -> dict[int, str]:
    """The ends of the ranks that have failed so far."""
    ended = {rank: status for rank, process in enumerate(started) if (status := process.poll())}
    return {
        rank: f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        for rank, status in ended.items()
    }


def _tail(folder: Path, rank: int, streams: Sequence[str]) -> str:
    """The last lines, or the stack of a crash, from the first of these streams to which a rank has written."""
    for path in (folder / f"{rank}.{stream}" for stream in streams):
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        crash = next((number for number, line in enumerate(lines) if line.startswith(_CRASHES)), None)
        if crash is not None:
            # The last thread is the one that crashed, or the main thread after a timeout. Its innermost call is first.
            thread = max(number for number, line in enumerate(lines) if line.startswith((*_CRASHES, *_THREADS)))
            lines = [lines[crash], *lines[thread : thread + _LAST_LINES]]
        if lines:
            return "\n".join(lines if crash is not None else lines[-_LAST_LINES:])
    return ""


def _lost(launch: Path) -> Lost | None:
    try:
        return msgspec.json.decode((launch / "lost.json").read_bytes(), type=Lost)
    except FileNotFoundError:
        return None
