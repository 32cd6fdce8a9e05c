"""The repository side: what is compared, what a snapshot holds, and that nothing of it is left behind."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from perfguard.model.config import Settings
from perfguard.model.errors import UsageError
from perfguard.session.child import ChildCommand
from perfguard.session.pairing.pairs import PairWorktrees
from perfguard.session.pairing.worktrees import Repository, find_repository, lock_in


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def make_repository(folder: Path) -> Repository:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "kept.py").write_text("1\n")
    (folder / ".gitignore").write_text("ignored\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
    return Repository(folder)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "repository")


def test_the_main_branch_is_the_remotes_before_the_local_one(repository: Repository, tmp_path: Path) -> None:
    assert repository.main_branch() == "main"
    git(tmp_path, "clone", "-q", str(repository.root), "clone")
    assert Repository(tmp_path / "clone").main_branch() == "origin/HEAD"
    git(repository.root, "branch", "-m", "main", "trunk")
    with pytest.raises(UsageError, match=r"has none of origin/HEAD, .*; name a branch: perfguard compare BASE"):
        repository.main_branch()


def test_a_snapshot_holds_what_is_not_committed_and_changes_nothing(repository: Repository, tmp_path: Path) -> None:
    root = repository.root
    (root / "staged.py").write_text("staged\n")
    git(root, "add", "staged.py")
    (root / "staged.py").write_text("staged, then edited\n")
    (root / "untracked.py").write_text("untracked\n")
    (root / "ignored").write_text("ignored\n")
    (root / "kept.py").unlink()
    before = git(root, "status", "--porcelain"), git(root, "rev-parse", "HEAD"), git(root, "stash", "list")
    commit = repository.snapshot(tmp_path / "index")
    after = git(root, "status", "--porcelain"), git(root, "rev-parse", "HEAD"), git(root, "stash", "list")
    assert after == before
    assert git(root, "ls-tree", "-r", "--name-only", commit).split() == [".gitignore", "staged.py", "untracked.py"]
    assert git(root, "show", f"{commit}:staged.py") == "staged, then edited"
    assert git(root, "rev-parse", f"{commit}^") == before[1]


def test_an_edit_in_the_same_tick_that_keeps_the_size_is_seen(repository: Repository, tmp_path: Path) -> None:
    """Git trusts a file's size and time unless the file is as young as the index."""
    (repository.root / "kept.py").write_text("2\n")
    commit = repository.snapshot(tmp_path / "index")
    assert git(repository.root, "show", f"{commit}:kept.py") == "2"


def test_worktrees_are_removed_with_what_git_knows_of_them(repository: Repository, tmp_path: Path) -> None:
    parent, mine = tmp_path / "parent", tmp_path / "mine"
    git(repository.root, "worktree", "add", "-q", "--detach", str(mine))  # the user's own
    head = git(repository.root, "rev-parse", "HEAD")
    parent.mkdir()
    for name in ("whole", "dirty", "gone", "locked"):
        repository.add_worktree(parent / name, head)
    (parent / "dirty" / "new").write_text("x")
    git(repository.root, "worktree", "lock", str(parent / "locked"))
    subprocess.run(["rm", "-r", str(parent / "gone")], check=True)
    assert (parent / "whole" / "kept.py").is_file()
    repository.remove_worktrees(parent)
    assert not parent.exists()
    assert len(git(repository.root, "worktree", "list").splitlines()) == 2
    assert mine.is_dir()


def test_worktrees_of_killed_processes_are_removed_by_the_next_and_those_of_living_ones_are_not(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    head = git(repository.root, "rev-parse", "HEAD")
    parents = [tmp_path / "temporary" / name for name in ("perfguard-pairs-dead", "perfguard-pairs-living", "mine")]
    for parent in parents:
        parent.mkdir(parents=True)
        repository.add_worktree(parent / "base", head)
    command = ChildCommand((), repository.root)
    with (
        lock_in(parents[1]),
        PairWorktrees(repository, command, "", Settings(), lambda text: None) as worktrees,
    ):
        worktrees.lay_out(head, pairs=False)
        assert [parent.exists() for parent in parents] == [False, True, True]
        Repository(repository.root).remove_abandoned("perfguard-pairs-")  # another run, meanwhile
        assert worktrees.has_at_base("kept.py", repository.root)
    listed = git(repository.root, "worktree", "list")
    assert [str(parent) in listed for parent in parents] == [False, True, True]
    assert sorted(path.name for path in (tmp_path / "temporary").iterdir()) == ["mine", "perfguard-pairs-living"]


def test_git_s_own_variables_lead_nowhere_else(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """As inside a hook, where git sets them for another repository or index."""
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert find_repository(repository.root) == repository


def test_bad_input_is_told_with_the_next_step(repository: Repository, tmp_path: Path) -> None:
    git(repository.root, "update-ref", "refs/remotes/origin/topic", "HEAD")
    with pytest.raises(UsageError, match=r"topic: no branch.*name origin/topic"):
        repository.merge_base("topic")
    git(repository.root, "switch", "-q", "--orphan", "lonely")
    git(repository.root, "commit", "-q", "--allow-empty", "-m", "lonely")
    with pytest.raises(UsageError, match="main: has no common ancestor with HEAD"):
        repository.merge_base("main")


def test_a_submodule_with_changes_of_its_own_is_refused(repository: Repository, tmp_path: Path) -> None:
    make_repository(tmp_path / "part")
    git(repository.root, "submodule", "--quiet", "add", str(tmp_path / "part"), "a part")
    git(repository.root, "commit", "-q", "-m", "with a part")
    assert repository.has_submodules
    assert repository.snapshot(tmp_path / "index") == git(repository.root, "rev-parse", "HEAD")
    (repository.root / "a part" / "kept.py").write_text("changed\n")
    with pytest.raises(UsageError, match="submodule a part: has uncommitted changes"):
        repository.snapshot(tmp_path / "index")
