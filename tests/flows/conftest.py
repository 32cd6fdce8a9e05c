"""A small project of its own for each flow: one kernel on the simulated GPU, guarded by one test file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import scipy.special  # noqa: F401  pytester unloads what a test imports, and NumPy does not work a second time
from filelock import FileLock

from benchmarks.checkouts import git
from perfguard.github.lanes.baselines_at_commit import read_files
from perfguard.github.lanes.judge_again import judge_again
from perfguard.model.records import Report
from perfguard.store.report_file import read_report
from tests.nursery import Nursery

PYTHON = sys.executable  # which `project` replaces: it is started where a process's number is asked for

KERNEL = """
import torch
from perfguard.testing import fake

def double(x):
    out = torch.empty_like(x)
    with fake.allocate({allocate}):
        for number in range({launches}):
            fake.launch("double_kernel" if number == 0 else "copy_kernel", us={us} / {launches})
        torch.mul(x, {factor}, out=out)
    return out
"""

TEST = """
import pytest
import torch
from perfguard import Work
import kernel

@pytest.mark.parametrize("n", [64, 96])
def test_double(perfguard, n):
    x = torch.randn(n, 16)
    perfguard(kernel.double, x, reference=lambda x: 2 * x, work=Work(bytes=8 * x.numel()))
"""


# Its kernel is torch's alone: no target that it is followed on, each in a process of its own, has anything to tell.
# Beside the given calls nothing runs, which would be most of a run's time: flows about that ask for it.
SETTINGS = {"device": "fake", "case_seconds": 0.02, "extra_seconds": 0, "targets": []}
# Plugins that hardly a flow needs take a seventh of each process's start.
LEFT_OUT = ("cacheprovider", "benchmark", "hypothesispytest", "pytest_httpserver")


@dataclass
class Project:
    """A repository that uses perfguard, and what its runs said."""

    path: Path
    pytester: pytest.Pytester
    settings: dict[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = LEFT_OUT

    def configure(self, **settings: Any) -> None:
        self.settings |= settings
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        options = " ".join(f"-p no:{plugin}" for plugin in self.left_out)
        ini = f'[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "{options}"\n'
        text = ini + "[tool.perfguard]\n" + "\n".join(lines) + "\n"
        (self.path / "pyproject.toml").write_text(text)

    def kernel(self, *, factor: float = 2, us: float = 50.0, launches: int = 1, allocate: int = 1 << 20) -> None:
        source = KERNEL.format(factor=factor, us=us, launches=launches, allocate=allocate)
        (self.path / "kernel.py").write_text(source)

    def test_file(self, source: str = TEST, name: str = "test_suite.py") -> None:
        (self.path / name).write_text(source)

    def commit(self) -> None:
        """Commit everything as it is: what times are compared with from now on."""
        if not (self.path / ".git").exists():
            self.git("init", "--quiet", "--initial-branch=main")
        # What pytester and kernels that note their calls leave as well.
        ignored = (".perfguard/", "runpytest-*", "stdout", "stderr", "places.txt")
        (self.path / ".gitignore").write_text("\n".join(ignored))
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=as it is")

    def record_is_of_head(self) -> None:
        """Commit everything as it is, and let the record name that commit: no time is in question then."""
        self.commit()
        head = self.git("rev-parse", "HEAD").strip()
        text = self.baseline.read_text()
        named = re.sub(r"commit: \w+", f"commit: {head}", text)
        if "commit: " not in text:  # recorded outside git
            named = text.replace("recorded: ", f"commit: {head}, recorded: ")
        self.baseline.write_text(named)
        self.commit()

    def of_three_sessions(self) -> None:
        """Let the record be of three sessions in place of one, so that it screens."""

        def three(found: re.Match[str]) -> str:
            return "sessions: [" + ", ".join(f"{float(found[1]) * by:.4g}" for by in (1.0, 0.999, 1.001)) + "]"

        self.baseline.write_text(re.sub(r"sessions: \[([\d.]+)\]", three, self.baseline.read_text()))

    def git(self, *arguments: str) -> str:
        """What one git command in the project prints, which is nobody's in particular."""
        return git(self.path, *arguments)

    def run(self, *arguments: str) -> pytest.RunResult:
        """`pytest`, as a user runs it, who records without a commit of each edit."""
        recording = any(each.startswith("--perfguard-update") for each in arguments)
        return self.pytester.runpytest_subprocess(*arguments, *["--perfguard-dirty"] * recording)

    def guard(self, *arguments: str) -> pytest.RunResult:
        """`pytest --perfguard`, as a user runs it."""
        return self.run("--perfguard", *arguments)

    @property
    def baseline(self) -> Path:
        return self.path / "baselines" / "fake-gpu" / "test_suite.yaml"

    def report(self, slug: str = "fake-gpu") -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.path / ".perfguard" / f"report-{slug}.json").read_text())
        return loaded

    def read(self) -> Report:
        """The report as `perfguard` reads it."""
        return read_report(self.path / ".perfguard" / "report-fake-gpu.json")

    def judged_again(self) -> dict[str, set[str]]:
        """What whoever holds nothing but the report and the baselines says of the times."""
        report = self.read()
        files = (
            {f"baselines/fake-gpu/{self.baseline.name}": self.baseline.read_bytes()} if self.baseline.exists() else {}
        )
        lane = read_files(files, "baselines").lane(report.hardware, report.toolchain)
        return {
            result.case.key: {str(verdict.word) for verdict in result.verdicts if verdict.metric == "device_time_us"}
            for result in judge_again(report, lane).results
        }

    def reasons(self, case: str, metric: str | None = None) -> list[str]:
        """Of the verdicts of a case, on one metric or on all."""
        return [
            verdict.get("reason", "")
            for result in self.report()["results"]
            for verdict in result["verdicts"]
            if result["case"]["name"] == case and metric in (None, verdict.get("metric"))
        ]

    def words(self, metric: str | None = None) -> dict[str, set[str]]:
        """Verdict words by case, of one metric or of all."""
        return {
            f"{result['case']['name']}/{result['case']['pass']}": {
                verdict["word"]
                for verdict in result.get("verdicts", [])
                if metric is None or verdict.get("metric") == metric
            }
            for result in self.report()["results"]
        }


