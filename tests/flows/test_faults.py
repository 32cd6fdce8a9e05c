"""What a kernel can do to its run, and what the run then says: one clear verdict each, and the rest survives."""

from __future__ import annotations

import os
import re
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from perfguard import ExitStatus
from perfguard.cli import main
from tests.flows.conftest import PYTHON, TEST, Project

# One more case behind the two, so that there is something to survive.
CASES = TEST.replace("[64, 96]", "[64, 96, 128]")
AT_96 = "    if len(x) == 96:\n        "


def misbehave(project: Project, statement: str, before: str = "") -> None:
    """At 96 rows the kernel does something else, after it did its work."""
    project.test_file(CASES)
    source = project.path / "kernel.py"
    text = source.read_text().replace("    return out", f"{AT_96}{statement}\n    return out")
    source.write_text(f"import os, sys, time\n{before}\n{text}")


def test_a_hanging_kernel_ends_the_run_with_all_that_is_known(project: Project) -> None:
    # A child of its own, and the device's lock, must not outlive it.
    misbehave(
        project,
        "print('on my way'); child = __import__('subprocess').Popen(['sleep', '600']); "
        "open('child.txt', 'w').write(str(child.pid)); time.sleep(600)",
    )
    project.configure(case_minutes=0.05)
    result = project.guard("--junitxml=junit.xml")
    assert result.ret == ExitStatus.TESTS_FAILED
    said = "took longer than 0.05 minutes, in the numerics check, at kernel.py:* in double; *case_minutes*"
    late = "not measured: test_suite.py::test_double?96? took longer than 0.05 minutes and ended the run"
    result.stdout.fnmatch_lines(
        [
            "*0 of 3 cases guarded (run was cut short)*",
            f"BROKEN  double?96?/forward  {said}",
            f"UNRESOLVED  1 case (*): {late}",
        ]
    )
    result.stdout.fnmatch_lines(["*1 failed, 1 passed*"])
    result.stderr.fnmatch_lines(["*kernel.py*line * in double*", f"perfguard: test_suite.py::test_double?96?: {said}"])
    report = project.report()
    assert not report.get("complete", False)
    assert report["results"][0]["readings"]
    suite = ET.parse(project.path / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    child = Path(f"/proc/{(project.path / 'child.txt').read_text()}/stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"  # dead, and nobody's
    project.configure(lock_minutes=0)
    assert project.guard("-k", "64").ret == ExitStatus.PASSED


@pytest.mark.nightly  # waits for nine seconds, and a call that hangs, above, for three
def test_a_hang_in_a_process_pair_is_told_with_its_limit(recorded: Project) -> None:
    recorded.kernel(us=60)
    source = recorded.path / "kernel.py"
    hang = "    if any('perfguard-session' in a for a in sys.argv): time.sleep(600)\n    return out"
    source.write_text("import sys, time\n" + source.read_text().replace("    return out", hang))
    recorded.configure(session_minutes=0.15)
    result = recorded.guard("-k", "64")
    assert result.ret == ExitStatus.UNGUARDED
    said = "the working tree: the process took longer than 0.15 minutes (*session_minutes)"
    result.stdout.fnmatch_lines([f"inconclusive: 1 of 1 timed case could not be judged: UNPAIRED: {said}*"])


@pytest.mark.nightly  # a hang without workers, above, has the same limit
def test_a_hanging_worker_is_replaced(project: Project) -> None:
    misbehave(project, "time.sleep(600)")
    project.configure(case_minutes=0.05, device="fake*2")
    result = project.guard("-n2")
    assert result.ret == ExitStatus.TESTS_FAILED
    result.assert_outcomes(failed=1, passed=2)
    words = project.words()
    assert words["double[96]/forward"] == {"BROKEN"}
    assert words["double[64]/forward"] == words["double[128]/forward"] == {"NEW", "PASS"}  # explanations are not new
    assert "took longer than 0.05 minutes, in the numerics check" in "".join(project.reasons("double[96]"))


def test_a_device_fault_spares_what_was_measured(recorded: Project) -> None:
    recorded.kernel(us=60)
    misbehave(recorded, "fake.fault()")
    result = recorded.guard()
    assert result.ret == ExitStatus.REGRESSED
    result.assert_outcomes(failed=2, errors=1)  # one of them had passed, and pairs called it slower
    lost = "call raised *CUDA error: an illegal memory access was encountered"
    result.stdout.fnmatch_lines_random(
        [
            f"BROKEN  double?96?/forward  {lost}; the device is lost to this process",
            "BROKEN  double?128?/forward  not measured: the device was lost in test_suite.py::test_double?96? (call *",
            "SLOWER  double?64?/forward  *",
        ]
    )
    assert recorded.words("device_time_us")["double[64]/forward"] == {"SLOWER"}
    assert recorded.report()["complete"]


def test_a_modified_input_is_wrong(project: Project) -> None:
    misbehave(project, "x[5] = 0")
    result = project.guard()
    assert result.ret == ExitStatus.WRONG
    written = "argument 0 was modified, first by aten.* at kernel.py:* in double; where that is meant, *"
    result.stdout.fnmatch_lines([f"WRONG  double?96?/forward*{written}"])
    result.assert_outcomes(failed=1, passed=2)


def test_a_bare_assertion_is_broken_with_its_line_and_the_inputs_that_led_there(project: Project) -> None:
    misbehave(project, "assert x.stride(0) < 16")
    result = project.guard()
    assert result.ret == ExitStatus.TESTS_FAILED
    raised = "call raised AssertionError at kernel.py:* in double: assert x.stride(0) < 16"
    given = "the candidate raised this in its first call, on float32?96,16?"
    result.stdout.fnmatch_lines([f"BROKEN  double?96?/forward  {raised}; {given}"])
    assert [
        line for line in result.outlines if re.match(r"\S*perfguard/\S+\.py:\d+: ", line)
    ] == []  # the user's frames


def test_a_fault_of_the_reference_is_said_to_be_its_own(project: Project) -> None:
    reference = "def doubled(x):\n    assert len(x) != 96\n    return 2 * x\n"
    (project.path / "references.py").write_text(reference)
    project.test_file(
        CASES.replace("lambda x: 2 * x", "references.doubled").replace("import kernel", "import kernel, references")
    )
    result = project.guard()
    assert result.ret == ExitStatus.TESTS_FAILED
    raised = "call raised AssertionError at references.py:2 in doubled: assert len(x) != 96"
    given = "the reference raised this, on float32?96,16?"
    result.stdout.fnmatch_lines([f"BROKEN  double?96?/forward  {raised}; {given}"])
    result.assert_outcomes(failed=1, passed=2)
    project.test_file(TEST.replace("2 * x,", "(2 * x).double(),"))
    result = project.guard()
    assert result.ret == ExitStatus.WRONG
    result.stdout.fnmatch_lines(["WRONG  *output: dtype is float32, the reference's is float64"])


def test_cached_results_are_wrong(project: Project) -> None:
    misbehave(project, "return cache.setdefault(x.data_ptr(), out)", before="cache = {}")
    result = project.guard()
    assert result.ret == ExitStatus.WRONG
    result.stdout.fnmatch_lines(["WRONG  double?96?/forward*output: returns cached results*"])
    result.assert_outcomes(failed=1, passed=2)


def test_out_of_memory_says_how_much_and_the_next_case_runs(project: Project) -> None:
    misbehave(project, "fake.allocate(20 << 30)")
    result = project.guard()
    assert result.ret == ExitStatus.TESTS_FAILED
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "BROKEN  double?96?/forward  call ran out of memory: asked for 20 GiB, 16 GiB free; make the case smaller*",
        ]
    )


