"""A drawn suite, judged by the judge that judges every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from perfguard.judge import Lane, common_modes, judge_case
from perfguard.records import Baseline, CaseBaseline, CaseResult, Entry, Reading, TimedEntry, Verdict, Word
from perfguard.selfcheck.draws import Draw
from perfguard.selfcheck.sample import CaseId, Sample, primary
from perfguard.units import significant

Verdicts = Mapping[CaseId, list[Verdict]]
Version = Callable[[int], CaseResult]  # session number -> what that session read of a case


@dataclass(frozen=True)
class DrawnSuite:
    """One draw of a sample: the baseline that its stored sessions make, and the sessions judged against it.

    Attributes:
        timed_now: timed readings over which false alarms are counted, where the suite holds fewer.
    """

    sample: Sample
    draw: Draw
    timed_now: int = 0

    @cached_property
    def lane(self) -> Lane:
        """What the stored sessions leave in a baseline, rounded as it is there."""
        files: dict[str, dict[str, CaseBaseline]] = {}
        stored = [self.sample.sessions[number] for number in self.draw.stored]
        for case in self.draw.cases:
            suite, key = case
            results = [session[case] for session in stored]
            entries = {reading.metric: _entry(reading.metric, results) for reading in results[-1].readings}
            files.setdefault(suite, {})[key] = CaseBaseline(entries, results[-1].inputs)
        # Without a target every reading, portable ones too, is looked for beside the times.
        hardware = msgspec.structs.replace(self.sample.hardware, target=None)
        baselines = {suite: Baseline(hardware.slug, suite, cases=cases) for suite, cases in files.items()}
        return Lane(
            hardware,
            self.sample.toolchain,
            baselines,
            timed_now=self.timed_now,
            confirmations=len(self.draw.fresh),
        )

    def session(self, number: int, changed: Mapping[CaseId, Version]) -> dict[CaseId, CaseResult]:
        """What session `number` read of the drawn cases, the `changed` ones in their other version."""
        results = self.sample.sessions[number]
        return {case: changed[case](number) if case in changed else results[case] for case in self.draw.cases}

    def judge(self, changed: Mapping[CaseId, Version] | None = None, *, only: bool = False) -> Verdicts:
        """The final verdicts, the judged session and those that confirm having the `changed` cases.

        Args:
            only: judge nothing but the changed cases; the others are there to show what the machine did.
        """
        changed = changed or {}
        screen = self.session(self.draw.judged, changed)
        modes = common_modes(list(screen.values()), self.lane)
        verdicts = {
            case: judge_case(result, self.lane, modes=modes)
            for case, result in screen.items()
            if case in changed or not only
        }
        suspects = [case for case, words in verdicts.items() if any(v.word is Word.SUSPECT for v in words)]
        if suspects:
            confirming = [self.session(number, changed) for number in self.draw.fresh]
            fresh_modes = [common_modes(list(session.values()), self.lane, suspects=suspects) for session in confirming]
            for case in suspects:
                fresh = [session[case] for session in confirming]
                verdicts[case] = judge_case(screen[case], self.lane, fresh, modes=modes, fresh_modes=fresh_modes)
        return verdicts


def _entry(metric: str, results: list[CaseResult]) -> Entry:
    readings = [reading for result in results if (reading := result.reading(metric)) is not None]
    last = readings[-1]
    if last.timer is None:
        return significant(last.value) if isinstance(last.value, float) else last.value
    return TimedEntry([significant(float(reading.value)) for reading in readings], last.timer)  # type: ignore[arg-type]


def slower(result: CaseResult, slowdown: float) -> CaseResult:
    """`result` with its first timed reading longer by `slowdown` (0.02: 2 %), each block alike."""
    moved = primary(result)
    readings = [_scaled(reading, 1 + slowdown) if reading is moved else reading for reading in result.readings]
    return msgspec.structs.replace(result, readings=readings)


def _scaled(reading: Reading, factor: float) -> Reading:
    assert isinstance(reading.value, int | float)
    blocks = [block * factor for block in reading.blocks]
    return msgspec.structs.replace(reading, value=reading.value * factor, blocks=blocks)
