"""Runs of process pairs, built from sessions and judged by the judge that judges every run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfguard.judge import PairVerdict, judge_pairs, judge_tracks, timer_class
from perfguard.judge.pairs import MOST_PAIRS
from perfguard.judge.session import track_of
from perfguard.judge.statistics import fit_prior, least_effect, spread_of
from perfguard.records import CaseResult, PairedTime, PairReading, Reading
from perfguard.selfcheck.draws import Triple
from perfguard.selfcheck.sample import CaseId, Sample, primary, value_of

Name = TypeVar("Name", bound=Hashable)

_PAIR_VARIANCE = 1.5  # of ln W - (ln B + ln B')/2, in variances of one process


@dataclass(frozen=True)
class Timed:
    """The first gated time of one case in all sessions, µs: as the base has it, and as the working tree does.

    `result` says what it is called, how it was timed and what is promised of it.
    """

    result: CaseResult
    base: Sequence[float]
    work: Sequence[float]

    @property
    def reading(self) -> Reading:
        """The time as one session read it."""
        reading = primary(self.result)
        assert reading is not None
        return reading

    @property
    def theta(self) -> float:
        """The smallest effect that may fail; three of them are what the gate promises to find."""
        centre = sorted(self.base)[len(self.base) // 2]
        return least_effect(self.reading.promise, self.reading.floor, centre)

    def slower(self, slowdown: float) -> Timed:
        """The same with a working tree that is slower by `slowdown` (0.02: 2 %) in every session."""
        return Timed(self.result, self.base, [value * (1 + slowdown) for value in self.base])


def timed_cases(sample: Sample) -> dict[CaseId, Timed]:
    """Every case that has a gated time, unchanged."""
    found = {}
    for case in sample.cases:
        if primary(sample.sessions[0][case]) is not None:
            values = [value_of(primary(session[case])) for session in sample.sessions]
            found[case] = Timed(sample.sessions[0][case], values, values)
    return found


def judge_run(times: Mapping[Name, Timed], pairs: Sequence[Triple], family: int) -> dict[Name, PairVerdict]:
    """What is said of every time: pair after pair, each of those that are undecided by then alone.

    The word is None where `pairs` are too few to decide.
    """
    read: dict[Name, list[PairReading]] = {name: [] for name in times}
    verdicts: dict[Name, PairVerdict] = {}
    for number, triple in enumerate(pairs, 1):
        undecided = [name for name in times if name not in verdicts or verdicts[name].word is None]
        if not undecided:
            break
        for name in undecided:
            read[name].append(_read(times[name], number, triple))
        tracks = {}
        for name, time in times.items():
            reading = time.reading
            track = track_of(time.result, PairedTime(reading.metric, reading.timer or "", read[name]))
            assert track is not None
            tracks[name] = track
        verdicts = judge_tracks(tracks, family)
    return verdicts


def _read(time: Timed, number: int, triple: Triple) -> PairReading:
    base, copy, work = time.base[triple.base], time.base[triple.copy], time.work[triple.work]
    return PairReading(number, math.log(work / base), math.log(copy / base), base, work)


def smallest_found(times: Mapping[Name, Timed], family: int) -> dict[Name, float]:
    """The smallest slowdown of each time that all process pairs together find with 95 % probability (relative).

    The judge says it of pairs that have the noise of the sessions and lie beyond what can be acquitted.
    """
    pairs = {name: _even_pairs(time) for name, time in times.items()}
    classes: dict[str, list[Sequence[float]]] = defaultdict(list)
    for name, time in times.items():
        classes[timer_class(time.reading.timer or "")].append(pairs[name])
    priors = {kind: fit_prior([spread_of(each) for each in found]) for kind, found in classes.items()}
    found = {}
    for name, time in times.items():
        prior = priors[timer_class(time.reading.timer or "")]
        verdict = judge_pairs(pairs[name], theta=time.theta, family=family, prior=prior)
        assert verdict.smallest is not None
        found[name] = verdict.smallest
    return found


def _even_pairs(time: Timed) -> list[float]:
    """Slowdowns of as many pairs as there can be, whose mean is 2θ and whose variance is what the sessions' makes."""
    variance = _PAIR_VARIANCE * spread_of([math.log(value) for value in time.base]).variance
    off = math.sqrt(variance * (MOST_PAIRS - 1) / MOST_PAIRS)
    return [2 * time.theta + (off if number % 2 else -off) for number in range(MOST_PAIRS)]
