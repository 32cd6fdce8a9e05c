"""Runs of process pairs from sessions: what the judge is given, when it stops, and what its noise lets it find."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfguard.judge.pair_test import LEAST_PAIRS_ALIKE, MOST_PAIRS, judge_pairs
from perfguard.judge.statistics import UNLEARNT
from perfguard.model.records import Word
from perfguard.selfcheck.draws import Triple
from perfguard.selfcheck.judging import Timed, judge_run, smallest_found, timed_cases
from perfguard.selfcheck.sample import gather
from tests.selfcheck.simulated import simulated_sessions

SAMPLE = gather(simulated_sessions(9, 40, noise=0.0005))
TIMES = timed_cases(SAMPLE)
PAIRS = (Triple(0, 1, 2), Triple(3, 4, 5), Triple(6, 7, 8))
CASE = SAMPLE.cases[0]


def test_the_pairs_say_what_the_sessions_read() -> None:
    """ln W - (ln B + ln B')/2 of each triple, through the judge's own test."""
    time = TIMES[CASE]
    values = [math.log(value) for value in time.base]
    slowdowns = [values[work] - (values[base] + values[copy]) / 2 for base, copy, work in PAIRS]
    verdict = judge_run({CASE: time}, PAIRS, 1)[CASE]
    assert verdict.effect == pytest.approx(sum(slowdowns[: verdict.pairs]) / verdict.pairs, abs=1e-12)
    expected = judge_pairs(slowdowns[: verdict.pairs], theta=0.01, family=1, prior=UNLEARNT)
    assert verdict.word is expected.word
    assert verdict.interval == pytest.approx(expected.interval, abs=1e-12)


def test_what_is_decided_is_measured_no_more_and_too_few_pairs_leave_it_open() -> None:
    times = {**TIMES, CASE: TIMES[CASE].slower(0.10)}
    verdicts = judge_run(times, PAIRS, len(times))
    assert (verdicts[CASE].word, verdicts[CASE].pairs) == (Word.SLOWER, 3)
    others = [verdicts[case] for case in SAMPLE.cases[1:]]
    assert {verdict.word for verdict in others} == {Word.PASS}
    assert {verdict.pairs for verdict in others} == {LEAST_PAIRS_ALIKE}  # the third pair was for one case alone
    assert {verdict.word for verdict in judge_run(TIMES, PAIRS[:1], 40).values()} == {None}


def test_the_first_gated_time_is_judged_whatever_it_is_called() -> None:
    reports = simulated_sessions(2, 1)
    for number, report in enumerate(reports):
        (result,) = report.results
        count, time = result.readings
        shown = msgspec.structs.replace(time, metric="wall_us", gated=False)
        judged = msgspec.structs.replace(time, metric="cpu_time_us", promise=0.10)
        readings = [count, shown, judged, time]
        reports[number] = msgspec.structs.replace(report, results=[msgspec.structs.replace(result, readings=readings)])
    (time,) = timed_cases(gather(reports)).values()
    assert time.reading.metric == "cpu_time_us"
    assert time.theta == pytest.approx(0.1 / 3)


def test_the_smallest_slowdown_found_is_found_and_less_is_not() -> None:
    """Noise of which the sessions hold exactly the variance: what they promise, pairs of that noise keep."""
    off = 0.004
    result = SAMPLE.sessions[0][CASE]
    base = [50.0 * math.exp(off if number % 2 else -off) for number in range(10)]
    smallest = smallest_found({CASE: Timed(result, base, base)}, 1)[CASE]
    quieter = smallest_found({CASE: Timed(result, [50.0, 50.1] * 5, [50.0] * 10)}, 1)[CASE]
    assert 0.01 < quieter < smallest < 0.03
    sd = math.sqrt(1.5) * off * math.sqrt(10 / 9)
    swing = sd * math.sqrt((MOST_PAIRS - 1) / MOST_PAIRS)

    def word(slowdown: float) -> Word | None:
        slowdowns = [math.log1p(slowdown) + (swing if number % 2 else -swing) for number in range(MOST_PAIRS)]
        return judge_pairs(slowdowns, theta=0.01, family=1, prior=UNLEARNT).word

    assert word(smallest) is Word.SLOWER
    assert word(0.009) is not Word.SLOWER
