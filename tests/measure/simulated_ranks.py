"""Several simulated devices, one a thread, whose clocks have nothing in common, and what their ranks exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from perfguard.measure.metrics.rank_times import TimedRanks
from perfguard.measure.timers.timing import Cache
from perfguard.testing.fake import FakeDevice

MEETING_US = 2.0  # of two devices that come at once
SPREAD_US = 0.5  # between the ranks that leave a meeting of devices
IDLE_US = 30_000.0  # after which the links between them are slow
SLOW_MEETINGS, SLOW_US = 4, 104.0  # so many meetings, by so much
_APART_US = 1e6  # between the clocks of two ranks


@dataclass
class Simulated:
    """One rank."""

    rank: int
    device: FakeDevice
    others: Others
    left_us: float = 0.0  # the last meeting
    slow: int = 0  # meetings from now on

    def exchange(self, purpose: str, data: object) -> list[Any]:
        return self.others.exchange(self.rank, purpose, data)

    @property
    def _clock_us(self) -> float:
        return self.rank * _APART_US

    def _latest(self, us: float) -> float:
        """The latest of all ranks' moments, on this rank's clock."""
        return max(self.exchange("a meeting", us - self._clock_us)) + self._clock_us

    def ranks(self, cache: Cache = "warm") -> TimedRanks:
        return TimedRanks(self.device, self.exchange, self._host_barrier, self.device_barrier, cache)

    def _host_barrier(self) -> None:
        self.device.host_us = self._latest(self.device.host_us)

    def device_barrier(self) -> None:
        arrived = self._latest(self.device.enqueue(MEETING_US, noisy=False))
        if arrived - self.left_us > IDLE_US:
            self.slow = SLOW_MEETINGS
        if self.slow:
            self.slow -= 1
            arrived += SLOW_US
        self.left_us = arrived
        self.device.busy_until_us = arrived + self.rank * SPREAD_US


@dataclass
class Others:
    """What ranks tell each other."""

    count: int
    parts: list[tuple[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = [("", None)] * self.count
        self._all_there = threading.Barrier(self.count)

    def exchange(self, rank: int, purpose: str, data: object) -> list[Any]:
        self.parts[rank] = purpose, data
        self._all_there.wait(10)
        found = list(self.parts)
        self._all_there.wait(10)
        assert {name for name, _ in found} == {purpose}
        return [each for _, each in found]


def on_ranks(count: int, body: Callable[[Simulated], Any]) -> list[Any]:
    """What `body` returns on each rank, all at once."""
    others = Others(count)

    def run(rank: int) -> Any:
        device = FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1)
        device.host_us = device.busy_until_us = rank * _APART_US
        return body(Simulated(rank, device, others))

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))
