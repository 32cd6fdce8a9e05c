"""What one set of live processes found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from perfguard.session.pairing.processes import Side


class Track(NamedTuple):
    """One timed metric of one case."""

    suite: str
    key: str
    metric: str


@dataclass(frozen=True)
class Difference:
    """The result of one process pair for one timed metric.

    Attributes:
        change: ln(working tree / merge base), the mean over the rounds.
        control: ln(second merge base / merge base), measured alike: only noise and bias.
        base_us, work_us: median block, µs per call.
        base_mhz, work_mhz: median clock of the device's processors in these blocks; None if unknown.
    """

    change: float
    control: float
    base_us: float
    work_us: float
    base_mhz: float | None = None
    work_mhz: float | None = None


@dataclass
class Outcome:
    """The results of one set of live processes.

    Attributes:
        differences: results of the wanted metrics that could be measured.
        timers: the timer of every metric that a side announced.
        unread: wanted metrics with too many unreadable blocks.
        uncollected: node id of a test file -> reason why a side could not collect it.
        tests: node ids of the tests that each side collected.
        problem: reason for an early end, otherwise empty.
        lost: the side whose process died, and the node id of the test in which it died; None if unknown.
    """

    differences: dict[Track, Difference] = field(default_factory=dict)
    timers: dict[Track, dict[Side, str]] = field(default_factory=dict)
    unread: set[Track] = field(default_factory=set)
    uncollected: dict[Side, dict[str, str]] = field(default_factory=dict)
    tests: dict[Side, set[str]] = field(default_factory=dict)
    problem: str = ""
    lost: tuple[Side, str] | None = None
