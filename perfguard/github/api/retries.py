"""Retry counts and waits: our own loop, because the one of requests does not fit.

requests and urllib3 do not retry POST and PATCH, honour `Retry-After` on some answers only, accept waits of hours,
and ignore GitHub's reset times.
"""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from perfguard.github.api.troubles import Outage, Passing, RateLimited
from perfguard.model.errors import GitHubError

BUDGET_SECONDS = 300.0  # for all requests of one post job
_OUTAGE_WAITS = (1.0, 2.0, 4.0)
_LIMIT_WAITS = (60.0, 120.0)  # GitHub's rule without a given time: at least a minute, then longer


@dataclass(frozen=True)
class Clock:
    """The client's clock, in seconds. Tests pass a fake one and do not wait.

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


class Budget:
    """The time that one post job has for GitHub, waits included."""

    def __init__(self, clock: Clock, seconds: float = BUDGET_SECONDS) -> None:
        self.clock = clock
        self.seconds = seconds
        self._end = clock.elapsed() + seconds

    @property
    def left(self) -> float:
        """Seconds left; negative if overspent."""
        return self._end - self.clock.elapsed()


class Patience:
    """The waits for one purpose: one request, or one decision that is made anew each time."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._outages = list(_OUTAGE_WAITS)
        self._limits = list(_LIMIT_WAITS)
        self._tries = 0

    def wait(self, trouble: Passing) -> None:
        """Wait until another try makes sense.

        Raises:
            GitHubError: no try makes sense within the budget; the message gives the time of the next one.
        """
        self._tries += 1
        seconds = self._seconds(trouble)
        if seconds is None:
            raise GitHubError(
                f"{trouble} (tried {self._tries} times)" if self._tries > 1 else str(trouble)
            ) from trouble
        if seconds > self._budget.left:
            raise GitHubError(self._too_long(trouble, seconds))
        self._budget.clock.sleep(seconds)

    def _seconds(self, trouble: Passing) -> float | None:
        clock = self._budget.clock
        if isinstance(trouble, Outage):
            return self._outages.pop(0) + clock.jitter() if self._outages else None
        assert isinstance(trouble, RateLimited)
        if not self._limits:
            return None
        fallback = self._limits.pop(0)
        if trouble.until is not None:
            # The reset time has passed and the limit still holds: the clocks differ by an unknown amount.
            return trouble.until - clock.now() + 1 if trouble.until > clock.now() else None
        return fallback if trouble.seconds is None else trouble.seconds

    def _too_long(self, trouble: Passing, seconds: float) -> str:
        at = self._budget.clock.now() + seconds
        try:
            when = datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(" ", "minutes").replace("+00:00", " UTC")
        except (OverflowError, ValueError, OSError):
            when = "another day"
        left = max(self._budget.left, 0)
        return f"{trouble}; it asks for {seconds:.0f} s, and {left:.0f} s are left: run the job again after {when}"
