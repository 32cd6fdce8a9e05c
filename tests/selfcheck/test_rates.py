"""Rates and their intervals: exact for independent trials, wider where outcomes belong together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfguard.selfcheck.rates import clustered_rate, exact_interval


@given(st.integers(1, 400).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_the_interval_of_whole_numbers_is_the_exact_binomial_one(counts: tuple[int, int]) -> None:
    hits, trials = counts
    exact = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
    assert exact_interval(hits, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)


@pytest.mark.parametrize(("hit", "value"), [(0, 0.0), (1, 1.0)])
def test_a_detector_that_never_or_always_alarms(hit: int, value: float) -> None:
    """Zero of n sessions excludes about 3/n, however many decisions each of them holds."""
    rate = clustered_rate((session, 50 * hit, 50) for session in range(15))
    assert (rate.value, rate.trials, rate.clusters) == (value, 750, 15)
    exact = stats.binomtest(15 * hit, 15).proportion_ci(0.95, method="exact")
    assert (rate.low, rate.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_independent_trials_count_one_by_one() -> None:
    rate = clustered_rate((number, int(number < 30), 1) for number in range(300))
    exact = stats.binomtest(30, 300).proportion_ci(0.95, method="exact")
    # The variance of independent clusters is estimated, so their number is not met to the digit.
    assert (rate.low, rate.high) == pytest.approx((exact.low, exact.high), rel=0.02)


def test_outcomes_that_stand_and_fall_together_widen_the_interval() -> None:
    together = clustered_rate((session, 40 * (session < 2), 40) for session in range(20))
    apart = clustered_rate((session, 4, 40) for session in range(20))
    assert together.value == apart.value == 0.1
    assert together.high - together.low > 3 * (apart.high - apart.low)
    assert together.high == pytest.approx(stats.binomtest(2, 20).proportion_ci(0.95, method="exact").high, rel=0.05)


def test_clusters_that_share_data_count_as_few() -> None:
    silent = clustered_rate(((run, 0, 40) for run in range(20)), most_trials=2.0)
    assert (silent.hits, silent.trials) == (0, 800)
    assert silent.high == pytest.approx(stats.binomtest(0, 2).proportion_ci(0.95, method="exact").high)
    half = clustered_rate(((run, 20, 40) for run in range(20)), most_trials=2.0)
    assert half.low == pytest.approx(stats.binomtest(1, 2).proportion_ci(0.95, method="exact").low)
    assert clustered_rate([(run, run % 2, 1) for run in range(9)], 99.0) == clustered_rate(
        (run, run % 2, 1) for run in range(9)
    )


def test_nothing_tried_says_nothing() -> None:
    rate = clustered_rate([])
    assert (rate.trials, rate.value, rate.low, rate.high) == (0, 0.0, 0.0, 1.0)
