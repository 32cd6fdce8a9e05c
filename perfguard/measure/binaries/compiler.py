"""First IRs and facts of launches, from the cache or from child processes that compile the missing ones.

The cache's key is the kernel's code, its specialisation, the target and the toolchain, so an unchanged kernel costs
nothing, in any tree. A compiler that hangs or dies ends only its own process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from perfguard.measure.binaries.compile_worker import NOT_COMPILED_HERE, UNCOMPILABLE, FirstIr, Request
from perfguard.measure.binaries.kernel_facts import Built, Facts, disassembled
from perfguard.measure.binaries.launch_recorder import Launch, front_end_of
from perfguard.measure.binaries.targets import target_of
from perfguard.model.atomic_files import write_atomically

_FORMAT = 9  # This is the version of the cache's content.
_MOST_WORKERS = 8
_START_SECONDS, _SECONDS = 4.0, {"ir": 0.05, "binary": 0.5}  # Starting a process, an IR, a binary: processor time.
_MOST_STDERR = 300  # An error quotes so many characters of the compiler's last output.
_OWN_FAULTS = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGFPE, -signal.SIGILL)  # The kernel is at fault.
_PACKAGE = Path(__file__).parents[2] / "__init__.py"
# The code starts the worker with this perfguard, but without neighbouring packages, which the interpreter has itself.
_START = """
import importlib.util, runpy, sys
file = sys.argv[1]
found = importlib.util.spec_from_file_location("perfguard", file)
sys.modules["perfguard"] = package = importlib.util.module_from_spec(found)
found.loader.exec_module(package)
runpy.run_module("perfguard.measure.binaries.compile_worker", run_name="__main__", alter_sys=True)
"""

T = TypeVar("T", Built, FirstIr)


class _Failed(Exception):
    """A compiling process gave no answer. `own` is true if the kernel is the probable cause."""

    def __init__(self, problem: str, *, own: bool = False) -> None:
        super().__init__(problem)
        self.own = own


@dataclass(eq=False)
class Compiler:
    """Compiles the launches of one side: of this process, or of the base's process.

    Attributes:
        folder: the cache, which several compilers may share; it has a small file per kernel, specialisation, target.
        path: the whole `sys.path` of the process whose launches are compiled, absolute; None for this process's.
        python: the interpreter of the compiling processes, with its own Triton; empty for this process's.
        seconds: time limit of one compilation.
        compiled: number of binaries that no cache held.
        front_ends: number of first IRs that no cache held.
    """

    folder: Path
    seconds: float = 120.0
    path: Sequence[str] | None = None
    python: str = ""
    compiled: int = 0
    front_ends: int = 0
    _known: dict[str, Any] = field(default_factory=dict)
    _started: list[_Worker] = field(default_factory=list)
    _idle: list[_Worker] = field(default_factory=list)

    @cached_property
    def toolchain(self) -> str:
        """Triton's version, e.g. `triton 3.9.0`; empty if the interpreter has no Triton."""
        triton = sys.modules.get("triton")
        if triton is not None and self.path is None and not self.python:
            return f"triton {triton.__version__}"
        with contextlib.suppress(_Failed), self._lent() as worker:
            return worker.toolchain(self.seconds)
        return ""

    @contextlib.contextmanager
    def _lent(self) -> Iterator[_Worker]:
        """Lend an idle process, or a new one. A process ends with the thread that started it, so that thread must
        last."""
        worker = None
        while worker is None or not worker.alive:
            try:
                worker = self._idle.pop()
            except IndexError:
                worker = _Worker(self.python or sys.executable, self.modules or [])
                self._started.append(worker)
                break
        try:
            yield worker
        finally:
            self._idle.append(worker)

    @property
    def modules(self) -> list[str] | None:
        """`sys.path` for the modules of kernels; None for that of the interpreter."""
        if self.path is None and self.python:
            return None
        return list(sys.path if self.path is None else self.path)

    def ask(self, request: Request) -> bytes:
        """The answer of a compiling process.

        Raises:
            _Failed: the process gave no answer.
        """
        with self._lent() as worker:
            return worker.ask(request, self.seconds)

    def close(self) -> None:
        """End all child processes, including busy ones."""
        for worker in self._started:
            worker.stop()

    def cached(self, key: str, kind: type[T]) -> T | None:
        if key not in self._known:
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # The file is absent or truncated.
                self._known[key] = msgspec.json.decode((self.folder / f"{key}.json").read_bytes(), type=kind)
        known: T | None = self._known.get(key)
        return known

    def keep(self, key: str, made: Built | FirstIr) -> None:
        self._known[key] = made
        if made.kept:
            with contextlib.suppress(OSError):  # An unwritable cache only costs time.
                write_atomically(self.folder / f"{key}.json", msgspec.json.encode(made))


