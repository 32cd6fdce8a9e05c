"""A known answer for every formula of docs/judging.md."""

from __future__ import annotations

import math

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
    history_of,
    least_effect,
    moderate,
)


def test_centre_is_the_median_and_variance_has_one_degree_less() -> None:
    history = history_of([math.exp(0.0), math.exp(0.2), math.exp(0.1)])
    assert history.centre == pytest.approx(0.1)
    assert history.variance == pytest.approx(0.01)
    assert (history.sessions, history.degrees) == (3, 2)
    assert history_of([math.e]) == History(centre=1.0, variance=0.0, sessions=1)


@pytest.mark.parametrize(
    ("sessions", "counted"),
    [
        ([100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 4.4], 6),  # too fast
        ([100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 2000.0], 6),
        ([22.5, 22.5, 22.55, 22.5, 22.45, 25.5], 6),  # two modes of a machine
        ([100.0, 140.0, 75.0, 120.0, 90.0, 160.0], 6),  # noise that is large throughout
        ([100.0, 100.1, 99.9, 4.4], 4),  # too few to tell
    ],
)
def test_one_wild_session_is_left_out(sessions: list[float], counted: int) -> None:
    history = history_of(sessions)
    assert history.sessions == counted
    if counted < len(sessions):
        assert history == history_of(sessions[:-1])


def test_two_wild_sessions_stay_noise() -> None:
    assert history_of([100.0, 100.1, 99.9, 100.0, 10.0, 10.0]).variance > 0.5


def test_moderated_variance() -> None:
    noise = moderate(History(0.0, 4e-4, 3), Prior(degrees=4.0, sigma=0.01))
    assert noise.sigma == pytest.approx(math.sqrt((4 * 1e-4 + 2 * 4e-4) / 6))
    assert (noise.degrees, noise.sessions) == (6.0, 3)


def test_sigma_has_a_floor() -> None:
    assert moderate(History(0.0, 0.0, 8), Prior(8.0, 1e-4)).sigma == LEAST_SIGMA


def test_an_unlearnt_prior_never_lowers_a_cases_own_noise() -> None:
    assert moderate(History(0.0, 0.05**2, 5), UNLEARNT).sigma == pytest.approx(0.05)
    assert moderate(History(0.0, 0.0, 5), UNLEARNT).sigma == pytest.approx(0.005 * math.sqrt(1 / 5))


def test_standard_errors() -> None:
    noise = Noise(sigma=0.01, degrees=15, sessions=8)
    assert noise.against_record == pytest.approx(0.01 * math.sqrt(1 + 1.57 / 8))  # the centre of a record is a median
    assert noise.of_mean == pytest.approx(0.01 / math.sqrt(8))


def test_quantiles_are_students_t() -> None:
    assert Noise(sigma=0.01, degrees=10.0, sessions=8).quantile(0.005) == pytest.approx(3.169, abs=5e-4)  # in tables
    assert Noise(sigma=0.01, degrees=3.5, sessions=8).quantile(1e-6) == pytest.approx(float(stats.t.isf(1e-6, 3.5)))


def _histories(logs: list[float], sessions: int) -> list[History]:
    return [History(0.0, math.exp(log), sessions) for log in logs]


def test_prior_by_hand() -> None:
    # d = 4: ψ'(2) = 0.644934. Sixteen ln s² at c ± a: their squares add up to 16a², and over χ²(0.05; 15) = 7.26094,
    # twice ψ'(2) leaves ψ'(d0/2) = ψ'(2), so d0 = 4; then ψ(d0/2) - ln(d0/2) cancels the same term of e: s0² = exp(c).
    c, a = math.log(0.004**2), math.sqrt(2 * 0.6449340668 * 7.26094 / 16)
    prior = fit_prior(_histories([c - a, c + a] * 8, sessions=5))
    assert prior.degrees == pytest.approx(4.0, rel=1e-4)
    assert prior.sigma == pytest.approx(0.004, rel=1e-4)
    assert prior.learnt


def test_prior_of_cases_alike_takes_the_most_degrees() -> None:
    # d = 2: ψ(1) = -0.577216 and ln 1 = 0, so s0² = s²·exp(0.577216).
    prior = fit_prior(_histories([math.log(1e-5)] * 15, sessions=3))
    assert prior.degrees == 8.0
    assert prior.sigma**2 == pytest.approx(1e-5 * math.exp(0.5772157), rel=1e-6)


def test_prior_of_cases_unlike_is_clipped_upwards() -> None:
    # d = 4 and d0 clipped to 1: ln s0² = c - ψ(2) + ln 2 + ψ(1/2) - ln(1/2).
    c = math.log(0.01**2)
    prior = fit_prior(_histories([c - 4, c + 4] * 8, sessions=5))
    assert prior.degrees == 1.0
    assert math.log(prior.sigma**2) == pytest.approx(c - 0.4227843 + 2 * math.log(2) - 1.9635100, abs=1e-6)


def test_few_cases_teach_nothing() -> None:
    assert fit_prior(_histories([-11.0] * 14, sessions=8)) == UNLEARNT
    assert fit_prior(_histories([-11.0] * 19, sessions=1)) == UNLEARNT


def test_few_cases_that_look_alike_by_chance_are_believed_less_than_many() -> None:
    spread = [-11.0, -12.0, -13.0, -10.0] * 4
    assert fit_prior(_histories(spread, sessions=8)).degrees < fit_prior(_histories(spread * 20, sessions=8)).degrees


@pytest.mark.parametrize("degrees", [3.0, 6.0])
@pytest.mark.parametrize("sessions", [5, 8])
def test_prior_is_recovered_from_drawn_variances(degrees: float, sessions: int) -> None:
    draw = np.random.default_rng(7)
    true = degrees * 0.003**2 / draw.chisquare(degrees, 20_000)
    seen = true * draw.chisquare(sessions - 1, 20_000) / (sessions - 1)
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
