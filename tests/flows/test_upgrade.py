"""`perfguard compare HEAD --base-python`: an upgrade of Triton, judged before it is made, without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project
from tests.kernels.test_oldest_triton import OLDEST

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
    sums_kernel[(x.shape[0],)](x, out, x.shape[1], 8, 1024)
    return out
"""
TEST = """
import kernel
import torch

def test_same(perfguard):
    perfguard(kernel.same, torch.randn(8, 1000), reference=lambda x: x * 1.0, timed=False, hard=False)
"""


@pytest.fixture
def checkout(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    project.configure(device="cpu", targets=["sm_100"])
    (project.path / "kernel.py").write_text(KERNEL)
    project.test_file(TEST)
    project.commit()
    return project


def compare(project: Project, path: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "perfguard", "compare", "HEAD", "--base-python", str(path)]
    return subprocess.run(line, cwd=project.path, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    not OLDEST.is_dir(), reason="scripts/setup puts the oldest Triton into a .venv that it makes itself"
)
@pytest.mark.usefixtures("real_processes")
def test_what_another_triton_makes_of_the_same_kernels_is_one_table(checkout: Project) -> None:
    done = compare(checkout, OLDEST)
    assert done.returncode in (ExitStatus.PASSED, ExitStatus.REGRESSED), done.stderr
    first, *lines = done.stdout.splitlines()
    assert ", triton 3.6" in first
    at = lines.index("kernels with other binaries: 1")
    assert lines[at + 1].split()[:5] == ["kernel", "target", "spills", "registers", "instructions"]
    assert lines[at + 2].split()[:2] == ["sums_kernel", "sm_100"]


@pytest.mark.parametrize(
    ("made", "said"),
    [("", "no such file; name an interpreter, or a folder of site-packages"), ("#!/bin/false\n", "does not run")],
)
def test_no_environment_is_one_clear_error(checkout: Project, made: str, said: str) -> None:
    path = checkout.path.parent / "python"
    if made:
        path.write_text(made)
        path.chmod(0o755)
    done = compare(checkout, path)
    assert done.returncode == ExitStatus.USAGE_ERROR
    assert f"--base-python={path}: {said}" in done.stderr
