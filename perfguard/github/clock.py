"""Time, as the client sees it: tests hand in another one and wait for nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Times in seconds.

    Attributes:
        now: since the epoch, to be compared with what GitHub names as the time of a reset.
        elapsed: since any moment; never goes back.
        sleep: waits.
        jitter: between 0 and 1, another one each time, so that two jobs do not stay in step.
    """

    now: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
