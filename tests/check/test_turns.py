"""Turns by kind within a budget, on a simulated clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from perfguard.check.turns import MOST_KNOWN, Budget, Reached, Tried, Turns

KINDS = ("values", "layouts", "sizes", "configurations")


@dataclass
class Attempts:
    """Attempts that take a known time each, on a clock of their own.

    Attributes:
        failing: items that fail.
        instead: items that stand for another one.
        seen: the items, in the order in which they were tried.
    """

    seconds: Callable[[str], float] = lambda item: 0.1
    failing: Sequence[str] = ()
    instead: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    now: float = 5.0
    seen: list[str] = field(default_factory=list)

    def __call__(self, kind: str, item: str) -> Tried[str]:
        self.now += self.seconds(item)
        self.seen.append(item)
        return Tried(item in self.failing, self.instead.get(item, ()))


def plan_of(number: int = 4, kinds: Sequence[str] = KINDS) -> dict[str, list[str]]:
    return {kind: [f"{kind[0]}{at}" for at in range(number)] for kind in kinds}


def turned(
    attempts: Attempts,
    seconds: float = 1.0,
    *,
    plan: Mapping[str, Sequence[str]] | None = None,
    reached: Reached | None = None,
    cheap: bool = True,
    tried: Sequence[str] = (),
) -> Turns[str]:
    attempts.seen.clear()
    budget = Budget(seconds, cheap, frozenset(tried), clock=lambda: attempts.now)
    turns = Turns(plan_of() if plan is None else plan, reached or Reached("plan"), budget)
    turns.take(attempts)
    return turns


def test_each_kind_has_one_before_any_has_a_second() -> None:
    attempts = Attempts()
    turns = turned(attempts)
    assert attempts.seen[:4] == ["v0", "l0", "s0", "c0"]
    assert attempts.seen[4:8] == ["v1", "l1", "s1", "c1"]
    # A ninth would end in time, and the given inputs, which come after it, as well; a tenth would not.
    assert attempts.seen[8:] == ["v2"]
    assert turns.waiting == {"values": 1, "layouts": 2, "sizes": 2, "configurations": 2}


def test_kinds_that_no_run_has_tried_are_named() -> None:
    """A call that is not cheap has one kind a run, and the next run goes on."""
    attempts = Attempts(lambda item: 2.0)
    first = turned(attempts, cheap=False)
    assert first.untried == ["layouts", "sizes", "configurations"]
    assert first.reached is not None
    second = turned(attempts, cheap=False, reached=first.reached)
    assert second.untried == ["sizes", "configurations"]
    assert second.waiting["layouts"] == 3


def test_a_kind_that_no_longer_fits_leaves_the_rest_of_the_budget_to_the_others() -> None:
    attempts = Attempts(lambda item: 0.5 if item[0] == "c" else 0.05)
    turns = turned(attempts, plan=plan_of(9, ("values", "configurations")))
    assert attempts.seen == ["v0", "c0", *(f"v{at}" for at in range(1, 9))]
    assert turns.waiting == {"configurations": 8}


@pytest.mark.parametrize(
    ("cheap", "each", "seen"),
    [
        (True, 0.4, ["v0", "l0", "s0", "c0"]),  # every kind has one, even after the budget
        (True, 0.9, ["v0", "l0"]),  # but none begins after a second and a half: kernels that are compiled anew
        (False, 0.4, ["v0", "l0", "s0"]),  # one starts as long as the budget is not over
        (False, 7.0, ["v0"]),  # at least one does
    ],
)
def test_the_first_round_of_a_cheap_call_has_more_than_the_budget(cheap: bool, each: float, seen: list[str]) -> None:
    attempts = Attempts(lambda item: each)
    turned(attempts, cheap=cheap)
    assert attempts.seen == seen


def test_kinds_that_were_tried_with_this_code_have_the_budget_alone() -> None:
    attempts = Attempts(lambda item: 0.3)
    turned(attempts, seconds=0.5, tried=KINDS)
    assert attempts.seen == ["v0", "l0"]
    turned(attempts, seconds=0.5, tried=["values", "layouts", "sizes"])
    assert attempts.seen == ["v0", "l0", "c0"]


def test_the_next_run_goes_on_where_each_kind_stopped_and_begins_with_those_that_had_no_turn() -> None:
    attempts = Attempts(lambda item: 0.4)
    first = turned(attempts, cheap=False)
    assert attempts.seen == ["v0", "l0", "s0"]
    second = turned(attempts, cheap=False, reached=first.reached)
    assert attempts.seen == ["c0", "v1", "l1"]
    third = turned(attempts, cheap=False, reached=second.reached)
    assert attempts.seen == ["s1", "c1", "v2"]
    assert third.reached == Reached("plan", {"values": 3, "layouts": 2, "sizes": 2, "configurations": 2})


def test_a_kind_that_is_through_begins_again() -> None:
    attempts = Attempts()
    turns = turned(attempts, plan=plan_of(2, ("values",)), reached=Reached("plan", {"values": 3}))
    assert attempts.seen == ["v1", "v0"]
    assert (turns.waiting, turns.reached) == ({}, Reached("plan", {"values": 5}))


def test_the_first_failure_ends_derived_inputs_and_the_next_run_begins_with_it_and_gets_behind_it() -> None:
    attempts = Attempts(failing=["l0", "s1"])
    first = turned(attempts)
    assert attempts.seen == ["v0", "l0", "c0", "c1", "c2", "c3"]
    assert first.reached is not None
    assert first.reached.failed == [("layouts", 0)]
    second = turned(attempts, reached=first.reached)
    assert [each for each in attempts.seen if each[0] != "c"] == ["l0", "s0", "v1", "l1", "s1"]
    assert second.reached is not None
    assert second.reached.failed == [("layouts", 0), ("sizes", 1)]
    attempts.failing = ["s1"]  # one is mended
    third = turned(attempts, reached=second.reached)
    assert attempts.seen[:2] == ["l0", "s1"]
    assert third.reached is not None
    assert third.reached.failed == [("sizes", 1)]


def test_what_failed_is_tried_whatever_the_budget_and_one_more_with_it() -> None:
    attempts = Attempts(lambda item: 3.0, failing=["v2", "s3"])
    known = Reached("plan", {"values": 3, "sizes": 4}, [("values", 2), ("sizes", 3)])
    turned(attempts, cheap=False, reached=known)
    assert attempts.seen == ["v2", "s3", "l0"]


def test_configurations_that_fail_end_nothing() -> None:
    attempts = Attempts(failing=["c0", "c1"])
    turns = turned(attempts, 60.0)
    assert len(attempts.seen) == 16
    assert turns.reached is not None
    assert turns.reached.failed == [("configurations", 0), ("configurations", 1)]


def test_more_failures_than_are_remembered_are_not_passed() -> None:
    attempts = Attempts(failing=[f"c{at}" for at in range(8)])
    plan = plan_of(9, ("configurations",))
    first = turned(attempts, 60.0, plan=plan)
    assert first.reached is not None
    assert len(first.reached.failed) == first.reached.done["configurations"] == MOST_KNOWN
    turned(attempts, 0.05, plan=plan, reached=first.reached, cheap=False)
    assert attempts.seen == [f"c{at}" for at in range(MOST_KNOWN + 1)]


def test_halves_take_turns_of_their_own_kinds_and_their_whole_is_done_with_the_last() -> None:
    attempts = Attempts(lambda item: 0.1, instead={"v0": [("values", "v0a"), ("layouts", "v0b")]})
    plan = plan_of(3, ("values", "layouts", "sizes"))
    turned(attempts, plan=plan)
    assert attempts.seen[:6] == ["v0", "v0b", "s0", "v0a", "l0", "s1"]
    attempts.seconds = lambda item: 0.6
    cut = turned(attempts, plan=plan, cheap=False)
    assert attempts.seen == ["v0", "v0b"]
    assert cut.reached is not None
    assert cut.reached.done == {"values": 0, "layouts": 0, "sizes": 0}  # the other half has to come
    assert cut.waiting == {"values": 3, "layouts": 3, "sizes": 3}


def test_halves_of_what_failed_come_first_as_well() -> None:
    attempts = Attempts(failing=["v0b"], instead={"v0": [("values", "v0a"), ("layouts", "v0b")]})
    turned(attempts, reached=Reached("plan", {}, [("values", 0)]))
    assert attempts.seen[:4] == ["v0", "v0a", "v0b", "v1"]


def test_ranks_stop_together() -> None:
    attempts = Attempts(lambda item: 0.3)
    asked: list[bool] = []

    def agreed(flag: bool) -> bool:
        asked.append(flag)
        return len(asked) == 3  # another rank is slower

    budget = Budget(60.0, clock=lambda: attempts.now, agreed=agreed)
    Turns(plan_of(9, ("configurations",)), Reached("plan"), budget).take(attempts)
    assert attempts.seen == ["c0", "c1"]
    assert asked == [False] * 3


def test_a_place_that_the_plan_does_not_have_is_not_tried() -> None:
    attempts = Attempts()
    turned(attempts, plan=plan_of(2, ("values",)), reached=Reached("plan", {}, [("values", 9), ("gone", 0)]))
    assert attempts.seen == ["v0", "v1"]
