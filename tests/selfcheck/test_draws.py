"""No session plays two parts in a pair, nor in a run of sessions apart."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from perfguard.judge.pair_test import MOST_PAIRS
from perfguard.selfcheck.draws import independent_runs, least_sessions, random_tenth, resampled_pairs, runs_apart

CASES = [("suite", f"case[{number:03d}]/forward") for number in range(250)]


@given(st.integers(9, 60), st.integers(0, 99))
def test_every_session_is_once_the_first_working_tree_and_none_plays_two_parts(sessions: int, seed: int) -> None:
    runs = runs_apart(sessions, random.Random(seed))
    assert [pairs[0].work for pairs in runs] == list(range(sessions))
    for pairs in runs:
        assert len(pairs) == min(sessions // 3, MOST_PAIRS)
        used = [number for triple in pairs for number in triple]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(sessions))


def test_a_resampled_run_has_all_pairs_and_a_pair_three_sessions() -> None:
    pairs = resampled_pairs(9, random.Random(1))
    assert len(pairs) == MOST_PAIRS
    assert all(len(set(triple)) == 3 for triple in pairs)
    assert {number for triple in pairs for number in triple} == set(range(9))


def test_a_tenth_is_a_tenth_and_never_nothing() -> None:
    assert len(set(random_tenth(CASES, random.Random(1)))) == 25
    assert len(random_tenth(CASES[:3], random.Random(1))) == 1
    assert random_tenth([], random.Random(1)) == []


def test_three_pairs_are_nine_sessions() -> None:
    assert (least_sessions(5), least_sessions(12)) == (9, 13)
    assert independent_runs(27) == 3.0
