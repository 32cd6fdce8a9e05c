"""Findings of a selfcheck, for display and for selfcheck.json, and the promises that it checks."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfguard.model.records import Hardware, Toolchain
from perfguard.model.units import format_percent
from perfguard.selfcheck.rates import Rate, exact_interval

SCHEMA = 3
SLOWDOWNS = (0.01, 0.02, 0.03, 0.05, 0.10)
PROMISE = 0.03  # promise of device times on a GPU
SCREENED = (0.0, 0.02, 0.03)  # slowdowns that the screen is tested with
MOST_FALSE_ALARMS = 0.01  # of suites
MOST_UNDECIDED = 0.05  # of times, on a GPU
LEAST_POWER = 0.95  # at the promise
LEAST_POWER_2 = 0.90  # at 2 %, for a promise of 3 %


class TimerNoise(Struct, frozen=True):
    """One metric with one timer class. Shares are of cases.

    `cv_median`: coefficient of variation of the session value between processes, median over cases.
    `able_2`, `able_3`: share of cases quiet enough that all process pairs together find 2 and 3 %.
    `smallest`: the smallest slowdown that they find, median over cases.
    """

    metric: str
    timer: str
    cases: int
    cv_median: float
    cv_within_03: float  # share of cases with a CV of 0.3 % at most
    cv_within_05: float
    able_2: float
    able_3: float
    smallest: float


class Runs(Struct, frozen=True):
    """Runs of process pairs without any change. Rates count times; those named `suites` count runs."""

    most_pairs: int  # of one run
    slower: Rate  # false
    slower_suites: Rate
    faster_suites: Rate
    undecided: Rate
    pairs_per_case: float  # mean


class Power(Struct, frozen=True):
    """Rate at which a slowdown of this size is found, over all timed cases."""

    slowdown: float
    found: Rate


class Acquittal(Struct, frozen=True):
    """Rate at which the screen passes a changed case with this slowdown, and the reasons if not."""

    slowdown: float
    acquitted: Rate
    refusals: dict[str, int]  # reason -> times, the most frequent first


class Injected(Struct, frozen=True):
    """A real kernel made slower: its time, the target slowdown, the true one with its standard error."""

    length_us: float
    aimed: float
    true_slowdown: float
    standard_error: float
    smallest: float  # smallest slowdown that all process pairs find at its noise
    found: Rate
    pairs: float  # mean


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
    stored: int  # sessions in a record
    cases: int
    timed_cases: int
    left_out: list[str]
    seconds_per_case: float  # of a session, mean
    timers: list[TimerNoise]
    # The sessions beside each other.
    exact: Rate  # sessions with an exact metric that differs from the previous session's
    apart: Runs  # none uses a session twice
    alarms: list[str]  # false ones
    # Suites resampled from whole sessions.
    resampled_cases: int
    resampled: Runs
    power: list[Power]
    promised: Rate  # found cases among those slower by the promise of their time
    screen: list[Acquittal]
    injected: list[Injected] = []
    injection_note: str = ""  # reason if `injected` is empty

    def promises(self) -> Iterator[Promise]:
        """perfguard's promises with the observed rates."""
        few = f"at most {format_percent(MOST_FALSE_ALARMS, 0)} of"
        yield _at_most(f"false alarms: {few} sessions, exact metrics", self.exact, MOST_FALSE_ALARMS)
        yield _at_most(f"false alarms: {few} suites, sessions", self.apart.slower_suites, MOST_FALSE_ALARMS)
        yield _at_most(f"false alarms: {few} suites, resampled", self.resampled.slower_suites, MOST_FALSE_ALARMS)
        if self.hardware.vendor != "cpu":
            text = f"undecided: at most {format_percent(MOST_UNDECIDED, 0)} of times"
            yield _at_most(text, self.resampled.undecided, MOST_UNDECIDED)
            two = next((power.found for power in self.power if power.slowdown == 0.02), None)
            yield _at_least(0.02, "injected samples", two, LEAST_POWER_2)
        yield _at_least(None, "injected samples", self.promised, LEAST_POWER)
        if self.injection_note:
            yield Promise(_power_text(PROMISE, "real kernel", LEAST_POWER), None, self.injection_note)
            return
        real = [one.found for one in self.injected if one.aimed == PROMISE]
        yield _at_least(PROMISE, "real kernel", _together(real), LEAST_POWER)


def _together(rates: list[Rate]) -> Rate | None:
    """All rates merged into one; several decisions of one run count as one trial."""
    if not rates:
        return None
    hits, trials, runs = sum(rate.hits for rate in rates), sum(rate.trials for rate in rates), rates[0].clusters
    return Rate(hits, trials, runs, *exact_interval(runs * hits / trials, runs))


def _at_most(text: str, rate: Rate, most: float) -> Promise:
    """A promise of at most `most`; broken only if the interval excludes it."""
    if not rate.trials:
        return Promise(text, None, "nothing could be judged")
    return Promise(text, rate.low <= most, describe_rate(rate))


def _power_text(slowdown: float | None, what: str, least: float) -> str:
    size = "what is promised" if slowdown is None else format_percent(slowdown, 0)
    return f"power: at least {format_percent(least, 0)} at {size}, {what}"


def _at_least(slowdown: float | None, what: str, rate: Rate | None, least: float) -> Promise:
    """A promise of at least `least`; broken only if the interval excludes it, and undecided after too few trials."""
    text = _power_text(slowdown, what, least)
    if rate is None or not rate.trials:
        return Promise(text, None, "no such slowdown was tried")
    kept = True if rate.value >= least else False if rate.high < least else None
    return Promise(text, kept, describe_rate(rate))


def describe_rate(rate: Rate) -> str:
    """`3 of 8000 (0.04 %, 95 % interval 0.01 % to 0.20 %)`."""
    if not rate.trials:
        return "none"
    low, value, high = (format_percent(share, 2) for share in (rate.low, rate.value, rate.high))
    return f"{rate.hits} of {rate.trials} ({value}, 95 % interval {low} to {high})"
