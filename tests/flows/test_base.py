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
from perfguard.testing import fake

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
    (project.path / "__pycache__").mkdir(exist_ok=True)
    (project.path / "__pycache__" / "kernel.cpython-39.pyc").write_bytes(b"of another machine")
    project.record_is_of_head()

    for what in ("nothing", "what is no code"):
        if what != "nothing":
            (project.path / "README.md").write_text("What this is.\n")
            (project.path / "junit.xml").write_text("<testsuites/>")
            (project.path / "__pycache__" / "kernel.cpython-39.pyc").write_bytes(b"")
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


def test_without_git_the_times_are_unpaired(project: Project, recording: Path) -> None:
    shutil.copytree(recording / "baselines", project.path / "baselines")
    project.of_three_sessions()
    said = "not in a git repository, which holds base and baselines; git init && perfguard init"
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


@pytest.mark.parametrize(
    "elsewhere",
    [pytest.param(False, id="no-commit", marks=pytest.mark.nightly), pytest.param(True, id="an-older-commit")],
)
def test_while_no_commit_has_the_tests_exact_metrics_are_guarded_and_times_are_shown(
    project: Project, elsewhere: bool
) -> None:
    """The first hour: something is recorded and run again, before anything of it is committed."""
    project.git("init", "--quiet", "--initial-branch=main")
    if elsewhere:
        project.git("commit", "--quiet", "--allow-empty", "--message=what was there before")
    assert project.guard("--perfguard-update=new").ret == ExitStatus.PASSED
    said = "the repository has no commit yet; commit first"
    if elsewhere:
        said = "new since the base; commit the test, to be compared with that commit"
    unchanged = project.guard()
    assert unchanged.ret == ExitStatus.PASSED
    unchanged.stdout.fnmatch_lines(
        [
            "*perfguard: fake-gpu, 2 of 2 cases guarded, baselines hold 2 ====*",
            f"times of 2 cases (double?64?/forward, double?96?/forward) are shown, not judged: {said}",
            "*2 passed*",
        ]
    )
    unchanged.stdout.no_fnmatch_line("*UNRESOLVED*")
    unchanged.stdout.no_fnmatch_line("*metrics new*")
    # Whoever holds the report alone believes no claim that a base lacks the tests.
    assert set().union(*project.judged_again().values()) == {"UNRESOLVED"}
    assert project.guard("--perfguard-update=new").ret == ExitStatus.PASSED  # a further session

    project.kernel(us=60.0)
    slower = project.guard()
    assert slower.ret == ExitStatus.PASSED
    slower.stdout.fnmatch_lines([f"times of 2 cases (*) are shown, not judged: {said}; double?*/forward * (+*.? %)"])
    project.kernel(us=50.0, launches=2)
    assert project.guard("-k", "64").ret == ExitStatus.REGRESSED
    project.kernel()
    project.commit()
    project.kernel(us=60.0)
    assert project.guard("-k", "64").ret == ExitStatus.REGRESSED
    assert project.words("device_time_us")["double[64]/forward"] == {"SLOWER"}


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
    said = "UNPAIRED: the base: pytest could not start: RuntimeError: the base is broken"
    assert reason.startswith(said)
    result.stdout.fnmatch_lines([f"inconclusive: 2 of 2 timed cases *: {said}*"])


def test_baselines_of_another_schema_at_the_base_do_not_matter(recorded: Project) -> None:
    project = recorded
    old = project.path / "baselines" / "other-board" / "test_suite.yaml"
    old.parent.mkdir()
    old.write_text("schema: 2\n")
    project.commit()
    old.unlink()
    project.kernel(us=60.0)
    assert project.guard().ret == ExitStatus.REGRESSED


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
    result.stdout.fnmatch_lines(["times of 1 case (double?96?/forward) are shown, not judged: new since the base; *"])


def test_a_base_that_is_wrong_is_no_measure_of_speed(recorded: Project) -> None:
    project = recorded
    project.kernel(factor=2.5)
    project.commit()
    project.kernel(us=60.0)
    assert project.guard("-k", "64").ret == ExitStatus.UNGUARDED
    (reason,) = reasons(project)
    assert reason.startswith("UNPAIRED: WRONG at the base"), reason


