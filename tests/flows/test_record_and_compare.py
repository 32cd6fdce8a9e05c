"""Record -> unchanged -> wrong, slower, one launch heavier, more memory: each caught in its own word -> accept."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project

CASES = {"double[64]/forward", "double[96]/forward"}

# A device that knows its name: two recordings on one board prove what they differ by.
ON_BOARD = """
from perfguard.testing import fake

def pytest_runtest_setup(item):
    if fake.current() is not None:
        fake.current().board = "gpu-a"
"""


def test_record_then_every_kind_of_regression_then_accept(project: Project) -> None:
    # The first run ever: measured, NEW, said in words, not green in silence.
    first = project.guard()
    assert first.ret == ExitStatus.PASSED
    first.stdout.fnmatch_lines(["*2 passed*"])
    first.stdout.fnmatch_lines(["*0 of 2 cases guarded*", "NEW  2 cases (*): no baseline here*"])
    assert not project.baseline.exists()  # comparing never writes

    project.commit()
    recorded = project.guard("--perfguard-update=new")
    assert recorded.ret == ExitStatus.PASSED
    recorded.stdout.fnmatch_lines(
        [
            "perfguard: fresh process: 2 tests",
            "perfguard: update: new: *double?64?/forward: *",
            "NEW  2 cases: recorded now, judged from the next run on",
            "written: baselines/fake-gpu/test_suite.yaml",
        ]
    )
    recorded.stdout.no_fnmatch_line("*record: *")  # it is done
    stored = project.baseline.read_bytes()

    project.commit()
    passed = project.guard()
    assert passed.ret == ExitStatus.PASSED
    passed.stdout.fnmatch_lines(["*2 of 2 cases guarded*", "2 UNCHANGED; the working tree is that of *"])
    assert project.words("device_time_us") == {case: {"UNCHANGED"} for case in CASES}
    assert project.words("launches") == {case: {"PASS"} for case in CASES}
    assert project.baseline.read_bytes() == stored

    project.kernel(factor=2.5)
    wrong = project.guard()
    assert wrong.ret == ExitStatus.WRONG
    wrong.stdout.fnmatch_lines(["WRONG  double?64?/forward*", "*2 failed*"])
    wrong.stdout.no_fnmatch_line("*perfguard/pytest_plugin/*")  # the traceback ends in the test
    assert project.words("device_time_us") == {case: set() for case in CASES}  # never timed beside a wrong result

    project.kernel(us=55.0)
    slower = project.guard("--junitxml=junit.xml")
    assert slower.ret == ExitStatus.REGRESSED
    slower.stdout.fnmatch_lines(
        [
            "perfguard: 2 cases in doubt: asking *",
            "perfguard: 4 times in question: measured beside * by turns (4: 1 session stored, 3 are needed)",
            "perfguard: process pair 1: 4 times in question",
            "2 SLOWER; 2 cases asked of *, 4 process pairs; *",
            "SLOWER  double?*?/forward  device_time_us * µs -> 5* µs (+*, 95 % +* to +*)",
            "    in 4 process pairs; no exact metric moved",
            "    reproduce: pytest --perfguard *test_suite.py::test_double*",
            "    compare:   perfguard compare -- *test_suite.py::test_double*",
            "    accept: *--perfguard-update=slower --perfguard-reason*",
            "*2 failed*",  # although their own calls passed: what was slower was told by the pairs
        ]
    )
    assert project.words("launches") == {case: {"PASS"} for case in CASES}
    suite = ET.parse(project.path / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "2", "0")
    late = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert {(case.get("classname"), case.get("name")) for case in late} == {("perfguard", case) for case in CASES}

    project.configure(pair_minutes=0)  # what no time is needed for
    project.kernel(launches=2, allocate=8 << 20)
    heavier = project.guard()
    assert heavier.ret == ExitStatus.REGRESSED
    heavier.stdout.fnmatch_lines(
        [
            "E *CHANGED launches: 1 -> 2 (+100.0 %)",
            "E *CHANGED peak_memory_bytes: 1 MiB -> 8 MiB (+700.0 %)",
            "CHANGED  copy_kernel, in 2 cases: launches 1 -> 2",
            "*2 failed*",
        ]
    )
    assert project.baseline.read_bytes() == stored

    # Accepting needs the category and a reason; without them nothing is written and the run stays red.
    project.kernel(us=55.0, launches=2)
    refused = project.guard("--perfguard-update=slower,changed")
    assert refused.ret == ExitStatus.REGRESSED
    refused.stdout.fnmatch_lines(
        [
            "*2 cases are heavier or different: say why with --perfguard-reason; not read in a fresh process",
            "left alone: *--perfguard-reason*",
        ]
    )
    refused.stdout.no_fnmatch_line("perfguard: fresh process*")  # it asks before it starts one
    assert project.baseline.read_bytes() == stored

    accepted = project.guard("--perfguard-update=slower,changed", "--perfguard-reason", "two stages, #412")
    assert accepted.ret == ExitStatus.PASSED, accepted.stdout.str()
    assert "two stages, #412" in project.baseline.read_text()

    project.commit()
    again = project.guard()
    assert again.ret == ExitStatus.PASSED
    again.stdout.fnmatch_lines(["*2 of 2 cases guarded*", "2 UNCHANGED; *"])


def test_growth_by_small_steps_needs_a_reason(project: Project) -> None:
    """Each step is less than the gate promises to catch. The record knows where it began."""
    (project.path / "conftest.py").write_text(ON_BOARD)
    asked = []
    for us in (50.0, 51.0, 52.02):
        _with_code(project, us)
        project.commit()
        step = project.guard("-k", "64", "--perfguard-update")
        asked.append(step.ret)
    assert asked == [ExitStatus.PASSED, ExitStatus.PASSED, ExitStatus.REGRESSED]
    step.stdout.fnmatch_lines(
        ["SLOWER  double?64?/forward  device_time_us *", "left alone: *% over its anchor of * µs*--perfguard-reason*"]
    )
    assert "anchor: " in project.baseline.read_text()
    given = project.guard("-k", "64", "--perfguard-update", "--perfguard-reason=more accurate")
    assert given.ret == ExitStatus.PASSED
    assert "more accurate" in project.baseline.read_text()
    assert "anchor: " not in project.baseline.read_text()  # what was accepted with a reason is the anchor now


STARTS = """
import pathlib

