"""No session plays two parts, and every session is judged."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from perfguard.selfcheck.draws import SUITE_CASES, disjoint_draws, least_sessions, random_tenth, resampled_draws

CASES = [("suite", f"case[{number:03d}]/forward") for number in range(250)]


@given(st.integers(5, 8), st.integers(1, 4), st.integers(0, 12), st.integers(0, 99))
def test_parts_are_disjoint(stored: int, fresh: int, more: int, seed: int) -> None:
    sessions = least_sessions(stored, fresh) + more
    sets: Counter[int] = Counter()
    used: set[tuple[int, int]] = set()
    for draw in disjoint_draws(sessions, stored, fresh, CASES[:3], random.Random(seed)):
        parts = [*draw.stored, draw.judged, *draw.fresh]
        assert len(set(parts)) == len(parts) == least_sessions(stored, fresh)
        others = {(draw.judged, number) for number in (*draw.stored, *draw.fresh)}
        assert not used & others  # sets of one judged session share nothing
        used |= others
        sets[draw.judged] += 1
    assert sets == Counter(dict.fromkeys(range(sessions), (sessions - 1) // (stored + fresh)))


def test_resampled_suites_have_200_cases_at_most_and_whole_sessions() -> None:
    draws = list(resampled_draws(30, 20, 8, 3, CASES, random.Random(1)))
    assert len(draws) == 30
    for draw in draws:
        assert len(set(draw.cases)) == SUITE_CASES
        assert len({*draw.stored, draw.judged, *draw.fresh}) == 12
    assert len({draw.judged for draw in draws}) > 10
    assert next(resampled_draws(1, 20, 8, 3, CASES[:7], random.Random(1))).cases == tuple(CASES[:7])


def test_a_tenth_is_a_tenth_and_never_nothing() -> None:
    assert len(set(random_tenth(CASES, random.Random(1)))) == 25
    assert len(random_tenth(CASES[:3], random.Random(1))) == 1
    assert random_tenth([], random.Random(1)) == ()
