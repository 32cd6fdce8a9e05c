"""Changes that slow many cases at once: the base, measured by turns on the same device, is what tells, so that no share
of the suite is too large to be accused."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from perfguard import ExitStatus
from perfguard.baselines.writing import render
from perfguard.lanes.judging import judge_again
from perfguard.lanes.remembered import Remembered
from perfguard.records import Baseline, CaseBaseline, Entry, TimedEntry
from perfguard.reports import read_report
from tests.flows.conftest import Project

SPREAD = (0.999, 1.0, 1.001, 1.002, 0.998)  # between five sessions

# Long kernels: the simulation costs time for every call that fits into a block.
KERNEL = """
from perfguard.hardware import fake

SLOWDOWNS = {slowdowns}

def double(x):
    fake.launch("double_kernel", us=20_000.0 * SLOWDOWNS.get(x.shape[0], {others}), host_us=5_000.0)
    return 2 * x
"""
TEST = """
import pytest
import torch
import kernel

@pytest.mark.parametrize("n", range({first}, {last}))
def test_{name}(perfguard, n):
    perfguard(kernel.double, torch.ones(n, 1), reference=lambda x: 2 * x)
"""


def write_kernel(project: Project, slowdowns: dict[int, float], others: float = 1.0) -> None:
    (project.path / "kernel.py").write_text(KERNEL.format(slowdowns=slowdowns, others=others))


def suite_of(project: Project, cases: int, functions: int = 1) -> Project:
    """A committed suite of so many cases, of which nothing is recorded."""
    project.configure(case_seconds=0.02, targets=[])
    each = cases // functions
    parts = [TEST.format(name=f"double{n}", first=1 + n * each, last=1 + (n + 1) * each) for n in range(functions)]
    project.test_file("\n".join(parts))
    write_kernel(project, {})
    project.commit()
    return project


def device_times(project: Project) -> dict[int, str]:
    """The word of each case's device time, by its parameter."""
    words = project.words("device_time_us")
    return {int(key.partition("[")[2].partition("]")[0]): word for key, (word,) in words.items()}


def judged_again(project: Project) -> dict[int, str]:
    """What whoever holds nothing but the report says of the same times."""
    report = read_report(project.path / ".perfguard" / "report-fake-gpu.json")
    again = judge_again(report, Remembered().lane(report.hardware, report.toolchain))
    return {
        int(result.case.name.partition("[")[2].removesuffix("]")): str(verdict.word)
        for result in again.results
        for verdict in result.verdicts
        if verdict.metric == "device_time_us"
    }


def record(project: Project, cases: int, functions: int) -> None:
    """What five sessions of each case would have stored: as one run reads the first of them."""
    assert project.guard("-k", "double0 and [1]").ret == ExitStatus.PASSED
    report = read_report(project.path / ".perfguard" / "report-fake-gpu.json")
    (first,) = report.results
    times = [reading for reading in first.readings if reading.timed and reading.gated]
    entries: dict[str, Entry] = {
        reading.metric: TimedEntry([reading.value * factor for factor in SPREAD], reading.timer or "")
        for reading in times
        if isinstance(reading.value, float)
    }
    names = [f"double{n * functions // cases}[{n + 1}]/forward" for n in range(cases)]
    baseline = Baseline("fake-gpu", "suite", report.provenance, {name: CaseBaseline(entries) for name in names})
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text(render(baseline))


def test_a_thousand(project: Project) -> None:
    suite_of(project, 1000, 4)
    record(project, 1000, 4)
    project.configure(pair_minutes=0.3)
    write_kernel(project, {}, others=1.2)
    result = project.guard("--junitxml=junit.xml")
    assert result.ret == ExitStatus.REGRESSED
