"""The results of process pairs so far: times in question, decided times, and times that need another pair."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from perfguard.judge.pair_test import PairVerdict, judge_tracks
from perfguard.judge.run_verdicts import CaseId, case_id, track_of
from perfguard.judge.screen import covered_beside
from perfguard.model.records import CaseResult, PairedCase, PairedTime, Pairing, PairReading, Report, Verdict, Word
from perfguard.session.child import Timers, timers_of
from perfguard.session.pairing.outcome import Difference, Outcome, Track
from perfguard.session.pairing.processes import SIDES, Side

_MOST_MISSED = 2  # process pairs that fail to measure a time, after which it is given up
_MOST_LOST = 3  # tests in which a process may die; with more, the machine is at fault, and each costs a process pair


@dataclass
class Progress:
    """The results for one time in question. `why` is the reason if it was missed."""

    timer: str = ""
    readings: list[PairReading] = field(default_factory=list)
    missed: int = 0
    why: str = ""


class Tally:
    """All results of the process pairs so far.

    Attributes:
        results: each side's first result of each case.
        pairs: number of process pairs so far.
        problem: reason why no more process pairs can be measured; otherwise empty.
        lost: node id of a test in which a process died -> its side and problem. Later pairs leave the test out.
        verdicts: verdicts so far on the times that any pair read.
    """

    def __init__(self, asked: Mapping[Track, CaseResult] | None = None, family: int | None = None) -> None:
        """Args:
        asked: the times in question, and what this run measured of their cases; None: whatever both sides time.
        family: times over which false alarms are counted, as whoever judges the report counts them; None: those that
            are compared.
        """
        self.results: dict[Side, dict[CaseId, CaseResult]] = {side: {} for side in SIDES}
        self.pairs = 0
        self.problem = ""
        self.whole = False  # whether every side has come to the end of its tests once
        self.times: dict[Track, Progress] = {track: Progress() for track in asked or ()}
        self.verdicts: dict[Track, PairVerdict] = {}
        self.lost: dict[str, tuple[Side, str]] = {}
        self._tests: set[str] = set()  # tests that any side has collected
        self._asked = asked
        self._family = family

    def take(
        self, outcome: Outcome, reports: Mapping[Side, Report | None], tracks: Collection[Track] | None = None
    ) -> None:
        """Add one process pair, and judge the undecided times.

        Args:
            tracks: the times that the pair was started for; None: all. No others count as missed.
        """
        self.pairs += 1
        self.problem = outcome.problem
        self._lose(outcome)
        self._tests.update(*outcome.tests.values())
        finds = self._asked is None and not self.whole
        self.whole = self.whole or not outcome.problem
        latest: dict[Side, dict[CaseId, CaseResult]] = {}
        for side in SIDES:
            report = reports[side]
            latest[side] = {case_id(result): result for result in (report.results if report else [])}
            self.results[side] = {**latest[side], **self.results[side]}
        if finds:
            self._find_times()
        for track in self.undecided_times:
            if tracks is None or track in tracks or track in outcome.differences:
                self._add(track, outcome, latest)
        self._drop_covered()
        self._judge()

    def _lose(self, outcome: Outcome) -> None:
        """Leave out the test in which a process died."""
        if outcome.lost is None or outcome.lost[1] in self.lost or len(self.lost) == _MOST_LOST:
            return
        side, test = outcome.lost
        self.lost[test] = side, outcome.problem
        self.problem = ""

    def _find_times(self) -> None:
        """Every gated time that both sides read."""
        for case, work in self.results["work"].items():
            base = self.results["base"].get(case)
            if base is None or why_not_compared(base, work) is not None:
                continue
            for reading in base.readings:
                if reading.timed and reading.gated and not reading.rival and work.reading(reading.metric) is not None:
                    self.times.setdefault(Track(*case, reading.metric), Progress())

    def _drop_covered(self) -> None:
        """Drop times whose code on the device is the base's: they are not judged."""
        for track in list(self.times):
            base, work = self.results["base"].get(track[:2]), self._work(track)
            if base is not None and work is not None and track.metric in covered_beside(base, work):
                del self.times[track]
                self.verdicts.pop(track, None)

    def _work(self, track: Track) -> CaseResult | None:
        """The result of the working tree's case: the asking run's, otherwise its first process's."""
        return (self._asked or {}).get(track) or self.results["work"].get(track[:2])

    def _add(self, track: Track, outcome: Outcome, latest: Mapping[Side, Mapping[CaseId, CaseResult]]) -> None:
        progress = self.times[track]
        test = self.nodeids([track])[0]
        if test in self.lost:
            self.give_up(track, self.lost[test][1].partition("\n")[0].removesuffix(":"))
            return
        base, work = self.results["base"].get(track[:2]), self._work(track)
        why = why_not_compared(base, work) if base is not None and work is not None else None
        if why is not None:
            self.give_up(track, why[1])
            return
        found = outcome.differences.get(track)
        timers = outcome.timers.get(track)
        if found is None and timers is None:
            found, timers = _unconducted(track, latest)
        if found is not None:
            progress.readings.append(
                PairReading(
                    self.pairs,
                    found.change,
                    found.control,
                    found.base_us,
                    found.work_us,
                    found.base_mhz,
                    found.work_mhz,
                )
            )
            progress.timer = (timers or {}).get("base", progress.timer)
            progress.missed = 0
        elif not outcome.problem:
            progress.missed += 1
            progress.why = self._why_missed(track, outcome, timers or {})
            if self._asked is not None and test not in outcome.tests.get("base", set()):
                progress.missed = _MOST_MISSED  # another pair would not find it, either

    def _why_missed(self, track: Track, outcome: Outcome, timers: Mapping[Side, str]) -> str:
        if len(set(timers.values())) > 1:
            return f"timed by {timers.get('base')} at the base, now by {timers.get('work')}"
        if track in outcome.unread:
            return "too many blocks could not be read; look for other processes (perfguard doctor)"
        base = self.results["base"].get(track[:2])
        if base is None:
            file = self.nodeids([track])[0].partition("::")[0]
            uncollected = outcome.uncollected.get("base", {}).get(file)
            return "new since the base" if uncollected is None else f"its file does not run at the base: {uncollected}"
        wrong = bad(base)
        if wrong is not None:
            return f"{wrong[0]} at the base: {wrong[1]}"
        return "the processes did not come to it together: one of its tests failed or was skipped"

    def _judge(self) -> None:
        tracks = {}
        for track in self.times:
            known = (self._asked or {}).get(track) or self.results["base"].get(track[:2])
            made = None if known is None else track_of(known, self.time(track))
            if made is not None:
                tracks[track] = made
        self.verdicts = judge_tracks(tracks, len(self.times) if self._family is None else self._family)

    def give_up(self, track: Track, why: str) -> None:
        """Record that no process pair can measure `track`."""
        self.times[track].missed, self.times[track].why = _MOST_MISSED, why

    def wants(self, track: Track) -> bool:
        """Whether a process pair should measure `track`. If no times are asked for, the first pair measures all."""
        if self._asked is None and not self.whole:
            return True
        return track in self.times and not self.is_decided(track)

    def is_decided(self, track: Track) -> bool:
        """Whether a time needs no more pairs, as its verdict is final, or the base runs the same code."""
        if track not in self.times:
            return True
        verdict = self.verdicts.get(track)
        given_up = self.times[track].missed >= _MOST_MISSED
        return given_up or (verdict is not None and verdict.word is not None)

    @property
    def others(self) -> list[str] | None:
        """Node ids of all tests but those in which a process died; None if none died."""
        return sorted(self._tests - self.lost.keys()) if self.lost else None

    @property
    def undecided_times(self) -> list[Track]:
        """The times that need another process pair."""
        return [track for track in self.times if not self.is_decided(track)]

    @property
    def count(self) -> tuple[int, int]:
        """The number of compared times, and of decided ones."""
        return len(self.times), len(self.times) - len(self.undecided_times)

    @property
    def measured(self) -> int:
        """Cases that both sides measured."""
        return sum(
            1 for case, work in self.results["work"].items()
            if work.readings and case in self.results["base"] and self.results["base"][case].readings
        )  # fmt: skip

    def nodeids(self, tracks: Collection[Track]) -> list[str]:
        """Node ids of the tests of `tracks`, each once."""
        known = self._asked or {}
        results = (known.get(track) or self.results["work"][track[:2]] for track in tracks)
        return list(dict.fromkeys(result.case.nodeid for result in results))

    @property
    def timers(self) -> Timers:
        """The timers that further processes use: the base's, otherwise this run's."""
        known = {case_id(result): result for result in (self._asked or {}).values()}
        return timers_of({**known, **self.results["base"]}.values())

    def pairing(self, base: str, problem: str) -> Pairing:
        """Its form in a report."""
        cases: dict[CaseId, list[Track]] = {}
        for track in self._asked or self.times:
            cases.setdefault(track[:2], []).append(track)
        return Pairing(base, [self._paired(case, tracks) for case, tracks in cases.items()], self.pairs, problem)

    def _paired(self, case: CaseId, tracks: list[Track]) -> PairedCase:
        base, work = self.results["base"].get(case), self._work(tracks[0])
        problem = ""
        if base is not None and work is not None:
            why = why_not_compared(base, work)
            problem = why[1] if why else ""
        if base is not None:
            exact = [replace(each, note="") for each in base.readings if not each.timed]
            base = CaseResult(base.case, base.inputs, readings=exact)
        return PairedCase(*case, base, [self.time(track) for track in tracks if track in self.times], problem)

    def time(self, track: Track) -> PairedTime:
        """The results for one time."""
        progress = self.times[track]
        return PairedTime(track.metric, progress.timer, progress.readings, progress.why)