@pytest.mark.parametrize(
    "base",
    [pytest.param((), id="record"), pytest.param(("--perfguard-base=main",), id="branch", marks=pytest.mark.nightly)],
)
def test_a_slowdown_that_is_committed_shows_beside_the_commit_of_the_record_and_beside_the_branch(
    recorded: Project, base: tuple[str, ...]
) -> None:
    """Nobody has to name a base: a record asks whether the code got slower since it was made."""
    project = recorded
    project.git("checkout", "--quiet", "-b", "topic")
    project.kernel(us=60.0)
    project.commit()
    (project.path / "README.md").write_text("What this is.\n")
    project.commit()
    result = project.guard("-k", "64", *base)
    assert result.ret == ExitStatus.REGRESSED
    assert project.words("device_time_us") == {"double[64]/forward": {"SLOWER"}}
    # The last line is that of the exit status.
    result.stdout.fnmatch_lines(["*1 failed, 1 deselected in *"])
    expected = project.git("rev-parse", "main" if base else "main~1").strip()
    assert [pairing["base"] for pairing in project.report()["pairings"]] == [expected]


def test_a_record_of_a_commit_that_the_clone_lacks_says_how_to_fetch_it(recorded: Project) -> None:
    project = recorded
    text = re.sub(r"commit: \w+", "commit: 0123456789ab", project.baseline.read_text())
    project.baseline.write_text(text)
    project.git("checkout", "--quiet", "--orphan", "other")  # nor does its history hold what brought the record
    project.kernel(us=60.0)
    (project.path / ".gitignore").write_text("baselines/\n.perfguard/\nrunpytest-*\nstdout\nstderr\n")
    project.git("rm", "--quiet", "-r", "-f", "--cached", ".")
    project.git("add", "--all")
    project.git("commit", "--quiet", "--message=other")
    result = project.guard()
    assert result.ret == ExitStatus.UNGUARDED
    said = "0123456789ab, the commit of the record, is not in this clone: git fetch origin 0123456789ab"
    assert reasons(project) == [f"UNPAIRED: {said}"]
    result.stdout.fnmatch_lines([f"inconclusive: 2 of 2 timed cases could not be judged: UNPAIRED: {said}*"])


def test_a_record_of_a_commit_that_was_squashed_is_of_the_commit_that_brought_it(recorded: Project) -> None:
    project = recorded
    text = re.sub(r"commit: \w+", "commit: 0123456789ab+", project.baseline.read_text())
    project.baseline.write_text(text)
    project.commit()
    brought = project.git("rev-parse", "HEAD").strip()
    assert project.guard().ret == ExitStatus.PASSED
    assert set().union(*project.words("device_time_us").values()) == {"UNCHANGED"}
    project.kernel(us=60.0)
    project.commit()
    assert project.guard("-k", "64").ret == ExitStatus.REGRESSED
    assert [pairing["base"] for pairing in project.report()["pairings"]] == [brought]


def test_in_the_job_of_a_pull_request_the_base_is_the_merge_base(
    recorded: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = recorded
    base = project.git("rev-parse", "HEAD").strip()
    project.git("checkout", "--quiet", "-b", "topic")
    project.kernel(us=60.0)
    project.commit()
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path))
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    assert project.guard("-k", "64").ret == ExitStatus.REGRESSED
    assert [pairing["base"] for pairing in project.report()["pairings"]] == [base]
    monkeypatch.setenv("GITHUB_BASE_REF", "develop")
    result = project.guard()
    assert result.ret == ExitStatus.UNGUARDED
    result.stdout.fnmatch_lines(["*develop, the target of this pull request, is not in this clone: git fetch origin *"])


def test_a_record_of_another_toolchain_takes_nothing_away(recorded: Project) -> None:
    """Nobody touched the suite, and its record was made with another torch: the base answers for both."""
    project = recorded
    project.baseline.write_text(re.sub(r"torch: [^,]+", "torch: 2.11.0", project.baseline.read_text()))
    project.commit()
    (project.path / "other.py").write_text("# code that no test runs\n")
    project.commit()
    result = project.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(["*perfguard: fake-gpu, 2 of 2 cases guarded, baselines hold 2*"])
    assert {word for words in project.words().values() for word in words} <= {"PASS", "UNCHANGED"}


