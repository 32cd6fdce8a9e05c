"""Known answers: a quiet suite, an obvious effect, a loud machine, one in two states, a flickering count."""

from __future__ import annotations

import math

import msgspec
import pytest

from benchmarks.selfcheck.judging import Judged, Triple, judge_exact_metrics, judge_run, judge_suites, timed_cases
from benchmarks.selfcheck.sessions import gather
from perfguard.judge.pair_test import LEAST_PAIRS_ALIKE, judge_pairs
from perfguard.judge.statistics import spread_of
from perfguard.model.records import CaseResult, Word
from tests.selfcheck.simulated import TIMER, simulated_sessions

QUIET = gather(simulated_sessions(14, 30, noise=0.001))
PAIRS: list[Triple] = [(0, 1, 2), (3, 4, 5), (6, 7, 8)]


def rates(judged: Judged) -> dict[float, float]:
    return {power.slowdown: power.found.value for power in judged.power}


def test_a_quiet_suite_raises_no_alarm_and_finds_what_is_injected() -> None:
    said: list[str] = []
    found = judge_suites(QUIET, 50, said.append)
    assert said == ["50 of 50 suites judged"]
    suites = found.suites
    assert (suites.cases, suites.slower.hits, suites.slower.trials, suites.undecided.trials) == (30, 0, 50, 1500)
    assert (suites.faster.hits, suites.undecided.hits, found.accused) == (0, 0, {})
    assert 2 <= suites.pairs_per_case < 3
    assert sum(power.found.trials for power in found.power) == 1500  # every case, made slower by one of them
    power = rates(found)
    assert power[0.03] == power[0.05] == power[0.1] == 1.0
    assert power[0.01] < 0.5  # a third of the promise: by construction at the edge
    assert found.promised == found.power[2].found
    (timer,) = found.timers
    assert (timer.metric, timer.timer, timer.cases, timer.power) == ("span_us", TIMER, 30, found.power)
    assert timer.variation == pytest.approx(0.001, rel=0.3)
    first, second = (judge_suites(QUIET, 5, lambda _: None) for _ in range(2))
    assert first == second


def test_a_machine_in_two_states_is_undecided_and_accuses_nobody() -> None:
    """All cases of five of nine sessions are 10 % slower: what is slower in a pair is so by chance."""
    reports = simulated_sessions(9, 12, noise=0.0005)
    for number, report in enumerate(reports[:5]):
        results = [slower(result, 1.1) for result in report.results]
        reports[number] = msgspec.structs.replace(report, results=results)
    found = judge_suites(gather(reports), 20, lambda _: None)
    assert found.accused.total() < 0.1 * 240
    assert found.suites.undecided.value > 0.5
    assert found.promised.value < 0.5


def slower(result: CaseResult, factor: float) -> CaseResult:
    count, time = result.readings
    assert isinstance(time.value, float)
    return msgspec.structs.replace(result, readings=[count, msgspec.structs.replace(time, value=time.value * factor)])


def test_the_pairs_say_what_the_sessions_read() -> None:
    """ln W - (ln B + ln B')/2 of each triple, through the judge's own test."""
    case, time = next(iter(timed_cases(QUIET).items()))
    values = [math.log(value) for value in time.base]
    slowdowns = [values[work] - (values[base] + values[copy]) / 2 for base, copy, work in PAIRS]
    verdict = judge_run({case: time}, PAIRS, 1)[case]
    assert verdict.effect == pytest.approx(sum(slowdowns[: verdict.pairs]) / verdict.pairs, abs=1e-12)
    controls = [values[copy] - values[base] for base, copy, _ in PAIRS]
    history = spread_of(slowdowns[: verdict.pairs], controls[: verdict.pairs])
    expected = judge_pairs(history, verdict.pairs, theta=0.01, family=1)
    assert (verdict.word, verdict.interval) == (expected.word, pytest.approx(expected.interval, abs=1e-12))


def test_what_is_decided_takes_no_further_pair_and_too_few_leave_it_open() -> None:
    times = timed_cases(gather(simulated_sessions(9, 40, noise=0.0005)))
    case = next(iter(times))
    verdicts = judge_run({**times, case: times[case].slower(0.10)}, PAIRS, len(times))
    slow = verdicts.pop(case)
    assert (slow.word, slow.pairs) == (Word.SLOWER, 3)
    assert {(verdict.word, verdict.pairs) for verdict in verdicts.values()} == {(Word.PASS, LEAST_PAIRS_ALIKE)}
    assert {verdict.word for verdict in judge_run(times, PAIRS[:1], 40).values()} == {None}


def test_the_first_gated_time_is_judged_whatever_it_is_called() -> None:
    reports = simulated_sessions(2, 1)
    for number, report in enumerate(reports):
        (result,) = report.results
        count, time = result.readings
        shown = msgspec.structs.replace(time, metric="wall_us", gated=False)
        judged = msgspec.structs.replace(time, metric="cpu_time_us", promise=0.10)
        readings = [count, shown, judged, time]
        reports[number] = msgspec.structs.replace(report, results=[msgspec.structs.replace(result, readings=readings)])
    (time_,) = timed_cases(gather(reports)).values()
    assert (time_.reading.metric, time_.promised) == ("cpu_time_us", 0.1)


def test_a_count_that_flickers_is_a_false_alarm() -> None:
    reports = simulated_sessions(9, 12)
    assert judge_exact_metrics(gather(reports))[1] == []
    results = list(reports[3].results)
    count, *times = results[0].readings
    results[0] = msgspec.structs.replace(results[0], readings=[msgspec.structs.replace(count, value=2), *times])
    reports[3] = msgspec.structs.replace(reports[3], results=results)
    rate, alarms = judge_exact_metrics(gather(reports))
    assert (rate.hits, rate.trials) == (2, 9)  # where it comes and where it goes
    assert alarms[0].startswith("session 4: suite case[000]/forward: launches 1 -> 2")
    assert alarms[1].startswith("session 5: suite case[000]/forward: launches 2 -> 1")
