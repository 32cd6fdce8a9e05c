"""A signal at any moment: the work stops, the cleaning up does not. The user's set-up of a side's worktree."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from perfguard.model.errors import UsageError
from perfguard.session.child import ChildCommand, Worktree
from perfguard.session.pairing.processes import SIGNALS, Interrupts, run_setup


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    signal.getsignal(number)  # a bytecode later the handler has run


def worked_and_cleaned(interrupts: Interrupts, number: int, done: list[str]) -> None:
    try:
        with interrupts.armed():
            send(number)
            done.append("work")
    finally:
        send(number)
        done.append("cleaned")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_work_stops_and_the_cleaning_up_does_not(number: int) -> None:
    before = signal.getsignal(number)
    done: list[str] = []
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            worked_and_cleaned(interrupts, number, done)
        send(number)
    assert done == ["cleaned"]
    assert interrupts.received
    assert signal.getsignal(number) is before


def delayed(interrupts: Interrupts, done: list[str], problem: Exception | None = None) -> None:
    with interrupts.armed():
        with interrupts.delayed():
            send()
            done.append("delayed")
            if problem:
                raise problem
        done.append("work")


def test_a_signal_waits_for_a_delayed_block() -> None:
    done: list[str] = []
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        delayed(interrupts, done)
    assert done == ["delayed"]


def test_an_error_of_a_delayed_block_is_told_although_a_signal_came() -> None:
    with Interrupts() as interrupts, pytest.raises(ZeroDivisionError):
        delayed(interrupts, [], ZeroDivisionError())


def test_a_signal_before_the_work_keeps_it_from_starting() -> None:
    done = []
    with Interrupts() as interrupts:
        send()
        with pytest.raises(KeyboardInterrupt), interrupts.armed():
            done.append("work")
    assert done == []


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
