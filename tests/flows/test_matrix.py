"""Options x kinds of ids x outcomes: in no cell is a verdict, a count, a status or a file lost."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfguard import ExitStatus
from tests.flows.conftest import Project

# What tests are called. Those without brackets are one test each, in files of equal names.
KINDS = {
    "colon": "fp8:64",
    "brackets": "[a][0]",
    "slash": "a/b",
    "backslash": "a\\b",
    "spaces": "a  b ",
    "emoji": "größe-🚀",
    "colons": "a::b::test_c",
    "long": "x" * 300,
    "empty": "",
    "dots": "../x.py",
}
FILES = {"inner": "tests/test_same.py", "outer": "test_same.py", "other": "tests/same.py"}
NAMES = [*KINDS, *FILES]

# outcome -> what the summary of pytest counts it as, and the word of its case. None: what its time is judged as.
OUTCOMES: dict[str, tuple[str, str | None]] = {
    "pass": ("passed", None),
    "slower": ("passed", "SLOWER"),
    "skip": ("skipped", "UNRESOLVED"),
    "xfail": ("xfailed", "UNRESOLVED"),
    "assert": ("failed", None),
    "error": ("errors", "BROKEN"),
    "launch": ("failed", "CHANGED"),
    "wrong": ("failed", "WRONG"),
}
_STATUS = {"wrong": 11, "launch": 10, "slower": 10, "error": 1, "assert": 1}  # the first that happens decides
_LEFT_OUT: tuple[tuple[str, ...], ...] = ((), ("wrong",), (), ("wrong", "launch", "slower"), (), (), ())

KERNEL = """
import torch
from perfguard.testing import fake

def double(x, outcome):
    out = torch.empty_like(x)
    launches = 2 if outcome == "launch" else 1
    for number in range(launches):
        fake.launch(f"kernel_{number}", us=(2_400 if outcome == "slower" else 2_000) / launches)
    return torch.mul(x, 2.5 if outcome == "wrong" else 2, out=out)
"""
SHARED = """
import json, os, random
from functools import partial
from pathlib import Path
import pytest
import torch
import kernel

HERE = Path(__file__).parent
FAILED = set()  # with TRY_AGAIN, what fails does so once

def outcome_of(name):
    found = json.loads((HERE / "outcomes.json").read_text()).get(name, "pass")
    if "TRY_AGAIN" in os.environ and found in ("assert", "error"):
        found = "pass" if name in FAILED else found
        FAILED.add(name)
    return found

@pytest.fixture
def guarded(request, perfguard):
    name = getattr(request.node, "callspec", None)
    name = name.params["kind"] if name else request.node.obj.name
    outcome = outcome_of(name)
    if outcome == "error":
        raise RuntimeError("no inputs")

    def guard():
        if outcome == "skip":
            pytest.skip("needs two GPUs")
        if outcome == "xfail":
            pytest.xfail("known")
        work = partial(kernel.double, outcome=outcome)
        label = "fp8: e4m3" if len(name) % 2 else ""
        perfguard(work, torch.randn(16, 16), reference=lambda x: 2 * x, label=label)
        assert outcome != "assert"

    return guard

def pytest_collection_modifyitems(items):
    if "SHUFFLE" in os.environ:
        random.Random(os.environ["SHUFFLE"]).shuffle(items)

if "TRY_AGAIN" in os.environ:
    from _pytest.runner import runtestprotocol

    def pytest_runtest_protocol(item, nextitem):
        '''As plugins do that run a failed test again.'''
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for attempt in (1, 2):
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            again = attempt == 1 and any(report.failed for report in reports)
            for report in reports:
                report.outcome = "rerun" if again and report.failed else report.outcome
                item.ihook.pytest_runtest_logreport(report=report)
            if not again:
                break
            item._initrequest()
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_report_teststatus(report):
        if report.outcome == "rerun":
            return "rerun", "R", "RERUN"
"""
KINDS_FILE = f"""
import pytest

@pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for kind, name in {KINDS!r}.items()])
def test_kinds(guarded, kind):
    guarded()
