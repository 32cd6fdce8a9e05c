"""The record acquits on its own board, on a day like its own, beside enough controls; process pairs do the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane
from perfguard.judge.run_verdicts import screen_session
from perfguard.judge.screen import (
    CONTROLS,
    LEAST_CONTROLS,
    MOST_ASKED,
    ControlDraw,
    Controls,
    learn_controls,
    slowest_asked,
    within_record,
)
from perfguard.judge.statistics import Prior
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    Conditions,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.units import Unit

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]
ENTRY = TimedEntry(QUIET, "clock")
SPAN = Reading("span", Unit.MICROSECONDS, 100.1, timer="clock")
CODE = Reading("code", Unit.TEXT, "same", covers=["span"])
PRIOR = Prior(8.0, 0.0015)
AGREEING = Controls(LEAST_CONTROLS, 0.0, 1.0)
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1")


def screened(
    reading: Reading = SPAN, entry: TimedEntry = ENTRY, controls: Controls = AGREEING, here: bool = True
) -> str:
    return within_record(reading, entry, PRIOR, controls, on_its_board=here)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (100.1, ""),
        (101.4, ""),  # 2 % are excluded
        (98.6, ""),
        (101.7, "outside its record"),  # 2 % are not
        (98.2, "outside its record"),  # a change for the better is no less in question
        (130.0, "outside its record"),
    ],
)
def test_a_time_within_its_record_needs_no_pair(value: float, why: str) -> None:
    assert screened(msgspec.structs.replace(SPAN, value=value)) == why


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"here": False}, "measured on a different or unknown board"),
        ({"controls": Controls(14, 0.0, 1.0)}, "14 unchanged cases timed beside it, 15 are needed"),
        ({"controls": Controls(20, 0.006, 1.0)}, "the machine is not as it was when it was recorded"),
        ({"controls": Controls(20, -0.006, 1.0)}, "the machine is not as it was when it was recorded"),
        ({"controls": Controls(20, 0.004, 1.0)}, ""),
        ({"controls": Controls(20, 0.0, 6.0)}, "outside its record"),  # unchanged cases scatter more than their records
        ({"entry": TimedEntry(QUIET[:2], "clock")}, "2 sessions stored, 3 are needed"),
        ({"reading": msgspec.structs.replace(SPAN, rejected_blocks=3)}, "its reading was disturbed"),
    ],
)
def test_a_record_acquits_where_its_world_is_known(fields: dict[str, Any], why: str) -> None:
    assert screened(**fields) == why


def test_what_moves_the_machine_counts_against_the_case() -> None:
    """A machine that is faster by 0.4 % hides no slowdown of a case, and one that is slower excuses none."""
    slow = msgspec.structs.replace(SPAN, value=101.3)
    assert screened(slow) == ""
    for shift in (0.004, -0.004):
        assert screened(slow, controls=Controls(20, shift, 1.0)) == "outside its record"


def test_a_coarse_time_needs_neither_board_nor_controls() -> None:
    coarse = msgspec.structs.replace(SPAN, promise=0.5, value=110.0)
    assert screened(coarse, controls=Controls(), here=False) == ""
    assert screened(msgspec.structs.replace(coarse, value=140.0), controls=Controls(), here=False)


def run(controls: Sequence[float], board: str | None = "a") -> tuple[list[CaseResult], Lane]:
    """Unchanged cases that take `controls` times what they took, all recorded on board a."""
    cases = {f"f{at}/forward": CaseBaseline({"span": ENTRY, "code": "same"}, "x") for at in range(len(controls))}
    cases["new/forward"] = CaseBaseline({"span": ENTRY, "code": "other"}, "x")
    results = [
        CaseResult(
            Case("area", f"f{at}", "forward"),
            "x",
            readings=[msgspec.structs.replace(SPAN, value=100 * factor), CODE],
            conditions=Conditions(board=board),
        )
        for at, factor in enumerate(controls)
    ]
    changed = CaseResult(Case("area", "new", "forward"), "x", readings=[SPAN, CODE], conditions=Conditions(board=board))
    baseline = Baseline("here", "area", {"": Provenance(board="a")}, cases)
    return [*results, changed], Lane(HARDWARE, Toolchain(), [baseline], base=BaseTree(commit="c" * 40))


def test_controls_are_the_unchanged_cases_on_the_board_of_their_records() -> None:
    results, lane = run([1.004] * 10 + [1.002] * 6)
    found = learn_controls(results, lane)["clock"]
    assert (found.cases, found.scale) == (16, 1.0)
    assert found.shift == pytest.approx(0.004, abs=1e-4)
    assert learn_controls(*run([1.0] * 16, board="b")) == {}
    assert learn_controls(*run([1.0] * 16, board=None)) == {}  # nobody knows which
    wide, lane = run([1.0, 1.03, 0.97, 1.02, 0.98] * 3)
    assert learn_controls(wide, lane)["clock"].scale > 5


@pytest.mark.parametrize(
    ("controls", "board", "word"),
    [
        ([1.0] * 15, "a", Word.PASS),
        ([1.0] * 14, "a", Word.SUSPECT),
        ([1.0] * 15, "b", Word.SUSPECT),
        ([1.02] * 15, "a", Word.SUSPECT),
    ],
)
def test_a_changed_case_beside_its_controls(controls: list[float], board: str, word: Word) -> None:
    results, lane = run(controls, board)
    verdicts = judge_case(results[-1], lane, learn_controls(results, lane))
    assert next(each.word for each in verdicts if each.metric == "span") is word
    assert judge_case(results[0], lane)[0].word is Word.UNCHANGED


def on_a_host(
    slower: Sequence[float], promise: float = 0.5, sessions: int = 8, **own: Any
) -> tuple[list[CaseResult], Lane]:
    """Cases of one device's code whose host takes `slower` times what it took. `own`: readings of the first case."""
    host = msgspec.structs.replace(SPAN, metric="host", promise=promise)
    entries = {"span": ENTRY, "host": TimedEntry(QUIET[:sessions], "clock"), "code": "same"}
    cases = {f"f{at}/forward": CaseBaseline(dict(entries), "x") for at in range(len(slower))}
    results = [
        CaseResult(
            Case("area", f"f{at}", "forward"),
            "x",
            readings=[CODE, msgspec.structs.replace(host, value=100 * factor)],
            conditions=Conditions(board="another"),
        )
        for at, factor in enumerate(slower)
    ]
    results[0] = msgspec.structs.replace(results[0], **own)
    baseline = Baseline("here", "area", {"": Provenance(board="a")}, cases)
    return results, Lane(HARDWARE, Toolchain(), [baseline], base=BaseTree(commit="c" * 40))