def pytest_sessionstart(session):
    if session.config.rootpath == pathlib.Path({path!r}):
        with open("started.txt", "a") as file:
            file.write("here\\n")
"""
ON_CPU = """
import pytest
import torch

@pytest.mark.parametrize("name", ["neg", "exp", "sin"])
def test_pointwise(perfguard, name):
    perfguard(getattr(torch, name), torch.rand(64, 64), reference=getattr(torch, name))
"""


def starts(project: Project) -> int:
    """How many processes of pytest have measured the project itself since this was last asked. A base's is not one."""
    path = project.path / "started.txt"
    count = len(path.read_text().splitlines())
    path.unlink()
    return count


def test_a_recording_starts_one_other_process(project: Project) -> None:
    """Of three functions on a CPU: what is exact is read once more, what they take is not."""
    (project.path / "conftest.py").write_text(STARTS.format(path=str(project.path)))
    project.configure(device="cpu", case_seconds=0.02, extra_seconds=0)
    project.test_file(ON_CPU)
    recorded = project.guard("--perfguard-update")
    assert recorded.ret == ExitStatus.PASSED
    recorded.stdout.fnmatch_lines(
        [
            "perfguard: fresh process: 3 tests",
            "perfguard: update: 3 times of 3 cases: a record screens from 3 sessions on, each update adds one",
        ]
    )
    assert starts(project) == 2
    (report,) = (project.path / ".perfguard").glob("report-*.json")
    (fresh,) = json.loads(report.read_text())["fresh"]
    assert {reading.get("timer") for result in fresh["results"] for reading in result["readings"]} == {None}


def _with_code(project: Project, us: float) -> None:
    """A kernel of so many µs, whose code the device knows."""
    project.kernel(us=us)
    source = (project.path / "kernel.py").read_text()
    (project.path / "kernel.py").write_text(source.replace("us=", f'binary="{us}", us='))


def test_the_process_settles_before_the_first_test_makes_its_inputs(project: Project) -> None:
    """Else what a case's times are depends on the cases before it, and on what was read of them."""
    project.test_file(TEST.replace("    x = torch", "    assert kernel.fake.current().settled\n    x = torch"))
    project.guard().assert_outcomes(passed=2)


