"""`--perfguard-exact`: what was counted is judged and recorded as ever, times are neither read, judged nor written."""

from __future__ import annotations

from pathlib import Path

from perfguard import ExitStatus
from tests.flows.conftest import Project
from tests.flows.test_devices import WHERE, places

SUITE = """
import pytest
import torch

def double(x):
    return 2 * x

@pytest.mark.parametrize("n", [64, 96])
def test_double(perfguard, n):
    perfguard(double, torch.randn(n, 16, requires_grad=True), reference=lambda x: 2 * x)
"""


def test_a_launch_more_fails_and_a_slower_kernel_is_not_looked_at(recorded: Project) -> None:
    project = recorded
    project.kernel(us=100)
    slower = project.run("--perfguard-exact")
    assert slower.ret == ExitStatus.PASSED
    slower.stdout.fnmatch_lines(["*2 of 2 cases guarded*", "PASS  2 cases", "times: not read (--perfguard-exact)"])
    assert project.words("device_time_us") == {"double[64]/forward": set(), "double[96]/forward": set()}

    project.kernel(launches=2)
    heavier = project.run("--perfguard-exact")
    assert heavier.ret == ExitStatus.REGRESSED
    heavier.stdout.fnmatch_lines(["*CHANGED launches: 1 -> 2*"])


def test_an_update_writes_what_holds_on_every_machine_in_one_process(project: Project) -> None:
    project.configure(device="cpu", targets=[])
    project.test_file(SUITE)
    result = project.run("--perfguard-exact", "--perfguard-update=new")
    assert result.ret == ExitStatus.PASSED
    result.stdout.no_fnmatch_line("*fresh process*")
    assert [path.relative_to(project.path) for path in project.path.glob("baselines/**/*.yaml")] == [
        Path("baselines/targets/cpu/suite.yaml")
    ]
    text = (project.path / "baselines/targets/cpu/suite.yaml").read_text()
    assert "operators: " in text
    assert "_us" not in text


def test_workers_share_a_device(recorded: Project) -> None:
    project = recorded
    source = project.path / "kernel.py"
    source.write_text(source.read_text() + WHERE)
    result = project.run("--perfguard-exact", "-n2")
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*2 of 2 cases guarded*"])
    assert len({device for _, device in places(project)}) == 1
    assert len({worker for worker, _ in places(project)}) == 2
