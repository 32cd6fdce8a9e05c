"""How workers are started: the same arguments in another checkout, its own code first, one perfguard for all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import perfguard
from perfguard.model.errors import UsageError
from perfguard.session.pairing.interrupts import Interrupts
from perfguard.session.pairing.processes import SIDES, Plan, Side, run_setup


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    original, folder = tmp_path / "repository", tmp_path / "temporary"
    for root in (original, *(folder / side for side in SIDES)):
        (root / "tests").mkdir(parents=True)
        (root / "tests" / "test_a.py").touch()
    (original / "tests" / "test_new.py").touch()
    (folder / "work" / "tests" / "test_new.py").touch()
    return Plan(folder, original, Path("."), ())


def with_arguments(plan: Plan, *arguments: str, inside: str = ".") -> Plan:
    return Plan(plan.folder, plan.original, Path(inside), arguments)


def test_workers_are_given_what_pytest_was_given(plan: Plan) -> None:
    given = ["tests/test_a.py", "-k", "64", "-x", "-n4", "--junitxml=out.xml", "--perfguard-device", "fake"]
    line = with_arguments(plan, *given).line("work", Path("/session"))
    assert line[:3] == [sys.executable, "-P", "-c"]
    assert line[4 : 4 + len(given)] == given
    assert line[-1] == "--perfguard-session=/session"


def test_later_pairs_are_told_the_files_of_their_tests(plan: Plan, tmp_path: Path) -> None:
    """Not the node ids: a test may be new, and pytest refuses one that is not there."""
    tests = ["tests/test_a.py::test_b[64]", "tests/test_new.py::test_c", "tests/test_a.py::test_d[x::y]"]

    def told(side: Side) -> list[str]:
        plan.select(side, tmp_path, tests)
        return (tmp_path / "tests.txt").read_text().splitlines()

    assert told("work") == ["tests/test_a.py", "tests/test_new.py"]
    assert told("base") == ["tests/test_a.py"]
    assert [plan.has(tests[1], side) for side in SIDES] == [False, False, True]


def test_node_ids_are_found_from_where_the_command_was_started(plan: Plan) -> None:
    for inside in (".", "tests"):
        started = with_arguments(plan, inside=inside)
        argument = started.named("tests/test_a.py::test_b[a/b::c]")
        path, _, rest = argument.partition("::")
        assert (plan.worktree("base") / inside / path).resolve() == plan.worktree("base") / "tests" / "test_a.py"
        assert rest == "test_b[a/b::c]"
    assert with_arguments(plan, inside="tests").named("test_a.py::test_b") == "test_a.py::test_b"


def test_paths_in_the_user_s_checkout_move_to_the_worktree(plan: Plan) -> None:
    root = plan.original
    for text, moved in [
        (f"{root}/tests/test_a.py::test_b", f"{plan.folder}/base/tests/test_a.py::test_b"),
        (f"--rootdir={root}", f"--rootdir={plan.folder}/base"),
        (f"{root}-other/tests", f"{root}-other/tests"),
        ("tests", "tests"),
        ("-k=tests", "-k=tests"),
    ]:
        assert plan.relocate(text, "base") == moved


def test_each_side_finds_its_own_code_and_everybody_the_same_perfguard(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the repository is perfguard itself, so that its folder lies in every worktree."""
    (plan.worktree("base") / "src").mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(plan.original / "python"), "/elsewhere", ""]))
    only, *paths = plan.environment("base")["PYTHONPATH"].split(os.pathsep)
    worktree = str(plan.worktree("base"))
    assert paths == [worktree, f"{worktree}/src", f"{worktree}/python", "/elsewhere"]
    assert (Path(only) / "perfguard").resolve() == Path(perfguard.__file__).parent.resolve()
    assert os.listdir(only) == ["perfguard"]
    assert plan.environment("work")["PYTHONPATH"].split(os.pathsep)[:2] == [only, str(plan.worktree("work"))]


def test_the_set_up_runs_in_the_worktree_and_tells_why_it_failed(plan: Plan) -> None:
    with Interrupts() as interrupts:
        run_setup(plan, "base", "pwd > where", 1.0, interrupts)
        assert (plan.worktree("base") / "where").read_text().strip() == str(plan.worktree("base").resolve())
        with pytest.raises(UsageError, match=r"(?s)--setup 'echo no nvcc; exit 3': .*status 3 .*the base.*no nvcc"):
            run_setup(plan, "base", "echo no nvcc; exit 3", 1.0, interrupts)
        with pytest.raises(UsageError, match=r"none after 0.001 minutes"):
            run_setup(plan, "base", "sleep 60", 0.001, interrupts)