def words_of_hosts(results: list[CaseResult], lane: Lane) -> list[Word]:
    verdicts = screen_session(results, lane)
    return [next(each.word for each in verdicts[result.id] if each.metric == "host") for result in results]


@pytest.mark.parametrize("sessions", [1, 8])
def test_a_slower_host_asks_about_those_that_moved_most(sessions: int) -> None:
    slower = [2.5, *(2 + at / 1000 for at in range(MOST_ASKED + 20))]
    words = words_of_hosts(*on_a_host(slower, sessions=sessions))
    asked = [factor for factor, word in zip(slower, words, strict=True) if word is Word.SUSPECT]
    assert sorted(asked) == sorted(slower)[-MOST_ASKED:]
    assert words.count(Word.PASS) == 21
    assert words_of_hosts(*on_a_host([2.0] * MOST_ASKED)) == [Word.SUSPECT] * MOST_ASKED  # A few are all asked about.


def test_the_host_of_changed_code_is_always_asked_about() -> None:
    slower = [1.9, *[2.5] * (MOST_ASKED + 20)]
    other = msgspec.structs.replace(CODE, value="other")
    host = msgspec.structs.replace(SPAN, metric="host", promise=0.5, value=190.0)
    words = words_of_hosts(*on_a_host(slower, readings=[other, SPAN, host]))
    assert words[0] is Word.SUSPECT
    assert words[1:].count(Word.SUSPECT) == MOST_ASKED


