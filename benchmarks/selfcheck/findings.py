"""Findings of a selfcheck, for display and for selfcheck.json: rates with their intervals, and the promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec import Struct

from perfguard.model.records import Hardware, Toolchain
from perfguard.model.units import format_percent

SCHEMA = 5
SLOWDOWNS = (0.01, 0.02, 0.03, 0.05, 0.10)
MOST_FALSE_ALARMS = 0.01  # of suites
MOST_UNDECIDED = 0.05  # of times, on a GPU
LEAST_POWER = 0.95  # at the promise
LEAST_POWER_2 = 0.90  # at 2 %, for a promise of 3 %
_ERROR = 0.05  # for 95 % intervals


class Rate(Struct, frozen=True):
    """`hits` of `trials` in `clusters` sessions or suites, with the 95 % interval [low, high] of the true rate."""

    hits: int
    trials: int
    clusters: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share of hits; 0 without trials."""
        return self.hits / self.trials if self.trials else 0.0

    def __str__(self) -> str:
        """`3 of 8000 (0.04 %, 95 % interval 0.01 % to 0.20 %)`."""
        if not self.trials:
            return "none"
        low, value, high = (format_percent(share, 2) for share in (self.low, self.value, self.high))
        return f"{self.hits} of {self.trials} ({value}, 95 % interval {low} to {high})"


def clustered_rate(outcomes: Iterable[tuple[int, bool]]) -> Rate:
    """The rate over (cluster, hit). Outcomes of one cluster stand and fall together.

    The interval is Clopper and Pearson's, from quantiles of the beta distribution, on the effective number of trials
    n / deff. deff is the variance of the rate between clusters over that of independent trials, at least 1 (Korn and
    Graubard, "Confidence intervals for proportions with small expected number of positive counts", Survey Methodology
    24, 1998). If all trials hit or none does, deff is unknown, and each cluster counts as one trial.
    """
    from scipy.stats import beta

    clusters: dict[int, list[bool]] = defaultdict(list)
    for cluster, hit in outcomes:
        clusters[cluster].append(hit)
    hits, trials = sum(map(sum, clusters.values())), sum(map(len, clusters.values()))
    if trials == 0:
        return Rate(0, 0, 0, 0.0, 1.0)
    rate, effective = hits / trials, float(len(clusters))
    if 0 < hits < trials and len(clusters) > 1:
        between = sum((sum(found) - rate * len(found)) ** 2 for found in clusters.values()) / trials**2
        deff = between * len(clusters) / (len(clusters) - 1) / (rate * (1 - rate) / trials)
        effective = trials / max(deff, 1.0)
    low = 0.0 if hits == 0 else float(beta.ppf(_ERROR / 2, rate * effective, (1 - rate) * effective + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - _ERROR / 2, rate * effective + 1, (1 - rate) * effective))
    return Rate(hits, trials, len(clusters), low, high)


class Suites(Struct, frozen=True):
    """Suites of process pairs in which nothing changed."""

    cases: int  # of a suite
    slower: Rate  # suites with any SLOWER, which is false
    faster: Rate  # the same for FASTER
    undecided: Rate  # of times
    pairs_per_case: float  # mean


class Power(Struct, frozen=True):
    """Rate at which a slowdown of this size is found."""

    slowdown: float
    found: Rate


class TimerPower(Struct, frozen=True):
    """The cases of one metric with one timer class. `variation`: coefficient of variation of the session value between
    processes, median over the cases."""

    metric: str
    timer: str
    cases: int
    variation: float
    power: list[Power]


class Promise(Struct, frozen=True):
    """One promise. `kept` is None if undecided; `seen` gives the reason, or the observed rate."""

    text: str
    kept: bool | None
    seen: str


class Findings(Struct, frozen=True):
    """Everything that a selfcheck found."""

    schema: int
    perfguard: str
    date: str
    hardware: Hardware
    toolchain: Toolchain
    commit: str | None
    sessions: int
    first_session: str
    last_session: str
    cases: int
    timed_cases: int
    left_out: list[str]
    seconds_per_case: float  # of a session, mean
    exact: Rate  # sessions with an exact metric that differs from the previous session's
    suites: Suites
    alarms: list[str]  # false ones, of exact metrics and of suites
    timers: list[TimerPower]
    power: list[Power]  # over all timed cases
    promised: Rate  # found cases among those slower by the promise of their time

    def promises(self) -> Iterator[Promise]:
        """perfguard's promises with the observed rates."""
        few = f"at most {format_percent(MOST_FALSE_ALARMS, 0)} of"
        yield _at_most(f"false alarms: {few} sessions, exact metrics", self.exact, MOST_FALSE_ALARMS)
        yield _at_most(f"false alarms: {few} suites", self.suites.slower, MOST_FALSE_ALARMS)
        if self.hardware.vendor != "cpu":
            text = f"undecided: at most {format_percent(MOST_UNDECIDED, 0)} of times"
            yield _at_most(text, self.suites.undecided, MOST_UNDECIDED)
            two = next(power.found for power in self.power if power.slowdown == 0.02)
            yield _at_least(two, LEAST_POWER_2, "2 %, injected slowdowns")
        yield _at_least(self.promised, LEAST_POWER, "what is promised, injected slowdowns")


def _at_most(text: str, rate: Rate, most: float) -> Promise:
    """A promise of at most `most`; broken only if the interval excludes it."""
    return Promise(text, rate.low <= most, str(rate))


def _at_least(rate: Rate, least: float, what: str) -> Promise:
    """A promise of at least `least`; broken only if the interval excludes it, and undecided after too few trials."""
    text = f"power: at least {format_percent(least, 0)} at {what}"
    if not rate.trials:
        return Promise(text, None, "no such slowdown was tried")
    kept = True if rate.value >= least else False if rate.high < least else None
    return Promise(text, kept, str(rate))
