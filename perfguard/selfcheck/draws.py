"""Draws sessions as the processes of a run's pairs, and cases as the changed ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from perfguard.judge.pair_test import LEAST_PAIRS, MOST_PAIRS
from perfguard.selfcheck.sample import CaseId

SUITE_CASES = 200  # suite size of the promises
SIDES = 3  # processes of a pair


class Triple(NamedTuple):
    """The numbers of three different sessions that serve as the processes of one pair."""

    base: int
    copy: int
    work: int


def least_sessions(stored: int) -> int:
    """Least number of sessions for a judgement: three pairs without repetition, and a record plus one session."""
    return max(SIDES * LEAST_PAIRS, stored + 1)


def independent_runs(sessions: int) -> float:
    """Most independent runs that `sessions` count for: SLOWER takes three pairs, which are nine sessions.

    The mean over all draws of nine of N sessions varies no more than the mean over N/9 runs without shared sessions
    (Hoeffding, "A class of statistics with asymptotically normal distribution", 1948), and hardly less.
    """
    return sessions / (SIDES * LEAST_PAIRS)


def runs_apart(sessions: int, chance: random.Random) -> list[tuple[Triple, ...]]:
    """For each session, a run that has it as its first working tree and uses no session twice."""
    runs = []
    for work in range(sessions):
        others = [number for number in range(sessions) if number != work]
        chance.shuffle(others)
        order = [*others[:2], work, *others[2:]]
        pairs = [Triple(*order[start : start + SIDES]) for start in range(0, sessions - SIDES + 1, SIDES)]
        runs.append(tuple(pairs[:MOST_PAIRS]))
    return runs


def resampled_pairs(sessions: int, chance: random.Random) -> tuple[Triple, ...]:
    """As many pairs as a run can have. A session may repeat in other pairs, never within one."""
    return tuple(Triple(*chance.sample(range(sessions), SIDES)) for _ in range(MOST_PAIRS))


def random_tenth(cases: Sequence[CaseId], chance: random.Random) -> list[CaseId]:
    """A tenth of the cases, at least one."""
    return sorted(chance.sample(list(cases), max(1, len(cases) // 10))) if cases else []
