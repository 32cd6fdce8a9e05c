"""Known answers: a quiet suite, an obvious effect, a flickering count, a rule that never or always alarms."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfguard.selfcheck.analysis import Trials, judge_resampled, judge_unchanged, seconds_per_case
from perfguard.selfcheck.judging import slower
from perfguard.selfcheck.rivals import Pair
from perfguard.selfcheck.sample import gather, primary
from tests.selfcheck.simulated import TIMER, simulated_sessions

STORED, CONFIRMATIONS = 5, 3
QUIET = gather(simulated_sessions(14, 30, noise=0.001, do_bench=True))


def test_a_quiet_suite_raises_no_alarm_and_finds_what_is_injected() -> None:
    said: list[str] = []
    own, rivals, cases = judge_resampled(QUIET, STORED, CONFIRMATIONS, 50, said.append)
    assert said == ["50 of 50 resampled suites judged"]
    assert cases == 30
    assert own.suites is not None
    assert own.decisions is not None
    assert (own.suites.hits, own.suites.trials, own.decisions.trials) == (0, 50, 1500)
    power = {power.slowdown: power for power in own.power}
    assert power[0.05].able.value == power[0.1].all.value == 1.0
    assert power[0.01].all.value < 0.5  # a third of the promise: by construction at the edge
    assert [power.all.trials for power in own.power] == [150] * 5  # a tenth of 30 cases in 50 suites
    gates = {rival.name: rival for rival in rivals}
    gate = {power.slowdown: power.all.value for power in gates["fixed 5 % gate"].power}
    assert (gate[0.03], gate[0.1]) == (0.0, 1.0)
    assert gates["do_bench, 10 % gate"].decisions is not None
    welch = gates["Welch t p < 0.05"]
    assert welch.suites is not None
    assert welch.suites.value == 1.0  # what differs between processes is a finding to it


def test_the_same_sample_gives_the_same_numbers() -> None:
    first, second = (judge_resampled(QUIET, STORED, CONFIRMATIONS, 5, lambda _: None) for _ in range(2))
    assert first == second


def test_unchanged_sessions_are_judged_against_each_other() -> None:
    found = judge_unchanged(QUIET, STORED, CONFIRMATIONS)
    # 13 others hold one set of 8; every case has a time and two exact readings.
    assert (found.suites.hits, found.suites.trials, found.decisions.trials) == (0, 14, 14 * 30 * 3)
    assert found.alarms == []
    (timer,) = found.timers
    assert (timer.metric, timer.timer, timer.cases) == ("span_us", TIMER, 30)
    assert timer.cv_median == pytest.approx(0.001, rel=0.3)
    assert (timer.cv_within_03, timer.able_3, timer.unresolved) == (1.0, 1.0, 0.0)
    assert seconds_per_case(QUIET) == pytest.approx(0.1)


def test_a_loud_suite_says_that_it_cannot_tell() -> None:
    found = judge_unchanged(gather(simulated_sessions(9, 12, noise=0.05)), STORED, CONFIRMATIONS)
    (timer,) = found.timers
    assert timer.able_3 == 0.0
    assert timer.unresolved > 0.9
    assert timer.unresolved_limit is not None
    assert timer.unresolved_limit > 0.1
    assert "NOISY" in timer.unresolved_reasons


def test_a_count_that_flickers_is_a_false_alarm() -> None:
    reports = simulated_sessions(9, 12)
    results = list(reports[3].results)
    count, *times = results[0].readings
    results[0] = msgspec.structs.replace(results[0], readings=[msgspec.structs.replace(count, value=2), *times])
    reports[3] = msgspec.structs.replace(reports[3], results=results)
    found = judge_unchanged(gather(reports), STORED, CONFIRMATIONS)
    assert found.suites.hits >= 1
    assert found.alarms[0].startswith("session 4: suite case[000]/forward CHANGED launches: launches 1 -> 2")


def test_an_injected_slowdown_moves_the_first_time_with_its_blocks_and_nothing_else() -> None:
    plain = QUIET.sessions[0][QUIET.cases[0]]
    before, after = primary(plain), primary(slower(plain, 0.05))
    assert before is not None
    assert after is not None
    assert math.isclose(after.value, 1.05 * before.value)  # type: ignore[arg-type, operator]
    assert after.blocks == pytest.approx([1.05 * block for block in before.blocks])
    assert slower(plain, 0.05).readings[0] == plain.readings[0]  # no more launches


@pytest.mark.parametrize("answer", [False, True])
def test_a_rule_that_always_gives_one_answer(answer: bool) -> None:
    trials = Trials()
    result = QUIET.sessions[0][QUIET.cases[0]]
    for suite in range(10):
        for slowdown in (0.0, 0.0, 0.03):
            trials.add(suite, suite < 4, Pair(result, result, slowdown), False)
    found = trials.detector("stubborn", [answer] * 30)
    assert found.decisions is not None
    assert found.suites is not None
    assert (found.decisions.value, found.decisions.trials) == (float(answer), 20)
    assert (found.suites.value, found.suites.trials) == (float(answer), 10)
    power = {power.slowdown: power for power in found.power}
    assert (power[0.03].able.trials, power[0.03].able.value) == (4, float(answer))
    assert (power[0.03].all.trials, power[0.05].all.trials) == (10, 0)
