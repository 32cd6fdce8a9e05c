"""Slower than what it has to beat: one session suspects, fresh processes accuse, and no baseline is asked."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane
from perfguard.judge.pair_test import RIVAL_PROCESSES, judge_rival
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    Hardware,
    Reading,
    Toolchain,
    Word,
)
from perfguard.model.records.change import category_of
from perfguard.model.units import Unit

HARDWARE = Hardware("here", "fake", "Here", "x1")


def reading(ratio: float, rival: float = 40.0, **options: Any) -> Reading:
    """A candidate that takes `ratio` of its rival's time."""
    return Reading("beside", Unit.MICROSECONDS, rival * ratio, timer="turns", rival=rival, promise=0.05, **options)


@pytest.mark.parametrize("ratio", [0.3, 0.97, 1.0, 1.015])
def test_no_slower_passes_and_shows_both_times(ratio: float) -> None:
    verdict = judge_rival(reading(ratio))
    assert (verdict.word, verdict.before) == (Word.PASS, pytest.approx(40.0))
    assert verdict.after == pytest.approx(40.0 * ratio)
    assert verdict.ratio == pytest.approx(ratio)


def test_one_session_only_suspects() -> None:
    assert judge_rival(reading(1.10)).word is Word.SUSPECT
    assert judge_rival(reading(1.016)).word is Word.PASS  # θ is a third of the promise of 5 %
    assert judge_rival(reading(1.018)).word is Word.SUSPECT


def test_fresh_processes_that_agree_accuse_by_their_ratios_alone() -> None:
    """The machine was slower in the fresh processes, for both."""
    fresh = [reading(1.10, rival=rival) for rival in (50.0, 51.0, 49.0)]
    found = judge_rival(reading(1.30, note="9 launches, its rival 1"), fresh)
    assert found.word is Word.SLOWER
    assert found.ratio == pytest.approx(1.10)
    assert found.reason.startswith("than its rival: +10.0 % in 3 process pairs (95 % interval +")
    assert found.reason.endswith("; 9 launches, its rival 1")
    assert found.interval is not None
    assert found.interval[0] > 1
    assert not found.storable
    assert category_of(found) is None  # an update has nothing to write


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.10, 1.10], Word.SUSPECT),  # three are needed
        ([1.10, 1.10, 1.0], Word.SUSPECT),  # three more
        ([1.0, 1.001, 0.999], Word.PASS),
        ([0.9, 0.9, 0.9], Word.PASS),
        ([1.10, 1.0, 1.12, 0.99, 1.08, 1.01], Word.UNRESOLVED),
        ([1.10, 1.0, 0.95, 0.99, 1.05, 1.0], Word.PASS),  # not slower by θ in the mean
        ([1.08, 1.03, 1.07, 1.04, 1.06, 1.05], Word.SLOWER),
    ],
)
def test_fresh_processes_tell(ratios: list[float], word: Word) -> None:
    assert judge_rival(reading(1.10), [reading(ratio) for ratio in ratios]).word is word


def test_what_stays_open_says_what_it_would_have_seen() -> None:
    found = judge_rival(reading(1.1), [reading(each) for each in (1.10, 1.0, 1.12, 0.99, 1.08, 1.01)])
    assert found.reason.startswith("than its rival: NOISY: would have seen ")
    assert "2 of 3 fresh processes read it" in judge_rival(reading(1.1), [reading(1.1)] * 2).reason


def test_a_disturbed_fresh_process_tells_nothing() -> None:
    fresh = [reading(1.1), reading(1.1), reading(1.1, rejected_blocks=3)]
    assert "2 of 3 fresh processes read it" in judge_rival(reading(1.1), fresh).reason


def test_neither_a_stored_time_nor_its_absence_matters() -> None:
    case = Case("suite", "a", "forward")
    stored = Baseline("here", "suite", cases={"a/forward": CaseBaseline({"launches": 1})})
    for baselines in ({}, {"suite": stored}):
        result = CaseResult(case, readings=[reading(0.9)])
        assert judge_case(result, Lane(HARDWARE, Toolchain(), baselines))[0].word is Word.PASS


def test_only_the_same_reading_of_the_same_inputs_counts() -> None:
    result = CaseResult(Case("suite", "a", "forward"), "x", readings=[reading(1.1)])
    other = [
        msgspec.structs.replace(result, inputs="y"),
        msgspec.structs.replace(result, readings=[msgspec.structs.replace(reading(1.1), timer="others")]),
        msgspec.structs.replace(result, readings=[]),
    ]
    lane = Lane(HARDWARE, Toolchain())
    assert judge_case(result, lane, fresh=[result] * 3)[0].word is Word.SLOWER
    for each in other:
        assert "2 of 3" in judge_case(result, lane, fresh=[result, result, each])[0].reason


def test_equal_trees_are_not_slower_than_they_were() -> None:
    result = CaseResult(Case("suite", "a", "forward"), readings=[reading(1.5)])
    [verdict] = judge_case(result, Lane(HARDWARE, Toolchain(), base=BaseTree("c" * 40, equal=True)))
    assert (verdict.word, verdict.ratio) == (Word.UNCHANGED, pytest.approx(1.5))


def test_equal_suites_are_not_accused() -> None:
    """4,000 cases as fast as their rivals, in processes that differ by 0.5 %; and 200 that are 8 % slower."""
    random = np.random.default_rng(20261122)

    def draw(ratio: float = 1.0) -> Reading:
        return reading(ratio * float(np.exp(0.005 * random.standard_normal())))

    def word(ratio: float) -> Word:
        first, fresh = draw(ratio), [draw(ratio) for _ in range(2 * RIVAL_PROCESSES)]
        if judge_rival(first).word is not Word.SUSPECT:
            return Word.PASS
        found = judge_rival(first, fresh[:RIVAL_PROCESSES]).word
        return judge_rival(first, fresh).word if found is Word.SUSPECT else found

    assert [word(1.0) for _ in range(4000)].count(Word.SLOWER) == 0
    assert [word(1.08) for _ in range(200)].count(Word.SLOWER) >= 190
