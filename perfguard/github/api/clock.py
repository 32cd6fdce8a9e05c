"""The client's clock. Tests pass a fake one and do not wait."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Times in seconds.

    Attributes:
        now: since the epoch, comparable with the reset times that GitHub sends.
        elapsed: monotonic, from an arbitrary start.
        sleep: waits.
        jitter: a new random number from 0 to 1 each time, so that two jobs do not stay in step.
    """

    now: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
