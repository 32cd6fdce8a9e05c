"""The readings of one process pair, and the use of its time."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from perfguard.model.records import PairReading, ReadingId
from perfguard.session.pairing.processes import Side


@dataclass
class PairOutcome:
    """The results of one process pair.

    Attributes:
        readings: results of the wanted metrics that could be measured.
        timers: the timer of every metric that a side announced.
        unread: wanted metrics with too many unreadable blocks.
        uncollected: node id of a test file -> reason why a side could not collect it.
        tests: node ids of the tests that each side collected.
        problem: reason for an early end, otherwise empty.
        lost: the side whose process died, and the node id of the test in which it died; None if unknown.
        seconds: the pair's seconds by activity: `starting` (imports, collection, the device), `tests` (between two
            times), `measuring`, `ending`.
    """

    readings: dict[ReadingId, PairReading] = field(default_factory=dict)
    timers: dict[ReadingId, dict[Side, str]] = field(default_factory=dict)
    unread: set[ReadingId] = field(default_factory=set)
    uncollected: dict[Side, dict[str, str]] = field(default_factory=dict)
    tests: dict[Side, set[str]] = field(default_factory=dict)
    problem: str = ""
    lost: tuple[Side, str] | None = None
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextlib.contextmanager
    def spending(self, on: str) -> Iterator[None]:
        """Count the seconds inside as spent on this activity."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[on] += time.monotonic() - started
