"""Judges suites of process pairs that are drawn from sessions, with the functions that judge a real run."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.selfcheck.findings import SLOWDOWNS, Power, Rate, Suites, TimerPower, clustered_rate
from benchmarks.selfcheck.sessions import Progress, Sample
from perfguard.judge.exact import judge_exact
from perfguard.judge.lane import timer_class
from perfguard.judge.pair_test import LEAST_PAIRS, MOST_PAIRS, PairVerdict, judge_paired
from perfguard.judge.run_verdicts import paired_readings_of
from perfguard.judge.statistics import least_effect
from perfguard.model.records import CaseId, CaseResult, PairedTime, PairReading, Reading, Word

SEED = 20261121  # fixed, so that judging a sample again gives the same numbers
SUITE_CASES = 200  # of a suite, at most: the size for which false alarms are promised
LEAST_SESSIONS = 3 * LEAST_PAIRS  # three processes a pair

Name = TypeVar("Name", bound=Hashable)
Triple = tuple[int, int, int]  # sessions that serve as the processes of a pair: base, second checkout, working tree


@dataclass(frozen=True)
class Timed:
    """The first gated time of one case in all sessions, µs, for the base and for the working tree. `result` gives its
    name, timer and promise."""

    result: CaseResult
    base: Sequence[float]
    work: Sequence[float]

    @property
    def reading(self) -> Reading:
        """The reading of the first session."""
        return next(reading for reading in self.result.readings if is_judged(reading))

    @property
    def kind(self) -> tuple[str, str]:
        """Metric and timer class."""
        return self.reading.metric, timer_class(self.reading.timer or "")

    @property
    def promised(self) -> float | None:
        """The smallest of SLOWDOWNS that the gate promises to find: three times the smallest effect that may fail."""
        theta = least_effect(self.reading.promise, self.reading.floor, statistics.median(self.base))
        return next((slowdown for slowdown in SLOWDOWNS if slowdown >= 3 * theta - 1e-9), None)

    def slower(self, slowdown: float) -> Timed:
        """The same time with a working tree slower by `slowdown` (0.02: 2 %) in every session."""
        return Timed(self.result, self.base, [value * (1 + slowdown) for value in self.base])


def is_judged(reading: Reading) -> bool:
    """Whether it is a time that a run judges."""
    return reading.timed and reading.gated


def timed_cases(sample: Sample) -> dict[CaseId, Timed]:
    """Every case that has a gated time, unchanged."""
    found = {}
    for case, result in sample.sessions[0].items():
        metric = next((reading.metric for reading in result.readings if is_judged(reading)), None)
        if metric is not None:
            read = [session[case].reading(metric) for session in sample.sessions]
            values = [reading.value for reading in read if reading and isinstance(reading.value, int | float)]
            found[case] = Timed(result, values, values)
    return found


def draw_pairs(sessions: int, chance: random.Random) -> list[Triple]:
    """As many pairs as a run can have. A session may repeat in other pairs, never within one."""
    return [
        (first, second, third)
        for first, second, third in (chance.sample(range(sessions), 3) for _ in range(MOST_PAIRS))
    ]


def judge_run(times: Mapping[Name, Timed], pairs: Sequence[Triple], family: int) -> dict[Name, PairVerdict]:
    """The verdict on every time. The judge replays the pairs in order: a decided time takes no further one."""
    tracks = {}
    for name, time in times.items():
        read = [
            PairReading(
                number,
                change=math.log(time.work[work] / time.base[base]),
                control=math.log(time.base[copy] / time.base[base]),
                base_us=time.base[base],
                work_us=time.work[work],
            )
            for number, (base, copy, work) in enumerate(pairs, 1)
        ]
        track = paired_readings_of(time.result, PairedTime(time.reading.metric, time.reading.timer or "", read))
        assert track is not None
        tracks[name] = track
    return judge_paired(tracks, family)


def judge_exact_metrics(sample: Sample) -> tuple[Rate, list[str]]:
    """Rate of sessions with an exact metric that differs from the previous session's (the first: from the last's), and
    these metrics in words. All sessions are of one commit, so each would be a false CHANGED in one direction."""
    outcomes, alarms = [], []
    for number, session in enumerate(sample.sessions):
        before = sample.sessions[number - 1]
        moved = [
            f"session {number + 1}: {' '.join(case)}: {verdict.reason}"
            for case, result in session.items()
            for reading in result.readings
            if not reading.timed and (stored := before[case].reading(reading.metric)) is not None
            if (verdict := judge_exact(reading, stored.value)).word is not Word.PASS
        ]
        outcomes.append((number, bool(moved)))
        alarms += moved
    return clustered_rate(outcomes), alarms


@dataclass(frozen=True)
class _Trial:
    """One time that was made slower in one suite."""

    suite: int
    time: Timed
    slowdown: float
    is_found: bool


@dataclass(frozen=True)
class Judged:
    """The result of judging suites that are drawn from sessions; `accused`: unchanged case -> suites with SLOWER."""

    suites: Suites
    accused: Counter[CaseId]
    timers: list[TimerPower]
    power: list[Power]
    promised: Rate


def judge_suites(sample: Sample, suites: int, progress: Progress) -> Judged:
    """Judge `suites` suites twice: unchanged, and with every case slower by one of the slowdowns. Slower other cases do
    not affect the test of a case: it uses only their noise, which a factor does not change."""
    times, chance = timed_cases(sample), random.Random(SEED)
    size = min(len(times), SUITE_CASES)
    runs: list[dict[CaseId, PairVerdict]] = []
    trials: list[_Trial] = []
    for number in range(1, suites + 1):
        pairs, cases = draw_pairs(len(sample.sessions), chance), chance.sample(list(times), size)
        runs.append(judge_run({case: times[case] for case in cases}, pairs, size))
        slowdowns = {case: chance.choice(SLOWDOWNS) for case in cases}
        slowed = judge_run({case: times[case].slower(by) for case, by in slowdowns.items()}, pairs, size)
        trials += [_Trial(number, times[c], by, slowed[c].word is Word.SLOWER) for c, by in slowdowns.items()]
        if number % 50 == 0:
            progress(f"{number} of {suites} suites judged")
    kinds: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    for time in times.values():
        kinds[time.kind].append(time)
    return Judged(
        suites=_unchanged(runs, size),
        accused=Counter(case for run in runs for case, verdict in run.items() if verdict.word is Word.SLOWER),
        timers=[
            TimerPower(*kind, len(each), _variation(each), _power(t for t in trials if t.time.kind == kind))
            for kind, each in kinds.items()
        ],
        power=_power(trials),
        promised=_found(trial for trial in trials if trial.slowdown == trial.time.promised),
    )


def _unchanged(runs: Sequence[Mapping[CaseId, PairVerdict]], size: int) -> Suites:
    words = [Counter(verdict.word for verdict in run.values()) for run in runs]
    undecided = (
        (run, verdict.word in (Word.UNRESOLVED, None)) for run, found in enumerate(runs) for verdict in found.values()
    )
    return Suites(
        cases=size,
        slower=clustered_rate((run, said[Word.SLOWER] > 0) for run, said in enumerate(words)),
        faster=clustered_rate((run, said[Word.FASTER] > 0) for run, said in enumerate(words)),
        undecided=clustered_rate(undecided),
        pairs_per_case=statistics.fmean(verdict.pairs for run in runs for verdict in run.values()),
    )


def _power(trials: Iterable[_Trial]) -> list[Power]:
    tried = list(trials)
    return [Power(slowdown, _found(trial for trial in tried if trial.slowdown == slowdown)) for slowdown in SLOWDOWNS]


def _found(trials: Iterable[_Trial]) -> Rate:
    return clustered_rate((trial.suite, trial.is_found) for trial in trials)


def _variation(times: Sequence[Timed]) -> float:
    """Coefficient of variation between processes, median over the cases."""
    return statistics.median(statistics.stdev(time.base) / statistics.fmean(time.base) for time in times)
