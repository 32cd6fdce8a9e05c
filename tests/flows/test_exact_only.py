"""The lane `cpu`: any processor will do, so nothing is timed, and only what is the same on every CPU is judged."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from perfguard import ExitStatus
from perfguard.cli import main
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.session.device_lock import FOLDER, DeviceLock
from tests.flows.conftest import Project
from tests.flows.test_pull_request import _no_proxy, _sockets, clock, github, open_pull_request
from tests.github.fake import FakeGitHub

__all__ = ["_no_proxy", "_sockets", "clock", "github"]  # fixtures of the fake's own tests

LANE = "--perfguard-lane=cpu"
KERNEL = """
import torch

def double(x):
    return {body}
"""
TEST = """
import pytest
import torch
import kernel

@pytest.mark.parametrize("n", [64, 96])
def test_double(perfguard, n):
    perfguard(kernel.double, torch.randn(n, 16, requires_grad=True), reference=lambda x: 2 * x)
"""


def kernel(project: Project, body: str) -> None:
    (project.path / "kernel.py").write_text(KERNEL.format(body=body))


@pytest.fixture
def untimed(project: Project) -> Project:
    """Recorded by the lane itself."""
    project.configure(device="cpu", targets=[])
    project.test_file(TEST)
    kernel(project, "x * 2")
    recorded = project.guard(LANE, "--perfguard-update=new")
    recorded.assert_outcomes(passed=2)
    recorded.stdout.no_fnmatch_line("*fresh process*")
    return project


def files(project: Project) -> list[str]:
    folder = project.path / "baselines"
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.yaml"))]


def test_an_unknown_processor_is_judged_from_the_first_run_and_told_in_no_comment(
    untimed: Project,
    github: FakeGitHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Recorded is what every processor has in common, and nothing of this one: to the run it is an unknown one.
    assert files(untimed) == ["cpu/test_suite.yaml"]
    text = (untimed.path / "baselines/cpu/test_suite.yaml").read_text()
    assert "operators: " in text
    assert "_us" not in text
    pull_request = open_pull_request(untimed, github, lane="cpu")

    assert pull_request.push("unchanged") is ExitStatus.PASSED
    slug = CpuDevice().identity.slug
    report = untimed.report(slug)
    assert report["exact_only"] is True
    assert report["guarded"] == report["remembered"] == len(report["results"]) == 4
    read = {reading["metric"]: reading for result in report["results"] for reading in result["readings"]}
    assert {"contract", "operators", "saved_activation_bytes", "peak_tensor_bytes"} <= set(read)
    assert not [reading for reading in read.values() if "timer" in reading or not reading["portable"]]
    words = {verdict["word"] for result in report["results"] for verdict in result["verdicts"]}
    assert words == {"PASS"}
    assert github.data.on(7) == []
    head = github.data.pulls[7]["head"]["sha"]
    assert [(status["context"], status["state"], status["description"]) for status in github.data.statuses[head]] == [
        ("perfguard", "success", "no change in 4 cases on 1 lane, not timed"),
        ("perfguard/cpu", "success", "no change in 4 cases on 1 lane, not timed"),
    ]

    # The same from the report at hand: the lane goes by its own name, so that nobody misses it.
    monkeypatch.chdir(untimed.path)
    capsys.readouterr()
    path = f".perfguard/report-{slug}.json"
    assert main(["report", path, "--as", "markdown"]) == ExitStatus.PASSED
    told = capsys.readouterr().out
    assert "no change in 4 cases on 1 lane, not timed" in told
    assert "✅ no change, not timed" in told
    assert "no result" not in told

    # A mutant: what it does is the same, and costs another operator and another buffer.
    kernel(untimed, "(x + 0) * 2")
    assert pull_request.push("one operator more") is ExitStatus.PASSED  # The commit statuses hold the verdict.
    comment = pull_request.comment
    assert "### ❌ perfguard: 2 cases changed — action needed" in comment
    assert "slower or heavier, not timed" in comment
    assert "<code>operators</code>" in comment
    assert "pytest --perfguard --perfguard-lane=cpu 'test_suite.py::test_double[64]'" in comment

    # Accepted from the report: the folder of every CPU is written, none of this one.
    assert main(["accept", "--lane=cpu", f"--from={path}", "--reason=needed"]) == ExitStatus.PASSED
    assert files(untimed) == ["cpu/test_suite.yaml"]
    assert "needed" in (untimed.path / "baselines/cpu/test_suite.yaml").read_text()
    untimed.guard(LANE).assert_outcomes(passed=2)


def test_what_is_measured_anew_by_schedule_takes_over_what_is_better_and_fails_for_what_is_worse(
    untimed: Project,
) -> None:
    held = untimed.path / "baselines/cpu/test_suite.yaml"
    recorded = held.read_text()
    held.write_text(recorded.replace("operators: 1", "operators: 3"))
    assert untimed.guard(LANE, "--perfguard-update=new,faster").ret == ExitStatus.PASSED
    assert "operators: 3" not in held.read_text()
    better = held.read_text()
    kernel(untimed, "(x + 0) * 2")
    assert untimed.guard(LANE, "--perfguard-update=new,faster").ret == ExitStatus.REGRESSED
    assert held.read_text() == better
    assert files(untimed) == ["cpu/test_suite.yaml"]


def let_two_meet(project: Project, variable: str) -> None:
    """Each case waits until another process is in one too, where the environment has `variable`."""
    project.configure(device="cpu", targets=[], lock_minutes=0.0)
    meeting = f"""
    Path(f"met-{{os.getpid()}}.log").touch()
    while {variable!r} in os.environ and len(list(Path(__file__).parent.glob("met-*"))) < 2:
        time.sleep(0.01)