def _unconducted(
    track: Track, latest: Mapping[Side, Mapping[CaseId, CaseResult]]
) -> tuple[Difference | None, dict[Side, str]]:
    """The sides' readings of a time without a meter: one value per process, each read during its turn."""
    readings = {}
    for side in SIDES:
        result = latest[side].get(track[:2])
        reading = result.reading(track.metric) if result is not None else None
        if reading is None or not isinstance(reading.value, int | float) or reading.value <= 0:
            return None, {}
        readings[side] = reading
    timers = {side: reading.timer or "" for side, reading in readings.items()}
    if len(set(timers.values())) > 1:
        return None, timers
    base, copy, work = (float(readings[side].value) for side in SIDES)  # type: ignore[arg-type]
    return Difference(math.log(work / base), math.log(copy / base), base, work), timers


def why_not_compared(base: CaseResult, work: CaseResult) -> tuple[Word, str] | None:
    """The reason why the two results of a case are not compared, with its word; None if they are compared."""
    now = bad(work)
    if now is not None:
        return now
    before = bad(base)
    if before is not None:
        return Word.UNRESOLVED, f"{before[0]} at the base, not compared: {before[1]}"
    if base.inputs != work.inputs:
        return Word.METHOD_CHANGED, f"other inputs: {base.inputs or 'none'} -> {work.inputs or 'none'}"
    return None


def bad(result: CaseResult) -> tuple[Word, str] | None:
    """The reason why a result is invalid, with its word; None if it is valid."""
    for word in (Word.WRONG, Word.BROKEN):
        found: list[Verdict] = [verdict for verdict in result.verdicts if verdict.word is word]
        if found:
            return word, "; ".join(verdict.reason for verdict in found)
    return None