def test_a_metric_without_a_record_is_counted_and_takes_nothing_away(recorded: Project) -> None:
    project = recorded
    text = project.baseline.read_text()
    assert "copies: 0, " in text
    project.baseline.write_text(text.replace("copies: 0, ", ""))
    project.commit()
    result = project.guard()
    assert result.ret == ExitStatus.PASSED
    result.stdout.fnmatch_lines(
        ["*perfguard: fake-gpu, 2 of 2 cases guarded, baselines hold 2*", "*1 metric new: copies*"]
    )


# Its kernel takes every input for contiguous.
STRIDES = """
import torch
from perfguard.testing import fake

def double(x):
    fake.launch("double_kernel", us=50.0)
    return 2 * {read}
"""
IGNORED, HEEDED = "x.as_strided(x.shape, (x.shape[1], 1))", "x"


def test_an_old_fault_beside_the_given_inputs_is_listed_and_never_red(recorded: Project) -> None:
    """Each commit draws another sample of derived inputs, and some of them show the fault."""
    project = recorded
    project.configure(extra_seconds=0.2)
    (project.path / "kernel.py").write_text(STRIDES.format(read=IGNORED))
    project.record_is_of_head()
    listed = 0
    for number in range(4):
        (project.path / "other.py").write_text(f"NUMBER = {number}\n")
        project.commit()
        result = project.guard("-k", "64")
        assert result.ret == ExitStatus.PASSED
        assert "WRONG" not in result.stdout.str()
        said = "OLD FAULT  1 case (double[[]64[]]/forward): *at the base too (so it is at *: hard input*"
        listed += bool([line for line in result.stdout.lines if line.startswith("OLD FAULT")])
        if listed:
            result.stdout.fnmatch_lines([said])
        result.stdout.fnmatch_lines(["*1 of 1 case guarded*"])
    assert listed == 4  # among the few inputs of so small a call there is always a transposed one


def test_the_same_fault_by_a_change_is_wrong(recorded: Project) -> None:
    project = recorded
    project.configure(extra_seconds=0.2)
    (project.path / "kernel.py").write_text(STRIDES.format(read=HEEDED))
    project.record_is_of_head()
    (project.path / "kernel.py").write_text(STRIDES.format(read=IGNORED))
    result = project.guard("-k", "64")
    assert result.ret == ExitStatus.WRONG
    result.stdout.fnmatch_lines(
        ["WRONG  double[[]64[]]/forward  *hard input*", "*right at *", "*1 failed, 1 deselected*"]
    )
    # Without a base, and in a test that the base lacks, a fault is judged alone, and fails its test at once.
    shutil.move(project.path / ".git", project.path.parent / "git")
    alone = project.guard("-k", "64")
    assert alone.ret == ExitStatus.WRONG
    alone.stdout.fnmatch_lines(["FAILED *", "*1 failed*"])


@pytest.mark.parametrize("where", ["option", "setting"])
def test_a_base_that_is_no_commit_ends_the_run(recorded: Project, where: str) -> None:
    """Also where no time is in question, or a typing mistake would switch the gate off."""
    if where == "setting":
        recorded.configure(base="nonsense")
    result = recorded.guard(*(["--perfguard-base", "nonsense"] if where == "option" else []))
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines(["*nonsense: no branch, tag or commit of *; fetch it, or name another*"])


def test_plugins_that_look_at_all_reports_find_reports(project: Project, recording: Path) -> None:
    """That of hypothesis looks at the reports of every kind that pytest counts, and so at the inconclusive ones."""
    shutil.copytree(recording / "baselines", project.path / "baselines")
    project.left_out = tuple(name for name in project.left_out if name != "hypothesispytest")
    project.configure()
    project.of_three_sessions()
    result = project.guard()
    assert result.ret == ExitStatus.UNGUARDED
    result.stdout.fnmatch_lines(["*2 passed*2 inconclusive*"])
    result.stderr.no_fnmatch_line("*Error*")
