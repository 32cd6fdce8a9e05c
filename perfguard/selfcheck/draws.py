"""Which sessions play which part in a run of process pairs, and which a record stores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from perfguard.judge.pairs import LEAST_PAIRS, MOST_PAIRS
from perfguard.selfcheck.sample import CaseId

SUITE_CASES = 200  # the size of suite that the promises are about
SIDES = 3  # processes of a pair


class Triple(NamedTuple):
    """The sessions, by number, that are the three processes of one pair; no two are the same."""

    base: int
    copy: int
    work: int


def least_sessions(stored: int) -> int:
    """Sessions without which nothing can be judged: those of three pairs, none twice; a record and one more."""
    return max(SIDES * LEAST_PAIRS, stored + 1)


def independent_runs(sessions: int) -> float:
    """As how many runs of their own `sessions` count at most: an accusation takes three pairs, which are nine.

    The mean over all ways to draw nine of N sessions varies no more than that over N/9 runs that share none
    (Hoeffding, "A class of statistics with asymptotically normal distribution", 1948), and hardly less.
    """
    return sessions / (SIDES * LEAST_PAIRS)


def runs_apart(sessions: int, chance: random.Random) -> list[tuple[Triple, ...]]:
    """For each session a run whose first working tree it is, and in which no session plays two parts."""
    runs = []
    for work in range(sessions):
        others = [number for number in range(sessions) if number != work]
        chance.shuffle(others)
        order = [*others[:2], work, *others[2:]]
        pairs = [Triple(*order[start : start + SIDES]) for start in range(0, sessions - SIDES + 1, SIDES)]
        runs.append(tuple(pairs[:MOST_PAIRS]))
    return runs


def resampled_pairs(sessions: int, chance: random.Random) -> tuple[Triple, ...]:
    """As many pairs as a run can have. A session may come again in another one, never in the same."""
    return tuple(Triple(*chance.sample(range(sessions), SIDES)) for _ in range(MOST_PAIRS))


def random_tenth(cases: Sequence[CaseId], chance: random.Random) -> list[CaseId]:
    """A tenth of the cases, at least one."""
    return sorted(chance.sample(list(cases), max(1, len(cases) // 10))) if cases else []