def test_printing_is_part_of_the_contract(recorded: Project) -> None:
    recorded.configure(pair_minutes=0)  # what is told of exact metrics needs no times
    source = recorded.path / "kernel.py"
    printing = "    os.write(1, b'debug: 1\\n')\n    return out"
    source.write_text("import os\n" + source.read_text().replace("    return out", printing))
    result = recorded.guard("-s")
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(["debug: 1", "*CHANGED contract: * -> *; prints 9 bytes ('debug: 1')*"])


def test_a_killed_run_leaves_its_report_and_the_device(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.test_file("import time\n" + TEST.replace("    x = ", "    if n == 96: time.sleep(600)\n    x = "))
    line = [PYTHON, "-m", "pytest", "--perfguard"]
    report = project.path / ".perfguard" / "report-fake-gpu.json"
    with subprocess.Popen(line, cwd=project.path, stdout=subprocess.DEVNULL) as process:
        while not report.exists():
            assert process.poll() is None
            time.sleep(0.05)
        held = Path(os.environ["TMPDIR"]) / "perfguard-locks" / "fake-gpu-0.txt"
        assert str(process.pid) in held.read_text()
        process.kill()
    assert main(["report", str(report)]) == ExitStatus.PASSED
    assert [result["case"]["name"] for result in project.report()["results"]] == ["double[64]"]
    said = capsys.readouterr().out
    assert "(run was cut short)" in said
    assert "the run ended before the case was judged" in said
    project.configure(lock_minutes=0)
    assert project.guard("-k", "64").ret == ExitStatus.PASSED


def test_a_recording_that_is_cut_short_says_that_it_wrote_nothing(project: Project) -> None:
    project.test_file(TEST.replace("    x = ", "    if n == 96: raise KeyboardInterrupt\n    x = "))
    result = project.guard("--perfguard-update=new")
    assert result.ret == ExitStatus.INTERRUPTED
    result.stdout.fnmatch_lines(["left alone: all baselines: the run was interrupted; record again"])
    assert not (project.path / "baselines").exists()
    assert "left alone" not in project.guard().stdout.str()


def test_what_can_no_longer_be_captured_is_changed(recorded: Project) -> None:
    recorded.configure(pair_minutes=0)  # what is told of exact metrics needs no times
    source = recorded.path / "kernel.py"
    source.write_text(source.read_text().replace("us=50.0 / 1)", "us=50.0 / 1, capturable=False)"))
    result = recorded.guard("-k", "64")
    assert result.ret == ExitStatus.REGRESSED
    result.stdout.fnmatch_lines(["E *CHANGED capturable: yes -> no*", "CHANGED  double?64?/forward  *"])
