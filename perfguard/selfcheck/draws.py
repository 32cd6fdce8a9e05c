"""Which sessions play which part: those a baseline stores, the one that is judged, those that confirm."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfguard.selfcheck.sample import CaseId

SUITE_CASES = 200  # the size of suite that the promises are about


@dataclass(frozen=True)
class Draw:
    """Session numbers, none twice; and the cases of the suite."""

    stored: tuple[int, ...]
    judged: int
    fresh: tuple[int, ...]
    cases: tuple[CaseId, ...]


def least_sessions(stored: int, fresh: int) -> int:
    """Sessions without which nothing can be judged: those stored, the judged one, those that confirm."""
    return stored + 1 + fresh


def disjoint_draws(
    sessions: int, stored: int, fresh: int, cases: Sequence[CaseId], chance: random.Random
) -> Iterator[Draw]:
    """Every session judged against as many disjoint sets of the others as there are, each with its confirmers."""
    for judged in range(sessions):
        others = [number for number in range(sessions) if number != judged]
        chance.shuffle(others)
        for start in range(0, len(others) - stored - fresh + 1, stored + fresh):
            drawn = others[start : start + stored + fresh]
            yield Draw(tuple(drawn[:stored]), judged, tuple(drawn[stored:]), tuple(cases))


def resampled_draws(
    count: int, sessions: int, stored: int, fresh: int, cases: Sequence[CaseId], chance: random.Random
) -> Iterator[Draw]:
    """`count` suites of at most 200 cases, built from whole sessions, each session in one part only."""
    for _ in range(count):
        drawn = chance.sample(range(sessions), least_sessions(stored, fresh))
        chosen = cases if len(cases) <= SUITE_CASES else sorted(chance.sample(list(cases), SUITE_CASES))
        yield Draw(tuple(drawn[:stored]), drawn[stored], tuple(drawn[stored + 1 :]), tuple(chosen))


def random_tenth(cases: Sequence[CaseId], chance: random.Random) -> tuple[CaseId, ...]:
    """A tenth of the cases, at least one."""
    return tuple(sorted(chance.sample(list(cases), max(1, len(cases) // 10)))) if cases else ()