def test_a_metric_that_is_gone_is_named_and_can_be_removed(recorded: Project) -> None:
    recorded.test_file(TEST.replace("reference=", "timed=False, reference="))
    gone = ["UNRESOLVED  2 cases (*): device_time_us has a baseline, but was not read; if it is gone: *=stale*"]
    result = recorded.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(gone)
    stored = recorded.baseline.read_bytes()
    asked = recorded.guard("--perfguard-update", "--perfguard-reason=not timed any more")
    asked.stdout.fnmatch_lines(["left alone: stale: *device_time_us: kept; not asked for*"])
    assert recorded.baseline.read_bytes() == stored
    recorded.guard("--perfguard-update=stale")
    assert b"device_time_us" not in recorded.baseline.read_bytes()
    assert b"launches" in recorded.baseline.read_bytes()
    recorded.guard().stdout.no_fnmatch_line("UNRESOLVED*")


def test_a_metric_that_an_edit_renamed_is_named_by_both_names(recorded: Project) -> None:
    """As where the package that reads it was edited: its record stands under a name that nobody reads."""
    text = recorded.baseline.read_text()
    assert text.count("copies: 0, ") == 2
    recorded.baseline.write_text(text.replace("copies: 0, ", "copied: 0, "))
    recorded.record_is_of_head()
    result = recorded.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(
        [
            "*; 1 metric new: copies; *",
            "UNRESOLVED  2 cases (*): copied has a baseline, but was not read; if it is gone: pytest *=stale",
        ]
    )
    assert recorded.guard("--perfguard-update=new,stale").ret == ExitStatus.PASSED
    assert "copied" not in recorded.baseline.read_text()
    assert "copies: 0, " in recorded.baseline.read_text()
    settled = recorded.guard()
    settled.stdout.fnmatch_lines(["*2 of 2 cases guarded*"])
    settled.stdout.no_fnmatch_line("*copie*")


def test_an_update_whose_base_does_not_run_goes_by_the_record(recorded: Project) -> None:
    (recorded.path / "conftest.py").write_text("raise RuntimeError('the base is broken')\n")
    recorded.commit()
    (recorded.path / "conftest.py").unlink()
    recorded.kernel(launches=2)
    update = ("-k", "64", "--perfguard-update=slower,changed")
    asked = recorded.guard(*update)
    assert asked.ret == ExitStatus.REGRESSED
    asked.stdout.fnmatch_lines(["left alone: changed: *launches: 1 -> 2*--perfguard-reason*"])
    assert recorded.guard(*update, "--perfguard-reason=two stages").ret == ExitStatus.PASSED
    assert "two stages" in recorded.baseline.read_text()
    assert recorded.baseline.read_text().count("launches: 2") == 1


def test_uncommitted_code_is_recorded_only_if_one_says_so(recorded: Project) -> None:
    """Baselines, reports and documents are no code; a new test file is."""
    head = recorded.git("rev-parse", "HEAD").strip()[:12]
    update = ("--perfguard", "--perfguard-update=all", "-k", "64", "--perfguard-reason=slower")
    recorded.baseline.write_text(recorded.baseline.read_text().replace("...\n", "# read by hand\n...\n"))
    (recorded.path / "notes.md").write_text("of no test")
    clean = recorded.pytester.runpytest_subprocess(*update)
    assert (clean.ret, recorded.report()["commit"]) == (0, head)
    recorded.kernel(us=80.0)
    (recorded.path / "test_new.py").write_text("")
    refused = recorded.pytester.runpytest_subprocess(*update)
    assert refused.ret == ExitStatus.USAGE_ERROR
    refused.stderr.fnmatch_lines(
        [
            "ERROR: --perfguard-update: kernel.py and 1 other file are not committed, so no commit would hold what is "
            "recorded; commit first, or record all the same with --perfguard-dirty"
        ]
    )
    assert "80.0" not in recorded.baseline.read_text()
    assert recorded.guard("--perfguard-update=all", "-k", "64", "--perfguard-reason=slower").ret == 0  # with the option
    assert f"commit: {head}+" in recorded.baseline.read_text()
