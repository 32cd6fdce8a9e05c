"""In the parent: one launch of pytest on several ranks, by torch's elastic agent, and the outcome of each test.

The agent runs on a thread, and tests are read as they end. If ranks end in the middle of a test, that test is lost, and
a further launch runs the tests after it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout
from msgspec import Struct

from perfguard.model.atomic_files import write_atomically
from perfguard.ranks import rank_files
from perfguard.ranks.rank_files import RankExit, RankFile, RankOutcome
from perfguard.session.child import ChildCommand, Request, write_request

_POLL_SECONDS = 0.05
_LAST_LINES = 15
_CRASHES, _THREADS = ("Fatal Python error", "Timeout ("), ("Current thread", "Thread 0x")  # Lines of faulthandler.

# A rank opens its own output: the agent never closes files that it opened, which is an error under `-W error`.
_START = 'exec env "$@" >"$0/$RANK.stdout" 2>"$0/$RANK.stderr"'

# Variables for the ranks, unless the user has set them.
_RECORDED_COLLECTIVES = {"TORCH_FR_BUFFER_SIZE": "2000"}
_NOT_THEIRS = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", "PYTEST_CURRENT_TEST")


class Lost(Struct, frozen=True):
    """The ranks of a launch ended before a test did.

    Attributes:
        nodeid: the test; empty if none had begun.
        exits: the agent's account of each rank's end: `exit status 1`, `killed by SIGKILL`. The first that ended comes
            first.
        output: last lines that the first of them wrote.
    """

    nodeid: str
    exits: dict[int, str] = {}
    output: str = ""


@dataclass(frozen=True)
class Ended:
    """The known outcome of one test.

    Attributes:
        outcomes: outcomes of the ranks that ended it.
        lost: the reason why other ranks did not; None if all did.
        rank_exits: exits of the ranks that ended themselves.
    """

    outcomes: dict[int, RankOutcome]
    lost: Lost | None = None
    rank_exits: dict[int, RankExit] = field(default_factory=dict)


class Launched:
    """The tests of one number of ranks, in a folder that several processes share. The one that holds the folder's lock
    drives the launches, on a thread; if it dies, another one goes on.

    Args:
        ranks: number of processes.
        tests: node ids, in the order in which they run.
        command: starts pytest again.
        request: the request to every rank, without its tests.
    """

    def __init__(self, folder: Path, ranks: int, tests: Sequence[str], command: ChildCommand, request: Request) -> None:
        self.folder = folder
        self.ranks = ranks
        self._tests = list(tests)
        self._command = command
        self._request = request
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._run_id = uuid.uuid4().hex
        self._files: dict[Path, list[RankFile]] = {}
        self._lock = FileLock(folder / "lock", timeout=0)
        folder.mkdir(parents=True, exist_ok=True)

    def _start_if_free(self) -> None:
        """Begin to run the tests that have not ended, unless another process does so."""
        if self._thread is not None:
            return
        with contextlib.suppress(Timeout):
            self._lock.acquire()
            self._thread = threading.Thread(target=self._drive, name=f"perfguard: {self.ranks} ranks", daemon=True)
            self._thread.start()

    def wait(self, nodeid: str) -> Ended:
        """The test, once all ranks have ended it, or are gone."""
        while True:
            final = (self.folder / "done").exists()  # This comes first: nothing is written after it.
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
        while self._thread is not None and self._thread.is_alive():
            for pid in _processes_of(self._run_id):
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGTERM)  # Each rank leads a session of its own.
            self._thread.join(1.0)
        self._lock.release()

    def join(self) -> None:
        """Wait until all tests have ended, if this process drives them."""
        if self._thread is not None:
            self._thread.join()
        self._lock.release()

    def _find(self, nodeid: str) -> Ended | None:
        for launch in self._launches():
            lost = _lost(launch)  # This comes first: nothing is written after it.
            outcomes = {file.rank: file.ended[nodeid] for file in self._read(launch) if nodeid in file.ended}
            if len(outcomes) == self.ranks:
                return Ended(outcomes)
            if lost is not None and lost.nodeid in (nodeid, ""):
                exits = ((rank, rank_files.read_exit(launch, rank)) for rank in range(self.ranks))
                return Ended(outcomes, lost, {rank: each for rank, each in exits if each is not None})
        return None

    def _read(self, launch: Path) -> list[RankFile]:
        """The files of all ranks, as far as they are written."""
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
        """Run one launch to its end. Return the exits of the ranks that failed, and the output of the first of them."""
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        logs = folder / "logs"
        logs.mkdir()
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=self.ranks, run_id=self._run_id,
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0, monitor_interval=0.05,
            logs_specs=DefaultLogsSpecs(log_dir=str(logs)),
        )  # fmt: skip
        try:
            with _quiet(), _unchanged_environment():
                start = ("-c", _START, str(logs), *_variables(self.ranks))
                elastic_launch(config, "sh")(*start, *self._command.line(folder))
        except ChildFailedError as error:
            failures = sorted(error.failures.items(), key=lambda each: each[1].timestamp)
            exits = {rank: _describe_exit(failure.exitcode) for rank, failure in failures}
            begun = bool(RankFile(folder, failures[0][0]).read().begun)
            return exits, _tail(logs, failures[0][0], ["stderr"] if begun else ["stderr", "stdout"])
        except Exception as error:  # The agent itself failed, e.g. no port could be opened.
            return {}, f"the launch failed: {type(error).__name__}: {error}"
        return {}, ""


def _variables(ranks: int) -> list[str]:
    """The arguments of `env`, which becomes the rank: variables to unset and to set. Ranks share the cores."""
    given = dict(_RECORDED_COLLECTIVES, OMP_NUM_THREADS=str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    added = [f"{name}={value}" for name, value in given.items() if name not in os.environ]
    return [*(word for name in _NOT_THEIRS for word in ("-u", name)), *added]


def _describe_exit(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _tail(logs: Path, rank: int, streams: Sequence[str]) -> str:
    """The last lines that a rank wrote to the first of these streams that holds any; of a crash its stack."""
    for path in (logs / f"{rank}.{stream}" for stream in streams):
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        crash = next((number for number, line in enumerate(lines) if line.startswith(_CRASHES)), None)
        if crash is not None:
            # The last thread is the one that crashed, or the main one after a limit; its innermost call comes first.
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


def _processes_of(run_id: str) -> Iterator[int]:
    """Children of this process that are ranks of the launch."""
    wanted = f"TORCHELASTIC_RUN_ID={run_id}".encode()
    for path in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
        for child in path.read_text().split():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{child}/environ").read_bytes():
                    yield int(child)


@contextlib.contextmanager
def _unchanged_environment() -> Iterator[None]:
    """Remove the variables that the agent sets in this process."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name not in before and name.startswith("TORCHELASTIC_")]:
            del os.environ[name]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the agent's log, which repeats perfguard's report, out of the user's terminal and of captured logs."""
    loggers = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.distributed.launcher")]
    nowhere = logging.NullHandler()
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(nowhere)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(nowhere)
            logger.propagate = propagate
