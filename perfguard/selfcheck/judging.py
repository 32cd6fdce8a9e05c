"""Builds runs of process pairs from sessions and judges them like any run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perfguard.judge.lane import timer_class
from perfguard.judge.pair_test import MOST_PAIRS, PairVerdict, judge_pairs, judge_tracks
from perfguard.judge.run_verdicts import track_of
from perfguard.judge.statistics import fit_prior, least_effect, spread_of
from perfguard.model.records import CaseResult, PairedTime, PairReading, Reading
from perfguard.selfcheck.draws import Triple
from perfguard.selfcheck.sample import CaseId, Sample, primary, value_of

Name = TypeVar("Name", bound=Hashable)

_PAIR_VARIANCE = 1.5  # of ln W - (ln B + ln B')/2, in variances of one process


@dataclass(frozen=True)
class Timed:
    """The first gated time of one case in all sessions, µs, for the base and for the working tree.

    `result` gives its name, timer and promise.
    """

    result: CaseResult
    base: Sequence[float]
    work: Sequence[float]

    @property
    def reading(self) -> Reading:
        """The reading of the first session."""
        reading = primary(self.result)
        assert reading is not None
        return reading

    @property
    def theta(self) -> float:
        """θ, the smallest effect that may fail; the gate promises to find three times as much."""
        centre = sorted(self.base)[len(self.base) // 2]
        return least_effect(self.reading.promise, self.reading.floor, centre)

    def slower(self, slowdown: float) -> Timed:
        """The same time with a working tree slower by `slowdown` (0.02: 2 %) in every session."""
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
    """The verdict on every time, pair after pair; each pair reads only the times that are still undecided.

    The word is None if there are too few `pairs`.
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

    It is taken from the judge's verdict on artificial pairs with the noise of the sessions and an effect beyond PASS.
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
    """Slowdowns of the most pairs of a run, with mean 2θ and the variance that follows from the sessions' variance."""
    variance = _PAIR_VARIANCE * spread_of([math.log(value) for value in time.base]).variance
    off = math.sqrt(variance * (MOST_PAIRS - 1) / MOST_PAIRS)
    return [2 * time.theta + (off if number % 2 else -off) for number in range(MOST_PAIRS)]
