"""Rivals say what their rules say: known answers on pairs made for it."""

from __future__ import annotations

import msgspec
import pytest
from scipy import stats

from perfguard.model.records import Case, CaseResult, Reading
from perfguard.model.units import Unit
from perfguard.selfcheck.rivals import Pair, all_rivals

RIVALS = {rival.name: rival for rival in all_rivals()}
BLOCKS = [50.0, 50.1, 50.2, 50.3, 50.4]


def result(blocks: list[float], do_bench: float | None = None) -> CaseResult:
    value = sorted(blocks)[len(blocks) // 2]
    readings = [Reading("span_us", Unit.MICROSECONDS, value, timer="clock", blocks=blocks)]
    if do_bench is not None:
        readings.append(Reading("do_bench_us", Unit.MICROSECONDS, do_bench, gated=False))
    return CaseResult(Case("suite", "case", "forward"), readings=readings)


def answers(name: str, *pairs: Pair) -> list[bool] | None:
    alarms = RIVALS[name].decide(pairs)
    return None if alarms is None else alarms.tolist()


def test_gates_compare_values_and_see_what_is_injected() -> None:
    plain = result(BLOCKS)
    pairs = [Pair(plain, plain, slowdown) for slowdown in (0.0, 0.04, 0.06, 0.09, 0.11)]
    assert answers("fixed 5 % gate", *pairs) == [False, False, True, True, True]
    assert answers("fixed 10 % gate", *pairs) == [False, False, False, False, True]
    assert answers("fixed 5 % gate", Pair(result([53.0] * 5), plain, 0.0)) == [False]  # faster is no alarm


@pytest.mark.parametrize("name", ["Mann-Whitney p < 0.05", "Welch t p < 0.05"])
def test_tests_look_at_blocks(name: str) -> None:
    plain = result(BLOCKS)
    other = result([50.05, 50.15, 50.25, 50.35])  # another number of blocks, in a group of its own
    pairs = [Pair(plain, plain, 0.0), Pair(plain, plain, 0.02), Pair(plain, other, 0.02), Pair(other, plain, 0.0)]
    assert answers(name, *pairs) == [False, True, True, False]
    # Three blocks against three cannot reach p < 0.05 by ranks: 1 in 20 orders is the rarest.
    few = result(BLOCKS[:3])
    assert answers(name, Pair(few, few, 0.5)) == [name.startswith("Welch")]
    assert answers(name, Pair(result([50.0]), plain, 0.0)) is None


def test_the_tests_are_scipys() -> None:
    later = [50.15, 50.2, 50.5, 50.25, 50.45]
    pair = Pair(result(BLOCKS), result(later), 0.0)
    expected = [
        bool(stats.mannwhitneyu(later, BLOCKS, alternative="greater", method="exact").pvalue < 0.05),
        bool(stats.ttest_ind(later, BLOCKS, equal_var=False, alternative="greater").pvalue < 0.05),
    ]
    assert [answers("Mann-Whitney p < 0.05", pair), answers("Welch t p < 0.05", pair)] == [[e] for e in expected]


def test_do_bench_is_judged_by_its_own_reading_or_not_at_all() -> None:
    before, now = result(BLOCKS, do_bench=60.0), result(BLOCKS, do_bench=64.0)
    assert answers("do_bench, 5 % gate", Pair(before, now, 0.0)) == [True]
    assert answers("do_bench, 10 % gate", Pair(before, now, 0.0)) == [False]
    assert answers("do_bench, 5 % gate", Pair(before, msgspec.structs.replace(now, readings=[]), 0.0)) is None
