"""Arguments that a call uses up on purpose: declared, guarded, and no copy of them in what is read of memory."""

from __future__ import annotations

import json

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project

SQUARES = """
import torch

class Squares(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = (x * x).sum(dim=1)
        ctx.gradient = x.detach()
        ctx.gradient.data{writes}
        return y

    @staticmethod
    def backward(ctx, dy):
        return ctx.gradient * dy[:, None]

def test_squares(perfguard):
    x = torch.randn(64, 256, requires_grad=True)
    perfguard(Squares.apply, x, reference=lambda x: (x * x).sum(dim=1){more})
"""


def memory(project: Project) -> dict[str, object]:
    (path,) = (project.path / ".perfguard").glob("report-cpu-*.json")
    return {
        f"{result['case']['pass']} {reading['metric']}": reading["value"]
        for result in json.loads(path.read_text())["results"]
        for reading in result["readings"]
        if "bytes" in reading["metric"]
    }


def test_what_is_used_up_is_declared_and_costs_no_memory(project: Project) -> None:
    project.configure(device="cpu", case_seconds=0.05)
    project.test_file(SQUARES.format(writes=".mul_(2)", more=""))
    accused = project.guard("--perfguard-lane=cpu")
    assert accused.ret == ExitStatus.WRONG
    accused.stdout.fnmatch_lines(["*argument 0 was modified*clobbers*"])
    project.test_file(SQUARES.format(writes=".mul_(2)", more=", clobbers=(0,)"))
    assert project.guard("--perfguard-lane=cpu").ret == ExitStatus.PASSED
    declared = memory(project)
    assert declared
    project.test_file(SQUARES.format(writes="", more="").replace("ctx.gradient *", "2 * ctx.gradient *"))
    assert project.guard("--perfguard-lane=cpu").ret == ExitStatus.PASSED
    untouched = memory(project)
    for name in ("forward peak_tensor_bytes", "forward residue_bytes"):
        assert declared[name] == untouched[name]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("('x',)", "'x' is neither a position of the 1 arguments nor \"gradients\"; write (0,) for the first*"),
        ("(1,)", "1 is neither a position*"),
    ],
)
def test_a_place_that_is_none_is_named(project: Project, given: str, said: str) -> None:
    project.test_file(SQUARES.format(writes=".mul_(2)", more=f", clobbers={given}"))
    result = project.guard()
    assert result.ret == ExitStatus.TESTS_FAILED
    result.stdout.fnmatch_lines([f"*perfguard(clobbers=*): {said}"])