@pytest.fixture
def real_processes() -> None:
    """For flows that try what a process is: how it starts, its number, what it imports. All others are forked."""


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, nursery: Nursery
) -> Project:
    """Nothing recorded yet."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # the project is no worker of this run
    if "real_processes" not in request.fixturenames:
        monkeypatch.setattr(sys, "executable", nursery.python)
    temporary = pytester.path.parent / f"{pytester.path.name}-tmp"  # simulated devices and their locks are its own
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    # Python takes a file written anew within the same second, and as long, for what it had compiled before.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    made = Project(pytester.path, pytester)
    made.configure(**SETTINGS)
    made.kernel()
    made.test_file()
    return made


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A repository with the unchanged project, its first commit, and its record of that commit in the second: made once
    for all flows that start from it, in all workers."""
    own = tmp_path_factory.getbasetemp()
    path = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "recording"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            made = own / "being-recorded"
            made.mkdir()
            _record(made, tmp_path_factory.mktemp("temporary"), nursery.python)
            made.rename(path)
    return path


def _record(path: Path, temporary: Path, python: str) -> None:
    made = Project(path, None)  # type: ignore[arg-type]
    made.configure(**SETTINGS)
    made.kernel()
    made.test_file()
    made.commit()
    line = [python, "-m", "pytest", "--perfguard", "--perfguard-update=new"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    environment["TMPDIR"] = str(temporary)
    done = subprocess.run(line, cwd=path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    made.commit()


@pytest.fixture
def recorded(project: Project, recording: Path) -> Project:
    """Recorded at its first commit, and unchanged since."""
    shutil.copytree(recording, project.path, ignore=shutil.ignore_patterns(".perfguard"), dirs_exist_ok=True)
    return project
