"""A kernel that is compiled for a chip that is not here: recorded, left alone, and made to ask for too much."""

from __future__ import annotations

import importlib.util
import re
import shutil

import pytest

from perfguard import ExitStatus
from perfguard.cli import main
from perfguard.store.baseline_files import Store
from tests.flows.conftest import Project
from tests.measure.metrics.binaries import SCALE

TEST = """
import torch
import scale

def test_scale(perfguard):
    perfguard(scale.call, torch.randn(64, 128), reference=lambda x: 2 * x, timed=False, configurations=[{"block": 512}])
"""


# Not imported here: pytester unloads what a test imports, and Triton cannot be loaded a second time.
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_a_kernel_that_no_longer_fits_a_chip_that_is_not_here(project: Project) -> None:
    project.configure(device="cpu", targets=["gfx942"])
    project.test_file(TEST)
    (project.path / "scale.py").write_text(SCALE)
    assert project.guard("--perfguard-update=new").ret == 0
    file = Store(project.path / "baselines").load("targets/gfx942", "test_suite")
    assert file is not None
    stored = file.cases["scale/forward"]
    assert stored.entries["gfx942.load_bits"] == {"scale_kernel": 128.0, "scale_kernel@0": 64.0}

    # On a CPU of any other model, too: the kernels are compiled for the target, whoever compiles them.
    for folder in (project.path / "baselines").glob("cpu-*"):
        shutil.rmtree(folder)
    (project.path / "scale.py").write_text(SCALE.replace("num_warps=4", "num_warps=32"))
    run = project.guard()
    assert run.ret == 10
    run.stdout.fnmatch_lines(
        [
            "E *CHANGED gfx942.unfit: none -> scale_kernel 2,048 threads, limit 1,024, *",
            "CHANGED  scale/forward  gfx942.*",
            "*accept: * --perfguard-update=changed*",
        ]
    )

    # Another Triton compiles another binary: whoever recorded the baseline saw other facts, so nobody is accused.
    file = project.path / "baselines" / "targets" / "gfx942" / "test_suite.yaml"
    file.write_text(re.sub(r"triton: [^,}]+", "triton: 3.0.0", file.read_text()))
    run = project.guard()
    assert run.ret == 0
    run.stdout.fnmatch_lines(["DRIFT  1 case (*): *(triton 3.0.0 -> *"])
    run.stdout.no_fnmatch_line("*CHANGED*")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_other_code_that_breaks_no_limit_is_told_and_recorded(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """A multiplication more: nothing that fails moves, and whether it is as fast nobody knows who has no such chip."""
    project.configure(device="cpu", targets=["sm_90", "gfx942"])
    project.test_file(TEST)
    (project.path / "scale.py").write_text(SCALE)
    assert project.guard("--perfguard-lane=cpu", "--perfguard-update=new").ret == 0
    (project.path / "scale.py").write_text(SCALE.replace("x * factor", "x * factor * 1.5 / 1.5"))
    other = project.guard("--perfguard-lane=cpu")
    assert other.ret == 0
    said = "other code in 1 case"
    other.stdout.fnmatch_lines([f"1 PASS; {said} on sm_90, gfx942, which nothing here times: scale_kernel; *"])
    (path,) = (project.path / ".perfguard").glob("report-*.json")
    assert main(["report", str(path), "--as", "markdown"]) == ExitStatus.PASSED
    assert f"✅ no change, not timed, {said} |" in capsys.readouterr().out

    # Left alone with the category's name, and recorded without a reason: nothing is heavier.
    kept = project.guard("--perfguard-lane=cpu", "--perfguard-update=new")
    kept.stdout.fnmatch_lines(["*left alone: changed: targets/* scale/forward *; not asked for; *"])
    assert project.guard("--perfguard-lane=cpu", "--perfguard-update=changed").ret == 0
    project.guard("--perfguard-lane=cpu").stdout.no_fnmatch_line("*other code*")

    # A lane that reads times judges them. Another compiler is no other kernel.
    (project.path / "scale.py").write_text(SCALE)
    project.guard().stdout.no_fnmatch_line("*other code*")
    for file in (project.path / "baselines" / "targets").glob("*/test_suite.yaml"):
        file.write_text(re.sub(r"triton: [^,}]+", "triton: 3.0.0", file.read_text()))
    project.guard("--perfguard-lane=cpu").stdout.no_fnmatch_line("*other code*")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_float64_by_accident_is_told_by_records_that_know_no_such_metric(project: Project) -> None:
    project.configure(device="cpu", targets=["sm_90", "gfx942"])
    project.test_file(TEST)
    (project.path / "scale.py").write_text(SCALE)
    assert project.guard("--perfguard-update=new").ret == 0
    for file in (project.path / "baselines" / "targets").glob("*/test_suite.yaml"):
        assert "fp64" not in file.read_text()  # none is what a record stands for that says nothing

    run = project.guard()
    assert run.ret == 0
    run.stdout.no_fnmatch_line("*NEW*")

    (project.path / "scale.py").write_text(SCALE.replace("x * factor", "x.to(tl.float64) * factor + 0.1"))
    run = project.guard()
    assert run.ret == 10
    run.stdout.fnmatch_lines([f"E *CHANGED {name}.fp64: *_kernel 0, * -> *_kernel *" for name in ("sm_90", "gfx942")])
    assert project.guard("--perfguard-update=new,changed", "--perfguard-reason=the sum needs it").ret == 0
    assert project.guard().ret == 0

    # Back to float32 is better, and no finding.
    (project.path / "scale.py").write_text(SCALE)
    run = project.guard()
    assert run.ret == 0
    run.stdout.fnmatch_lines(["1 FASTER; *", "*FASTER*fp64*"])


def test_a_target_that_nobody_knows_ends_the_run_with_the_known_ones(project: Project) -> None:
    project.configure(device="cpu", targets=["sm_70"])
    run = project.guard()
    assert run.ret == 4
    run.stderr.fnmatch_lines(["*targets: 'sm_70' is not known; known: sm_80, *"])
