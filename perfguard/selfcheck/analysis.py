"""Evaluates the judge on a sample: false alarms, power, noise of the timers."""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfguard.judge.exact import judge_exact
from perfguard.judge.lane import timer_class
from perfguard.judge.pair_test import MOST_PAIRS, PairVerdict
from perfguard.model.records import Word
from perfguard.selfcheck.draws import SUITE_CASES, independent_runs, random_tenth, resampled_pairs, runs_apart
from perfguard.selfcheck.findings import SCREENED, SLOWDOWNS, Acquittal, Power, Runs, TimerNoise
from perfguard.selfcheck.judging import Timed, judge_run, smallest_found, timed_cases
from perfguard.selfcheck.rates import Rate, clustered_rate
from perfguard.selfcheck.sample import CaseId, Sample
from perfguard.selfcheck.screening import screen

Progress = Callable[[str], None]
_SEED = 20261121  # fixed, so that judging a sample again gives the same numbers
_MOST_NAMED = 20


# -- comparing the sessions --------------------------------------------------------------------------------------------


def judge_exact_metrics(sample: Sample) -> tuple[Rate, list[str]]:
    """Rate of sessions with an exact metric that differs from the previous session's (the first: from the last's), and
    these metrics in words.

    All sessions are of one commit, so every difference would be a false CHANGED in one direction.
    """
    outcomes, alarms = [], []
    for number, session in enumerate(sample.sessions):
        before = sample.sessions[number - 1]
        moved = [
            f"session {number + 1}: {case[0]} {case[1]}: {verdict.reason}"
            for case in sample.cases
            for reading in session[case].readings
            if not reading.timed and (stored := before[case].reading(reading.metric)) is not None
            if (verdict := judge_exact(reading, stored.value)).word is not Word.PASS
        ]
        outcomes.append((number, int(bool(moved)), 1))
        alarms += moved
    return clustered_rate(outcomes), alarms


def judge_apart(sample: Sample) -> tuple[Runs, list[str]]:
    """Runs that use no session twice, and their false alarms in words."""
    times = timed_cases(sample)
    pairs = runs_apart(len(sample.sessions), random.Random(_SEED))
    runs = [judge_run(times, each, len(times)) for each in pairs]
    alarms = [
        f"run {number}: {case[0]} {case[1]} SLOWER {times[case].reading.metric}: {verdict}"
        for number, verdicts in enumerate(runs, 1)
        for case, verdict in verdicts.items()
        if verdict.word is Word.SLOWER
    ]
    return _of_runs(runs, len(pairs[0]), independent_runs(len(sample.sessions))), alarms


def _of_runs(runs: Sequence[Mapping[CaseId, PairVerdict]], most_pairs: int, most_trials: float) -> Runs:
    words = [Counter(verdict.word for verdict in verdicts.values()) for verdicts in runs]

    def of_times(*wanted: Word | None) -> Rate:
        found = ((run, sum(said[word] for word in wanted), said.total()) for run, said in enumerate(words))
        return clustered_rate(found, most_trials)

    def of_suites(word: Word) -> Rate:
        return clustered_rate(((run, int(said[word] > 0), 1) for run, said in enumerate(words)), most_trials)

    return Runs(
        most_pairs=most_pairs,
        slower=of_times(Word.SLOWER),
        slower_suites=of_suites(Word.SLOWER),
        faster_suites=of_suites(Word.FASTER),
        undecided=of_times(Word.UNRESOLVED, None),
        pairs_per_case=statistics.fmean(verdict.pairs for verdicts in runs for verdict in verdicts.values()),
    )


def shorten(alarms: Sequence[str]) -> list[str]:
    """The first alarms and the number of the others."""
    more = len(alarms) - _MOST_NAMED
    return [*alarms[:_MOST_NAMED], f"and {more} more"] if more > 0 else list(alarms)


def timer_noise(sample: Sample) -> list[TimerNoise]:
    """Noise between the sessions for each metric and timer class."""
    times = timed_cases(sample)
    smallest = smallest_found(times, len(times))
    kinds: dict[tuple[str, str], list[CaseId]] = defaultdict(list)
    for case, time in times.items():
        kinds[time.reading.metric, timer_class(time.reading.timer or "")].append(case)
    return [_noise(*kind, [times[c] for c in cases], [smallest[c] for c in cases]) for kind, cases in kinds.items()]


