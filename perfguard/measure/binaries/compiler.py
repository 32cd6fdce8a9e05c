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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from perfguard.measure.binaries.compile_worker import Request
from perfguard.measure.binaries.kernel_facts import Built, Facts, disassembled, read_facts
from perfguard.measure.binaries.launch_recorder import Launch
from perfguard.measure.binaries.targets import Target, target_of
from perfguard.model.atomic_files import write_atomically

_FORMAT = 5  # version of the cached facts, and of the way they are read
_MOST_WORKERS = 8
_WORDS = 300  # characters of a failed compiler's last output


@dataclass
class Compiler:
    """Compiles for targets, and caches the facts.

    Attributes:
        folder: of the cache; one small file per kernel, specialisation and target.
        path: the whole `sys.path` of the process whose launches are compiled, absolute; None: this process's.
        python: the interpreter of the compiling processes; another one has its own Triton.
        seconds: time limit of one compilation.
        compiled: number of kernels that no cache held.
    """

    folder: Path
    seconds: float = 120.0
    path: Sequence[str] | None = None
    python: str = sys.executable
    compiled: int = 0
    _known: dict[str, Facts] = field(default_factory=dict)
    _idle: queue.SimpleQueue[_Worker] = field(default_factory=queue.SimpleQueue)

    def facts(self, wanted: Sequence[tuple[str, Launch]]) -> dict[tuple[str, Launch], Facts]:
        """(target, launch) -> its facts."""
        keys = {each: self._key(*each) for each in wanted}
        missing = {key: each for each, key in keys.items() if self._cached(key) is None}
        with ThreadPoolExecutor(self._size) as compilers:
            answers = dict(zip(missing, compilers.map(self._compile, missing, missing.values()), strict=True))
        for target in {target for target, _ in missing.values()}:
            built = {key: each for key, each in answers.items() if each is not None and missing[key][0] == target}
            for key, facts in _counted(target, built).items():
                self._keep(key, facts)
        return {each: self._known[key] for each, key in keys.items()}

    def facts_of(self, target: Target, kernels: Mapping[str, Any]) -> dict[str, Facts]:
        """Hash -> facts of kernels that Triton has compiled in this process, by their hashes."""
        keys = {each: hashlib.sha256(repr((_FORMAT, target.name, each)).encode()).hexdigest()[:32] for each in kernels}
        missing = {key: kernels[each] for each, key in keys.items() if self._cached(key) is None}
        built = {key: _read(kernel, target) for key, kernel in missing.items()}
        for key, facts in _counted(target.name, built).items():
            self._keep(key, facts)
        return {each: self._known[key] for each, key in keys.items()}

    @cached_property
    def _size(self) -> int:
        """Number of concurrent compilers: each takes half a gigabyte, and pytest's other workers have their own."""
        beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        return max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // beside))

    def _key(self, target: str, launch: Launch) -> str:
        toolchain = f"triton {sys.modules['triton'].__version__}"
        facts = (_FORMAT, toolchain, target, launch.module, launch.function, launch.source, launch.data)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]

    def _cached(self, key: str) -> Facts | None:
        if key not in self._known:
            with contextlib.suppress(OSError, msgspec.MsgspecError):  # absent or truncated
                self._known[key] = msgspec.json.decode((self.folder / f"{key}.json").read_bytes(), type=Facts)
        return self._known.get(key)

    def _keep(self, key: str, facts: Facts) -> None:
        self.compiled += 1
        self._known[key] = facts
        if not facts.passing:
            with contextlib.suppress(OSError):  # an unwritable cache is only slow
                write_atomically(self.folder / f"{key}.json", msgspec.json.encode(facts))

    def _compile(self, key: str, wanted: tuple[str, Launch]) -> Built | None:
        """Compile one launch; None if another of pytest's workers has cached it since."""
        if self._cached(key) is not None:
            return None
        target, launch = wanted
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            worker = _Worker()
        answer = worker.ask(Request(target, launch, list(sys.path)), self.seconds)
        if worker.alive:
            self._idle.put(worker)
        return answer

    def close(self) -> None:
        """End the child processes."""
        while not self._idle.empty():
            self._idle.get_nowait().stop()


def _read(kernel: Any, target: Target) -> Built:
    try:
        return read_facts(kernel, target)
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        return Built(Facts(error=f"cannot be read: {type(error).__name__}", passing=True))


def _counted(target: str, built: Mapping[str, Built]) -> dict[str, Facts]:
    """The facts, with the instructions of all kernels of a target counted at once. If the disassembler fails, each
    kernel is tried alone, so that an unreadable one does not affect the others."""
    facts = {key: each.facts for key, each in built.items()}
    coded = {key: each for key, each in built.items() if each.code}
    if not coded:
        return facts
    try:
        return facts | dict(zip(coded, disassembled(target_of(target), list(coded.values())), strict=True))
    except (OSError, subprocess.SubprocessError) as error:
        if len(coded) == 1:
            problem = f"cannot be disassembled: {type(error).__name__}"
            return facts | {key: Facts(error=problem, passing=True) for key in coded}
        for key, each in coded.items():
            facts |= _counted(target, {key: each})
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
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Request, seconds: float) -> Built:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line, late = b"", False
        with contextlib.suppress(OSError):
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            late = not select.select([self._process.stdout], [], [], seconds)[0]
            line = b"" if late else self._process.stdout.readline()
        if line.endswith(b"\n"):
            return msgspec.json.decode(line, type=Built)
        problem = f"the compiler took longer than {seconds:g} s"
        if not late:
            code = self._process.wait()
            words = self._words.read_text(errors="replace").strip()[-_WORDS:]
            problem = f"the compiler ended with status {code}: {words}"
        self.stop()
        return Built(Facts(error=f"does not compile: {problem}", passing=True))

    def stop(self) -> None:
        """End the process and remove its files."""
        with contextlib.suppress(OSError), self._process:  # closing fails on a request that it did not read
            self._process.kill()
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