@dataclass(frozen=True)
class Job:
    """A launch to compile for a target by its side's compiler."""

    compiler: Compiler
    target: str
    launch: Launch

    def key(self, *wanted: object) -> str:
        """The cache's key for the launch and the kind of result (`wanted`)."""
        launch = self.launch
        code = launch.source or self.compiler.modules  # An unknown source is cached per side.
        facts = (_FORMAT, self.compiler.toolchain, launch.module, launch.function, code, *wanted)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def first_irs(jobs: Iterable[Job]) -> dict[Job, FirstIr]:
    """The first IR of each launch, made once for all targets with equal specialisations, unless the kernel queries its
    target."""
    keys = {job: job.key("ir", front_end_of(job.launch)) for job in jobs}
    made = _made(keys, "ir", FirstIr)
    asking = {job: job.key("ir", job.target, job.launch.data) for job in keys if made[job].of_target}
    return made | _made(asking, "ir", FirstIr)


def binaries_of(jobs: Iterable[Job]) -> dict[Job, Facts]:
    """The facts of each launch's binary, without the instruction counts of NVIDIA's binaries."""
    return {job: built.facts for job, built in _made(_binary_keys(jobs), "binary", Built).items()}


def facts_of(jobs: Iterable[Job]) -> dict[Job, Facts]:
    """The facts of each launch's binary, with all instruction counts."""
    keys = _binary_keys(jobs)
    built = _made(keys, "binary", Built)
    uncounted: dict[str, dict[str, Job]] = {}
    for job, key in keys.items():
        if built[job].code:
            uncounted.setdefault(job.target, {}).setdefault(key, job)
    counted: dict[str, Facts] = {}
    for target, leaders in uncounted.items():
        counted |= _counted(target, {key: built[job] for key, job in leaders.items()})
        for key, job in leaders.items():
            job.compiler.keep(key, Built(counted[key], kept=not counted[key].passing))
    return {job: counted.get(key, built[job].facts) for job, key in keys.items()}


def _binary_keys(jobs: Iterable[Job]) -> dict[Job, str]:
    return {job: job.key("binary", job.target, job.launch.data) for job in jobs}


def _asked(job: Job, wanted: Literal["binary", "ir"], kind: type[T]) -> T:
    """The result of a job by its compiler."""
    compiler = job.compiler
    compiler.compiled += wanted == "binary"
    compiler.front_ends += wanted == "ir"
    try:
        answer = compiler.ask(Request(wanted, job.target, job.launch, compiler.modules))
    except _Failed as failed:
        text = f"{UNCOMPILABLE if failed.own else NOT_COMPILED_HERE}: {failed}"
        return kind.failed(text, passing=not failed.own, kept=False)
    return msgspec.json.decode(answer, type=kind)


def _made(keys: Mapping[Job, str], wanted: Literal["binary", "ir"], kind: type[T]) -> dict[Job, T]:
    """The result of each job, from the cache or from its compiler. Jobs with equal keys are done once."""
    leaders: dict[str, Job] = {}
    for job, key in keys.items():
        leaders.setdefault(key, job)
    known = {key: result for key, job in leaders.items() if (result := job.compiler.cached(key, kind)) is not None}

    def work_off(waiting: deque[str]) -> None:
        while waiting:
            try:
                key = waiting.popleft()
            except IndexError:  # Another thread has taken the last one.
                return
            known[key] = _cached_or_asked(leaders[key], key, wanted, kind)

    missing: dict[Compiler, deque[str]] = {}
    for key in [key for key in leaders if key not in known]:
        missing.setdefault(leaders[key].compiler, deque()).append(key)
    futures = []
    for waiting in missing.values():
        # More processes than this would take longer to start than to compile.
        processes = 1 + int(len(waiting) * _SECONDS[wanted] / _START_SECONDS)
        futures += [_pool().submit(work_off, waiting) for _ in range(min(processes, len(waiting)))]
    try:
        for future in futures:
            future.result()
    except BaseException:  # Ctrl-C, above all
        for future in futures:
            future.cancel()
        for compiler, waiting in missing.items():
            waiting.clear()
            compiler.close()
        raise
    return {job: known[key] for job, key in keys.items()}


