"""The results of process pairs so far: times in question, decided times, and times that need another pair."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from perfguard.judge.pair_test import PairVerdict, judge_paired
from perfguard.judge.run_verdicts import paired_readings_of
from perfguard.judge.screen import covered_beside
from perfguard.measure.metrics.times import DEVICE_TIME, HOST_TIME
from perfguard.model.limits import timed_kernel
from perfguard.model.records import CaseId, CaseResult, PairedTime, PairReading, ReadingId
from perfguard.session.pairing.lockstep import PairOutcome

_MOST_MISSED = 2  # Process pairs that fail to measure a time before it is given up.
_MOST_DEATHS = 3  # Tests in which a process may die; with more, the machine is at fault.


@dataclass
class Time:
    """One time in question.

    Attributes:
        work: the asking run's result of its case.
        missed: process pairs in a row that did not measure it.
        why: the reason if it was missed.
        unchanged: whether the device runs the base's code, so that the time is not judged.
    """

    work: CaseResult
    timer: str = ""
    readings: list[PairReading] = field(default_factory=list)
    missed: int = 0
    why: str = ""
    unchanged: bool = False

    def give_up(self, why: str) -> None:
        """Record that no process pair can measure it."""
        self.missed, self.why = _MOST_MISSED, why


class Tally:
    """All results of the process pairs so far.

    Args:
        asked: the times in question, with this run's results of their cases.
        family: number of times over which false alarms are limited, the same as for the report.

    Attributes:
        pairs: number of process pairs so far.
        problem: reason why no more process pairs can be measured; otherwise empty.
        deadly: node id of a test in which a process died -> its problem. Later pairs leave the test out.
        verdicts: verdicts so far on the times that any pair read.
    """

    def __init__(self, asked: Mapping[ReadingId, CaseResult], family: int) -> None:
        self.pairs = 0
        self.problem = ""
        self.times = {track: Time(work) for track, work in asked.items()}
        self.verdicts: dict[ReadingId, PairVerdict] = {}
        self.deadly: dict[str, str] = {}
        self._family = family

    def leave_out_unchanged(self, base: Mapping[CaseId, CaseResult]) -> None:
        """Leave out the times of which the device runs the base's code, by the base's results."""
        for track, time in self.times.items():
            then = base.get(track.case)
            time.unchanged = then is not None and track.metric in covered_beside(then, time.work)

    def take(self, outcome: PairOutcome, tracks: Collection[ReadingId]) -> None:
        """Add one process pair, which was started for these times, and judge the undecided times."""
        self.pairs += 1
        self.problem = outcome.problem
        if outcome.deadly and outcome.deadly not in self.deadly and len(self.deadly) < _MOST_DEATHS:
            self.deadly[outcome.deadly], self.problem = outcome.problem, ""
        for track in self.left():
            if track in tracks or self.times[track].work.case.nodeid in self.deadly:
                self._add(track, outcome)
        self._judge()

    def _add(self, track: ReadingId, outcome: PairOutcome) -> None:
        time, timers = self.times[track], outcome.timers.get(track, {})
        died = self.deadly.get(time.work.case.nodeid)
        if died is not None:
            time.give_up(died.partition("\n")[0].removesuffix(":"))
        elif (reading := outcome.readings.get(track)) is not None:
            time.readings.append(reading)
            time.timer, time.missed = timers["base"], 0
        elif not outcome.problem:
            time.missed += 1
            time.why = _why_missed(track, outcome)
            if timed_kernel(track.metric) and not timers:
                time.missed = _MOST_MISSED  # Another pair would not find it, either.

    def _judge(self) -> None:
        compared = {track: time.work for track, time in self.times.items() if not time.unchanged}
        made = {track: paired_readings_of(work, self.time(track)) for track, work in compared.items()}
        read = {track: each for track, each in made.items() if each is not None}
        self.verdicts = judge_paired(read, self._family)

    def is_decided(self, track: ReadingId) -> bool:
        """Whether a time needs no more pairs: its verdict is final, or the base runs the same code."""
        time, verdict = self.times[track], self.verdicts.get(track)
        return time.unchanged or time.missed >= _MOST_MISSED or (verdict is not None and verdict.word is not None)

    def left(self, tracks: Collection[ReadingId] | None = None) -> list[ReadingId]:
        """Those of `tracks` (None: of all times) that need another process pair."""
        candidates = self.times if tracks is None else tracks
        return [track for track in candidates if not self.is_decided(track) and not self._follows_device_time(track)]

    def _follows_device_time(self, track: ReadingId) -> bool:
        """Whether it is the host time of a case whose device time was in question, and is decided. A host time stays
        undecided longest, since it scatters by a tenth between processes, so it has no pairs of its own."""
        device = ReadingId(track.suite, track.key, DEVICE_TIME)
        return track.metric == HOST_TIME and device in self.times and self.is_decided(device)

    def by_test(self, tracks: Collection[ReadingId]) -> dict[str, list[ReadingId]]:
        """Node id of a test -> those of `tracks` that are measured in it."""
        by_test: dict[str, list[ReadingId]] = {}
        for track in tracks:
            by_test.setdefault(self.times[track].work.case.nodeid, []).append(track)
        return by_test

    def times_of(self, case: CaseId) -> list[PairedTime]:
        """The results for the times of a case, without those that the base's own code covers."""
        return [self.time(track) for track, time in self.times.items() if track.case == case and not time.unchanged]

    def time(self, track: ReadingId) -> PairedTime:
        """The results for one time."""
        time = self.times[track]
        open_still = not time.why and not self.is_decided(track) and self._follows_device_time(track)
        why = "a host time has no process pairs beyond those of its device time" if open_still else time.why
        return PairedTime(track.metric, time.timer, time.readings, why)


def _why_missed(track: ReadingId, outcome: PairOutcome) -> str:
    timers = outcome.timers.get(track, {})
    if len(set(timers.values())) > 1:
        return f"timed by {timers.get('base')} at the base, now by {timers.get('work')}"
    if track in outcome.unread:
        return "too many blocks could not be read; look for other processes (perfguard doctor)"
    if timed_kernel(track.metric) and not timers:
        return "the test does not launch it at the base, or cannot run twice"
    return "not every process measured it: in one of them its test failed or was skipped"
