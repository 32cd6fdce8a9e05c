"""From what process pairs found to rows: what is compared, what is told of the rest."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.model.records import (
    SCHEMA,
    Case,
    CaseResult,
    Hardware,
    PairReading,
    Reading,
    Report,
    Toolchain,
    Verdict,
    Word,
)
from perfguard.model.units import Unit
from perfguard.render.comparison import Row
from perfguard.session.child import timers_of
from perfguard.session.compare import exact_rows, rows_of
from perfguard.session.pairing.outcome import PairOutcome, TimeId
from perfguard.session.pairing.processes import Side
from perfguard.session.pairing.tally import Tally

CASE = Case("suite", "double[64]", "forward", "test_suite.py::test_double[64]")
TIME = Reading("device_time_us", Unit.MICROSECONDS, 50.0, timer="queue-cold", floor=0.05)
LAUNCHES = Reading("launches", Unit.COUNT, 1)
RESULT = CaseResult(CASE, inputs="float32 64,16", readings=[LAUNCHES, TIME])
TRACK = TimeId(CASE.suite, CASE.key, TIME.metric)


def report(*results: CaseResult) -> Report:
    return Report(SCHEMA, Hardware("fake-gpu", "fake", "Fake", "fake"), Toolchain(), "now", results=list(results))


def reports(
    base: Sequence[CaseResult], work: Sequence[CaseResult], copy: Sequence[CaseResult] | None = None
) -> Mapping[Side, Report | None]:
    return {"base": report(*base), "copy": report(*(base if copy is None else copy)), "work": report(*work)}


def paired(tally: Tally, change: float, control: float = 0.0) -> PairReading:
    return PairReading(tally.pairs + 1, change, control, 50.0, 50.0 * math.exp(change))


def measured(tally: Tally, change: float, noise: random.Random | None = None) -> PairOutcome:
    by, control = (noise.gauss(0, 0.002), noise.gauss(0, 0.002)) if noise else (0.0, 0.0)
    timers: dict[Side, str] = {"base": "queue-cold", "copy": "queue-cold", "work": "queue-cold"}
    return PairOutcome(readings={TRACK: paired(tally, change + by, control)}, timers={TRACK: timers})


def compared(work: CaseResult, base: CaseResult = RESULT, copy: CaseResult | None = None) -> list[Row]:
    tally = Tally()
    tally.take(measured(tally, 0.0), reports([base], [work], None if copy is None else [copy]))
    return [row for row in rows_of(tally) if row.metric != TIME.metric]


@pytest.mark.parametrize(("change", "word"), [(0.0, Word.PASS), (0.1, Word.SLOWER), (-0.1, Word.FASTER)])
def test_pairs_are_asked_for_until_a_time_is_decided(change: float, word: Word) -> None:
    tally, noise = Tally(), random.Random(1)
    while tally.pairs == 0 or tally.left():
        tally.take(measured(tally, change, noise), reports([RESULT], [RESULT]))
        assert tally.left() in ([], [TRACK])
    assert tally.is_decided(TRACK)
    (row,) = rows_of(tally)
    assert (row.word, row.pairs) == (word, tally.pairs)
    assert 2 <= tally.pairs < 5
    assert row.effect == pytest.approx(math.expm1(change), abs=0.01)
    assert row.effect is not None
    assert row.interval is not None
    assert row.interval[0] < row.effect < row.interval[1]
    assert row.reason == ("" if word is Word.PASS else "no exact metric moved")
    assert tally.measured == 1


def test_the_times_beside_an_effect_are_those_of_all_pairs() -> None:
    """Under other work the last pair's own may even contradict it."""
    tally = Tally()
    for base, change in ((50.0, 0.1), (51.0, 0.1), (90.0, 0.1)):
        outcome = measured(tally, change)
        outcome.readings[TRACK] = replace(outcome.readings[TRACK], base_us=base, work_us=base * math.exp(change))
        tally.take(outcome, reports([RESULT], [RESULT]))
    (row,) = rows_of(tally)
    assert (row.word, row.before, row.after) == (Word.SLOWER, 51.0, pytest.approx(51.0 * math.exp(0.1)))


def test_a_noisy_time_is_unresolved_after_the_most_pairs() -> None:
    tally, sign = Tally(), 1.0
    while tally.pairs == 0 or tally.left():
        sign = -sign
        outcome = measured(tally, 0.0)
        outcome.readings[TRACK] = paired(tally, 0.02 + 0.1 * sign, -0.1 * sign)
        tally.take(outcome, reports([RESULT], [RESULT]))
    (row,) = rows_of(tally)
    assert (row.word, tally.pairs) == (Word.UNRESOLVED, MOST_PAIRS)
    assert "NOISY" in row.reason


