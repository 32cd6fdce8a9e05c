"""The user's set-up of a side's worktree."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.model.errors import UsageError
from perfguard.session.child import ChildCommand, Worktree
from perfguard.session.pairing.interrupts import Interrupts
from perfguard.session.pairing.processes import run_setup


def test_the_set_up_runs_in_the_worktree_and_tells_why_it_failed(tmp_path: Path) -> None:
    worktree = tmp_path / "temporary" / "base"
    worktree.mkdir(parents=True)
    command = ChildCommand((), tmp_path, Worktree(worktree, tmp_path))
    with Interrupts() as interrupts:
        run_setup(command, "base", "pwd > where", 1.0, interrupts)
        assert (worktree / "where").read_text().strip() == str(worktree.resolve())
        with pytest.raises(UsageError, match=r"(?s)--setup 'echo no nvcc; exit 3': .*status 3 .*the base.*no nvcc"):
            run_setup(command, "base", "echo no nvcc; exit 3", 1.0, interrupts)
        with pytest.raises(UsageError, match=r"none after 0.001 minutes"):
            run_setup(command, "base", "sleep 60", 0.001, interrupts)
