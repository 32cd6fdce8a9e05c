"""The user's set-up in the worktree of each side."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.model.config import Settings
from perfguard.model.errors import UsageError
from perfguard.session.child import ChildCommand
from perfguard.session.pairing.pairs import PairWorktrees
from perfguard.session.pairing.worktrees import Repository


def test_the_set_up_runs_in_the_worktree_and_tells_why_it_failed(tmp_path: Path) -> None:
    def set_up(command: str, minutes: float = 1.0) -> None:
        settings, at = Settings(session_minutes=minutes), tmp_path / "pairs"
        command_line = ChildCommand((), tmp_path)
        PairWorktrees(Repository(tmp_path), command_line, "", settings, quiet, _temporary=at).set_up(command)

    def quiet(*_: object, **__: object) -> None: ...

    worktree = tmp_path / "pairs" / "base"
    worktree.mkdir(parents=True)
    set_up("pwd > where")
    assert (worktree / "where").read_text().strip() == str(worktree.resolve())
    with pytest.raises(UsageError, match=r"(?s)--setup 'echo no nvcc; exit 3': .*status 3 .*the base.*no nvcc"):
        set_up("echo no nvcc; exit 3")
    with pytest.raises(UsageError, match=r"none after 0.001 minutes"):
        set_up("sleep 60", minutes=0.001)
