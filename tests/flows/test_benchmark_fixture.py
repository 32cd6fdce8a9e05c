"""Tests that use pytest-benchmark's fixture are guarded on host time, unchanged."""

from __future__ import annotations

import json
import os

import pytest

from perfguard import ExitStatus
from perfguard.cli import main
from tests.flows.conftest import Project

# Its own clock stands in for pytest-benchmark's, so that the flow does not depend on how busy the machine is.
BENCHMARK = """
clock = 0.0

def timer():
    global clock
    clock += 1e-7
    return clock

def busy():
    global clock
    clock += {us} * 1e-6
    return 1

def test_busy(benchmark):
    assert benchmark(busy) > 0
"""


@pytest.fixture
def project(project: Project) -> Project:
    """With pytest-benchmark."""
    project.left_out = tuple(plugin for plugin in project.left_out if plugin != "benchmark")
    project.configure()
    return project


OPTIONS = ("--benchmark-timer=test_suite.timer", "--benchmark-max-time=0.05")


def test_recorded_then_slower(project: Project) -> None:
    project.test_file(BENCHMARK.format(us=500))
    assert project.guard(*OPTIONS).ret == ExitStatus.PASSED
    assert project.words("host_time_us") == {"busy/forward": {"NEW"}}
    project.configure(strict=True)
    strict = project.guard(*OPTIONS)
    assert strict.ret == ExitStatus.UNGUARDED
    strict.assert_outcomes(failed=1)
    recorded = project.guard("--perfguard-update=new", *OPTIONS)
    assert recorded.ret == ExitStatus.PASSED, recorded.stdout.str()
    assert "host_time_us: {timer: " in project.baseline.read_text()
    project.record_is_of_head()
    assert project.guard(*OPTIONS).ret == ExitStatus.PASSED
    assert project.words("host_time_us") == {"busy/forward": {"UNCHANGED"}}
    project.test_file(BENCHMARK.format(us=600))
    slower = project.guard(*OPTIONS)
    assert slower.ret == ExitStatus.REGRESSED
    slower.stdout.fnmatch_lines(["SLOWER  busy/forward  host_time_us 500* -> 600*"])


def test_a_test_with_both_fixtures_is_two_cases(project: Project) -> None:
    both = BENCHMARK.format(us=500).replace("(benchmark):", "(benchmark, perfguard):")
    project.test_file(
        f"import kernel, torch\n{both}    perfguard(kernel.double, torch.ones(64, 16), reference=kernel.double)\n"
    )
    assert project.guard("--perfguard-update=new", *OPTIONS).ret == ExitStatus.PASSED
    project.record_is_of_head()
    assert project.guard(*OPTIONS).ret == ExitStatus.PASSED
    assert project.words("host_time_us") == {"busy/forward": {"UNCHANGED"}, "busy:benchmark/forward": {"UNCHANGED"}}


def test_export_is_pytest_benchmark_json(project: Project) -> None:
    project.guard()
    report, target = project.path / ".perfguard" / "report-fake-gpu.json", project.path / "out.json"
    assert main(["report", str(report), "--as", "pytest-benchmark", "-o", str(target)]) == ExitStatus.PASSED
    # pytest-benchmark itself reads it and compares with it.
    names = {entry["name"] for entry in json.loads(target.read_text())["benchmarks"]}
    assert {"double[64]/forward:device_time_us", "double[96]/forward:host_time_us"} <= names
    project.pytester.makepyfile(test_read="def test_it(benchmark):\n    benchmark(len, [])\n")
    compared = project.run("test_read.py", f"--benchmark-compare={target}", "--benchmark-max-time=0.1")
    assert compared.ret == ExitStatus.PASSED, compared.stdout.str()


NO_TORCH = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.fixture
def no_torch(real_processes: None, project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """An environment that lacks torch, for processes that start in it."""
    folder = project.path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NO_TORCH)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    project.configure(device="auto", pair_minutes=2.0)
    return project


def test_a_suite_without_torch_is_guarded_on_host_time(no_torch: Project) -> None:
    no_torch.test_file(BENCHMARK.format(us=2000))
    no_torch.commit()
    same = no_torch.guard(*OPTIONS)
    assert same.ret == ExitStatus.PASSED, same.stdout.str()
    same.stdout.fnmatch_lines(["1 NEW; slowest busy/forward 2* ms"])


@pytest.mark.nightly  # eight processes of pairs; with torch, above, the same pairs are judged by day
def test_a_suite_without_torch_is_found_slower(no_torch: Project) -> None:
    no_torch.test_file(BENCHMARK.format(us=2000))
    no_torch.commit()
    no_torch.test_file(BENCHMARK.format(us=4000))
    slower = no_torch.guard(*OPTIONS)
    assert slower.ret == ExitStatus.REGRESSED, slower.stdout.str()
    slower.stdout.fnmatch_lines(["SLOWER  busy/forward  host_time_us *"])


def test_the_fixture_of_kernels_names_what_is_missing(no_torch: Project) -> None:
    no_torch.test_file("def test_double(perfguard):\n    perfguard(len, [], reference=len)\n")
    done = no_torch.run()
    assert done.ret == ExitStatus.TESTS_FAILED
    done.stdout.fnmatch_lines(["*DeviceError: *: the perfguard fixture: torch cannot be imported (*); pip install *"])
