"""Which commit a working tree is compared with, and when it differs from it in nothing that a test could run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.checkouts import git
from perfguard.model.errors import UsageError
from perfguard.model.records import BaseTree
from perfguard.session.pairing.bases import TreesOfRecords, find_base
from perfguard.session.pairing.worktrees import find_repository


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A commit on main that holds code, a document, a baseline and requirements."""
    folder = tmp_path / "repository"
    for name in ("kernel.py", "docs/guide.md", "baselines/fake-gpu/suite.yaml", "requirements.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("as it was\n")
    git(folder.parent, "init", "--quiet", "--initial-branch=main", str(folder))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def base(root: Path, wanted: str = "") -> BaseTree:
    return find_base(root, wanted, [root / "baselines", root / ".perfguard"])


def written(name: str) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("another\n")

    return write


@pytest.mark.parametrize(
    ("change", "equal"),
    [
        (lambda root: None, True),
        (written("docs/guide.md"), True),
        (written("docs/new.md"), True),
        (written("baselines/fake-gpu/suite.yaml"), True),
        (written(".perfguard/report-fake-gpu.json"), True),
        (written("junit.xml"), True),
        (written("seen.txt"), True),
        (written("requirements-dev.txt"), False),
        (written("package.egg-info/PKG-INFO"), True),
        (written("__pycache__/kernel.cpython-311.pyc"), True),
        (written("kernel.py"), False),
        (written("requirements.txt"), False),
        (written("new.py"), False),
        (written("docs/conf.py"), False),
        (written("tests/data.json"), False),
        (lambda root: (root / "kernel.py").unlink(), False),
        (lambda root: (root / "kernel.py").chmod(0o755), False),
        (lambda root: git(root, "mv", "kernel.py", "kernels.py"), False),
    ],
)
def test_a_tree_is_its_base_as_long_as_no_code_differs(root: Path, change: Callable[[Path], None], equal: bool) -> None:
    change(root)
    assert base(root) == BaseTree(git(root, "rev-parse", "HEAD"), equal=equal)


@pytest.mark.parametrize(
    ("changed", "equal"),
    [
        (["docs/figures.json", "guide.md"], True),
        (["bench/speed.py", "bench/runs/table.csv", "bench/known.toml"], True),  # data of a module that is not loaded
        (["loaded/module.py"], False),
        (["loaded/configs/h100.json"], False),  # data of a module that is
        (["configs/h100.json"], False),  # of no module: any may read it
        (["pyproject.toml"], False),
        (["bench/kernel.cu"], False),  # may have been built into an extension
    ],
)
def test_what_no_loaded_module_uses_is_no_difference_from_the_commit_of_a_record(
    root: Path, changed: list[str], equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("loaded/module.py", "bench/speed.py"):
        written(name)(root)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "recorded")
    spec = importlib.util.spec_from_file_location("loaded_of_a_test", root / "loaded" / "module.py")
    assert spec is not None
    monkeypatch.setitem(sys.modules, "loaded_of_a_test", importlib.util.module_from_spec(spec))
    commit = git(root, "rev-parse", "HEAD").strip()
    for name in changed:
        written(name)(root)
        with (root / name).open("a") as file:
            file.write("changed\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "since then")
    assert TreesOfRecords(find_repository(root), []).at(commit).equal == equal


def test_a_named_base_is_where_the_branch_left_it(root: Path) -> None:
    first = git(root, "rev-parse", "HEAD")
    git(root, "switch", "--quiet", "-c", "topic")
    written("kernel.py")(root)
    git(root, "commit", "--quiet", "--all", "-m", "slower")
    git(root, "switch", "--quiet", "main")
    written("other.py")(root)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "-m", "went on")
    git(root, "switch", "--quiet", "topic")
    assert base(root, "main") == BaseTree(first)
    assert base(root) == BaseTree(git(root, "rev-parse", "HEAD"), equal=True)


def test_it_is_found_from_a_folder_inside(root: Path) -> None:
    assert base(root / "docs").commit == git(root, "rev-parse", "HEAD")
    (root / "docs" / "new.py").write_text("")
    assert not find_base(root / "docs", "", []).equal


def test_what_keeps_a_tree_from_having_a_base_is_told(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    assert "not in a git repository" in base(outside).problem
    git(outside, "init", "--quiet")
    assert "the repository has no commit yet; commit first" in base(outside).problem
    with monkeypatch.context() as patched:
        patched.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # As in a container that mounts a checkout.
        told = base(root).problem
    assert told.startswith(f"{root}: fatal: detected dubious ownership")
    assert told.endswith(f"; git config --global --add safe.directory {root}")
    with monkeypatch.context() as patched:
        patched.setenv("PATH", "")
        assert base(root).problem == "git: not found; install git, which holds base and baselines"
    with pytest.raises(UsageError, match="nowhere: no branch, tag or commit"):  # a mistake
        base(root, "nowhere")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "second")
    git(tmp_path, "clone", "--quiet", "--depth=1", root.as_uri(), "shallow")
    first = git(root, "rev-parse", "HEAD~")
    found = base(tmp_path / "shallow", first)
    assert found.commit is None
    assert "not in this clone, which is shallow: git fetch --unshallow" in found.problem
