"""Launches one after another, with ranks that are played: what is lost, what runs again, who goes on after a death."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perfguard.ranks.launch import Launched, RankExit, RankOutcome, write_outcome
from perfguard.session.child import ChildCommand, Request, child_command, read_request

TESTS = ["a", "b", "c", "d"]


def begin(folder: Path, test: str, *, ended: tuple[int, ...] = (0, 1)) -> None:
    for rank in (0, 1):
        write_outcome(folder, rank, RankOutcome(test))
        if rank in ended:
            write_outcome(folder, rank, RankOutcome(test, ended=True))


class Played(Launched):
    """Rank 1 dies in the tests of `deadly`."""

    deadly: tuple[str, ...] = ()
    launched: list[list[str]]

    def _launch(self, folder: Path) -> tuple[dict[int, str], str]:
        tests = read_request(folder).tests or []
        self.launched.append(tests)
        for test in tests:
            begin(folder, test, ended=(0,) if test in self.deadly else (0, 1))
            if test in self.deadly:
                write_outcome(
                    folder, 0, RankOutcome(test, ended=True, exit=RankExit("rank 1 had left the test", "a.py"))
                )
                return {1: "killed by SIGKILL"}, "its last line"
        return {}, ""


@pytest.fixture
def played(tmp_path: Path) -> Played:
    made = Played(tmp_path / "ranks-2", 2, TESTS, child_command([], tmp_path, "cpu"), Request())
    made.launched = []
    return made


def test_all_tests_run_in_one_launch(played: Played) -> None:
    assert all(played.wait(test).lost is None for test in TESTS)
    played.join()
    assert played.launched == [TESTS]


def test_a_test_that_ranks_do_not_end_is_lost_and_the_ones_behind_it_run_again(played: Played) -> None:
    played.deadly = ("b", "d")
    found = {test: played.wait(test) for test in TESTS}
    played.join()
    assert played.launched == [TESTS, ["c", "d"]]
    assert {test for test in TESTS if found[test].lost} == {"b", "d"}
    lost = found["b"]
    assert lost.lost is not None
    assert (lost.lost.exits, lost.lost.output) == ({1: "killed by SIGKILL"}, "its last line")
    assert [rank for rank, each in lost.outcomes.items() if each.exit] == [0]


def test_ranks_that_begin_nothing_are_not_launched_again(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played, "_launch", lambda folder: ({0: "exit status 4"}, "ERROR: no such option"))
    found = [played.wait(test).lost for test in TESTS]
    assert [(lost.nodeid, lost.output) for lost in found if lost] == [("", "ERROR: no such option")] * 4


def test_another_process_goes_on_where_the_one_that_drove_died(played: Played) -> None:
    left = played.folder / "launch-000"  # of a process that is gone: the lock is free, nothing says that it is done
    left.mkdir()
    begin(left, "a")
    begin(left, "b", ended=(0,))
    assert all(played.wait(test).lost is None for test in TESTS)
    assert played.launched == [["b", "c", "d"]]


def test_nobody_else_drives_while_one_does(played: Played, tmp_path: Path) -> None:
    second = Played(played.folder, 2, TESTS, child_command([], tmp_path, "cpu"), Request())
    second.launched = []
    assert played.wait("a").lost is None
    assert second.wait("d").lost is None
    assert (len(played.launched), second.launched) == (1, [])


class Scripted(ChildCommand):
    """Starts Python with a script in place of pytest."""

    def line(self, folder: Path) -> list[str]:
        return [sys.executable, "-c", self.arguments[0]]


def scripted(folder: Path, script: str) -> Launched:
    begun = "import os, pathlib, sys, time\nrank = os.environ['RANK']\npathlib.Path('begun-' + rank).touch()\n"
    return Launched(folder / "ranks-2", 2, ["a"], Scripted((begun + script,), folder), Request())


def test_the_first_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    script = "print('rank', rank, file=sys.stderr, flush=True)\nsys.exit(3) if rank == '1' else time.sleep(60)\n"
    lost = scripted(tmp_path, script).wait("a").lost
    assert lost is not None
    assert [*lost.exits.items()] == [(1, "exit status 3"), (0, "killed by SIGTERM")]
    assert (lost.nodeid, lost.output) == ("", "rank 1")


def test_a_launch_that_is_stopped_ends_its_ranks(tmp_path: Path) -> None:
    launched = scripted(tmp_path, "time.sleep(60)\n")
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(launched.wait, "a")
        while len([*tmp_path.glob("begun-*")]) < 2:
            time.sleep(0.01)
        launched.stop()
    lost = found.result().lost
    assert lost is not None
    assert lost.exits == dict.fromkeys((0, 1), "killed by SIGTERM")