def test_an_exact_metric_that_moved_is_told_and_is_the_cause() -> None:
    heavier = replace(RESULT, readings=[replace(LAUNCHES, value=2), TIME])
    (row,) = compared(heavier)
    assert (row.word, row.before, row.after, row.effect) == (Word.CHANGED, 1, 2, 1.0)
    tally = Tally()
    while tally.pairs == 0 or tally.left():
        tally.take(measured(tally, 0.1), reports([RESULT], [heavier]))
    reasons = {row.metric: row.reason for row in rows_of(tally)}
    assert reasons[TIME.metric] == "because: launches 1 -> 2 (+100.0 %)"
    (row,) = compared(RESULT, heavier)
    assert row.word is Word.BETTER


def test_what_differs_between_two_checkouts_of_the_base_accuses_nobody() -> None:
    heavier = replace(RESULT, readings=[replace(LAUNCHES, value=2)])
    (row,) = exact_rows(RESULT, heavier, heavier)
    assert row.word is Word.UNRESOLVED
    assert "two checkouts of the base" in row.reason


def test_equal_binaries_need_no_time() -> None:
    fingerprint = Reading("fingerprint", Unit.TEXT, "abc", gated=False, covers=[TIME.metric])
    same = replace(RESULT, readings=[fingerprint, TIME])
    tally = Tally()
    tally.take(measured(tally, 0.1), reports([same], [same]))
    assert tally.left() == []
    (row,) = rows_of(tally)
    assert row.word is Word.UNCHANGED
    other = replace(RESULT, readings=[replace(fingerprint, value="def"), TIME])
    tally = Tally()
    tally.take(measured(tally, 0.1), reports([same], [other]))
    assert tally.left() == [TRACK]


@pytest.mark.parametrize(
    ("base", "work", "word", "said"),
    [
        ([], [RESULT], Word.NEW, "in the working tree only"),
        ([RESULT], [], Word.STALE, "at the base only"),
        ([RESULT], [replace(RESULT, inputs="float32 32,16")], Word.METHOD_CHANGED, "other inputs: float32 64,16 -> "),
        ([RESULT], [CaseResult(CASE, verdicts=[Verdict(Word.WRONG, reason="off by 1")])], Word.WRONG, "off by 1"),
        ([], [CaseResult(CASE, verdicts=[Verdict(Word.BROKEN, reason="raised")])], Word.BROKEN, "raised"),
        (
            [CaseResult(CASE, verdicts=[Verdict(Word.WRONG, reason="off by 1")])],
            [RESULT],
            Word.UNRESOLVED,
            "WRONG at the base, not compared: off by 1",
        ),
    ],
)
def test_what_is_not_comparable_is_told(base: list[CaseResult], work: list[CaseResult], word: Word, said: str) -> None:
    tally = Tally()
    tally.take(PairOutcome(), reports(base, work))
    assert tally.left() == []
    (row,) = rows_of(tally)
    assert (row.word, row.metric) == (word, "")
    assert row.reason.startswith(said)


def test_after_a_crash_nothing_is_said_to_be_gone() -> None:
    tally = Tally()
    tally.take(PairOutcome(problem="died"), reports([RESULT], []))
    assert (rows_of(tally), tally.problem) == ([], "died")


def test_another_timer_is_asked_for_once_more_and_then_told() -> None:
    tally = Tally()
    timers: dict[Side, str] = {"base": "graph-cold-u64", "copy": "graph-cold-u64", "work": "queue-cold"}
    while tally.pairs == 0 or tally.left():
        tally.take(PairOutcome(timers={TRACK: timers}, tests={"base": {CASE.nodeid}}), reports([RESULT], [RESULT]))
    assert tally.pairs == 2
    assert tally.timers == timers_of([RESULT])
    (row,) = rows_of(tally)
    assert (row.word, row.reason) == (Word.METHOD_CHANGED, "timed by graph-cold-u64 at the base, now by queue-cold")


def test_the_worst_comes_first() -> None:
    tally = Tally()
    wrong = replace(RESULT, case=replace(CASE, name="other"), verdicts=[Verdict(Word.WRONG, reason="off")])
    good = replace(RESULT, case=wrong.case)
    heavier = replace(RESULT, readings=[replace(LAUNCHES, value=2), TIME])
    tally.take(measured(tally, 0.0), reports([RESULT, good], [heavier, wrong]))
    assert [row.word for row in rows_of(tally)] == [Word.WRONG, Word.CHANGED, Word.UNRESOLVED]
