"""Several devices: one xdist worker each, one report of them all; and never two runs on one device."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project

# Notes which device every call runs on, and in which worker.
WHERE = """
import os
from pathlib import Path
_double = double

def double(x):
    place = f"{os.environ.get('PYTEST_XDIST_WORKER')} {fake.current().identity.index} {len(x)}"
    with open(Path(__file__).parent / "places.txt", "a") as file:
        print(place, file=file)
    return _double(x)
"""


def places(project: Project) -> set[tuple[str, str]]:
    """(worker, device) of every call."""
    lines = (project.path / "places.txt").read_text().splitlines()
    return {(line.split()[0], line.split()[1]) for line in lines}


def spread(project: Project, cases: str = "[64, 96, 32, 48]") -> None:
    """Two simulated devices, a few more cases."""
    project.configure(device="fake*2")
    project.test_file(TEST.replace("[64, 96]", cases))
    source = project.path / "kernel.py"
    source.write_text(source.read_text() + WHERE)


def test_each_worker_has_a_device_and_there_is_one_report(recorded: Project) -> None:
    project = recorded
    spread(project)
    project.commit()
    source = project.path / "kernel.py"
    source.write_text(source.read_text().replace("us=50.0", "us=60.0"))
    result = project.guard("-n2", "--junitxml=junit.xml")
    assert result.ret == ExitStatus.REGRESSED, result.stdout.str()
    result.assert_outcomes(failed=4)  # after they had passed
    said = ["*4 of 4 cases guarded*", "4 SLOWER; 4 cases asked of *", "SLOWER  double (test_suite.py), in 4 cases*"]
    result.stdout.fnmatch_lines(said)
    suite = ET.parse(project.path / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("8", "4", "0")
    late = {case.get("name") for case in suite.iter("testcase") if case.get("classname") == "perfguard"}
    assert project.judged_again() == project.words("device_time_us") == {case: {"SLOWER"} for case in late}
    report = project.report()
    assert report["complete"]
    # Each worker paired what it had measured itself, on its own device.
    paired = {(pairing.get("device", 0), case["key"]) for pairing in report["pairings"] for case in pairing["cases"]}
    assert paired == {
        (result.get("device", 0), f"{result['case']['name']}/{result['case']['pass']}") for result in report["results"]
    }
    assert {device for device, _ in paired} == {0, 1}
    workers = places(project)
    assert len({worker for worker, _ in workers}) == len({device for _, device in workers}) == len(workers) == 2
    assert sorted(os.listdir(project.path / ".perfguard")) == [".gitignore", "report-fake-gpu.json"]


def test_an_update_is_recorded_by_all_workers(project: Project) -> None:
    spread(project)
    project.commit()
    result = project.guard("-n", "auto", "--perfguard-update=new")
    assert result.ret == ExitStatus.PASSED, result.stdout.str()
    text = project.baseline.read_text()
    assert text.count("/forward:") == 4
    project.commit()
    passed = project.guard("-n2")
    assert passed.ret == ExitStatus.PASSED
    passed.stdout.fnmatch_lines(["*4 of 4 cases guarded*", "4 UNCHANGED; *"])


def test_a_wrong_case_fails_in_its_worker_and_a_crash_is_broken(project: Project) -> None:
    spread(project, "[64, 96]")
    crash = "    if n == 96: os.kill(os.getpid(), 9)\n    x = "
    project.test_file("import os\n" + TEST.replace("    x = ", crash))
    project.kernel(factor=2.5)
    result = project.guard("-n2")
    assert result.ret == ExitStatus.WRONG, result.stdout.str()
    result.assert_outcomes(failed=2)
    assert project.words() == {"double[64]/forward": {"WRONG"}, "double[96]/forward": {"BROKEN"}}


@pytest.mark.parametrize(
    ("device", "arguments", "said"),
    [
        ("fake*2", ["-n3"], "*-n 3: workers would time on one device*has 2 for*use -n 2*"),
        ("cpu", ["-n1"], "*-n 1: workers would time on one device*no GPU*run without -n*"),
        ("fake*2", ["-n2", "--dist=each"], "*--dist each: each case is measured once*"),
    ],
)
def test_what_cannot_be_spread_is_refused(project: Project, device: str, arguments: list[str], said: str) -> None:
    project.configure(device=device)
    result = project.guard(*arguments)
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_a_broken_baseline_stops_all_workers(project: Project) -> None:
    spread(project)
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text("schema: 1\nhardware: [fake-gpu\n")
    result = project.guard("-n2")
    assert result.ret == ExitStatus.USAGE_ERROR, result.stdout.str()
    result.stderr.fnmatch_lines(["*test_suite.yaml: line 2: *"])
