"""From a sample to what it says of the judge: false alarms, power, noise of the timers, rivals on the same data."""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from perfguard.judge import timer_class
from perfguard.records import CaseResult, Verdict, Word
from perfguard.selfcheck.draws import disjoint_draws, random_tenth, resampled_draws
from perfguard.selfcheck.findings import ABLE, SLOWDOWNS, Detector, Power, TimerNoise
from perfguard.selfcheck.judging import DrawnSuite, Verdicts, Version, slower
from perfguard.selfcheck.rates import Rate, clustered_rate
from perfguard.selfcheck.rivals import Pair, Rival, all_rivals
from perfguard.selfcheck.sample import CaseId, Sample, primary

Progress = Callable[[str], None]
_SEED = 20261121  # a sample judged twice gives the same numbers
_MOST_NAMED = 20


@dataclass
class Unchanged:
    """The sessions of one commit judged against each other: every alarm is false."""

    decisions: Rate
    suites: Rate
    improvements: Rate
    alarms: list[str]
    timers: list[TimerNoise]


def judge_unchanged(sample: Sample, stored: int, confirmations: int) -> Unchanged:
    """Each session against disjoint sets of the others; outcomes are clustered by the judged session."""
    decisions, suites, improvements, alarms = [], [], [], []
    words: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for draw in disjoint_draws(len(sample.sessions), stored, confirmations, sample.cases, random.Random(_SEED)):
        verdicts = DrawnSuite(sample, draw).judge()
        wrong = [(case, verdict) for case, verdict in _each(verdicts) if verdict.word.fails]
        better = sum(verdict.word is Word.FASTER for _, verdict in _each(verdicts))
        decisions.append((draw.judged, len(wrong), sum(map(len, verdicts.values()))))
        suites.append((draw.judged, int(bool(wrong)), 1))
        improvements.append((draw.judged, int(better > 0), 1))
        alarms += [
            f"session {draw.judged + 1}: {case[0]} {case[1]} {verdict.word} {verdict.metric}: {verdict.reason}"
            for case, verdict in wrong
        ]
        for case, verdict in _each(verdicts):
            words[_kind(sample.sessions[0][case], verdict.metric)].append(verdict)
    if len(alarms) > _MOST_NAMED:
        alarms = [*alarms[:_MOST_NAMED], f"and {len(alarms) - _MOST_NAMED} more"]
    return Unchanged(
        clustered_rate(decisions),
        clustered_rate(suites),
        clustered_rate(improvements),
        alarms,
        [_noise(sample, kind, verdicts) for kind, verdicts in sorted(words.items()) if kind[1]],
    )


def _each(verdicts: Verdicts) -> Iterable[tuple[CaseId, Verdict]]:
    return ((case, verdict) for case, found in verdicts.items() for verdict in found)


def _kind(result: CaseResult, metric: str) -> tuple[str, str]:
    """Metric and kind of timer; no timer for exact readings."""
    reading = result.reading(metric)
    return metric, timer_class(reading.timer) if reading is not None and reading.timer is not None else ""


def _noise(sample: Sample, kind: tuple[str, str], verdicts: Sequence[Verdict]) -> TimerNoise:
    metric, timer = kind
    spreads = []
    for case in sample.cases:
        if _kind(sample.sessions[0][case], metric) == kind:
            values = [float(session[case].reading(metric).value) for session in sample.sessions]  # type: ignore[union-attr, arg-type]
            spreads.append(statistics.stdev(values) / statistics.fmean(values))
    unresolved = [verdict for verdict in verdicts if verdict.word is Word.UNRESOLVED]
    limits = [verdict.smallest for verdict in unresolved if verdict.smallest is not None]
    return TimerNoise(
        metric=metric,
        timer=timer,
        cases=len(spreads),
        cv_median=statistics.median(spreads),
        cv_within_03=_share(spread <= 0.003 for spread in spreads),
        cv_within_05=_share(spread <= 0.005 for spread in spreads),
        able_2=_share(_sees(verdict, 0.02) for verdict in verdicts),
        able_3=_share(_sees(verdict, ABLE) for verdict in verdicts),
        unresolved=len(unresolved) / len(verdicts),
        unresolved_limit=statistics.median(limits) if limits else None,
        unresolved_reasons=dict(Counter(verdict.reason.partition(":")[0] for verdict in unresolved).most_common()),
    )


def _sees(verdict: Verdict, slowdown: float) -> bool:
    return verdict.smallest is not None and verdict.smallest <= slowdown


def _share(outcomes: Iterable[bool]) -> float:
    return statistics.fmean(outcomes)


