"""`perfguard compare HEAD --base-python`: an upgrade of Triton, judged before it is made, without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project
from tests.flows.test_binaries import KERNEL, TEST
from tests.kernels.test_oldest_triton import OLDEST


@pytest.fixture
def checkout(project: Project) -> Project:
    project.configure(device="cpu", targets=["sm_100"])
    (project.path / "kernel.py").write_text(KERNEL)
    project.test_file(TEST)
    project.commit()
    return project


def compare(project: Project, path: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "perfguard", "compare", "HEAD", "--base-python", str(path)]
    return subprocess.run(line, cwd=project.path, capture_output=True, text=True, check=False)


@pytest.mark.nightly  # starts Python itself three times; two sides of one Triton are compared in test_compare.py
@pytest.mark.skipif(
    not OLDEST.is_dir(), reason="scripts/setup puts the oldest Triton into a .venv that it makes itself"
)
@pytest.mark.usefixtures("real_processes")
def test_what_another_triton_makes_of_the_same_kernels_is_one_table(
    checkout: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = compare(checkout, OLDEST)
    assert done.returncode in (ExitStatus.PASSED, ExitStatus.REGRESSED), done.stderr
    lines = [line.removeprefix("perfguard: ") for line in done.stdout.splitlines()]
    assert any(" to the working tree: triton 3.6" in line for line in lines), done.stdout
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
