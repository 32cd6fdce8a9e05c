"""Controls: enough of each timer class, every case as likely, whatever turns out to have changed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from perfguard.judge.lane import Lane
from perfguard.judge.screen import CONTROLS, ControlDraw
from perfguard.model.records import Baseline, Case, CaseBaseline, CaseResult, Hardware, TimedEntry, Toolchain

METRIC = "device_time_us"
HARDWARE = Hardware(slug="fake-gpu", vendor="fake", name="Fake", architecture="fake")


def lane(count: int, timers: tuple[str, ...] = ("graph-cold-u64",)) -> Lane:
    cases = {
        f"case[{number}]/forward": CaseBaseline(
            entries={METRIC: TimedEntry(sessions=[10.0] * 5, timer=timers[number % len(timers)])}
        )
        for number in range(count)
    }
    return Lane(HARDWARE, Toolchain(), baselines={"suite": Baseline(hardware="fake-gpu", suite="suite", cases=cases)})


def case(number: int) -> Case:
    return Case("suite", f"case[{number}]", "forward", f"tests/test_suite.py::test_case[{number}]")


def drawn(known: Lane, unchanged: list[bool], seed: str, selected: list[Case] | None = None) -> list[int]:
    """Numbers of the unchanged cases that are timed."""
    controls = ControlDraw(known, selected or [], seed)
    names = frozenset({METRIC})
    asked = [controls.draw(CaseResult(case(n)), names if same else frozenset()) for n, same in enumerate(unchanged)]
    return [number for number, timed in enumerate(asked) if timed]


@given(st.integers(CONTROLS, 3 * CONTROLS), st.integers(0, 1000))
def test_enough_are_drawn_where_nothing_changed(count: int, seed: int) -> None:
    assert len(drawn(lane(count), [True] * count, str(seed))) >= CONTROLS


def test_a_small_suite_is_timed_as_a_whole() -> None:
    assert drawn(lane(CONTROLS), [True] * CONTROLS, "seed") == list(range(CONTROLS))


@given(st.integers(0, 1000))
def test_each_timer_class_has_its_own(seed: int) -> None:
    timers = ("graph-cold-u64", "graph-cold-u8", "profile-cold")
    found = drawn(lane(90, timers), [True] * 90, str(seed))
    assert sum(number % 3 == 2 for number in found) >= CONTROLS
    assert sum(number % 3 != 2 for number in found) >= CONTROLS


@given(st.integers(0, 1000), st.integers(0, 60 - CONTROLS))
def test_changed_cases_leave_their_chance_to_the_others(seed: int, first: int) -> None:
    """40 of 100 cases changed, in a row: where as many unchanged ones follow as are wanted, all wanted are drawn."""
    unchanged = [not first <= number < first + 40 for number in range(100)]
    found = drawn(lane(100), unchanged, str(seed))
    assert all(unchanged[number] for number in found)
    assert len(found) >= CONTROLS


def test_every_case_is_as_likely_and_most_are_left_alone() -> None:
    known, runs, count = lane(100), 300, 100
    often = Counter(number for run in range(runs) for number in drawn(known, [True] * count, str(run)))
    share = (CONTROLS + 0.05 * (count - CONTROLS)) / count
    mean = runs * share
    assert abs(sum(often.values()) / count - mean) < 0.05 * mean
    assert max(often.values()) < mean + 5 * mean**0.5
    assert min(often[number] for number in range(count)) > mean - 5 * mean**0.5


def test_the_draw_is_repeatable_and_belongs_to_the_run() -> None:
    known = lane(100)
    first, again, other = (drawn(known, [True] * 100, seed) for seed in ("a", "a", "b"))
    assert first == again != other


def test_cases_that_will_not_run_are_no_candidates() -> None:
    """-k selected few of 200 cases: the controls come from these."""
    few = CONTROLS + 3
    found = drawn(lane(200), [True] * few, "seed", [case(number) for number in range(few)])
    assert len(found) >= CONTROLS
