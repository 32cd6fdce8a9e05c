"""A small guarded project of its own for each run: a copy of `kernels/`, one suite and its baselines, committed; then
one mutant in the working tree."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from benchmarks.checkouts import ROOT, Ran, commit, environment, run_pytest, share_binaries
from benchmarks.planting import Change
from tests.corpus.suites import RECORDINGS, RECORDINGS_ON_A_GPU, SETTINGS

MINUTES = 5.0  # of one run, after which it is ended
PAIR_MINUTES = 3.0  # of its process pairs: a run that cannot tell says so before it is ended

INI = """\
[tool.pytest.ini_options]
pythonpath = ["."]
addopts = [
  "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:pytest_httpserver", "-p", "no:randomly",
  "--import-mode=importlib",
]

[tool.perfguard]
"""


class Corpus:
    """All runs of one session: what starts them, and the baselines of the clean suites, each recorded once.

    Args:
        folder: of baselines and caches; other processes may share it.
        gpu: whether runs are on a GPU.
        python: what pytest is started by: one of a nursery whose processes interpret kernels.
    """

    def __init__(self, folder: Path, gpu: bool, python: str) -> None:
        self.folder = folder
        self.gpu = gpu
        # The other one as in the nursery.
        self.environment = environment() | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        self.python = python

    @contextlib.contextmanager
    def project(
        self,
        name: str,
        changes: Sequence[Change] = (),
        given: Sequence[Change] = (),
        *,
        recorded: bool = True,
        beside: bool = True,
    ) -> Iterator[Project]:
        """A fresh copy of the suite's project, with its baselines unless `recorded` is false and with what is `given`,
        committed; then changed. Without `beside` nothing runs beside the given calls."""
        baselines = self.recorded(name) if recorded else None
        with tempfile.TemporaryDirectory(prefix=f"corpus-{name}-", ignore_cleanup_errors=True) as folder:
            made = Project(Path(folder) / "project", name, self)
            made.write({} if beside else {"extra_seconds": 0})
            if baselines is not None:
                shutil.copytree(baselines, made.path / "baselines")
            for change in given:
                change(made.path)
            (made.path / ".gitignore").write_text(".perfguard/\n__pycache__/\n")
            commit(made.path)
            for change in changes:
                change(made.path)
            yield made

    def recorded(self, name: str) -> Path:
        """The baselines of the clean suite, recorded by whoever comes first.

        Raises:
            AssertionError: the clean suite fails.
        """
        folder = self.folder / f"{name}-{fingerprint(name)}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / f"{name}.lock"):
            if not folder.exists():
                with self.project(name, recorded=False, beside=False) as project:  # no record holds what runs there
                    for _ in range((RECORDINGS_ON_A_GPU if self.gpu else RECORDINGS).get(name, 1)):
                        made = project.run("--perfguard-update=new")
                        assert made.status == 0, f"{name}: the clean suite cannot be recorded:\n{made.output}"
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

    def write(self, own: Mapping[str, Any]) -> None:
        """The clean files, with `own` settings over the suite's."""
        self.path.mkdir()
        # With what Python compiled of it, which still fits whatever is not changed; not what a process is writing now.
        ignored = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / "kernels", self.path / "kernels", ignore=ignored)
        folder = ROOT / "tests" / "corpus" / "suites"
        shutil.copy(folder / "_project.py", self.path / "conftest.py")
        shutil.copy(folder / f"{self.name}.py", self.path / self.test_file)
        gpu = self.corpus.gpu
        settings: dict[str, Any] = {
            "device": "auto" if gpu else "cpu",
            "targets": [],  # that kernels are compiled for
            "pair_minutes": PAIR_MINUTES,
        }
        settings |= {**SETTINGS.get(self.name, {}), **own}
        lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        (self.path / "pyproject.toml").write_text(INI + "\n".join(lines) + "\n")
        share_binaries(self.path, self.corpus.folder)
        (self.path.parent / "tmp").mkdir()

    def run(self, *arguments: str, measure: bool = True) -> Ran:
        """`pytest --perfguard`; without `measure`, plain pytest."""
        # A plugin that nothing needs which is measured takes a tenth of each process's start.
        given = ["-p", "no:benchmark", "--perfguard", *arguments] if measure else list(arguments)
        variables = dict(self.corpus.environment)
        if not self.corpus.gpu:  # where nothing is timed beside each other, runs need not wait for each other's lock
            variables["TMPDIR"] = str(self.path.parent / "tmp")
        return run_pytest(self.path, *given, python=self.corpus.python, variables=variables, minutes=MINUTES)
