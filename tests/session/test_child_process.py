"""A child's end in words, with what it printed last."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfguard.session.child import ChildCommand, Request
from perfguard.session.child_process import ask_child, could_not_start
from tests.session.test_fresh_processes import Scripted


@pytest.mark.parametrize(
    ("script", "problem", "died"),
    [
        ("", "", False),
        ("sys.exit(5)", "", False),  # no tests
        ("sys.exit(7)", "the base: pytest ended with status 7:\n    last", True),
        ("os.kill(os.getpid(), 9)", "the base: pytest was killed by SIGKILL:\n    last", True),
        ("sys.exit(4)", "the base: pytest could not start: see its output\nlast", False),
    ],
)
def test_how_a_child_ended(tmp_path: Path, script: str, problem: str, died: bool) -> None:
    command: ChildCommand = Scripted((f"import os, sys; print('last', flush=True); {script}",), tmp_path)
    reply = ask_child(command, Request(), 1.0, name="the base", folder=tmp_path)
    assert (reply.report, reply.problem, reply.died) == (None, problem, died)


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("ERROR: usage\n", "usage"),
        ("conftest.py:1: in <module>\nE   ValueError: two\nE   \nE   lines\nE   \n", "lines"),
        ("E   \nERROR: \n", "see its output"),
    ],
)
def test_why_a_child_could_not_start(output: str, error: str) -> None:
    assert could_not_start("the base", output).partition("\n")[0] == f"the base: pytest could not start: {error}"
