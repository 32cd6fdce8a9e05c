"""Controls: unchanged cases that are timed all the same, to show whether conditions are those of the record."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Sequence

from perfguard.judge.lane import Lane, timer_class
from perfguard.model.records import Case, CaseResult

CONTROLS = 20  # for each timer class; the simulation in docs/judging.md assumes this number
AUDIT = 0.05  # share of the other unchanged cases that is timed

_Id = tuple[str, str]  # suite, case key


class Controls:
    """Draws controls as the cases run, before it is known which of them are unchanged.

    Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S): of the n cases of a class that may still come, each is
    drawn with probability (controls wanted) / n. A changed case leaves its chance to the others, so every draw is
    equally likely in any order of the tests.
    """

    def __init__(self, lane: Lane, selected: Sequence[Case], seed: str) -> None:
        """Args:
        selected: forward cases of the selected tests. Empty if they are unknown; then every case in the lane's records
            may come.
        seed: makes the draw repeatable.
        """
        self._random = random.Random(seed)
        self._lane = lane
        names = {(case.suite, case.name) for case in selected}
        self._expected: dict[str, set[_Id]] = defaultdict(set)
        for (suite, key, _), entry in lane.timed.items():
            if not names or any((suite, test) in names for test in _tests_of(key)):
                self._expected[timer_class(entry.timer)].add((suite, key))
        self._wanted = dict.fromkeys(self._expected, CONTROLS)

    def draw(self, result: CaseResult, unchanged: Collection[str]) -> bool:
        """Whether the case is timed although its times named in `unchanged` need no reading.

        Call once for each case, also for cases with nothing unchanged.
        """
        suite, key = result.case.suite, result.case.key
        known = [self._lane.timed.get((suite, key, metric)) for metric in unchanged]
        drawn = [self._draw(name) for name in sorted({timer_class(each.timer) for each in known if each is not None})]
        for expected in self._expected.values():
            expected.discard((suite, key))
        return any(drawn) or (bool(unchanged) and self._random.random() < AUDIT)

    def _draw(self, name: str) -> bool:
        wanted, expected = self._wanted.get(name, 0), len(self._expected[name])
        drawn = self._random.random() * max(1, expected) < wanted
        self._wanted[name] = wanted - drawn
        return drawn


def _tests_of(key: str) -> list[str]:
    """The tests that a stored case may belong to: `name:label/forward` -> `name:label` and `name`."""
    name = key.rpartition("/")[0]
    return [name, *(name[:at] for at, letter in enumerate(name) if letter == ":")]
