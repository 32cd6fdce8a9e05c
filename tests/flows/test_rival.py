"""A case that names what it has to beat: told by times of one run, whatever any baseline holds."""

from __future__ import annotations

import json
import re

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project

RIVAL = """
import kernel
import torch
from perfguard.testing import fake

def plain(x):
    fake.launch("plain", us=50.0)
    return 2 * x

def test_double(perfguard):
    perfguard(kernel.double, torch.randn(64, 16), reference=lambda x: 2 * x, rival=plain)
"""

# Each pass of a gradient costs as the forward one says.
BACKWARD = """
import torch
from perfguard.testing import fake

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, us):
        ctx.us = us
        fake.launch("forward", us=20.0)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        fake.launch("backward", us=ctx.us)
        return 2 * gradient, None

def test_double(perfguard):
    x = torch.randn(64, 16, requires_grad=True)
    perfguard(
        lambda x: Double.apply(x, 65.0), x, reference=lambda x: 2 * x, rival=lambda x: Double.apply(x, 50.0)
    )
"""


def rivals(project: Project) -> dict[str, set[str]]:
    return project.words("beside_rival_us")


@pytest.mark.parametrize("us", [30.0, 50.0])
def test_no_slower_than_its_rival_is_a_pass_and_stored_nowhere(project: Project, us: float) -> None:
    project.kernel(us=us)
    project.test_file(RIVAL)
    result = project.guard("--perfguard-update=new")
    assert result.ret == ExitStatus.PASSED
    assert rivals(project) == {"double/forward": {"PASS"}}
    assert "rival" not in project.baseline.read_text()
    (share,) = re.findall(r"double/forward .* (\d\.\d\d)x +PASS", result.stdout.str())
    assert float(share) == pytest.approx(us / 50, abs=0.011)
    assert "beside_rival_us" not in result.stdout.str()


def test_slower_than_its_rival_fails_on_the_first_run_and_cannot_be_accepted(project: Project) -> None:
    project.kernel(us=65.0, launches=13)
    project.test_file(RIVAL)
    result = project.guard()
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.re_match_lines_random(
        [
            r"SLOWER  double/forward  beside_rival_us (49|50)(\.\d+)? µs -> 6[4-6](\.\d+)? µs \(\+(2[89]|3[012])\..*",
            r" +than its rival: .*13 launches, its rival 1.*",
            r" +accept: .*--perfguard-update=new test_suite.py::test_double",
        ]
    )
    assert "compare:" not in result.stdout.str()  # which leaves rivals out
    assert "0 of 1 case guarded" in result.stdout.str()
    accepting = project.guard("--perfguard-update=new,slower", "--perfguard-reason=why")
    assert accepting.ret == ExitStatus.REGRESSED
    assert rivals(project) == {"double/forward": {"SLOWER"}}


def test_each_pass_has_the_rivals_own(project: Project) -> None:
    project.test_file(BACKWARD)
    assert project.guard().ret == ExitStatus.REGRESSED
    assert rivals(project) == {"double/forward": {"PASS"}, "double/backward": {"SLOWER"}}


def test_what_is_slower_in_one_process_alone_is_not_accused(project: Project) -> None:
    project.kernel(us=50.0)
    project.test_file(RIVAL + ONE_SLOW_PROCESS)
    result = project.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*fresh process 1 of 3: 1 test"])  # it was asked again
    assert rivals(project) == {"double/forward": {"PASS"}}


ONE_SLOW_PROCESS = """
import pathlib

first = not pathlib.Path("ran").exists()
pathlib.Path("ran").touch()
plain_launch = fake.launch

def launch(name, us, **kwargs):
    plain_launch(name, us=us * (1.2 if first and name == "double_kernel" else 1), **kwargs)

fake.launch = launch
"""


def test_a_rival_is_a_function(project: Project) -> None:
    project.test_file(RIVAL.replace("rival=plain", "rival=3"))
    result = project.guard()
    result.stdout.fnmatch_lines(["*perfguard(rival=3): must be callable; pass the function itself"])


def test_the_untimed_lane_times_no_rival(project: Project) -> None:
    project.configure(device="cpu")
    project.test_file(
        RIVAL.replace("fake.launch", "str").replace("kernel.double", "plain").replace('"plain", us=50.0', "1")
    )
    project.guard("--perfguard-lane=cpu")
    report = json.loads(next(project.path.glob(".perfguard/report-*.json")).read_text())
    assert "rival" not in json.dumps(report["results"])
