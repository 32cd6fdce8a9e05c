"""What is said of a test that ranks did not end: the rank to look at first, then where each rank was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from perfguard.ranks.launch import Collective, Ended, Lost, RankExit, RankOutcome
from perfguard.ranks.rank_reports import describe_lost, merge

TEST = "test_a.py::test_a"


def rank_exit(number: int, name: str = "all_reduce", *, pending: bool = True, cause: str = "took longer") -> RankExit:
    return RankExit(
        cause, f"the test's own code, at a.py:{number}", "stack", Collective(number, name, "[[4]]", "", pending)
    )


def known(lost: Lost, said: dict[int, RankExit], ended: dict[int, RankOutcome]) -> Ended:
    begun = {rank: ended.get(rank) or RankOutcome(TEST) for rank in {**said, **ended}}
    return Ended({rank: replace(each, exit=said.get(rank)) for rank, each in begun.items()}, lost)


def described(
    lost: Lost, said: dict[int, RankExit] | None = None, ended: dict[int, RankOutcome] | None = None, ranks: int = 2
) -> list[str]:
    return describe_lost(known(lost, said or {}, ended or {}), lost, ranks).splitlines()


def test_a_rank_that_is_behind_is_named() -> None:
    lines = described(Lost(TEST, {0: "exit status 3"}), {0: rank_exit(7), 1: rank_exit(6, "all_to_all", pending=False)})
    assert lines[:3] == [
        "took longer: rank 1 of 2 did not come to all_reduce",
        "  rank 0: in the test's own code, at a.py:7; waits in #7 all_reduce of [[4]]",
        "  rank 1: in the test's own code, at a.py:6; last collective: #6 all_to_all of [[4]]",
    ]


def test_different_collectives_are_named() -> None:
    lines = described(Lost(TEST, {0: "exit status 3"}), {0: rank_exit(7), 1: rank_exit(7, "broadcast")})
    assert lines[0] == "took longer: ranks wait in different collectives: all_reduce, broadcast"


def test_a_rank_that_has_ended_the_test_is_named() -> None:
    passed = RankOutcome(TEST, ended=True, reports=[{"outcome": "passed"}] * 3)
    said = {0: rank_exit(1), 1: rank_exit(0, pending=False)}
    lines = described(Lost(TEST, {0: "exit status 3"}), said, {1: passed})
    assert lines[0] == "took longer: rank 1 of 2 did not come to all_reduce"
    assert lines[2] == "  rank 1: ended the test: passed; last collective: #0 all_reduce of [[4]]"
    assert "stack of rank 1, the innermost call last:" not in lines


def test_why_a_rank_has_left_stands_in_the_verdict(request: pytest.FixtureRequest) -> None:
    report = pytest.TestReport(TEST, ("test_a.py", 3, "test_a"), {}, "failed", "ValueError: no batch left", "call")
    data = request.config.hook.pytest_report_to_serializable(config=request.config, report=report)
    item: Any = SimpleNamespace(config=request.config, nodeid=TEST, location=report.location)
    left = {1: RankOutcome(TEST, ended=True, reports=[data])}
    merged = merge(item, known(Lost(TEST, {0: "exit status 3"}), {0: rank_exit(1)}, left), 2)
    assert merged.broken == "took longer: rank 1 of 2 did not come to all_reduce; ValueError: no batch left"


def test_a_rank_that_says_nothing_is_named() -> None:
    lines = described(Lost(TEST, {0: "exit status 3", 1: "killed by SIGTERM"}), {0: rank_exit(7)})
    assert lines[0] == "took longer; rank 1 of 2 did not answer"
    assert lines[2] == "  rank 1: killed by SIGTERM"


def test_a_killed_rank_is_named_with_what_it_wrote() -> None:
    lines = described(Lost(TEST, {1: "killed by SIGSEGV", 0: "killed by SIGTERM"}, "Fatal Python error: Segmentation"))
    assert lines == [
        "rank 1 of 2: killed by SIGSEGV in the middle of the test",
        "  rank 0: killed by SIGTERM",
        "  rank 1: killed by SIGSEGV",
        "last output of rank 1:",
        "Fatal Python error: Segmentation",
    ]


def test_ranks_that_never_began_show_what_they_wrote() -> None:
    lines = described(Lost("", {1: "exit status 4"}, "ERROR: other tests"))
    assert lines == ["no rank began the tests: rank 1: exit status 4", "ERROR: other tests"]