"""
    imports = "import os, time\nfrom pathlib import Path\n"
    project.test_file(imports + TEST.replace("(perfguard, n):\n", f"(perfguard, n):{meeting}"))
    kernel(project, "x * 2")


@pytest.mark.parametrize("options", [[], ["-n2"], ["--perfguard-update=new"]], ids=["plain", "workers", "recording"])
def test_a_run_that_times_nothing_waits_for_nobody(untimed: Project, options: list[str]) -> None:
    untimed.configure(lock_minutes=0.0)
    with DeviceLock("cpu", Path(os.environ["TMPDIR"]) / FOLDER) as lock:
        assert lock.try_acquire()  # as a timed run does
        timed = untimed.guard()
        assert timed.ret == ExitStatus.USAGE_ERROR
        timed.stderr.fnmatch_lines(["*still in use by *"])
        result = untimed.guard(LANE, *options)
    assert result.ret == ExitStatus.PASSED
    result.stdout.no_fnmatch_line("*in use by*")
    result.stdout.fnmatch_lines(["*4 of 4 cases guarded*"])


def test_runs_that_time_nothing_share_the_processor(project: Project) -> None:
    let_two_meet(project, "MEET")
    line = [sys.executable, "-m", "pytest", "--perfguard", LANE]
    runs = [
        subprocess.Popen(
            [*line, f"--perfguard-reports=reports-{number}"], cwd=project.path, env={**os.environ, "MEET": ""}
        )
        for number in range(2)
    ]
    assert [run.wait(timeout=300) for run in runs] == [ExitStatus.PASSED] * 2
    assert len(list(project.path.glob("reports-*/report-*.json"))) == 2


def test_workers_share_the_processor_and_write_together_what_one_process_writes(project: Project) -> None:
    # A worker that waited for the other's lock would give up at once; a barrier lets neither go on alone.
    let_two_meet(project, "PYTEST_XDIST_WORKER")
    project.commit()
    held = project.path / "baselines/cpu/test_suite.yaml"

    project.guard(LANE, "-n2", "--perfguard-update=new").assert_outcomes(passed=2)
    assert len(list(project.path.glob("met-*"))) == 2
    together = held.read_text()
    held.unlink()
    project.guard(LANE, "--perfguard-update=new").assert_outcomes(passed=2)
    assert held.read_text() == together

    base = project.git("rev-parse", "HEAD").strip()
    for met in project.path.glob("met-*"):
        met.unlink()
    project.commit()
    result = project.guard(LANE, "-n2")
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*4 of 4 cases guarded*", f"4 PASS; the working tree is that of {base[:12]}*"])

    # Each worker asks about its own cases, and the run knows what all of them were told.
    kernel(project, "(x + 0) * 2")
    project.commit()
    result = project.guard(LANE, "-n2", "--junitxml=junit.xml")
    assert result.ret == ExitStatus.REGRESSED
    result.assert_outcomes(failed=2)
    (written,) = (project.path / ".perfguard").glob("report-*.json")
    report = project.report(written.stem.removeprefix("report-"))
    assert report["exact_only"]
    assert len(report["results"]) == 4
    assert report["bases"] == {base[:12]: {"commit": base}}
    (pairing,) = report["pairings"]
    assert pairing["base"] == base
    asked = {case["key"] for case in pairing["cases"]}
    assert {"double[64]/forward", "double[96]/forward"} <= asked
    result.stdout.fnmatch_lines([f"*; {len(asked)} cases asked of {base[:12]}; *"])
    suite = ET.parse(project.path / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")  # what a test told is not told again


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--perfguard", "--perfguard-lane=nvidia-h200"], "*this run is on cpu-* or, without times, cpu;*"),
        (["--perfguard-lane=cpu"], "*--perfguard-lane: goes with --perfguard*"),
    ],
)
def test_a_run_that_is_not_the_lane_ends_before_it_measures(project: Project, options: list[str], said: str) -> None:
    project.configure(device="cpu", targets=[])
    result = project.run(*options)
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert not list(Path(project.path).glob(".perfguard/report-*"))
