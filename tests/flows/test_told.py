"""What a changed call is told by: the metric that tells most first, and strides that nobody declared as a remark."""

from __future__ import annotations

import pytest

from perfguard import ExitStatus
from perfguard.render.html.data import cases
from perfguard.render.markdown import render_markdown
from perfguard.render.overview import LaneView, Overview
from perfguard.store.report_file import read_report
from tests.flows.conftest import Project

SCALE = """
import torch

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return {forward}

    @staticmethod
    def backward(ctx, grad):
        return {backward}

scale = Scale.apply
"""

TEST = """
import torch
import kernel

def test_scale(perfguard):
    x = torch.randn(8, 16, requires_grad=True)
    perfguard(kernel.scale, x, reference=lambda x: {reference})
"""


@pytest.fixture
def scale(project: Project) -> Project:
    project.configure(device="cpu", extra_seconds=0)
    return project


def write(project: Project, forward: str = "2 * x", backward: str = "2 * grad", reference: str = "2 * x") -> None:
    (project.path / "kernel.py").write_text(SCALE.format(forward=forward, backward=backward))
    project.test_file(TEST.format(reference=reference))


def guard(project: Project, *options: str) -> pytest.RunResult:
    return project.guard("--perfguard-lane=cpu", *options)


TRANSPOSED = "(2 * {}).t().contiguous().t()"  # the values of `2 * {}`, in columns


def test_a_gradient_that_became_contiguous_is_lighter_and_no_change(scale: Project) -> None:
    write(scale, backward=TRANSPOSED.format("grad"))
    guard(scale, "--perfguard-update=new")
    write(scale)
    result = guard(scale)
    assert result.ret == ExitStatus.PASSED, result.stdout.str()
    result.stdout.fnmatch_lines(
        ["*other strides, which no reference declares: scale/backward contract strides (1,8) -> (16,1)*"]
    )
    result.stdout.fnmatch_lines(["CHANGED (better)  scale/backward  copies 1 -> 0*"])


def test_strides_of_an_output_bind_where_the_reference_has_them(scale: Project) -> None:
    write(scale, forward=TRANSPOSED.format("x"), reference=TRANSPOSED.format("x"))
    guard(scale, "--perfguard-update=new")
    write(scale, reference=TRANSPOSED.format("x"))
    result = guard(scale)
    assert result.ret == ExitStatus.REGRESSED, result.stdout.str()
    result.stdout.fnmatch_lines(["CHANGED  scale/forward  contract float32*strides (1,8)*-> *strides (16,1)*"])
    write(scale)  # with a reference that has the new ones
    assert guard(scale).ret == ExitStatus.PASSED


def test_a_leak_names_the_line_that_made_what_is_left(scale: Project) -> None:
    write(scale)
    guard(scale, "--perfguard-update=new")
    write(scale, forward="KEPT.append(x.clone()) or 2 * KEPT[-1]")
    kernel = scale.path / "kernel.py"
    kernel.write_text(kernel.read_text() + "\nKEPT = []\n")
    result = guard(scale)
    assert result.ret == ExitStatus.REGRESSED
    found = result.stdout.str()
    assert "CHANGED residue_bytes: 0 B -> 512 B" in found, found
    assert "left behind: 512 B of kernel.py:7 in forward" in found


def test_an_added_copy_is_told_as_a_copy_everywhere(scale: Project) -> None:
    write(scale)
    guard(scale, "--perfguard-update=new")
    write(scale, forward="2 * x.clone()")
    result = guard(scale)
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(["E *Regression: scale/forward on cpu*: CHANGED copies: 0 -> 1"])
    result.stdout.fnmatch_lines(["CHANGED  scale/forward  copies 0 -> 1*"])
    (path,) = (scale.path / ".perfguard").glob("report-cpu*.json")
    overview = Overview(lanes=[LaneView("cpu", read_report(path))])
    row = next(line for line in render_markdown(overview).splitlines() if "scale/forward" in line)
    assert row.startswith("| 1 | <code>kernel&#46;py&#58;7 in forward</code> | <code>copies 0 -&#62; 1</code> | ")
    assert "| <code>scale/forward</code> <code>copies</code> 0 → 1 |" in row
    shown = next(case["verdicts"] for case in cases(overview) if case["name"] == "scale/forward")
    assert [each["metric"] for each in shown if each["word"] == "CHANGED"] == ["copies", "copy_bytes", "operators"]


NET = """
import torch

class Last(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, {bias})

def make(last=Last):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.SiLU(), last(16, 8))

def test_net(perfguard):
    net, whole = make(), make(torch.nn.Linear)
    perfguard(lambda x: net(x), torch.randn(32, 24), reference=whole)
"""


def test_a_module_in_a_closure_is_guarded_with_its_gradients(scale: Project) -> None:
    scale.test_file(NET.format(bias="self.bias"))
    assert guard(scale, "--perfguard-update=new").ret == ExitStatus.PASSED
    result = guard(scale)
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*2 of 2 cases guarded, baselines hold 2*"])
    scale.test_file(NET.format(bias="self.bias.detach()"))
    result = guard(scale)
    assert result.ret == ExitStatus.WRONG
    result.stdout.fnmatch_lines(["WRONG  net/backward  *no gradient for parameter 2.bias*"])
