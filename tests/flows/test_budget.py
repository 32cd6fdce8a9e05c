"""Process pairs that are cut short: by their budget, by Ctrl-C, by a run that ends before them. What is undecided says
why, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project
from tests.flows.test_base import IGNORED, STRIDES
from tests.flows.test_compare import workers_of


def device_times(project: Project) -> list[dict[str, Any]]:
    return [
        verdict
        for result in project.report()["results"]
        for verdict in result["verdicts"]
        if verdict.get("metric") == "device_time_us"
    ]


def left_behind(project: Project) -> list[str]:
    """Worktrees, folders, locks and processes of process pairs."""
    temporary = Path(os.environ["TMPDIR"])
    line = ["git", "worktree", "list", "--porcelain"]
    listed = subprocess.run(line, cwd=project.path, capture_output=True, text=True, check=True).stdout
    worktrees = [line for line in listed.splitlines() if line.startswith("worktree ")]
    found = [str(path) for path in temporary.glob("perfguard-pairs-*")]
    found += [str(path) for path in (temporary / "perfguard-locks").glob("*.txt")]
    return [*worktrees[1:], *found, *map(str, workers_of(temporary))]


def test_no_minutes_and_too_few(recorded: Project) -> None:
    project = recorded
    project.kernel(us=60.0)
    project.configure(pair_minutes=0)
    none = project.guard()
    assert none.ret == ExitStatus.UNGUARDED
    assert [verdict["reason"] for verdict in device_times(project)] == [
        "UNPAIRED: [tool.perfguard] pair_minutes is 0"
    ] * 2
    assert all(1.15 < verdict["ratio"] < 1.25 for verdict in device_times(project))  # shown, and accuses nobody
    none.stdout.fnmatch_lines(
        ["inconclusive: 2 of 2 timed cases *: UNPAIRED: * pair_minutes is 0; raise it, or: perfguard compare"]
    )
    none.stdout.no_fnmatch_line("*process pair 1*")

    # The first pair alone takes longer than so little.
    project.configure(pair_minutes=0.001)
    few = project.guard()
    assert few.ret == ExitStatus.UNGUARDED
    over = "the 0.001 minutes for process pairs were over ([tool.perfguard] pair_minutes)"
    assert {verdict["reason"] for verdict in device_times(project)} == {f"UNPAIRED: {over}"}
    few.stdout.fnmatch_lines(["inconclusive: 2 of 2 timed cases could not be judged: UNPAIRED: *; raise it, or: *"])
    assert left_behind(project) == []


def test_ctrl_c_keeps_what_was_found(recorded: Project) -> None:
    project = recorded
    project.kernel(us=60.0)
    line = [sys.executable, "-m", "pytest", "--perfguard"]
    temporary = Path(os.environ["TMPDIR"])
    with subprocess.Popen(line, cwd=project.path, stdout=subprocess.PIPE, text=True) as process:
        while not list(temporary.glob("perfguard-pairs-*/pair-2")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED, said
    assert left_behind(project) == []
    report = project.report()
    (pairing,) = report["pairings"]
    assert (pairing["pairs"], pairing["problem"]) == (1, "interrupted")
    assert not report.get("complete", False)
    for verdict in device_times(project):
        assert verdict["word"] == "UNRESOLVED"
        assert verdict["reason"] == "UNDECIDED: interrupted; in 1 process pair"
        assert 1.15 < verdict["ratio"] < 1.25
    assert "(run was cut short)" in said
    assert "inconclusive: 2 of 2 timed cases could not be judged: UNDECIDED: interrupted" in said


def test_ctrl_c_while_the_base_answers_leaves_nothing_and_accuses_nobody(recorded: Project) -> None:
    project = recorded
    project.configure(extra_seconds=0.2)
    begun = project.path.parent / f"{project.path.name}-begun"
    source = project.path / "kernel.py"
    hang = f"    if any('perfguard-session' in a for a in sys.argv): open({str(begun)!r}, 'w'); time.sleep(600)\n"
    source.write_text("import sys, time\n" + source.read_text().replace("    return out", f"{hang}    return out"))
    project.commit()
    source.write_text(STRIDES.format(read=IGNORED))
    line = [sys.executable, "-m", "pytest", "--perfguard"]
    with subprocess.Popen(line, cwd=project.path, stdout=subprocess.PIPE, text=True) as process:
        while not begun.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == ExitStatus.INTERRUPTED, said
    assert left_behind(project) == []
    assert {verdict["reason"] for verdict in device_times(project)} == {"UNPAIRED: interrupted"}
    assert "WRONG" not in said
    assert re.search(r"^UNRESOLVED  2 cases \(.*\): \w{12} was not asked, interrupted: hard input", said, re.MULTILINE)


def test_a_fault_that_no_base_was_asked_about_accuses_nobody(recorded: Project) -> None:
    """-x ends the run before it asks. The test that ended it stays the only one that failed."""
    project = recorded
    project.configure(extra_seconds=0.2)
    project.test_file(TEST + "\ndef test_plain():\n    assert False\n")
    (project.path / "kernel.py").write_text(STRIDES.format(read=IGNORED))
    project.commit()
    (project.path / "other.py").write_text("")
    result = project.guard("-x")
    assert result.ret == ExitStatus.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.no_fnmatch_line("*WRONG*")
    result.stdout.fnmatch_lines(["UNRESOLVED  2 cases (*): * was not asked, the run was cut short: hard input*"])
    result.stdout.no_fnmatch_line("*asked of*")


@pytest.mark.parametrize("option", ["-x", "--maxfail=1"])
def test_a_run_that_ends_at_a_failure_pairs_nothing(recorded: Project, option: str) -> None:
    project = recorded
    project.test_file(TEST + "\ndef test_plain():\n    assert False\n")
    project.commit()
    project.kernel(us=60.0)
    result = project.guard(option)
    assert result.ret == ExitStatus.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1)
    assert {verdict["reason"] for verdict in device_times(project)} == {"UNPAIRED: the run was cut short"}
    result.stdout.fnmatch_lines(
        ["inconclusive: 2 of 2 timed cases could not be judged: UNPAIRED: the run was cut short"]
    )
    result.stdout.no_fnmatch_line("*process pair*")
