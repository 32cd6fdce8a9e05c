"""A launch: pytest runs on several ranks, which report the outcome of each test to the process that started them.

In the launch's folder each rank has a file for each test, which it writes when the test begins, when it ends, and when
the rank ends itself in the middle of it. In the parent a thread starts the ranks and waits for them, and outcomes are
read as tests end. If ranks end in the middle of a test, that test is lost, and another launch runs the tests after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        ended: False while it runs.
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


def write_outcome(folder: Path, rank: int, outcome: RankOutcome) -> None:
    """Write the outcome so far of a test on one rank, which this process is."""
    write_atomically(_path(folder, rank, outcome.nodeid), msgspec.json.encode(outcome))


def _path(folder: Path, rank: int, nodeid: str) -> Path:
    return folder / f"rank-{rank}-{hashlib.sha256(nodeid.encode()).hexdigest()[:32]}.json"


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
        outcomes: the outcomes on the ranks that have begun the test.
        lost: the reason why not all ranks ended it; None if all did.
    """

    outcomes: dict[int, RankOutcome]
    lost: Lost | None = None

    @property
    def whole(self) -> dict[int, RankOutcome]:
        """The outcomes on the ranks that ended the test."""
        return {rank: outcome for rank, outcome in self.outcomes.items() if outcome.ended}


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
            ended = Ended(self._outcomes(launch, nodeid))
            if len(ended.whole) == self.ranks:
                return ended
            if lost is not None and lost.nodeid in (nodeid, ""):
                return Ended(ended.outcomes, lost)
        return None

    def _outcomes(self, launch: Path, nodeid: str) -> dict[int, RankOutcome]:
        outcomes = {}
        for rank in range(self.ranks):
            with contextlib.suppress(FileNotFoundError):
                data = _path(launch, rank, nodeid).read_bytes()
                outcomes[rank] = msgspec.json.decode(data, type=RankOutcome)
        return outcomes

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
                left = [test for test in left if len(Ended(self._outcomes(folder, test)).whole) < self.ranks]
                if left:
                    lost = Lost(left[0] if self._outcomes(folder, left[0]) else "", exits, output)
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
        begun = any(folder.glob(f"rank-{first}-*.json"))
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
