"""The clock of the simulated GPU's processors. It changes whenever the host waits, and kernel times follow it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from perfguard.measure.devices.device import ClockMark

_TOLD_AT_MHZ = 1000.0  # the clock at which kernels state their cost


@dataclass
class FakeClock:
    """A clock that is redrawn at every wait.

    Attributes:
        elasticity: e of t = us·(1000 / clock)^e.
        mhz: mean clock.
        noise: relative standard deviation around the mean.
    """

    elasticity: float
    mhz: float = _TOLD_AT_MHZ
    noise: float = 0.0
    now_mhz: float = field(init=False)

    def __post_init__(self) -> None:
        self.now_mhz = self.mhz

    def move(self, source: random.Random) -> None:
        """Redraw the clock, as a wait does."""
        self.now_mhz = self.mhz * max(0.1, source.gauss(1.0, self.noise))

    def taken(self, us: float) -> float:
        """Duration, at the present clock, of a kernel that takes `us` at 1000 MHz."""
        return us * float((_TOLD_AT_MHZ / self.now_mhz) ** self.elasticity)


@dataclass(frozen=True)
class FakeClockMark:
    """A reading of the clock."""

    mhz: float

    def mhz_until(self, end: ClockMark) -> float:
        """Mean clock from this mark to `end`, MHz."""
        assert isinstance(end, FakeClockMark)
        return (self.mhz + end.mhz) / 2
