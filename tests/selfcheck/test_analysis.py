"""Known answers: a quiet suite, an obvious effect, a flickering count, a rule that never or always alarms."""

from __future__ import annotations

import msgspec
import pytest

from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.model.records import CaseResult
from perfguard.selfcheck.analysis import (
    judge_apart,
    judge_exact_metrics,
    judge_resampled,
    seconds_per_case,
    shorten,
    timer_noise,
)
from perfguard.selfcheck.sample import gather
from tests.selfcheck.simulated import TIMER, simulated_sessions

RECORD = 5
QUIET = gather(simulated_sessions(14, 30, noise=0.001))
LOUD = gather(simulated_sessions(9, 12, noise=0.05))


def slower(result: CaseResult, factor: float) -> CaseResult:
    readings = [
        msgspec.structs.replace(each, value=each.value * factor) if each.timed else each  # type: ignore[operator]
        for each in result.readings
    ]
    return msgspec.structs.replace(result, readings=readings)


def test_a_quiet_suite_raises_no_alarm_and_finds_what_is_injected() -> None:
    said: list[str] = []
    found = judge_resampled(QUIET, RECORD, 50, said.append)
    assert said == ["50 of 50 resampled suites judged"]
    assert found.cases == 30
    runs = found.runs
    assert (runs.slower_suites.hits, runs.slower_suites.trials, runs.slower.trials) == (0, 50, 1500)
    assert (runs.faster_suites.hits, runs.undecided.hits) == (0, 0)
    assert 2 <= runs.pairs_per_case < 3
    power = {power.slowdown: power.found for power in found.power}
    assert sum(rate.trials for rate in power.values()) == 1500  # every case, made slower by one of them
    assert power[0.03].value == power[0.05].value == power[0.1].value == 1.0
    assert power[0.01].value < 0.5  # a third of the promise: by construction at the edge
    assert found.promised == power[0.03]
    assert [(one.slowdown, one.acquitted.trials) for one in found.screen] == [(0.0, 150), (0.02, 150), (0.03, 150)]
    assert [one.acquitted.value for one in found.screen] == [1.0, 0.0, 0.0]


def test_the_same_sample_gives_the_same_numbers() -> None:
    first, second = (judge_resampled(QUIET, RECORD, 5, lambda _: None) for _ in range(2))
    assert first == second


def test_unchanged_sessions_stand_beside_each_other() -> None:
    runs, alarms = judge_apart(QUIET)
    assert (runs.slower_suites.hits, runs.slower_suites.trials, runs.slower.trials) == (0, 14, 14 * 30)
    assert (runs.most_pairs, runs.undecided.hits, alarms) == (4, 0, [])  # 14 sessions are four times three
    assert runs.slower_suites.high > 0.8  # and hold three pairs that share none no more than 1.6 times
    (timer,) = timer_noise(QUIET)
    assert (timer.metric, timer.timer, timer.cases) == ("span_us", TIMER, 30)
    assert timer.cv_median == pytest.approx(0.001, rel=0.3)
    assert (timer.cv_within_03, timer.able_2, timer.able_3) == (1.0, 1.0, 1.0)
    assert 0.01 < timer.smallest < 0.015
    assert seconds_per_case(QUIET) == pytest.approx(0.1)


def test_a_machine_in_two_states_is_undecided_and_accuses_nobody() -> None:
    """All cases of five of nine sessions are 10 % slower: what is slower in a pair is so by chance."""
    reports = simulated_sessions(9, 12, noise=0.0005)
    for number, report in enumerate(reports[:5]):
        results = [slower(result, 1.1) for result in report.results]
        reports[number] = msgspec.structs.replace(report, results=results)
    found = judge_resampled(gather(reports), RECORD, 20, lambda _: None)
    assert (found.runs.slower.trials, found.runs.most_pairs) == (240, MOST_PAIRS)
    assert found.runs.slower.value < 0.1
    assert found.runs.undecided.value > 0.5
    assert found.promised.value < 0.5
    assert found.screen[0].acquitted.value < 0.5


def test_a_loud_suite_says_that_it_cannot_tell() -> None:
    (timer,) = timer_noise(LOUD)
    assert timer.able_3 == 0.0
    assert timer.smallest > 0.05
    found = judge_resampled(LOUD, RECORD, 10, lambda _: None)
    assert found.runs.undecided.value > 0.9
    assert found.promised.value < 0.5
    unchanged = found.screen[0]
    assert unchanged.acquitted.hits == 0
    assert "11 unchanged cases timed beside it, 15 are needed" in unchanged.refusals


def test_a_count_that_flickers_is_a_false_alarm() -> None:
    reports = simulated_sessions(9, 12)
    assert judge_exact_metrics(gather(reports)) == (judge_exact_metrics(LOUD)[0], [])
    results = list(reports[3].results)
    count, *times = results[0].readings
    results[0] = msgspec.structs.replace(results[0], readings=[msgspec.structs.replace(count, value=2), *times])
    reports[3] = msgspec.structs.replace(reports[3], results=results)
    rate, alarms = judge_exact_metrics(gather(reports))
    assert (rate.hits, rate.trials) == (2, 9)  # where it comes and where it goes
    assert alarms[0].startswith("session 4: suite case[000]/forward: launches 1 -> 2")
    assert alarms[1].startswith("session 5: suite case[000]/forward: launches 2 -> 1")


def test_alarms_beyond_what_anybody_reads_are_counted() -> None:
    assert shorten(["a"] * 20) == ["a"] * 20
    assert shorten(["a"] * 23) == [*["a"] * 20, "and 3 more"]
