"""A small guarded project of its own for each run: a copy of `kernels/`, one suite, its baselines, one mutant."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from perfguard.records import Report, load_report
from tests.corpus.mutant import Change
from tests.corpus.nursery import OUTPUT
from tests.corpus.suites import ON_A_GPU, SETTINGS

ROOT = Path(__file__).parents[2]
MINUTES = 5.0  # of one run, after which it is ended

INI = """\
[tool.pytest.ini_options]
pythonpath = ["."]
addopts = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:randomly", "--import-mode=importlib"]

[tool.perfguard]
"""


@dataclass(frozen=True)
class Ran:
    """What a run of pytest left.

    Attributes:
        status: its exit status; 124 where it was ended for taking too long.
        output: what it printed.
        report: None where it wrote none.
    """

    status: int
    output: str
    report: Report | None


class Nursery:
    """Starts runs quickly: a process with torch imported forks itself for each (`nursery.py`)."""

    def __init__(self, gpu: bool) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])}
        # One thread: as many as the machine has are other numbers elsewhere, and threads do not survive a fork.
        environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if not gpu:
            environment["TRITON_INTERPRET"] = "1"
        # A driver that was started does not survive a fork: whoever asks whether there is a GPU must not start it.
        environment |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        line = [sys.executable, "-m", "tests.corpus.nursery"]
        self._process = subprocess.Popen(
            line, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer("be ready")

    def run(self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        """`pytest arguments` in `folder`; returns the exit status."""
        asked = {"folder": str(folder), "arguments": [*arguments], "environment": dict(environment), "minutes": MINUTES}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        status: int = json.loads(self._answer(f"run pytest in {folder}"))["status"]
        return status

    def _answer(self, what: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"nursery: ended when asked to {what}; run python -m tests.corpus.nursery to see why")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class Corpus:
    """All runs of one session: the nursery, and the baselines of the clean suites, each recorded once.

    Args:
        folder: of baselines and caches; other processes may share it.
        gpu: whether runs are on a GPU.
    """

    def __init__(self, folder: Path, gpu: bool) -> None:
        self.folder = folder
        self.gpu = gpu
        self._nursery: Nursery | None = None

    def close(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    @property
    def nursery(self) -> Nursery:
        if self._nursery is None:
            self._nursery = Nursery(self.gpu)
        return self._nursery

    @contextlib.contextmanager
    def project(self, name: str, changes: Sequence[Change] = (), *, recorded: bool = True) -> Iterator[Project]:
        """A fresh copy of the suite's project, with its baselines unless `recorded` is false, then changed."""
        baselines = self.recorded(name) if recorded else None
        with tempfile.TemporaryDirectory(prefix=f"corpus-{name}-", ignore_cleanup_errors=True) as folder:
            made = Project(Path(folder) / "project", name, self)
            made.write()
            if baselines is not None:
                shutil.copytree(baselines, made.path / "baselines")
            for change in changes:
                change(made.path)
            yield made

    def recorded(self, name: str) -> Path:
        """The baselines of the clean suite. Recorded by whoever comes first, and compared once: clean is quiet.

        Raises:
            AssertionError: the clean suite fails, or a clean run beside its own baselines accuses somebody.
        """
        folder = self.folder / f"{name}-{fingerprint(name)}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / f"{name}.lock"):
            if not folder.exists():
                with self.project(name, recorded=False) as project:
                    first = project.run("--perfguard-update=new")
                    assert first.status == 0, f"{name}: the clean suite cannot be recorded:\n{first.output}"
                    shutil.copytree(project.path / "baselines", folder)
        return folder


def fingerprint(name: str) -> str:
    """Of all that a clean project is made of, and of what reads it."""
    folder = ROOT / "tests" / "corpus"
    files = [
        *sorted((ROOT / "kernels").rglob("*.py")),
        *sorted((ROOT / "perfguard").rglob("*.py")),
        folder / "suites" / f"{name}.py",
        *sorted(folder.glob("*/_*.py")),
    ]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


@dataclass(frozen=True)
class Project:
    """One folder that pytest runs in."""

    path: Path
    name: str
    corpus: Corpus

    @property
    def test_file(self) -> str:
        return f"test_{self.name}.py"

    def write(self) -> None:
        """The clean files."""
        self.path.mkdir()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "kernels", self.path / "kernels", ignore=ignored)
        folder = ROOT / "tests" / "corpus" / "suites"
        shutil.copy(folder / "_project.py", self.path / "conftest.py")
        shutil.copy(folder / f"{self.name}.py", self.path / self.test_file)
        gpu = self.corpus.gpu
        settings: dict[str, Any] = {"device": "auto" if gpu else "cpu", "targets": []} | SETTINGS.get(self.name, {})
        settings |= ON_A_GPU.get(self.name, {}) if gpu else {}
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        (self.path / "pyproject.toml").write_text(INI + "\n".join(lines) + "\n")
        cache = self.corpus.folder / "cache"  # of compiled kernels, by what they are: the same for all runs
        cache.mkdir(parents=True, exist_ok=True)
        (self.path / ".perfguard").mkdir()
        (self.path / ".perfguard" / "cache").symlink_to(cache)
        (self.path.parent / "tmp").mkdir()

    def run(self, *arguments: str, measure: bool = True) -> Ran:
        """`pytest --perfguard`; without `measure`, plain pytest."""
        given = ["--perfguard", *arguments] if measure else list(arguments)
        environment = {}
        if not self.corpus.gpu:  # where nothing is timed beside each other, runs need not wait for each other's lock
            environment["TMPDIR"] = str(self.path.parent / "tmp")
        status = self.corpus.nursery.run(self.path, given, environment)
        reports = sorted((self.path / ".perfguard").glob("report-*.json"))
        report = load_report(reports[0].read_bytes()) if reports else None
        return Ran(status, (self.path / OUTPUT).read_text(errors="replace"), report)