def _noise(metric: str, timer: str, times: Sequence[Timed], smallest: Sequence[float]) -> TimerNoise:
    spreads = [statistics.stdev(time.base) / statistics.fmean(time.base) for time in times]
    return TimerNoise(
        metric=metric,
        timer=timer,
        cases=len(times),
        cv_median=statistics.median(spreads),
        cv_within_03=_share(spread <= 0.003 for spread in spreads),
        cv_within_05=_share(spread <= 0.005 for spread in spreads),
        able_2=_share(each <= 0.02 for each in smallest),
        able_3=_share(each <= 0.03 for each in smallest),
        smallest=statistics.median(smallest),
    )


def _share(outcomes: Iterable[bool]) -> float:
    return statistics.fmean(outcomes)


def seconds_per_case(sample: Sample) -> float:
    """Mean time of a session per case, s."""
    seconds = [result.seconds for session in sample.sessions for result in session.values()]
    return statistics.fmean(seconds) if seconds else 0.0


# -- suites resampled from whole sessions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resampled:
    """Results of suites resampled from whole sessions."""

    cases: int  # of a suite
    runs: Runs
    power: list[Power]
    promised: Rate
    screen: list[Acquittal]


def judge_resampled(sample: Sample, record: int, suites: int, progress: Progress) -> Resampled:
    """Judge `suites` resampled suites.

    Each suite is judged twice: unchanged, and with every case slower by one of the slowdowns. Slower other cases do not
    affect the test of a case: it uses only their noise, which a factor does not change.

    Args:
        record: number of sessions in a record.
    """
    times, chance, sessions = timed_cases(sample), random.Random(_SEED), sample.sessions
    runs = []
    found: dict[float, list[tuple[int, int, int]]] = {slowdown: [] for slowdown in SLOWDOWNS}
    promised: list[tuple[int, int, int]] = []
    refused: dict[float, list[tuple[int, str]]] = {slowdown: [] for slowdown in SCREENED}
    size = min(len(times), SUITE_CASES)
    for number in range(1, suites + 1):
        pairs, cases = resampled_pairs(len(sessions), chance), chance.sample(list(times), size)
        slowdowns = {case: chance.choice(SLOWDOWNS) for case in cases}
        unchanged = judge_run({case: times[case] for case in cases}, pairs, size)
        slowed = judge_run({case: times[case].slower(slowdowns[case]) for case in cases}, pairs, size)
        runs.append(unchanged)
        for case, slowdown in slowdowns.items():
            outcome = (number, int(slowed[case].word is Word.SLOWER), 1)
            found[slowdown].append(outcome)
            if slowdown == _promised(times[case]):
                promised.append(outcome)
        judged, *stored = chance.sample(sessions, record + 1)
        suite = {case: judged[case] for case in cases}
        for (_, slowdown), reason in screen(
            stored, suite, random_tenth(cases, chance), SCREENED, sample.hardware
        ).items():
            refused[slowdown].append((number, reason))
        if number % 50 == 0:
            progress(f"{number} of {suites} resampled suites judged")
    return Resampled(
        cases=size,
        runs=_of_runs(runs, MOST_PAIRS, suites),
        power=[Power(slowdown, clustered_rate(outcomes)) for slowdown, outcomes in found.items()],
        promised=clustered_rate(promised),
        screen=[_acquittal(slowdown, told) for slowdown, told in refused.items()],
    )


def _promised(time: Timed) -> float | None:
    """The smallest of SLOWDOWNS that the gate promises to find in this case."""
    return next((slowdown for slowdown in SLOWDOWNS if slowdown >= 3 * time.theta - 1e-9), None)


def _acquittal(slowdown: float, told: Sequence[tuple[int, str]]) -> Acquittal:
    rate = clustered_rate((number, int(not reason), 1) for number, reason in told)
    return Acquittal(slowdown, rate, dict(Counter(reason for _, reason in told if reason).most_common()))