def _cached_or_asked(job: Job, key: str, wanted: Literal["binary", "ir"], kind: type[T]) -> T:
    result = job.compiler.cached(key, kind)  # Another worker of pytest may have written it since.
    if result is None:
        result = _asked(job, wanted, kind)
        job.compiler.keep(key, result)
    return result


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """One thread per concurrent compiler, which takes half a gigabyte. Each pytest worker has its own pool."""
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return ThreadPoolExecutor(max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // beside)))


def _counted(target: str, built: Mapping[str, Built]) -> dict[str, Facts]:
    """The facts with instruction counts, for all kernels of a target at once. If the disassembler fails, each kernel is
    tried alone, so that an unreadable one does not affect the others."""
    try:
        return dict(zip(built, disassembled(target_of(target), list(built.values())), strict=True))
    except (OSError, subprocess.SubprocessError) as error:
        if len(built) == 1:
            problem = f"cannot be disassembled here: {type(error).__name__}"
            return {key: Facts(error=problem, passing=True) for key in built}
        facts: dict[str, Facts] = {}
        for key, each in built.items():
            facts |= _counted(target, {key: each})
        return facts


class _Worker:
    """One compiling process."""

    def __init__(self, python: str, path: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="perfguard-triton-")
        self._stderr = Path(self._folder.name) / "stderr"
        self._toolchain = ""
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [python, "-c", _START, str(_PACKAGE), str(os.getpid())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                env=_environment(os.environ, self._folder.name, path), start_new_session=True,
            )  # fmt: skip
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def toolchain(self, seconds: float) -> str:
        """The version of Triton that the process has loaded, which is its first answer.

        Raises:
            _Failed: the process gave no answer.
        """
        if not self._toolchain:
            self._toolchain = msgspec.json.decode(self._line(seconds), type=str)
        return self._toolchain

    def ask(self, request: Request, seconds: float) -> bytes:
        """The process's answer to a request.

        Raises:
            _Failed: the process was late, or has ended.
        """
        assert self._process.stdin is not None
        self.toolchain(seconds)
        with contextlib.suppress(OSError):  # If the process has ended, reading its answer fails.
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
        return self._line(seconds)

    def _line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        late, line = False, b""
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed by another thread's `stop`
            late = not select.select([self._process.stdout], [], [], seconds)[0]
            line = b"" if late else self._process.stdout.readline()
        if line.endswith(b"\n"):
            return line
        if late:
            self.stop()
            raise _Failed(f"the compiler took longer than {seconds:g} s")
        code = self._process.wait()
        stderr = self._stderr.read_text(errors="replace").strip()[-_MOST_STDERR:] if self._stderr.exists() else ""
        self.stop()
        own = code in _OWN_FAULTS and "bad_alloc" not in stderr
        raise _Failed(f"the compiler ended with status {code}: {stderr}", own=own)

    def stop(self) -> None:
        """End the process and remove its files."""
        with contextlib.suppress(OSError), self._process:  # Closing fails on an unread request.
            self._process.kill()
        self._folder.cleanup()
        atexit.unregister(self.stop)


def _environment(given: Mapping[str, str], folder: str, path: Sequence[str]) -> dict[str, str]:
    """The environment without variables that change binaries, since they are not part of the cache's key."""
    kept = {name: value for name, value in given.items() if not name.startswith(("TRITON_", "PYTEST_"))}
    kept |= {name: given[name] for name in ("TRITON_LIBDEVICE_PATH",) if name in given}
    return kept | {
        "TRITON_ALWAYS_COMPILE": "1",  # A cached binary would yield no first IR.
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_CACHE_DIR": folder,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
    }
