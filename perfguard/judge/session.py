"""Whether a whole session is off: a slow machine moves every case, a slow kernel moves its own (docs/judging.md).

`y_cs = μ_c + m_s + …`: the common shift m of a session is the median over the cases of one timer class of
y - μ. Where it lies far outside what the stored sessions did, the machine is the suspect, and no case can be
accused on this session.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, pstdev

from perfguard.judge.ladder import Lane, timer_class
from perfguard.judge.statistics import MIN_SESSIONS, remember
from perfguard.records import CaseResult, TimedEntry, Verdict, Word
from perfguard.units import format_change, format_percent

LEAST_CASES = 10  # fewer say too little about the machine
LEAST_ALARM = 0.005  # smaller common shifts are no alarm, however quiet the stored sessions were
ALARM_SIGMAS = 4.0
_JUDGED = (Word.PASS, Word.SUSPECT, Word.UNRESOLVED, Word.SLOWER, Word.FASTER)


@dataclass(frozen=True)
class CommonShift:
    """How far the cases of one timer class moved together, as a logarithm, and the largest usual shift."""

    shift: float
    usual: float
    cases: int

    @property
    def alarm(self) -> bool:
        """Whether the machine, not the cases, is the likelier cause."""
        return abs(self.shift) > self.usual

    def __str__(self) -> str:
        return (
            f"ENV: {self.cases} cases of this timer moved together by {format_change(math.exp(self.shift))}, "
            f"more than the usual {format_percent(self.usual)}; look at clocks, throttling and other processes, then "
            "run again"
        )


def common_shifts(results: Sequence[CaseResult], lane: Lane) -> Mapping[str, CommonShift]:
    """Timer class -> common shift of the session that `results` come from; classes of few cases are left out."""
    shifts: dict[str, list[float]] = defaultdict(list)
    stored: dict[str, list[Sequence[float]]] = defaultdict(list)
    for result in results:
        for verdict in result.verdicts:
            reading = result.reading(verdict.metric)
            if reading is None or reading.timer is None or verdict.word not in _JUDGED or not verdict.ratio:
                continue
            baseline = lane.baselines.get(result.case.suite)
            case = baseline.cases.get(result.case.key) if baseline else None
            entry = case.entries.get(reading.metric) if case else None
            if isinstance(entry, TimedEntry) and isinstance(reading.value, int | float) and reading.value > 0:
                name = timer_class(reading.timer)
                shifts[name].append(math.log(reading.value) - remember(entry.sessions).centre)
                stored[name].append(entry.sessions)
    return {
        name: CommonShift(median(values), max(LEAST_ALARM, ALARM_SIGMAS * _usual(stored[name])), len(values))
        for name, values in shifts.items()
        if len(values) >= LEAST_CASES
    }


def _usual(stored: Sequence[Sequence[float]]) -> float:
    """Standard deviation of the common shift over the stored sessions, which were recorded side by side."""
    enough = [sessions for sessions in stored if len(sessions) >= MIN_SESSIONS]
    if len(enough) < LEAST_CASES:
        return 0.0
    centres = [remember(sessions).centre for sessions in enough]
    return pstdev(
        median(math.log(sessions[-index]) - centre for sessions, centre in zip(enough, centres, strict=True))
        for index in range(1, min(map(len, enough)) + 1)
    )


def excuse(result: CaseResult, shifts: Mapping[str, CommonShift]) -> list[Verdict]:
    """The result's verdicts, with SUSPECT turned into UNRESOLVED where its whole timer class moved."""
    verdicts = []
    for verdict in result.verdicts:
        reading = result.reading(verdict.metric)
        shift = shifts.get(timer_class(reading.timer)) if reading is not None and reading.timer else None
        if verdict.word is Word.SUSPECT and shift is not None and shift.alarm:
            verdict = Verdict(
                Word.UNRESOLVED,
                verdict.metric,
                f"{shift} ({verdict.reason})",
                verdict.before,
                verdict.after,
                verdict.unit,
                verdict.ratio,
                verdict.smallest,
            )
        verdicts.append(verdict)
    return verdicts