"""
ONE_FILE = "def test_double(guarded):\n    guarded()\n\ntest_double.name = {name!r}\n"


@dataclass(frozen=True)
class Cell:
    """One row of the matrix: how pytest is started, and which of the tests it then runs."""

    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    early: bool = False  # ends at the first failure
    again: bool = False  # what fails does so once
    paired: bool = False  # what is slower is paired, which takes ten seconds: else it is left in question
    slower: bool = False  # every test is
    runs: tuple[str, ...] = tuple(NAMES)


CELLS = {
    "plain": Cell(),
    "slower": Cell(paired=True, slower=True),
    "x": Cell(("-xvs",), early=True),
    "setup-show": Cell(("--setup-show", "-vvv")),
    "importlib": Cell(("--import-mode=importlib",)),
    "shuffled": Cell(("-q",), environment={"SHUFFLE": "1"}),
    "again": Cell(environment={"TRY_AGAIN": "1"}, again=True),
    "workers": Cell(("-n2",), settings={"device": "fake*2"}),
    "last failed": Cell(("--lf",)),
    "failed first": Cell(("--ff",)),
    "chosen": Cell(("-k", "fp8:64 or same"), runs=("colon", *FILES)),
    "by node id": Cell(("tests/test_same.py::test_double", "test_same.py"), runs=("inner", "outer")),
}


def outcomes_of(number: int) -> dict[str, str]:
    """The outcome of each test in the row `number`: every row shifts them by one."""
    if list(CELLS.values())[number].slower:
        return dict.fromkeys(NAMES, "slower")
    left = [outcome for outcome in OUTCOMES if outcome not in _LEFT_OUT[number % len(_LEFT_OUT)]]
    return {name: left[(place + number) % len(left)] for place, name in enumerate(NAMES)}


def test_every_kind_meets_every_outcome() -> None:
    rows = [outcomes_of(number).items() for number in range(len(CELLS))]
    assert {pair for row in rows for pair in row} == {(name, outcome) for name in NAMES for outcome in OUTCOMES}


def write_project(project: Project, outcomes: dict[str, str]) -> None:
    project.configure()
    pyproject = project.path / "pyproject.toml"
    ids = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support = true\n"
    files = 'python_files = ["test_*.py", "same.py"]\n'
    text = pyproject.read_text().replace("-p no:cacheprovider", "").replace("[tool.perf", f"{ids}{files}[tool.perf")
    pyproject.write_text(text)
    (project.path / "kernel.py").write_text(KERNEL)
    (project.path / "conftest.py").write_text(SHARED)
    (project.path / "outcomes.json").write_text(json.dumps(outcomes))
    (project.path / "tests").mkdir(exist_ok=True)
    (project.path / "tests" / "__init__.py").touch()
    project.test_file(KINDS_FILE)
    for name, file in FILES.items():
        project.test_file(ONE_FILE.format(name=name), file)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def matrix(project: Project, matrix_recording: list[Path]) -> Project:
    """All kinds recorded with what passes, and committed."""
    write_project(project, {})
    if not matrix_recording:
        assert project.guard("--perfguard-update").ret == ExitStatus.PASSED
        matrix_recording.append(shutil.copytree(project.path / "baselines", project.path.parent / "matrix-baselines"))
    shutil.copytree(matrix_recording[0], project.path / "baselines", dirs_exist_ok=True)
    project.commit()
    return project


@pytest.fixture(scope="session")  # a worker may come back to this file
def matrix_recording() -> list[Path]:
    return []


def name_of(nodeid: str) -> str:
    path, _, inside = nodeid.partition("::")
    if "[" in inside:
        return next(kind for kind, name in KINDS.items() if inside.endswith(f"test_kinds[{name}]"))
    return next(name for name, file in FILES.items() if file == path)


def verdicts(project: Project) -> dict[str, set[str]]:
    """Words by test; a test that no case of the report is about has no entry."""
    found: dict[str, set[str]] = {}
    for result in project.report()["results"]:
        words = {verdict["word"] for verdict in result.get("verdicts", [])}
        found.setdefault(name_of(result["case"]["nodeid"]), set()).update(words)
    return found


@pytest.mark.parametrize("number", range(len(CELLS)), ids=list(CELLS))
def test_nothing_is_lost(matrix: Project, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    cell, outcomes = list(CELLS.values())[number], outcomes_of(number)
    matrix.settings |= cell.settings | ({} if cell.paired else {"pair_minutes": 0})
    write_project(matrix, outcomes)
    for name, value in cell.environment.items():
        monkeypatch.setenv(name, value)
    stored = contents(matrix.path / "baselines")
    result = matrix.guard("--junitxml=junit.xml", *cell.arguments)
    if cell.again:
        outcomes = {name: "pass" if what in ("assert", "error") else what for name, what in outcomes.items()}
    happened = [outcomes[name] for name in cell.runs]
    assert contents(matrix.path / "baselines") == stored
    words = verdicts(matrix)
    assert set(words) == set(cell.runs)
    assert all(words.values())
    report = matrix.report()
    assert report.get("complete", False) is not cell.early
    assert report.get("stale", []) == []
    assert sorted(path.name for path in (matrix.path / ".perfguard").glob("*.json")) == [f"report-{slug(report)}.json"]
    suite = ET.parse(matrix.path / "junit.xml").getroot()[0]
    late = [case.get("name") for case in suite.iter("testcase") if case.get("classname") == "perfguard"]
    if cell.early:
        assert result.ret in (ExitStatus.WRONG, ExitStatus.REGRESSED, ExitStatus.TESTS_FAILED)
        counted = result.parseoutcomes()
        assert counted.get("failed", 0) + counted.get("errors", 0) + counted.get("error", 0) == 1
        return
    counts = {kind: sum(OUTCOMES[what][0] == kind for what in happened) for kind, _ in OUTCOMES.values()}
    slower = happened.count("slower") if cell.paired else 0  # known at the end, when the tests have passed
    late_counts = {"passed": counts["passed"] - slower, "failed": counts["failed"] + slower}
    result.assert_outcomes(**(counts | late_counts))
    for name in cell.runs:
        expected = OUTCOMES[outcomes[name]][1]
        if expected is None:
            # With labels, an error after one call may be that of the next: the test itself is BROKEN beside it.
            assert words[name] - {"BROKEN"} <= {"PASS", "UNCHANGED", "UNRESOLVED"}, name
            assert "BROKEN" not in words[name] or outcomes[name] == "assert", name
        else:
            assert (expected if cell.paired or expected != "SLOWER" else "UNRESOLVED") in words[name], name
    failing = {what: status for what, status in _STATUS.items() if cell.paired or what != "slower"}
    green = ExitStatus.PASSED if cell.paired else ExitStatus.UNGUARDED  # most times are in question
    if set(happened) <= {"skip", "xfail"}:
        green = ExitStatus.NOTHING_MEASURED
    assert result.ret == next((status for what, status in failing.items() if what in happened), green)
    assert len(late) == slower
    assert suite.get("tests") == str(len(cell.runs) + slower)
    assert suite.get("failures") == str(counts["failed"] + slower)
    assert suite.get("errors") == str(counts["errors"])
    assert suite.get("skipped") == str(counts["skipped"] + counts["xfailed"])


def slug(report: dict[str, Any]) -> str:
    return str(report["hardware"]["slug"])


def test_collecting_alone_leaves_nothing(matrix: Project) -> None:
    before = contents(matrix.path / "baselines")
    for arguments in (
        ["--co"],
        ["--co", "-q", "--perfguard-update"],
        ["--co", "--perfguard-update=stale", "test_same.py"],
    ):
        assert matrix.guard(*arguments).ret == ExitStatus.PASSED
    assert contents(matrix.path / "baselines") == before
    assert list((matrix.path / ".perfguard").glob("*.json")) == []


@pytest.mark.parametrize("root", ["..", "tests"], ids=["above", "below"])
def test_another_root_directory_has_baselines_of_its_own(matrix: Project, root: str) -> None:
    """And tests beside it are none of those in it, which have the same names."""
    before = contents(matrix.path / "baselines")
    folder = (matrix.path / root).resolve()
    tests = ["tests/test_same.py", "test_same.py"]
    options = [f"--rootdir={folder}", "--perfguard-device=fake", "--perfguard-reports", str(matrix.path / ".perfguard")]
    assert matrix.guard(*options, "--perfguard-update=all", *tests).ret == ExitStatus.PASSED
    written = sorted(path.name for path in (folder / "baselines" / "fake-gpu").iterdir())
    shutil.rmtree(folder / "baselines")
    assert len(written) == 2
    assert contents(matrix.path / "baselines") == before
