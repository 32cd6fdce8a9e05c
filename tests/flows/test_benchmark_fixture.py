"""Tests that use pytest-benchmark's fixture are guarded on host time, unchanged."""

from __future__ import annotations

import json

from perfguard import ExitStatus
from perfguard.cli import main
from tests.flows.conftest import Project

BENCHMARK = """
def busy():
    total = 0
    for number in range({count}):
        total += number
    return total

def test_busy(benchmark):
    assert benchmark(busy) > 0
"""


def test_recorded_then_slower(project: Project) -> None:
    project.test_file(BENCHMARK.format(count=20_000))
    options = ("--benchmark-max-time=0.2", "--benchmark-min-rounds=20")
    assert project.guard(*options).ret == ExitStatus.PASSED
    assert project.words("host_time_us") == {"busy/forward": {"NEW"}}
    recorded = project.guard("--perfguard-update=new", *options)
    assert recorded.ret == ExitStatus.PASSED, recorded.stdout.str()
    assert "host_time_us: {sessions: [" in project.baseline.read_text()
    # Seven times the work: far above what a busy machine does to a median.
    project.test_file(BENCHMARK.format(count=140_000))
    slower = project.guard(*options)
    assert project.words("host_time_us")["busy/forward"] <= {"SLOWER", "UNRESOLVED"}
    assert (slower.ret == ExitStatus.REGRESSED) == (project.words("host_time_us")["busy/forward"] == {"SLOWER"})


def test_export_is_pytest_benchmark_json(project: Project) -> None:
    project.guard()
    report, target = project.path / ".perfguard" / "report-fake-gpu.json", project.path / "out.json"
    assert main(["report", str(report), "--as", "pytest-benchmark", "-o", str(target)]) == ExitStatus.PASSED
    # pytest-benchmark itself reads it and compares with it.
    names = {entry["name"] for entry in json.loads(target.read_text())["benchmarks"]}
    assert {"double[64]/forward:device_time_us", "double[96]/forward:host_time_us"} <= names
    project.pytester.makepyfile(test_read="def test_it(benchmark):\n    benchmark(len, [])\n")
    compared = project.run(
        "test_read.py", f"--benchmark-compare={target}", "--benchmark-max-time=0.1"
    )
    assert compared.ret == ExitStatus.PASSED, compared.stdout.str()
