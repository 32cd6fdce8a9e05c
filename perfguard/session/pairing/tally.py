"""The results of process pairs so far: times in question, decided times, and times that need another pair."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from perfguard.judge.pair_test import PairVerdict, judge_paired
from perfguard.judge.run_verdicts import paired_readings_of
from perfguard.judge.screen import covered_beside
from perfguard.measure.metrics.times import DEVICE_TIME, HOST_TIME
from perfguard.model.limits import timed_kernel
from perfguard.model.records import NEW_SINCE_BASE, CaseId, CaseResult, PairedTime, PairReading, ReadingId, Report, Word
from perfguard.session.child import Timers, timers_of
from perfguard.session.pairing.lockstep import paired
from perfguard.session.pairing.processes import SIDES, PairOutcome, Side

_MOST_MISSED = 2  # Process pairs that fail to measure a time before it is given up.
_MOST_LOST = 3  # Tests in which a process may die; with more, the machine is at fault.

Results = Mapping[CaseId, CaseResult]


@dataclass
class Time:
    """One time in question.

    Attributes:
        work: the asking run's result of its case.
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
        family: number of times over which false alarms are limited, the same as for the report; None: of those
            compared.

    Attributes:
        base: the base's first result of each case.
        pairs: number of process pairs so far.
        problem: reason why no more process pairs can be measured; otherwise empty.
        lost: node id of a test in which a process died -> its side and problem. Later pairs leave the test out.
        verdicts: verdicts so far on the times that any pair read.
    """

    def __init__(self, asked: Mapping[ReadingId, CaseResult], family: int | None = None) -> None:
        self.base: dict[CaseId, CaseResult] = {}
        self.pairs = 0
        self.problem = ""
        self.times = {track: Time(work) for track, work in asked.items()}
        self.verdicts: dict[ReadingId, PairVerdict] = {}
        self.lost: dict[str, tuple[Side, str]] = {}
        self._family = family

    def answered(self, base: Results) -> None:
        """Take the answers of a process of the base, which was checked and read no time."""
        self.base = {**base, **self.base}
        self._find_unchanged()

    def take(
        self, outcome: PairOutcome, reports: Mapping[Side, Report | None], tracks: Collection[ReadingId] | None = None
    ) -> None:
        """Add one process pair, and judge the undecided times.

        Args:
            tracks: the times that the pair was started for; None: all. No others count as missed.
        """
        self.pairs += 1
        self._take_end(outcome)
        latest: dict[Side, Results] = {}
        for side in SIDES:
            report = reports[side]
            latest[side] = {result.id: result for result in (report.results if report else [])}
        self.base = {**latest["base"], **self.base}
        for track in self.left():
            if tracks is None or track in tracks or track in outcome.readings:
                self._add(track, outcome, latest)
        self._find_unchanged()
        self._judge()

    def _find_unchanged(self) -> None:
        for track, time in self.times.items():
            base = self.base.get(track.case)
            time.unchanged |= base is not None and track.metric in covered_beside(base, time.work)

    def _take_end(self, outcome: PairOutcome) -> None:
        """Keep the problem that ended the pair early, or leave out the test in which a process died."""
        self.problem = outcome.problem
        if outcome.lost is not None and outcome.lost[1] not in self.lost and len(self.lost) < _MOST_LOST:
            side, test = outcome.lost
            self.lost[test] = side, outcome.problem
            self.problem = ""

    def _add(self, track: ReadingId, outcome: PairOutcome, latest: Mapping[Side, Results]) -> None:
        time = self.times[track]
        test = time.work.case.nodeid
        base = self.base.get(track.case)
        if test in self.lost:
            time.give_up(self.lost[test][1].partition("\n")[0].removesuffix(":"))
            return
        if base is not None and (why := why_not_compared(base, time.work)):
            time.give_up(why)
            return
        reading, timers = outcome.readings.get(track), outcome.timers.get(track)
        if reading is None and timers is None:
            reading, timers = self._without_meter(track, latest)
        if reading is not None:
            time.readings.append(reading)
            time.timer = (timers or {}).get("base", time.timer)
            time.missed = 0
        elif not outcome.problem:
            time.missed += 1
            time.why = self._why_missed(track, outcome, timers or {})
            if test not in outcome.tests.get("base", set()) or (
                timed_kernel(track.metric) and "base" not in (timers or {})
            ):
                time.missed = _MOST_MISSED  # Another pair would not find it, either.

    def _without_meter(
        self, track: ReadingId, latest: Mapping[Side, Results]
    ) -> tuple[PairReading | None, dict[Side, str]]:
        """The sides' readings of a time without a meter: one value per process, each read during its turn."""
        values: dict[Side, float] = {}
        timers: dict[Side, str] = {}
        for side in SIDES:
            result = latest[side].get(track.case)
            reading = result.reading(track.metric) if result is not None else None
            if reading is None or not isinstance(reading.value, int | float) or reading.value <= 0:
                return None, {}
            values[side], timers[side] = float(reading.value), reading.timer or ""
        alike = len(set(timers.values())) == 1
        return paired(self.pairs, values["base"], values["copy"], values["work"]) if alike else None, timers

    def _why_missed(self, track: ReadingId, outcome: PairOutcome, timers: Mapping[Side, str]) -> str:
        if len(set(timers.values())) > 1:
            return f"timed by {timers.get('base')} at the base, now by {timers.get('work')}"
        if track in outcome.unread:
            return "too many blocks could not be read; look for other processes (perfguard doctor)"
        base = self.base.get(track.case)
        test = self.times[track].work.case.nodeid
        if timed_kernel(track.metric) and test in outcome.tests.get("base", ()):
            if base is None:
                return "its test did not pass at the base"
            if "base" not in timers:
                return "the test does not launch it at the base, or cannot run twice"
        if base is None:
            file = self.times[track].work.case.nodeid.partition("::")[0]
            uncollected = outcome.uncollected.get("base", {}).get(file)
            return NEW_SINCE_BASE if uncollected is None else f"its file does not run at the base: {uncollected}"
        return "not every process measured it: in one of them its test failed or was skipped"

    def _judge(self) -> None:
        compared = {track: time.work for track, time in self.times.items() if not time.unchanged}
        made = {track: paired_readings_of(work, self.time(track)) for track, work in compared.items()}
        read = {track: each for track, each in made.items() if each is not None}
        self.verdicts = judge_paired(read, len(compared) if self._family is None else self._family)

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

    def nodeids(self, tracks: Collection[ReadingId]) -> list[str]:
        """Node ids of the tests of `tracks`, each once."""
        return list(dict.fromkeys(self.times[track].work.case.nodeid for track in tracks))

    def kernels(self, tracks: Collection[ReadingId]) -> dict[str, list[str]]:
        """Node id of an observed test -> the kernels that `tracks` are about."""
        by_test: dict[str, list[str]] = {}
        for track in tracks:
            if kernel := timed_kernel(track.metric):
                by_test.setdefault(self.times[track].work.case.nodeid, []).append(kernel)
        return by_test

    @property
    def timers(self) -> Timers:
        """The timers that further processes use: the base's, otherwise this run's."""
        known = {time.work.id: time.work for time in self.times.values()}
        read = {case: result for case, result in self.base.items() if result.is_timed}
        return timers_of({**known, **read}.values())

    def times_of(self, case: CaseId) -> list[PairedTime]:
        """The results for the times of a case, without those that the base's own code covers."""
        return [self.time(track) for track, time in self.times.items() if track.case == case and not time.unchanged]

    def time(self, track: ReadingId) -> PairedTime:
        """The results for one time."""
        time = self.times[track]
        open_still = not time.why and not self.is_decided(track) and self._follows_device_time(track)
        why = "a host time has no process pairs beyond those of its device time" if open_still else time.why
        return PairedTime(track.metric, time.timer, time.readings, why)


def why_not_compared(base: CaseResult, work: CaseResult) -> str:
    """The reason why the two results of a case are not compared; empty if they are."""
    for result, at in ((work, ""), (base, " at the base, not compared")):
        for word in (Word.WRONG, Word.BROKEN):
            if reasons := [verdict.reason for verdict in result.verdicts if verdict.word is word]:
                return f"{word}{at}: {'; '.join(reasons)}"
    return "" if base.inputs == work.inputs else f"other inputs: {base.inputs or 'none'} -> {work.inputs or 'none'}"
