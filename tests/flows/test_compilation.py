"""A compiled candidate that stops being one graph: the run says where, why, and which guard failed."""

from __future__ import annotations

import json

from perfguard import ExitStatus
from tests.flows.conftest import Project

LAYER = """
import torch

@torch.compile(backend="eager")
def layer(x, scale):
    y = x.sin() * scale
    return y + 1
"""
TEST = """
import torch
import layers

def test_layer(perfguard):
    x = torch.randn(8, 16)
    scale = torch.tensor(2.0)
    perfguard(
        layers.layer, x, scale, reference=lambda x, scale: x.sin() * scale + 1, timed=False,
        walk=[(x[:4], scale), lambda: (x[:1], scale)],
    )
"""
# A branch on data, and a number read out of the tensor to guard on.
WORSE = LAYER.replace("    return y + 1", "    if y.sum() > 1e9:\n        y = -y\n    return y + 1")


def test_a_break_is_changed_with_reason_and_line(project: Project) -> None:
    project.configure(device="cpu")
    project.test_file(TEST)
    (project.path / "layers.py").write_text(LAYER)
    assert project.guard("--perfguard-update=new").ret == ExitStatus.PASSED
    stored = (project.path / "baselines" / "cpu" / "test_suite.yaml").read_text()
    for line in ("graphs: 1", "graph_breaks: 0", "recompiles: 2", "compiler_leaks: 0"):
        assert line in stored
    (project.path / "layers.py").write_text("# A comment moves every line.\n" + WORSE)
    result = project.guard()
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(
        [
            "*CHANGED graph_breaks: 0 -> 1",
            "*graph break at layers.py:8 in layer: Data-dependent branching (`if y.sum() > 1e9:`)",
        ]
    )
    assert list(project.path.glob(".perfguard/report-*.json"))
    report = json.loads(next(project.path.glob(".perfguard/report-*.json")).read_text())
    (result_,) = report["results"]
    (guards,) = (each["value"] for each in result_["readings"] if each["metric"] == "recompile_guards")
    assert any("size mismatch at index 0. expected 8, actual 4" in guard for guard in guards)


COLD = """
import torch
import layers

def test_layer(perfguard):
    depths = {1: lambda: layers.layer}  # no line goes through one point
    perfguard(
        layers.layer, torch.randn(8, 16), 2.0, reference=lambda x, scale: x.sin() * scale + 1,
        cold_start=depths if layers.ONE else True,
    )
"""


def test_seconds_of_compiling_are_read_in_processes_of_their_own(project: Project) -> None:
    project.configure(device="cpu", case_seconds=0.02)
    project.test_file(COLD)
    (project.path / "layers.py").write_text("ONE = False\n" + LAYER)
    assert project.guard().ret == ExitStatus.PASSED
    report = json.loads(next(project.path.glob(".perfguard/report-*.json")).read_text())
    readings = {each["metric"]: each for each in report["results"][0]["readings"]}
    for name in ("compile_time_us", "warm_compile_time_us"):
        assert 1 < readings[name]["value"] < readings["cold_start_us"]["value"]
        assert readings[name]["timer"] == "process"

    (project.path / "layers.py").write_text("ONE = True\n" + LAYER)
    result = project.guard()
    assert result.ret == ExitStatus.TESTS_FAILED
    result.stdout.fnmatch_lines(["*perfguard(cold_start=*): give True, or a function for each of two or more *"])