def test_a_fine_time_is_asked_about_whatever_else_moved() -> None:
    results, lane = on_a_host([2.0] * (MOST_ASKED + 20))
    fine, _ = on_a_host([2.0] * (MOST_ASKED + 20), promise=0.03)
    suspect = Verdict(Word.SUSPECT, "host", "to be paired: outside its record")
    verdicts = {result.id: [suspect] for result in results}
    assert slowest_asked(fine, verdicts, lane) == verdicts
    assert slowest_asked(results, verdicts, lane) != verdicts


# -- which unchanged cases are timed -----------------------------------------------------------------------------------


def recorded(count: int, timers: tuple[str, ...] = ("graph-cold-u64",)) -> Lane:
    cases = {
        f"case[{number}]/forward": CaseBaseline({"span": TimedEntry([10.0] * 5, timers[number % len(timers)])})
        for number in range(count)
    }
    return Lane(HARDWARE, Toolchain(), [Baseline("here", "suite", cases=cases)])


def drawn(known: Lane, unchanged: Sequence[bool], seed: object, selected: int = 0) -> list[int]:
    """Numbers of the unchanged cases that are timed, if the first `selected` cases will run (0: nobody knows)."""
    cases = [Case("suite", f"case[{number}]", "forward") for number in range(len(unchanged))]
    draw = ControlDraw(known, cases[:selected], str(seed))
    names = [frozenset({"span"}) if same else frozenset[str]() for same in unchanged]
    asked = [draw.draw(CaseResult(case), each) for case, each in zip(cases, names, strict=True)]
    return [number for number, timed in enumerate(asked) if timed]


@given(st.integers(CONTROLS, 3 * CONTROLS), st.integers(0, 1000))
def test_enough_are_drawn_where_nothing_changed(count: int, seed: int) -> None:
    assert len(drawn(recorded(count), [True] * count, seed)) >= CONTROLS
    timers = ("graph-cold-u64", "graph-cold-u8", "profile-cold")  # two classes, each with its own
    found = drawn(recorded(90, timers), [True] * 90, seed)
    assert min(sum(number % 3 == 2 for number in found), sum(number % 3 != 2 for number in found)) >= CONTROLS


def test_a_small_suite_is_timed_as_a_whole() -> None:
    assert drawn(recorded(CONTROLS), [True] * CONTROLS, "seed") == list(range(CONTROLS))


@given(st.integers(0, 1000), st.integers(0, 60 - CONTROLS))
def test_changed_cases_leave_their_chance_to_the_others(seed: int, first: int) -> None:
    """40 of 100 cases changed, in a row: where as many unchanged ones follow as are wanted, all wanted are drawn."""
    unchanged = [not first <= number < first + 40 for number in range(100)]
    assert len(drawn(recorded(100), unchanged, seed)) >= CONTROLS


def test_every_case_is_as_likely_and_the_draw_belongs_to_the_run() -> None:
    count, runs, known = 60, 300, recorded(60)
    often = Counter(number for run in range(runs) for number in drawn(known, [True] * count, run))
    mean = runs * CONTROLS / count
    assert abs(sum(often.values()) / count - mean) < 0.05 * mean
    assert max(often.values()) < mean + 5 * mean**0.5
    assert min(often[number] for number in range(count)) > mean - 5 * mean**0.5
    first, again, other = (drawn(known, [True] * count, seed) for seed in ("a", "a", "b"))
    assert first == again != other


def test_cases_that_will_not_run_are_no_candidates() -> None:
    """-k selected few of 200 cases: the controls come from these."""
    few = CONTROLS + 3
    assert len(drawn(recorded(200), [True] * few, "seed", few)) >= CONTROLS
