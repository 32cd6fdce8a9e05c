"""A known answer for every formula of docs/judging.md."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from perfguard.judge.statistics import (
    LEAST_SIGMA,
    UNLEARNT,
    History,
    Noise,
    Prior,
    _inverse_trigamma,
    fit_prior,
    holm_threshold,
    least_effect,
    minimum_detectable,
    moderate,
    remember,
)


def test_centre_is_the_median_and_variance_has_one_degree_less() -> None:
    history = remember([math.exp(0.0), math.exp(0.2), math.exp(0.1)])
    assert history.centre == pytest.approx(0.1)
    assert history.variance == pytest.approx(0.01)
    assert (history.sessions, history.degrees) == (3, 2)


def test_one_session_has_a_centre_and_no_variance() -> None:
    assert remember([math.e]) == History(centre=1.0, variance=0.0, sessions=1)


@pytest.mark.parametrize("wild", [4.4, 100 * 20.0], ids=["too fast", "too slow"])
def test_one_wild_session_is_left_out(wild: float) -> None:
    quiet = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8]
    assert remember([*quiet, wild]) == remember(quiet)


def test_two_modes_of_a_machine_are_noise_not_a_wild_session() -> None:
    history = remember([22.5, 22.5, 22.55, 22.5, 22.45, 25.5])
    assert history.sessions == 6
    assert history.variance > 0.05**2


def test_two_wild_sessions_stay_noise() -> None:
    assert remember([100.0, 100.1, 99.9, 100.0, 10.0, 10.0]).variance > 0.5


def test_noise_that_is_large_throughout_has_no_wild_session() -> None:
    assert remember([100.0, 140.0, 75.0, 120.0, 90.0, 160.0]).sessions == 6


def test_moderated_variance() -> None:
    noise = moderate(History(0.0, 4e-4, 3), Prior(degrees=4.0, sigma=0.01))
    assert noise.sigma == pytest.approx(math.sqrt((4 * 1e-4 + 2 * 4e-4) / 6))
    assert (noise.degrees, noise.sessions) == (6.0, 3)


def test_sigma_has_a_floor() -> None:
    assert moderate(History(0.0, 0.0, 8), Prior(8.0, 1e-4)).sigma == LEAST_SIGMA


def test_an_unlearnt_prior_never_lowers_a_cases_own_noise() -> None:
    assert moderate(History(0.0, 0.05**2, 5), UNLEARNT).sigma == pytest.approx(0.05)
    assert moderate(History(0.0, 0.0, 5), UNLEARNT).sigma == pytest.approx(0.005 * math.sqrt(2 / 6))


def test_standard_error_counts_the_medians_penalty() -> None:
    noise = Noise(sigma=0.01, degrees=15, sessions=8)
    assert noise.standard_error(3) == pytest.approx(0.01 * math.sqrt(1 / 3 + 1.57 / 8))


def test_more_processes_do_not_tell_a_place_from_a_slowdown() -> None:
    noise = Noise(sigma=0.002, degrees=15, sessions=8, apart=0.006)
    assert noise.standard_error(10_000) == pytest.approx(math.hypot(0.006, 0.002 * math.sqrt(1.57 / 8)), rel=1e-3)
    assert noise.joined([0.02, 0.021, 0.019]).beside(0.001).apart == 0.006
    here, there = (minimum_detectable(each, 0.01, 200, 3) for each in (replace(noise, apart=0.0), noise))
    assert there > here + 3 * 0.006


def test_common_shifts_leave_a_history() -> None:
    shifts = [0.01, -0.02, 0.0, 0.03, 0.0]
    moved = [100.0 * math.exp(shift) for shift in shifts]
    assert remember(moved, shifts).centre == pytest.approx(math.log(100.0))
    assert remember(moved, shifts).variance == pytest.approx(0.0, abs=1e-20)
    assert remember(moved).variance > 1e-4


def test_fresh_scatter_joins_the_noise() -> None:
    noise = Noise(sigma=0.004, degrees=10.0, sessions=8)
    joined = noise.joined([0.02, 0.03, 0.04])  # squares about the mean: 2e-4 on two degrees
    assert joined.degrees == 12.0
    assert joined.sigma**2 == pytest.approx((10 * 0.004**2 + 2e-4) / 12)
    assert Noise(0.0015, 10.0, 8).joined([0.03, 0.03, 0.03]).sigma == 0.0015  # agreement by luck proves no quiet


def test_the_error_of_a_common_shift_adds_to_the_noise() -> None:
    noise = Noise(sigma=0.003, degrees=10.0, sessions=8).beside(0.001)
    assert noise.standard_error(1) ** 2 == pytest.approx(0.003**2 * (1 + 1.57 / 8) + 0.001**2)


def test_p_value_and_quantile_are_students_t() -> None:
    noise = Noise(sigma=0.01, degrees=10.0, sessions=8)
    assert noise.quantile(0.005) == pytest.approx(3.169, abs=5e-4)  # printed tables
    effect = 3.169 * noise.standard_error(1)
    assert noise.p_value(effect, 1) == pytest.approx(0.005, rel=1e-3)
    tail = noise.p_value(10 * noise.standard_error(3), 3)
    assert tail == pytest.approx(float(stats.t.sf(10, 10)), rel=1e-6)


def _histories(logs: list[float], sessions: int) -> list[History]:
    return [History(0.0, math.exp(log), sessions) for log in logs]


def test_prior_by_hand() -> None:
    # d = 4: ψ'(2) = 0.644934. Six ln s² at c ± a vary by 6a²/5; twice ψ'(2) leaves ψ'(d0/2) = ψ'(2), so d0 = 4,
    # and then ψ(d0/2) - ln(d0/2) cancels the same term of e: s0² = exp(c).
    c, a = math.log(0.004**2), math.sqrt(2 * 0.6449340668 * 5 / 6)
    prior = fit_prior(_histories([c - a, c + a] * 3, sessions=5))
    assert prior.degrees == pytest.approx(4.0, rel=1e-6)
    assert prior.sigma == pytest.approx(0.004, rel=1e-6)
    assert prior.learnt


def test_prior_of_cases_alike_takes_the_most_degrees() -> None:
    # d = 2: ψ(1) = -0.577216 and ln 1 = 0, so s0² = s²·exp(0.577216).
    prior = fit_prior(_histories([math.log(1e-5)] * 6, sessions=3))
    assert prior.degrees == 8.0
    assert prior.sigma**2 == pytest.approx(1e-5 * math.exp(0.5772157), rel=1e-6)


def test_prior_of_cases_unlike_is_clipped_upwards() -> None:
    # d = 4 and d0 clipped to 2: ln s0² = c - ψ(2) + ln 2 + ψ(1).
    c = math.log(0.01**2)
    prior = fit_prior(_histories([c - 4, c + 4] * 4, sessions=5))
    assert prior.degrees == 2.0
    assert math.log(prior.sigma**2) == pytest.approx(c - 0.4227843 + math.log(2) - 0.5772157, abs=1e-6)


def test_four_cases_teach_nothing() -> None:
    assert fit_prior(_histories([-11.0] * 4, sessions=8)) == UNLEARNT
    assert fit_prior(_histories([-11.0] * 9, sessions=2)) == UNLEARNT


@pytest.mark.parametrize("degrees", [3.0, 6.0])
@pytest.mark.parametrize("sessions", [5, 8])
def test_prior_is_recovered_from_drawn_variances(degrees: float, sessions: int) -> None:
    draw = np.random.default_rng(7)
    true = degrees * 0.003**2 / draw.chisquare(degrees, 2000)
    seen = true * draw.chisquare(sessions - 1, 2000) / (sessions - 1)
    prior = fit_prior([History(0.0, float(variance), sessions) for variance in seen])
    assert prior.degrees == pytest.approx(degrees, rel=0.25)
    assert prior.sigma == pytest.approx(0.003, rel=0.05)


@given(st.floats(0.02, 5e3))
def test_inverse_trigamma(x: float) -> None:
    from scipy import special

    assert _inverse_trigamma(float(special.polygamma(1, x))) == pytest.approx(x, rel=1e-6)


def test_least_effect() -> None:
    assert least_effect(promise=0.02, floor=0.0, centre_us=50.0) == 0.01
    assert least_effect(promise=0.06, floor=0.0, centre_us=50.0) == pytest.approx(0.02)
    assert least_effect(promise=0.03, floor=2.0, centre_us=20.0) == pytest.approx(0.1)


def test_holm_steps_down() -> None:
    assert [holm_threshold(4, rejected) for rejected in range(4)] == pytest.approx([0.0025, 0.01 / 3, 0.005, 0.01])
    assert holm_threshold(0) == 0.01


@pytest.mark.parametrize(
    ("sigma_percent", "percent"),
    [(0.15, 1.3), (0.2, 1.4), (0.3, 1.6), (0.35, 1.7), (0.4, 2.0), (0.5, 2.5), (0.75, 3.7), (1.0, 4.9)],
)
def test_minimum_detectable_effect_as_documented(sigma_percent: float, percent: float) -> None:
    # K = 8, m = 200, d0 = 8, θ = 1 %; the confirming stage has two degrees of freedom more than the screen
    noise = Noise(sigma=sigma_percent / 100, degrees=8 + 7, sessions=8)
    assert 100 * minimum_detectable(noise, 0.01, family=200, confirmations=3) == pytest.approx(percent, abs=0.05)


def test_scipy_is_loaded_only_when_a_time_is_judged() -> None:
    code = "import sys, perfguard.judge; sys.exit('scipy' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