@dataclass
class Trials:
    """Decisions about one case each, in suites; parallel lists. `slowdown` 0: nothing was injected."""

    suites: list[int] = field(default_factory=list)
    able: list[bool] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    found: list[bool] = field(default_factory=list)  # by perfguard

    def add(self, suite: int, able: bool, pair: Pair, found: bool) -> None:
        """One more decision."""
        self.suites.append(suite)
        self.able.append(able)
        self.pairs.append(pair)
        self.found.append(found)

    def detector(self, name: str, alarms: Sequence[bool], note: str = "") -> Detector:
        """False alarms and power of a rule that answered `alarms`."""
        unchanged = [
            (suite, int(alarm), 1)
            for suite, pair, alarm in zip(self.suites, self.pairs, alarms, strict=True)
            if pair.slowdown == 0
        ]
        alarmed = {suite for suite, alarm, _ in unchanged if alarm}
        return Detector(
            name,
            clustered_rate(unchanged),
            clustered_rate((suite, int(suite in alarmed), 1) for suite in {suite for suite, _, _ in unchanged}),
            [self._power(slowdown, alarms) for slowdown in SLOWDOWNS],
            note,
        )

    def _power(self, slowdown: float, alarms: Sequence[bool]) -> Power:
        outcomes = [
            (able, (suite, int(alarm), 1))
            for suite, able, pair, alarm in zip(self.suites, self.able, self.pairs, alarms, strict=True)
            if pair.slowdown == slowdown
        ]
        return Power(
            slowdown,
            clustered_rate(outcome for able, outcome in outcomes if able),
            clustered_rate(outcome for _, outcome in outcomes),
        )


def judge_resampled(
    sample: Sample, stored: int, confirmations: int, suites: int, progress: Progress
) -> tuple[Detector, list[Detector], int]:
    """Perfguard and its rivals on `suites` resampled suites, and the number of cases in each of those.

    In each suite everything is judged unchanged first; then a random tenth of it, made slower, for each slowdown.
    False alarms of perfguard count over all timed readings; those of rivals over the first of each case.
    """
    timed, chance = sample.timed_only(), random.Random(_SEED)
    cases = [case for case in timed.cases if primary(timed.sessions[0][case]) is not None]
    trials, alarmed = Trials(), []
    for number, draw in enumerate(
        resampled_draws(suites, len(timed.sessions), stored, confirmations, cases, chance), 1
    ):
        suite = DrawnSuite(timed, draw)
        unchanged = suite.judge()
        alarmed.append((number, int(any(verdict.word.fails for _, verdict in _each(unchanged))), 1))
        # Whether a case can see 3 % is asked where nothing was injected.
        able = {case: _sees(_primary_verdict(suite, case, unchanged), ABLE) for case in draw.cases}
        rounds = [(0.0, draw.cases, unchanged)]
        for slowdown in SLOWDOWNS:
            tenth = random_tenth(draw.cases, chance)
            changed = {case: _slowed(timed, case, slowdown) for case in tenth}
            rounds.append((slowdown, tenth, suite.judge(changed, only=True)))
        for slowdown, judged, verdicts in rounds:
            for case in judged:
                # Rivals compare with the last stored session, and see readings without a clock, too.
                before, now = (sample.sessions[index][case] for index in (draw.stored[-1], draw.judged))
                found = _primary_verdict(suite, case, verdicts).word is Word.SLOWER
                trials.add(number, able[case], Pair(before, now, slowdown), found)
        if number % 50 == 0:
            progress(f"{number} of {suites} resampled suites judged")
    own = trials.detector("perfguard", trials.found)
    own = Detector(own.name, own.decisions, clustered_rate(alarmed), own.power)
    return own, [_rival(rival, trials) for rival in all_rivals()], min(len(cases), len(draw.cases)) if cases else 0


def _slowed(sample: Sample, case: CaseId, slowdown: float) -> Version:
    return lambda number: slower(sample.sessions[number][case], slowdown)


def _primary_verdict(suite: DrawnSuite, case: CaseId, verdicts: Verdicts) -> Verdict:
    reading = primary(suite.sample.sessions[suite.draw.judged][case])
    assert reading is not None
    return next(verdict for verdict in verdicts[case] if verdict.metric == reading.metric)


def _rival(rival: Rival, trials: Trials) -> Detector:
    alarms = rival.decide(trials.pairs)
    if alarms is None:
        return Detector(rival.name, note=f"not read in every session: {rival.note or 'no times'}")
    return trials.detector(rival.name, alarms.tolist(), rival.note)


def seconds_per_case(sample: Sample) -> float:
    """Time that a session spent on a case, mean, s."""
    seconds = [result.seconds for session in sample.sessions for result in session.values()]
    return statistics.fmean(seconds) if seconds else 0.0
