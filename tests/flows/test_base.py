"""What a run's times are compared with: a tree that equals it needs no measuring; where there is none, or it does not
run, the run says so in words of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project

# Today everything takes three times as long as when it was recorded.
SLOW_TODAY = """
from perfguard.measure.devices import fake

def pytest_runtest_setup(item):
    if fake.current() is not None:
        fake.current().slowdown = 3.0
"""


def reasons(project: Project, case: str = "double[64]") -> list[str]:
    """What the report says of the case's time."""
    return project.reasons(case, "device_time_us")


def test_what_equals_its_base_in_code_is_unchanged_whatever_the_machine_does(recorded: Project) -> None:
    project = recorded
    (project.path / "conftest.py").write_text(SLOW_TODAY)
    project.commit()

    for what in ("nothing", "what is no code"):
        if what != "nothing":
            (project.path / "README.md").write_text("What this is.\n")
            (project.path / "junit.xml").write_text("<testsuites/>")
            (project.path / "__pycache__").mkdir(exist_ok=True)
            (project.path / "__pycache__" / "kernel.cpython-311.pyc").write_bytes(b"")
            text = project.baseline.read_text()
            project.baseline.write_text(re.sub(r"recorded: [^,}\s]+", "recorded: 2026-01-02", text))
        result = project.guard()
        assert result.ret == ExitStatus.PASSED, what
        assert set().union(*project.words("device_time_us").values()) == {"UNCHANGED"}, what
        assert set().union(*project.words("host_time_us").values()) == {"UNCHANGED"}, what
        result.stdout.fnmatch_lines(["2 UNCHANGED; the working tree is that of *"])
        result.stdout.no_fnmatch_line("*in question*")
        assert "pairings" not in project.report()
    # What is slow today is slow on both sides, and an edit of the code is no slowdown.
    (project.path / "kernel.py").write_text((project.path / "kernel.py").read_text() + "# a comment\n")
    result = project.guard("-k", "64")
    assert result.ret == ExitStatus.PASSED
    assert project.words("device_time_us") == {"double[64]/forward": {"PASS"}}


def test_without_git_or_commit_the_times_are_unpaired(project: Project, recording: Path) -> None:
    shutil.copytree(recording, project.path / "baselines")
    for said in (
        "not in a git checkout, so there is no base to compare with; git init, and commit",
        "the repository has no commit yet; commit first",
    ):
        result = project.guard()
        assert result.ret == ExitStatus.UNGUARDED
        result.stdout.fnmatch_lines(
            [
                "*perfguard: fake-gpu, *, inconclusive*",
                f"inconclusive: 2 of 2 timed cases could not be judged: UNPAIRED: *{said}",
                "*2 passed*",
            ]
        )
        assert reasons(project) == [f"UNPAIRED: {project.path}: {said}"]
        # Host times lie within their records, which is all that they need.
        assert project.words("host_time_us")["double[64]/forward"] == {"PASS"}
        project.git("init", "--quiet")


def test_a_base_that_a_shallow_clone_lacks_is_asked_for(recorded: Project, tmp_path: Path) -> None:
    project = recorded
    first = (project.path / ".git" / "refs" / "heads" / "main").read_text().strip()
    project.kernel(us=60.0)
    project.commit()
    project.git("clone", "--quiet", "--depth=1", f"file://{project.path}", str(tmp_path / "clone"))
    shutil.rmtree(project.path / ".git")
    shutil.move(tmp_path / "clone" / ".git", project.path / ".git")
    result = project.guard(f"--perfguard-base={first}")
    assert result.ret == ExitStatus.UNGUARDED
    said = f"{first}: not in this clone, which is shallow: git fetch --unshallow"
    assert reasons(project) == [f"UNPAIRED: {said}"]
    result.stdout.fnmatch_lines(
        ["inconclusive: 2 of 2 timed cases could not be judged: UNPAIRED: *git fetch --unshallow*"]
    )


def test_a_base_that_does_not_start_accuses_nobody(recorded: Project) -> None:
    project = recorded
    (project.path / "conftest.py").write_text("raise RuntimeError('the base is broken')\n")
    project.commit()
    (project.path / "conftest.py").unlink()
    project.kernel(us=60.0)
    result = project.guard()
    assert result.ret == ExitStatus.UNGUARDED
    (reason,) = reasons(project)
    assert re.match(r"UNPAIRED: the base: pytest could not start", reason)
    assert "RuntimeError: the base is broken" in reason
    result.stdout.fnmatch_lines(["inconclusive: 2 of 2 timed cases *: UNPAIRED: the base: pytest could not start*"])


def test_a_test_file_that_does_not_run_at_the_base_is_named(recorded: Project) -> None:
    project = recorded
    project.test_file("import nowhere\n" + TEST)
    project.commit()
    project.test_file()
    project.kernel(us=60.0)
    assert project.guard("-k", "64").ret == ExitStatus.UNGUARDED
    (reason,) = reasons(project)
    assert reason.startswith("UNPAIRED: its file does not run at the base: ")
    assert "No module named 'nowhere'" in reason


def test_a_case_that_is_new_has_nothing_to_be_compared_with(recorded: Project) -> None:
    project = recorded
    project.test_file(TEST.replace("[64, 96]", "[64]"))
    project.commit()
    project.test_file()
    result = project.guard()
    assert result.ret == ExitStatus.PASSED  # half of the cases were judged
    assert project.words("device_time_us")["double[64]/forward"] == {"PASS"}
    assert reasons(project, "double[96]") == ["UNPAIRED: new since the base"]
    result.stdout.fnmatch_lines(["UNRESOLVED  1 of 2 timed cases could not be judged: UNPAIRED: new since the base*"])


def test_a_base_that_is_wrong_is_no_measure_of_speed(recorded: Project) -> None:
    project = recorded
    project.kernel(factor=2.5)
    project.commit()
    project.kernel(us=60.0)
    assert project.guard("-k", "64").ret == ExitStatus.UNGUARDED
    (reason,) = reasons(project)
    assert reason.startswith("UNPAIRED: WRONG at the base"), reason


def test_a_slowdown_that_is_committed_shows_beside_the_branch_that_it_left(recorded: Project) -> None:
    project = recorded
    project.git("checkout", "--quiet", "-b", "topic")
    project.kernel(us=60.0)
    project.commit()
    (project.path / "README.md").write_text("What this is.\n")
    project.commit()
    assert project.guard("-k", "64").ret == ExitStatus.PASSED
    assert project.words("device_time_us") == {"double[64]/forward": {"UNCHANGED"}}
    result = project.guard("-k", "64", "--perfguard-base=main")
    assert result.ret == ExitStatus.REGRESSED
    assert project.words("device_time_us") == {"double[64]/forward": {"SLOWER"}}
    base = project.report()["pairings"][0]["base"]
    assert base == (project.path / ".git" / "refs" / "heads" / "main").read_text().strip()


@pytest.mark.parametrize("where", ["option", "setting"])
def test_a_base_that_is_no_commit_ends_the_run(recorded: Project, where: str) -> None:
    """Also where no time is in question, or a typing mistake would switch the gate off."""
    if where == "setting":
        recorded.configure(base="nonsense")
    result = recorded.guard(*(["--perfguard-base", "nonsense"] if where == "option" else []))
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines(["*nonsense: no branch, tag or commit of *; fetch it, or name another*"])
