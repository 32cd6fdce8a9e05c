"""What a selfcheck found, as it is shown and as selfcheck.json holds it, and the promises that it checks."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfguard.records import Hardware, Toolchain
from perfguard.selfcheck.rates import Rate, exact_interval
from perfguard.units import format_percent

SCHEMA = 1
SLOWDOWNS = (0.01, 0.02, 0.03, 0.05, 0.10)
ABLE = 0.03  # power is promised over the cases that can see a change of this size
MOST_FALSE_ALARMS = 0.01  # of suites
LEAST_POWER = {0.02: 0.9, 0.03: 0.95}


class TimerNoise(Struct, frozen=True):
    """One metric under one kind of timer. Shares are of cases (`cv_…`) or of judgements.

    `cv_median`: coefficient of variation of the session value between processes, median over cases.
    `unresolved_limit`: the smallest change that unresolved readings could have seen, median.
    """

    metric: str
    timer: str
    cases: int
    cv_median: float
    cv_within_03: float  # share of cases with a CV of 0.3 % at most
    cv_within_05: float
    able_2: float  # share of judgements that can see 2 %
    able_3: float
    unresolved: float
    unresolved_limit: float | None
    unresolved_reasons: dict[str, int]


class Power(Struct, frozen=True):
    """How often a slowdown of this size is found: over the cases that can see 3 %, and over all."""

    slowdown: float
    able: Rate
    all: Rate


class Detector(Struct, frozen=True):
    """Some rule on the same data: false alarms of unchanged cases and suites, power. `note`: what it lacks."""

    name: str
    decisions: Rate | None = None
    suites: Rate | None = None
    power: list[Power] = []
    note: str = ""


class Injected(Struct, frozen=True):
    """A real kernel made slower: its time, the slowdown aimed at, the true one with its standard error."""

    length_us: float
    aimed: float
    true_slowdown: float
    standard_error: float
    smallest: float | None  # the smallest change that the judge could have seen, median
    found: Rate


class Promise(Struct, frozen=True):
    """`kept` is None where it could not be shown; `seen` says why, or what was seen."""

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
    stored: int  # sessions in a baseline
    confirmations: int
    cases: int
    left_out: list[str]
    seconds_per_case: float
    timers: list[TimerNoise]
    # The sessions judged against each other.
    decisions: Rate
    suites: Rate
    alarms: list[str]  # what they were
    improvements: Rate  # suites with a false FASTER
    # Suites resampled from whole sessions.
    resampled_cases: int
    resampled: Detector
    rivals: list[Detector]
    injected: list[Injected] = []
    injection_note: str = ""  # why there are none

    def promises(self) -> Iterator[Promise]:
        """What perfguard promises, each with what was seen."""
        named = (("sessions", self.suites), ("resampled suites", self.resampled.suites))
        for name, rate in named:
            text = f"false alarms: at most {format_percent(MOST_FALSE_ALARMS, 0)} of suites, {name}"
            if rate is None or not rate.trials:
                yield Promise(text, None, "no suite could be judged")
            else:
                yield Promise(text, rate.low <= MOST_FALSE_ALARMS, describe_rate(rate))
        for slowdown, least in LEAST_POWER.items():
            text = f"power: at least {format_percent(least, 0)} at {format_percent(slowdown, 0)}, injected samples"
            power = next((power for power in self.resampled.power if power.slowdown == slowdown), None)
            yield _power_promise(text, power.able if power else None, least)
        least = LEAST_POWER[0.03]
        text = f"power: at least {format_percent(least, 0)} at {format_percent(0.03, 0)}, real kernel"
        if self.injection_note:
            yield Promise(text, None, self.injection_note)
            return
        able = [one for one in self.injected if one.aimed == 0.03 and one.smallest is not None and one.smallest <= ABLE]
        hits, trials = sum(one.found.hits for one in able), sum(one.found.trials for one in able)
        found = Rate(hits, trials, len(able), *exact_interval(hits, trials)) if trials else None
        yield _power_promise(text, found, least)


def _power_promise(text: str, rate: Rate | None, least: float) -> Promise:
    """Broken only where the interval excludes it: what too few trials leave open is not shown."""
    if rate is None or not rate.trials:
        return Promise(text, None, f"no case can see {format_percent(ABLE, 0)} here")
    kept = True if rate.value >= least else False if rate.high < least else None
    return Promise(text, kept, describe_rate(rate))


def describe_rate(rate: Rate) -> str:
    """`3 of 8000 (0.04 %, 95 % interval 0.01 % to 0.20 %)`."""
    if not rate.trials:
        return "none"
    low, value, high = (format_percent(share, 2) for share in (rate.low, rate.value, rate.high))
    return f"{rate.hits} of {rate.trials} ({value}, 95 % interval {low} to {high})"
