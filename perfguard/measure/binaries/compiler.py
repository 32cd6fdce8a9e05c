"""Facts of launches, from the cache or from child processes that compile the missing ones.

The cache's key is the kernel's code, its specialisation, the target and the toolchain, so an unchanged kernel costs
nothing. A compiler that hangs or dies ends only its own process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import queue
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from perfguard.measure.binaries.compile_worker import Request
from perfguard.measure.binaries.kernel_facts import disassembled
from perfguard.measure.binaries.launch_records import Built, Facts, Launch
from perfguard.measure.binaries.targets import target_of
from perfguard.model.atomic_files import write_atomically

_FORMAT = 5  # version of the cached facts, and of the way they are read
_MOST_WORKERS = 8
_WORDS = 300  # characters of a failed compiler's last output


@dataclass
class Compiler:
    """Compiles for targets, and caches the facts.

    Attributes:
        folder: of the cache; one small file per kernel, specialisation and target.
        seconds: time limit of one compilation.
    """

    folder: Path
    seconds: float = 120.0
    compiled: int = 0  # number of cache misses, for tests and reports
    _known: dict[str, Facts] = field(default_factory=dict)
    _idle: queue.SimpleQueue[_Worker] = field(default_factory=queue.SimpleQueue)
    _building: Future[None] | None = None
    _unwanted: threading.Event = field(default_factory=threading.Event)

    def facts(self, wanted: Sequence[tuple[str, Launch]]) -> dict[tuple[str, Launch], Facts]:
        """(target, launch) -> its facts."""
        self._await()
        keys = {each: self._key(*each) for each in wanted}
        self._build(self._missing(keys))
        return {each: self._known[key] for each, key in keys.items()}

    def begin(self, wanted: Sequence[tuple[str, Launch]]) -> None:
        """Compile missing launches in the background; `facts` waits for them."""
        self.leave()
        missing = self._missing({each: self._key(*each) for each in wanted})
        if missing:
            self._building = self._background.submit(self._build, missing)

    def leave(self) -> None:
        """Cancel the background compilation: no further kernel is started. Returns when all compilers are idle."""
        self._unwanted.set()
        self._await()
        self._unwanted.clear()

    def _await(self) -> None:
        building, self._building = self._building, None
        if building is not None:
            building.result()

    @cached_property
    def _background(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    def _missing(self, keys: Mapping[tuple[str, Launch], str]) -> dict[str, tuple[str, Launch]]:
        return {key: each for each, key in keys.items() if self._remembered(key) is None}

    def _build(self, missing: Mapping[str, tuple[str, Launch]]) -> None:
        """Compile all kernels of a target, then disassemble them while those of the next target are compiled."""
        targets: dict[str, dict[str, tuple[str, Launch]]] = {}
        for key, each in missing.items():
            targets.setdefault(each[0], {})[key] = each
        if not targets:
            return
        with ThreadPoolExecutor(self._size) as compilers, ThreadPoolExecutor(1) as counter:
            compiling = {
                target: {key: compilers.submit(self._compile, key, each) for key, each in wanted.items()}
                for target, wanted in targets.items()
            }
            counting: list[Future[None]] = []
            for target, futures in compiling.items():
                built = {key: future.result() for key, future in futures.items()}
                counting.append(counter.submit(self._count, target, {k: each for k, each in built.items() if each}))
            for count in counting:
                count.result()

    def _count(self, target: str, built: Mapping[str, Built]) -> None:
        for key, facts in _counted(target, built).items():
            self._remember(key, facts)

    @cached_property
    def _size(self) -> int:
        """Number of concurrent compilers: each takes half a gigabyte, and pytest's other workers have their own."""
        beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        return max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // beside))

    @cached_property
    def _toolchain(self) -> str:
        return f"triton {sys.modules['triton'].__version__}"

    def _key(self, target: str, launch: Launch) -> str:
        facts = (_FORMAT, self._toolchain, target, launch.module, launch.function, launch.source, launch.data)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]

    def _remembered(self, key: str) -> Facts | None:
        if key not in self._known:
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # absent or truncated
                self._known[key] = msgspec.json.decode((self.folder / f"{key}.json").read_bytes(), type=Facts)
        return self._known.get(key)

    def _remember(self, key: str, facts: Facts) -> None:
        self.compiled += 1
        self._known[key] = facts
        if not facts.passing:
            with contextlib.suppress(OSError):  # an unwritable cache is only slow
                write_atomically(self.folder / f"{key}.json", msgspec.json.encode(facts))

    def _compile(self, key: str, wanted: tuple[str, Launch]) -> Built | None:
        """Compile one launch; None if it was cancelled, or another of pytest's workers has cached it since."""
        if self._unwanted.is_set() or self._remembered(key) is not None:
            return None
        target, launch = wanted
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = _Worker()
            atexit.register(worker.stop)
        answer = worker.ask(Request(target, launch, list(sys.path)), self.seconds)
        if worker.alive:
            self._idle.put(worker)
        return answer

    def close(self) -> None:
        """End the child processes."""
        self.leave()
        while not self._idle.empty():
            self._idle.get_nowait().stop()


def _counted(target: str, built: Mapping[str, Built]) -> dict[str, Facts]:
    """The facts, with the instructions of all kernels of a target counted at once. If the disassembler fails, each
    kernel is tried alone, so that an unreadable one does not affect the others."""
    facts = {key: each.facts for key, each in built.items()}
    coded = {key: each for key, each in built.items() if each.code}
    if coded:
        try:
            facts.update(zip(coded, disassembled(target_of(target), list(coded.values())), strict=True))
        except (OSError, subprocess.SubprocessError) as error:
            if len(coded) > 1:
                return facts | {
                    name: one for key, each in coded.items() for name, one in _counted(target, {key: each}).items()
                }
            problem = f"cannot be disassembled: {type(error).__name__}"
            facts.update({key: Facts(error=problem, passing=True) for key in coded})
    return facts


class _Worker:
    """One compiling process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="perfguard-triton-")
        self._words = Path(self._folder.name) / "stderr"
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "perfguard.measure.binaries.compile_worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words,
                env=_environment(os.environ, self._folder.name), start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Request, seconds: float) -> Built:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        problem = ""
        try:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], seconds)
            line = self._process.stdout.readline() if ready else b""
            problem = "" if ready else f"does not compile: the compiler took longer than {seconds:g} s"
        except OSError:
            line = b""
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=Built)
        code = None if problem else self._process.wait()
        words = self._words.read_text(errors="replace").strip()[-_WORDS:]
        self.stop()
        problem = problem or f"does not compile: the compiler ended with status {code}: {words}"
        return Built(Facts(error=problem, passing=True))

    def stop(self) -> None:
        """End the process and remove its files."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._folder.cleanup()
        atexit.unregister(self.stop)


def _environment(given: Mapping[str, str], folder: str) -> dict[str, str]:
    """The environment without variables that change binaries: only code, specialisation and toolchain may."""
    kept = {name: value for name, value in given.items() if not name.startswith(("TRITON_", "PYTEST_"))}
    kept |= {name: given[name] for name in ("TRITON_LIBDEVICE_PATH",) if name in given}
    return kept | {
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_CACHE_DIR": folder,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
    }
