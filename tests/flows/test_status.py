"""Exit statuses and refusals that no measuring is needed for; and a suite that does not use perfguard."""

from __future__ import annotations

import os

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project


def test_without_the_option_only_numerics_are_checked(project: Project) -> None:
    result = project.run()
    assert result.ret == ExitStatus.PASSED
    assert "perfguard" not in result.stdout.str().replace(str(project.path), "").split("collected")[1]
    assert not (project.path / ".perfguard").exists()
    project.kernel(factor=2.5)
    wrong = project.run()
    assert wrong.ret == ExitStatus.TESTS_FAILED
    wrong.stdout.fnmatch_lines(["*WrongResult*", "*2 failed*"])


def test_nothing_measured_is_not_green(project: Project) -> None:
    project.test_file("def test_plain():\n    pass\n")
    assert project.guard().ret == ExitStatus.NOTHING_MEASURED
    project.test_file(TEST.replace("def test_double", "@pytest.mark.skip\ndef test_double"))
    assert project.guard().ret == ExitStatus.NOTHING_MEASURED


def test_nothing_collected_keeps_pytests_status(project: Project) -> None:
    assert project.guard("-k", "nothing_has_this_name").ret == ExitStatus.NO_TESTS


def test_an_ordinary_failure_keeps_pytests_status(project: Project) -> None:
    project.test_file(TEST + "\ndef test_plain():\n    assert False\n")
    assert project.guard().ret == ExitStatus.TESTS_FAILED


def test_a_failure_that_no_verdict_explains_keeps_pytests_status(project: Project) -> None:
    """A plugin may fail a guarded test that passed, for example for what it left behind."""
    (project.path / "conftest.py").write_text(
        "import pytest\n\n\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport(item, call):\n"
        "    report = yield\n"
        "    if call.when == 'call':\n        report.outcome, report.longrepr = 'failed', 'it leaks'\n"
        "    return report\n"
    )
    result = project.guard()
    assert result.ret == ExitStatus.TESTS_FAILED
    result.stdout.fnmatch_lines(["*it leaks*", "*2 failed*"])


@pytest.mark.parametrize("workers", [[], ["-n2", "--perfguard-lane=cpu"]])
def test_two_tests_of_one_id_are_no_rerun(project: Project, workers: list[str]) -> None:
    """Packages with settings of their own: pytest takes the first for the root, and names the tests of both by it."""
    (project.path / "test_suite.py").unlink()
    settings = (project.path / "pyproject.toml").read_text().replace('["."]', '[".."]')
    (project.path / "pyproject.toml").unlink()
    for name in ("first", "second"):
        (project.path / name / "tests").mkdir(parents=True)
        (project.path / name / "pyproject.toml").write_text(settings)
        (project.path / name / "tests" / "test_t.py").write_text(TEST)
    both = ["--import-mode=importlib", "first", "second"]
    result = project.guard(*workers, *both)
    assert result.ret not in (ExitStatus.PASSED, ExitStatus.NO_TESTS)
    told = result.stdout.str() + result.stderr.str()
    assert "tests/test_t.py::test_double[64]: both /" in told.replace("\n", "")
    assert "run each package by itself" in told
    project.kernel(factor=2.5)
    apart = project.guard(f"--rootdir={project.path}", *both)
    assert apart.ret == ExitStatus.WRONG
    apart.stdout.fnmatch_lines(["4 WRONG*"])


def test_a_test_of_another_package_is_refused(project: Project) -> None:
    """Its path is outside of the folder that pytest takes for the root, which has the settings and the baselines."""
    settings = (project.path / "pyproject.toml").read_text().replace('["."]', '[".."]')
    (project.path / "pyproject.toml").unlink()
    for name in ("first", "second"):
        (project.path / name).mkdir()
        (project.path / name / "pyproject.toml").write_text(settings)
        (project.path / name / f"test_{name}.py").write_text(TEST)
    result = project.guard("first/test_first.py", "second/test_second.py")
    assert result.ret == ExitStatus.USAGE_ERROR
    second = project.path / "second"
    assert (
        f"{second}/test_second.py: belongs to {second}, and this run has the settings and baselines of "
        f"{project.path}/first; run each package by itself, or pass --rootdir={project.path}"
    ) in result.stdout.str().replace("\n", "") + result.stderr.str()
    assert not list(project.path.rglob("report-*.json"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--perfguard-update=quicker"], "*quicker is no category; known: new, faster, slower, changed, stale*"),
        (["--perfguard-reason=why"], "*--perfguard-reason: goes with --perfguard-update*"),
        (["--perfguard-device=abacus"], "*abacus*auto*cpu*"),
    ],
)
def test_misuse_is_one_clear_error(project: Project, arguments: list[str], said: str) -> None:
    result = project.guard(*arguments)
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
    assert "Traceback" not in result.stderr.str()


def test_an_unknown_setting_is_named(project: Project) -> None:
    project.configure(sesions=3)
    result = project.guard()
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pyproject.toml*sesions*known keys: baselines*"])


def test_a_broken_baseline_stops_the_run_and_stays_as_it_is(project: Project) -> None:
    project.baseline.parent.mkdir(parents=True)
    project.baseline.write_text("schema: 1\nhardware: [fake-gpu\n")
    before = project.baseline.read_bytes()
    for arguments in ([], ["--perfguard-update"]):
        result = project.guard(*arguments)
        assert result.ret == ExitStatus.USAGE_ERROR
        result.stderr.fnmatch_lines(["*test_suite.yaml: line 2: *"])
        assert project.baseline.read_bytes() == before


def test_numerics_run_under_xdist(project: Project) -> None:
    assert project.run("-n2").ret == ExitStatus.PASSED


def test_reports_folder_can_be_chosen(project: Project) -> None:
    assert project.guard("--perfguard-reports=out").ret == ExitStatus.PASSED
    assert sorted(os.listdir(project.path / "out")) == [".gitignore", "report-fake-gpu.json"]


def test_a_reports_folder_elsewhere_moves_no_root(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a space pytest takes an existing folder for tests: settings and baselines would be those above both."""
    folder = tmp_path_factory.mktemp("out")
    assert project.guard(f"--perfguard-reports={folder}").ret == ExitStatus.PASSED
    result = project.guard("--perfguard-reports", str(folder))
    assert result.ret == ExitStatus.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --perfguard-reports {folder}: *; write --perfguard-reports={folder}"])
    assert project.guard("--perfguard-reports", "out").ret == ExitStatus.PASSED
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--perfguard-reports '{folder}'")
    assert project.guard().ret == ExitStatus.USAGE_ERROR
