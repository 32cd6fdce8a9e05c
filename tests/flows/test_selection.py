"""What pytest was asked to leave out is not gone, what it skipped is named, and a case is its node id."""

from __future__ import annotations

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import TEST, Project

# `--perfguard-update` writes everything but what is gone, `stale` removes: neither may touch what was not collected.
_FILTERS = [
    ("--lf",),
    ("-k", "64"),
    ("-m", "small"),
    ("--deselect", "test_suite.py::test_double[96]"),
    ("test_suite.py::test_double[64]",),
    ("--pyargs", "test_suite::test_double[64]"),
    ("--ignore=test_suite.py",),
]
_MARKED = "import os\n" + TEST.replace("[64, 96]", "[pytest.param(64, marks=pytest.mark.small), 96]").replace(
    "    x = ", "    assert n == 96 or 'FAILING' not in os.environ\n    x = "
)
_OTHER = "def test_nothing():\n    pass\n"


@pytest.fixture
def filtered(recorded: Project) -> Project:
    """Two recorded cases, of which the first failed in the last run."""
    recorded.test_file(_MARKED)
    recorded.test_file(_OTHER, "test_other.py")
    pyproject = recorded.path / "pyproject.toml"
    text = pyproject.read_text().replace("-p no:cacheprovider", "")
    pyproject.write_text(text.replace("[tool.pytest.ini_options]", '[tool.pytest.ini_options]\nmarkers = ["small"]'))
    failing = {"FAILING": "1"}
    (recorded.path / "conftest.py").write_text(f"import os\nos.environ |= {failing}")
    recorded.run("-q")
    (recorded.path / "conftest.py").unlink()
    recorded.record_is_of_head()
    return recorded


@pytest.mark.parametrize("arguments", _FILTERS, ids=" ".join)
def test_what_was_filtered_is_not_gone(filtered: Project, arguments: tuple[str, ...]) -> None:
    before = filtered.baseline.read_text()
    for category in ("stale", "all"):
        result = filtered.guard(f"--perfguard-update={category}", *arguments)
        result.stdout.no_fnmatch_line("STALE *")
        assert filtered.baseline.exists()
        assert "double[96]/forward" in filtered.baseline.read_text()
        assert filtered.baseline.read_text().count("timer") == before.count("timer")


def test_categories_may_stand_before_the_paths(recorded: Project) -> None:
    recorded.test_file(_OTHER, "test_other.py")
    recorded.test_file(TEST.replace("[64, 96]", "[32]"), "test_new.py")
    alone = recorded.run("--perfguard-update", "test_new.py")  # an option with an optional value takes the path for it
    assert alone.ret == ExitStatus.USAGE_ERROR
    alone.stderr.fnmatch_lines(["*test_new.py is no category; *before a path, write --perfguard-update=all"])
    for update in (["--perfguard-update=all"], ["--perfguard-update", "new"]):
        result = recorded.run(*update, "test_new.py", "-q")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["written: baselines/fake-gpu/test_new.yaml"])
        (recorded.baseline.parent / "test_new.yaml").unlink()


def test_a_skipped_test_with_labelled_calls_is_named_with_its_reason(project: Project) -> None:
    labelled = TEST.replace("work=Work", "label='fp8: e4m3', work=Work")
    project.test_file(labelled)
    assert project.guard("--perfguard-update=new").ret == ExitStatus.PASSED
    project.test_file(labelled.replace("    x = ", "    if n == 64: pytest.skip('needs two GPUs')\n    x = "))
    result = project.guard()
    result.stdout.fnmatch_lines(["*0 of 2 cases guarded*", "UNRESOLVED  1 case (*): *skipped: needs two GPUs"])
    assert project.words()["double[64]:fp8: e4m3/forward"] == {"UNRESOLVED"}
    project.test_file(labelled.replace("    perfguard(", "    if n == 64: return\n    perfguard("))
    result = project.guard()
    result.stdout.fnmatch_lines(
        ["*0 of 2 cases guarded*", "UNRESOLVED  1 case (*): *its test was run and guarded nothing"]
    )


def test_a_class_that_was_not_collected_is_not_gone(project: Project) -> None:
    method = "\n    @pytest.mark.parametrize('n', [64])\n    def test_double(self, perfguard, n):\n        {}\n"
    call = "perfguard(kernel.double, torch.randn(n, 16), reference=lambda x: 2 * x)"
    classes = "".join(f"\nclass Test{name}:{method.format(call)}" for name in "AB")
    project.test_file(f"import pytest\nimport torch\nimport kernel\n{classes}")
    assert project.guard("--perfguard-update").ret == ExitStatus.PASSED
    stored = project.baseline.read_text()
    project.guard("--perfguard-update=stale", "test_suite.py::TestA")
    assert project.baseline.read_text() == stored


@pytest.mark.parametrize("parameter", ["__pytest_repeat_step_number", "__flakefinder_test_double"])
def test_repeated_tests_have_other_names_and_none_is_gone(recorded: Project, parameter: str) -> None:
    """As by pytest-repeat and pytest-flakefinder, whose parameter each test gets."""
    recorded.path.joinpath("conftest.py").write_text(
        "def pytest_generate_tests(metafunc):\n"
        f"    metafunc.fixturenames.append('{parameter}')\n"
        f"    metafunc.parametrize('{parameter}', range(2), indirect=True, ids=['1-2', '2-2'])\n"
        "import pytest\n"
        "@pytest.fixture\n"
        f"def {parameter}(request):\n    return request.param\n"
    )
    recorded.record_is_of_head()
    result = recorded.guard("-k", "64")
    result.stdout.no_fnmatch_line("*STALE*")
    recorded.guard("--perfguard-update=stale", "-k", "64")
    assert recorded.baseline.read_text().count("/forward:") == 2
