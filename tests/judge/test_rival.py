"""Slower than what it has to beat: one session suspects, fresh processes accuse, and no baseline is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perfguard.baselines.changes import category_of
from perfguard.judge import Lane, judge_case
from perfguard.judge.rival import judge_rival
from perfguard.judge.timed import Family
from perfguard.records import Baseline, Case, CaseBaseline, CaseResult, Hardware, Reading, Toolchain, Verdict, Word
from perfguard.units import Unit

FAMILY = Family(size=200)


def reading(ratio: float, rival: float = 40.0, blocks: tuple[float, ...] = (), **options: Any) -> Reading:
    """A candidate that takes `ratio` of its rival's time, in the median and in `blocks`."""
    us = [rival * each for each in (blocks or (ratio,) * 3)]
    return Reading(
        "beside", Unit.MICROSECONDS, rival * ratio, timer="turns", rival=rival, blocks=us, promise=0.05, **options
    )


def judged(now: Reading, *fresh: Reading, problem: str = "") -> Verdict:
    return judge_rival(now, FAMILY, fresh, problem)


@pytest.mark.parametrize("ratio", [0.3, 0.97, 1.0, 1.015])
def test_no_slower_passes_and_shows_both_times(ratio: float) -> None:
    verdict = judged(reading(ratio))
    assert (verdict.word, verdict.before) == (Word.PASS, pytest.approx(40.0))
    assert verdict.after == pytest.approx(40.0 * ratio)
    assert verdict.ratio == pytest.approx(ratio)


def test_one_session_only_suspects() -> None:
    assert judged(reading(1.10)).word is Word.SUSPECT
    assert judged(reading(1.10, blocks=(1.1, 1.1, 1.001))).word is not Word.SUSPECT


def test_fresh_processes_that_agree_accuse_by_their_ratios_alone() -> None:
    """The machine was slower in the fresh processes, for both."""
    found = judged(reading(1.12, note="9 launches, its rival 1"), *(reading(1.10, rival=50.0) for _ in range(3)))
    assert found.word is Word.SLOWER
    assert found.ratio == pytest.approx(1.10)
    assert found.after == pytest.approx(44.0)
    assert found.reason.startswith("than its rival: +10.0 % in 3 fresh processes (95 % interval +")
    assert found.reason.endswith("; 9 launches, its rival 1")
    assert not found.storable
    assert category_of(found) is None  # an update has nothing to write


def test_one_fresh_process_that_disagrees_acquits() -> None:
    found = judged(reading(1.10), reading(1.10), reading(1.10), reading(1.0))
    assert found.word is Word.UNRESOLVED
    assert judged(reading(1.10), *(reading(1.0) for _ in range(3))).word is Word.PASS


def test_too_few_fresh_processes_say_why() -> None:
    assert "2 of 3 fresh processes read it" in judged(reading(1.1), reading(1.1), reading(1.1)).reason
    assert "no device" in judged(reading(1.1), problem="no device").reason


def test_what_scatters_too_much_says_so_unless_it_is_far_ahead() -> None:
    assert judged(reading(1.0, spread=0.05)).word is Word.UNRESOLVED
    assert judged(reading(0.5, spread=0.05)).word is Word.PASS
    assert judged(reading(9.6, spread=0.35)).word is Word.SUSPECT  # nor does any scatter hide what is far behind
    assert judged(reading(1.2, rejected_blocks=3)).reason.startswith("ENV: 3 blocks rejected")


def test_neither_a_stored_time_nor_its_absence_matters() -> None:
    case = Case("suite", "a", "forward")
    stored = Baseline("here", "suite", cases={"a/forward": CaseBaseline({"launches": 1})})
    for baselines in ({}, {"suite": stored}):
        lane = Lane(Hardware("here", "fake", "Here", "x1"), Toolchain(), baselines)
        result = CaseResult(case, readings=[reading(0.9)])
        assert judge_case(result, lane)[0].word is Word.PASS


def test_equal_suites_are_not_accused() -> None:
    """200 cases as fast as their rivals: sessions differ by 0.5 %, blocks by 0.2 %."""
    random = np.random.default_rng(20261122)

    def draw() -> Reading:
        ratio = float(np.exp(0.005 * random.standard_normal()))
        blocks = ratio * np.exp(0.002 * random.standard_normal(9))
        return reading(float(np.median(blocks)), blocks=tuple(blocks.tolist()))

    suspects = [each for _ in range(20 * 200) if judged(each := draw()).word is Word.SUSPECT]
    accused = [each for each in suspects if judged(each, draw(), draw(), draw()).word is Word.SLOWER]
    assert accused == []
    slower = [judged(reading(1.08), *(reading(1.08 * draw().value / 40) for _ in range(3))) for _ in range(200)]  # type: ignore[operator]
    assert sum(verdict.word is Word.SLOWER for verdict in slower) >= 0.95 * len(slower)
