"""`--perfguard-lane=cpu` in one process and in several: what was counted is recorded and judged, times are not read."""

from __future__ import annotations

from pathlib import Path

from perfguard import ExitStatus
from tests.flows.conftest import Project

EXACT = ("--perfguard", "--perfguard-lane=cpu")
SUITE = """
import pytest
import torch

def double(x):
    return 2 * x

@pytest.mark.parametrize("n", [64, 96])
def test_double(perfguard, n):
    perfguard(double, torch.randn(n, 16, requires_grad=True), reference=lambda x: 2 * x)
"""


def test_an_update_writes_what_holds_on_every_machine_in_one_process(project: Project) -> None:
    project.configure(device="cpu", targets=[])
    project.test_file(SUITE)
    result = project.run(*EXACT, "--perfguard-update=new")
    assert result.ret == ExitStatus.PASSED
    result.stdout.no_fnmatch_line("*fresh process*")
    assert [path.relative_to(project.path) for path in project.path.glob("baselines/**/*.yaml")] == [
        Path("baselines/targets/cpu/test_suite.yaml")
    ]
    text = (project.path / "baselines/targets/cpu/test_suite.yaml").read_text()
    assert "operators: " in text
    assert "_us" not in text


def test_workers_share_a_device(project: Project) -> None:
    project.configure(device="cpu", targets=[])
    project.test_file(SUITE)
    project.run(*EXACT, "--perfguard-update=new")
    result = project.run(*EXACT, "-n2")
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*4 of 4 cases guarded*", "4 PASS; *"])
