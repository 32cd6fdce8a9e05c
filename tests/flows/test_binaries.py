"""A kernel for a chip that is not here: compared with the base's, where its code is not the recorded one."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project
from tests.nursery import Nursery

# Not imported here: pytester unloads what a test imports, and Triton cannot be loaded a second time.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def sums_kernel(x, out, n, HELD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n
    value = tl.load(x + row * n + columns, mask=mask, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for number in tl.static_range(HELD):
        total += value * (number + 1)
    tl.store(out + row * n + columns, total / (HELD * (HELD + 1) / 2), mask=mask)

def same(x):
    out = torch.empty_like(x)
    sums_kernel[(x.shape[0],)](x, out, x.shape[1], 8, 1024, num_warps=8)
    return out
"""
TEST = """
import kernel
import torch

def test_same(perfguard):
    perfguard(kernel.same, torch.randn(8, 1000), reference=lambda x: x * 1.0, timed=False, hard=False)
"""
LANE = "--perfguard-lane=cpu"


@pytest.fixture
def recorded_kernel(project: Project, monkeypatch: pytest.MonkeyPatch, interpreting: Nursery) -> Project:
    """Recorded at the commit of its code, and committed."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(sys, "executable", interpreting.python)
    project.configure(device="cpu", targets=["sm_90"])
    write(project)
    project.test_file(TEST)
    project.commit()
    assert project.guard(LANE, "--perfguard-update=new").ret == ExitStatus.PASSED
    project.commit()
    return project


def write(project: Project, *changes: tuple[str, str]) -> None:
    source = KERNEL
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    (project.path / "kernel.py").write_text(source)


def test_a_renaming_alone_is_quiet_and_hides_no_worse_configuration(recorded_kernel: Project) -> None:
    project = recorded_kernel
    assert not (project.path / "baselines" / "targets").exists()  # nothing of a target is recorded
    renamed = ("sums_kernel", "lines_kernel"), ("columns", "places")
    write(project, *renamed)
    quiet = project.guard(LANE)
    assert quiet.ret == ExitStatus.PASSED
    quiet.stdout.fnmatch_lines(["*1 of 1 case guarded*", "1 UNCHANGED; 1 case asked of *"])

    write(project, *renamed, ("num_warps=8", "num_warps=1"))
    worse = project.guard(LANE)
    assert worse.ret == ExitStatus.REGRESSED
    worse.stdout.fnmatch_lines(
        [
            "CHANGED  same/forward  *sm_90*",
            "    because:   configuration `lines_kernel`: num_warps 8 -> 1*",
            "*reproduce: TRITON_INTERPRET=1 pytest --perfguard --perfguard-lane=cpu *",
        ]
    )
    # The record of the code accepts it, with a reason; then nothing is asked any more.
    update = ("--perfguard-update=changed,faster", "--perfguard-dirty")
    assert project.guard(LANE, *update, "--perfguard-reason=as meant").ret == ExitStatus.PASSED
    accepted = project.guard(LANE)
    assert accepted.ret == ExitStatus.PASSED
    accepted.stdout.no_fnmatch_line("*asked of*")


def test_what_the_interpreter_takes_is_not_a_time(recorded_kernel: Project) -> None:
    """An edit without a record of times asks the base, but no process pair; a case of torch has times as ever."""
    project = recorded_kernel
    eager = "\ndef test_eager(perfguard):\n    perfguard(torch.neg, torch.ones(8), reference=torch.neg)\n"
    project.test_file(TEST.replace("timed=False, ", "") + eager)
    project.commit()
    result = project.guard("--perfguard-base=HEAD", "-v")
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*; 1 not timed, whose kernels Triton's interpreter runs; *slowest eager/forward *"])
    write(project, ("value * (number + 1)", "(number + 1) * value"))
    result = project.guard("-k", "same")
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*; 1 not timed, whose kernels Triton's interpreter runs; 1 case asked of *"])
    result.stdout.no_fnmatch_line("*process pair*")


def test_a_kernel_that_writes_its_input_is_named(recorded_kernel: Project) -> None:
    project = recorded_kernel
    write(project, ("    tl.store(out", "    tl.store(x + row * n + columns, 2 * value, mask=mask)\n    tl.store(out"))
    result = project.guard(LANE)
    assert result.ret == ExitStatus.WRONG
    result.stdout.fnmatch_lines(
        ["WRONG  same/forward  argument 0 was modified, first by kernel sums_kernel at kernel.py:* in same; *"]
    )
