"""A small project of its own for each flow: one kernel on the simulated GPU, guarded by one test file."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

KERNEL = """
import torch
from perfguard.hardware import fake

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


@dataclass
class Project:
    """A repository that uses perfguard, and what its runs said."""

    pytester: pytest.Pytester
    settings: dict[str, Any] = field(default_factory=dict)

    def configure(self, **settings: Any) -> None:
        self.settings |= settings
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        ini = '[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "-p no:cacheprovider"\n'
        text = ini + "[tool.perfguard]\n" + "\n".join(lines) + "\n"
        (self.path / "pyproject.toml").write_text(text)

    @property
    def path(self) -> Path:
        return self.pytester.path

    def kernel(self, *, factor: float = 2, us: float = 50.0, launches: int = 1, allocate: int = 1 << 20) -> None:
        source = KERNEL.format(factor=factor, us=us, launches=launches, allocate=allocate)
        (self.path / "kernel.py").write_text(source)

    def test_file(self, source: str = TEST, name: str = "test_suite.py") -> None:
        (self.path / name).write_text(textwrap.dedent(source))

    def guard(self, *arguments: str) -> pytest.RunResult:
        """`pytest --perfguard`, as a user runs it."""
        return self.pytester.runpytest_subprocess("--perfguard", *arguments)

    def record(self) -> None:
        result = self.guard("--perfguard-update=new")
        assert result.ret == 0, result.stdout.str()

    @property
    def baseline(self) -> Path:
        return self.path / "baselines" / "fake-gpu" / "suite.yaml"

    def report(self, slug: str = "fake-gpu") -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.path / ".perfguard" / f"report-{slug}.json").read_text())
        return loaded

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
def project(pytester: pytest.Pytester) -> Project:
    made = Project(pytester)
    made.configure(device="fake", sessions=5, confirmations=3, case_seconds=0.2)
    made.kernel()
    made.test_file()
    return made
