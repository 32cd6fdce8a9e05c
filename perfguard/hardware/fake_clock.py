"""The clock of the simulated GPU's processors: moves whenever the host waits, and takes the kernels' times along."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from perfguard.hardware.device import ClockMark

_TOLD_AT_MHZ = 1000.0  # kernels say what they cost at this clock


@dataclass
class FakeClock:
    """A clock that is drawn anew at every wait.

    Attributes:
        elasticity: e of t = us·(1000 / clock)^e.
        mhz: about what the clock is.
        noise: relative standard deviation around it.
    """

    elasticity: float
    mhz: float = _TOLD_AT_MHZ
    noise: float = 0.0
    now_mhz: float = field(init=False)

    def __post_init__(self) -> None:
        self.now_mhz = self.mhz

    def move(self, source: random.Random) -> None:
        """What a wait does."""
        self.now_mhz = self.mhz * max(0.1, source.gauss(1.0, self.noise))

    def taken(self, us: float) -> float:
        """How long a kernel takes now that takes `us` at the clock of which kernels tell."""
        return us * float((_TOLD_AT_MHZ / self.now_mhz) ** self.elasticity)


@dataclass(frozen=True)
class FakeClockMark:
    """A reading of the clock."""

    mhz: float

    def mhz_until(self, end: ClockMark) -> float:
        """Mean clock from this mark to `end`, MHz."""
        assert isinstance(end, FakeClockMark)
        return (self.mhz + end.mhz) / 2
