"""What stored sessions have in common: learnt from cases recorded side by side, removed only where it pays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.judge.common import Recording, _medians_of_others, learn_recording


def sessions(machine: float, own: float, cases: int = 40, stored: int = 8, seed: int = 1) -> list[list[float]]:
    """Cases with noise `own` of their own under a machine that varies by `machine`."""
    random = np.random.default_rng(seed)
    shifts = machine * random.standard_normal(stored)
    logs = shifts + own * random.standard_normal((cases, stored))
    drawn: list[list[float]] = (70.0 * np.exp(logs)).tolist()
    return drawn


def test_shifts_are_those_that_were_drawn() -> None:
    random = np.random.default_rng(4)
    shifts = 0.01 * random.standard_normal(8)
    logs = shifts + 0.001 * random.standard_normal((60, 8)) + np.arange(60)[:, None]
    learnt = learn_recording(np.exp(logs).tolist())
    assert np.array(learnt.shifts) - np.median(learnt.shifts) == pytest.approx(shifts - np.median(shifts), abs=5e-4)
    assert learnt.deviation == pytest.approx(shifts.std(ddof=1), rel=0.05)
    assert learnt.removed
    assert learnt.prior.sigma == pytest.approx(0.001, rel=0.1)


@pytest.mark.parametrize(("machine", "removed"), [(0.0, False), (0.001, False), (0.005, True), (0.02, True)])
def test_what_moves_alone_is_not_corrected_by_others(machine: float, removed: bool) -> None:
    learnt = [learn_recording(sessions(machine, 0.003, seed=seed)).removed for seed in range(20)]
    assert learnt.count(removed) >= 19


def test_the_gain_is_that_of_prediction() -> None:
    # Without a common shift, the median of ten others only adds its own error.
    assert learn_recording(sessions(0.0, 0.003, cases=11, stored=20)).gain < 0


def test_the_loudest_case_does_not_decide() -> None:
    cases = sessions(0.005, 0.002)
    cases[0] = [70.0 * (1.3 if index % 2 else 0.7) for index in range(8)]
    assert learn_recording(cases).removed


def test_one_wild_session_is_not_what_is_usual() -> None:
    cases = sessions(0.005, 0.002)
    wild = [[*times[:-1], 1.4 * times[-1]] for times in cases]
    assert learn_recording(wild).deviation == pytest.approx(learn_recording(cases).deviation, rel=0.5)
    assert learn_recording(wild).history(wild[0]).sessions == 8  # without its shift the session is one like any other


@pytest.mark.parametrize(("cases", "stored"), [(9, 8), (40, 4)])
def test_few_cases_or_sessions_have_nothing_in_common(cases: int, stored: int) -> None:
    assert learn_recording(sessions(0.02, 0.001, cases, stored)) == Recording()


def test_a_history_lacks_what_was_common_only_where_that_pays() -> None:
    together, alone = learn_recording(sessions(0.01, 0.001)), learn_recording(sessions(0.0, 0.003))
    case = sessions(0.01, 0.001)[0]
    assert together.history(case).variance < 0.1 * Recording().history(case).variance
    assert alone.history(case) == Recording().history(case)


@given(st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=30))
def test_medians_of_others(values: list[float]) -> None:
    array = np.array(values)
    expected = [np.median(np.delete(array, index)) for index in range(len(values))]
    assert _medians_of_others(array) == pytest.approx(expected)
