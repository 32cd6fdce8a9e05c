"""`python -m benchmarks.selfcheck` on the simulated GPU: the user's suite, going on, judging again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.checkouts import ROOT
from perfguard import ExitStatus
from tests.flows.conftest import Project

SUITE = """
import pytest
import torch
import kernel

@pytest.mark.parametrize("n", range(2))
def test_double(perfguard, n):
    perfguard(kernel.double, torch.randn(64, 16), reference=lambda x: 2 * x)

def test_unguarded():
    raise RuntimeError("sessions run guarded tests alone")
"""
SESSIONS = 9  # three process pairs


def selfcheck(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "benchmarks.selfcheck", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(line, cwd=project.path, env=env, capture_output=True, text=True, check=False)


def assert_judged(done: subprocess.CompletedProcess[str]) -> None:
    """Nine sessions of two cases alarm nobody; what power they show is left to chance, and the status says it."""
    broken = [line for line in done.stdout.splitlines() if line.strip().startswith("BROKEN")]
    assert done.returncode == (ExitStatus.TESTS_FAILED if broken else ExitStatus.PASSED), done.stdout + done.stderr
    assert all("power" in line for line in broken), done.stdout
    assert "promises" in done.stdout


def test_measure_judge_go_on_and_judge_again(project: Project) -> None:
    project.configure(case_seconds=0.05)
    project.kernel(us=2000.0)  # long kernels need few simulated launches
    project.test_file(SUITE)
    folder = project.path / ".perfguard" / "selfcheck"
    command = ["--sessions", str(SESSIONS), "--suites", "20", "--", "test_suite.py"]

    first = selfcheck(project, *command)
    assert_judged(first)
    assert "session 9 of 9: a fresh process" in first.stderr
    found = json.loads((folder / "selfcheck.json").read_text())
    assert (found["sessions"], found["cases"], found["suites"]["slower"]["hits"]) == (9, 2, 0)
    results = json.loads((folder / "session-02.json").read_text())["results"]
    metrics = {each["metric"] for one in results for each in one["readings"] if each.get("timer")}
    assert metrics == {"device_time_us", "host_time_us"}
    power = {one["slowdown"]: one["found"] for one in found["power"]}
    assert power[0.1]["hits"] == power[0.1]["trials"] > 0
    assert sum(rate["trials"] for rate in power.values()) == 40  # two cases in 20 suites

    # Cut short: what is missing is measured, and nothing else.
    (folder / "session-09.json").unlink()
    kept = (folder / "session-01.json").read_bytes()
    again = selfcheck(project, *command)
    assert_judged(again)
    assert "8 of 9 sessions are there already" in again.stderr
    assert "session 9 of 9: a fresh process" in again.stderr
    assert "session 8 of" not in again.stderr
    assert (folder / "session-01.json").read_bytes() == kept

    other = selfcheck(project, "--sessions", "10", "--", "test_suite.py", "-k", "0")
    assert other.returncode == ExitStatus.USAGE_ERROR
    assert "holds sessions of another command" in other.stderr

    stored = selfcheck(project, "--from", str(folder), "--suites", "20")
    assert_judged(stored)
    assert "a fresh process" not in stored.stderr
    after = json.loads((folder / "selfcheck.json").read_text())
    assert (after["sessions"], after["cases"]) == (9, 2)


def test_a_suite_that_guards_nothing(project: Project) -> None:
    project.test_file("def test_plain(): pass\n")
    done = selfcheck(project, "--sessions", str(SESSIONS), "--", "test_suite.py")
    assert done.returncode == ExitStatus.NOTHING_MEASURED
    assert "session 1: " in done.stderr
    assert "mend the suite and run the same command again" in done.stderr
