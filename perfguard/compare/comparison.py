"""From live processes to rows: what is comparable, what is decided, what another process pair is needed for."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from msgspec.structs import replace

from perfguard.compare.conductor import Difference, Outcome, Track
from perfguard.compare.processes import SIDES, Side
from perfguard.compare.records import Row
from perfguard.judge import describe_difference, judge_exact
from perfguard.judge.explaining import because, spelled_out
from perfguard.judge.lane import timer_class
from perfguard.judge.pairs import PairVerdict, judge_pairs, learn_pairs
from perfguard.judge.statistics import least_effect
from perfguard.records import CaseResult, Reading, Report, Value, Word

MOST_PAIRS = 12
MOST_MISSED = 2  # process pairs in which a metric could not be measured

_CaseId = tuple[str, str]  # suite, case key


@dataclass
class Progress:
    """What is known of one timed metric that both sides have."""

    reading: Reading  # of the merge base
    differences: list[Difference] = field(default_factory=list)
    verdict: PairVerdict | None = None
    missed: int = 0
    why: str = ""  # it was missed

    @property
    def decided(self) -> bool:
        return self.missed >= MOST_MISSED or (self.verdict is not None and self.verdict.word is not None)

    @property
    def base_us(self) -> float:
        return median(difference.base_us for difference in self.differences)

    @property
    def work_us(self) -> float:
        return median(difference.work_us for difference in self.differences)


class Tally:
    """All that the process pairs have found so far.

    Attributes:
        results: what each side measured when it measured a case for the first time, results checked.
        pairs: how many process pairs there were.
        problem: why the last one ended early; empty if it did not.
    """

    def __init__(self) -> None:
        self.results: dict[Side, dict[_CaseId, CaseResult]] = {side: {} for side in SIDES}
        self.pairs = 0
        self.problem = ""
        self._whole = False  # whether every side came to the end of its tests once
        self._timers: dict[Track, dict[Side, str]] = {}
        self._tracks: dict[Track, Progress] = {}

    def take(self, outcome: Outcome, reports: Mapping[Side, Report | None]) -> None:
        """Add one process pair, and judge what is undecided."""
        self.pairs += 1
        self.problem = outcome.problem
        self._whole = self._whole or not outcome.problem
        for side in SIDES:
            report = reports[side]
            for result in report.results if report else []:
                self.results[side].setdefault((result.case.suite, result.case.key), result)
        self._timers.update(outcome.timers)
        undecided = {track for track, progress in self._tracks.items() if not progress.decided}
        if self.pairs == 1:
            self._find_tracks()
            undecided = set(self._tracks)
        for track in undecided:
            self._add(track, outcome)
        self._judge()

    def _find_tracks(self) -> None:
        for case, work in self.results["work"].items():
            base = self.results["base"].get(case)
            if base is None or why_not_compared(base, work) is not None:
                continue
            covered = covered_metrics(base, work)
            for reading in base.readings:
                if (
                    reading.timed
                    and not reading.rival
                    and reading.metric not in covered
                    and work.reading(reading.metric) is not None
                ):
                    self._tracks[Track(*case, reading.metric)] = Progress(reading)

    def _add(self, track: Track, outcome: Outcome) -> None:
        progress = self._tracks[track]
        difference = outcome.differences.get(track)
        if difference is not None:
            progress.differences.append(difference)
            progress.missed = 0
        elif not outcome.problem:
            progress.missed += 1
            timers = outcome.timers.get(track, {})
            if len(set(timers.values())) > 1:
                progress.why = f"timed by {timers.get('base')}, now by {timers.get('work')}"
            elif track in outcome.unread:
                progress.why = "too many blocks could not be read; look for other processes (perfguard doctor)"
            else:
                progress.why = "the processes did not come to it together: one of its tests failed or was skipped"

    def _judge(self) -> None:
        classes: dict[str, list[Progress]] = defaultdict(list)
        for progress in self._tracks.values():
            if progress.differences:
                classes[timer_class(progress.reading.timer or "")].append(progress)
        for alike in classes.values():
            prior = learn_pairs((_changes(progress), _controls(progress)) for progress in alike)
            for progress in alike:
                if progress.decided:
                    continue
                reading = progress.reading
                progress.verdict = judge_pairs(
                    _changes(progress),
                    _controls(progress),
                    theta=least_effect(reading.promise, reading.floor, progress.base_us),
                    family=len(self._tracks),
                    prior=prior,
                    most_pairs=MOST_PAIRS,
                )

    def wants(self, track: Track) -> bool:
        """Whether a process pair is to measure `track`; in the first one, whatever comes."""
        progress = self._tracks.get(track)
        return self.pairs == 0 if progress is None else not progress.decided

    @property
    def undecided(self) -> list[str]:
        """Node ids of the tests that another process pair is to run, in their order."""
        found = [self._nodeid(track) for track, progress in self._tracks.items() if not progress.decided]
        return list(dict.fromkeys(found))

    @property
    def count(self) -> tuple[int, int]:
        """How many timed metrics are compared, and how many of them are decided."""
        return len(self._tracks), sum(progress.decided for progress in self._tracks.values())

    @property
    def measured(self) -> int:
        """Cases that both sides measured."""
        return sum(
            1 for case, work in self.results["work"].items()
            if work.readings and case in self.results["base"] and self.results["base"][case].readings
        )  # fmt: skip

    def request(self) -> list[CaseResult]:
        """The base's results: all further processes are to use its timers."""
        return list(self.results["base"].values())

    def _nodeid(self, track: Track) -> str:
        return self.results["work"][track.suite, track.key].case.nodeid

    def rows(self) -> list[Row]:
        """One row for each timed metric, for each exact one that moved, and for each case that is not compared;
        worst first."""
        rows = [row for case in self._cases() for row in self._case_rows(case)]
        rows += [self._timed_row(track, progress) for track, progress in self._tracks.items()]
        order = list(Word)
        return sorted(rows, key=lambda row: (order.index(row.word), -(row.effect or 0.0), row.suite, row.case))

    def _cases(self) -> list[_CaseId]:
        return list(dict.fromkeys([*self.results["work"], *self.results["base"]]))

    def _case_rows(self, case: _CaseId) -> list[Row]:
        base, work = self.results["base"].get(case), self.results["work"].get(case)
        if base is None or work is None:
            return self._lonely(base, work)
        why = why_not_compared(base, work)
        if why is not None:
            word, reason = why
            return [_row(work, "", word, reason)]
        return [
            *exact_rows(base, work, self.results["copy"].get(case)),
            *(_unchanged(base, work, metric) for metric in sorted(covered_metrics(base, work))),
            *(_row(work, verdict.metric, verdict.word, verdict.reason) for verdict in work.verdicts if verdict.metric),
        ]

    def _lonely(self, base: CaseResult | None, work: CaseResult | None) -> list[Row]:
        if not self._whole:  # the other side may only have been cut short
            return []
        if work is not None:
            bad = _bad(work)
            return [_row(work, "", *(bad or (Word.NEW, "in the working tree only; nothing to compare it with")))]
        assert base is not None
        return [_row(base, "", Word.STALE, "at the merge base only: its test is gone, renamed or skipped now")]

    def _timed_row(self, track: Track, progress: Progress) -> Row:
        work, base = self.results["work"][track[:2]], self.results["base"][track[:2]]
        verdict = progress.verdict
        row = _row(work, track.metric, Word.UNRESOLVED, progress.why, progress.reading)
        if verdict is None or not progress.differences:
            changed = progress.why.startswith("timed by")
            return replace(row, word=Word.METHOD_CHANGED) if changed else row
        reason = f"undecided when the comparison ended; {verdict.reason}"
        if verdict.word is not None:
            moved = verdict.word in (Word.SLOWER, Word.FASTER)
            reason = _cause(track.metric, base, work) if moved else "" if verdict.word is Word.PASS else verdict.reason
        elif progress.why:
            reason = progress.why
        low, high = verdict.interval
        return replace(
            row,
            word=verdict.word or Word.UNRESOLVED,
            reason=reason,
            before=progress.base_us,
            after=progress.work_us,
            effect=math.expm1(verdict.effect),
            interval=(math.expm1(low), math.expm1(high)),
            pairs=verdict.pairs,
            smallest=verdict.smallest,
        )


def why_not_compared(base: CaseResult, work: CaseResult) -> tuple[Word, str] | None:
    """Why the two results of a case are not compared, as a word and a reason; None where they are."""
    bad = _bad(work)
    if bad is not None:
        return bad
    before = _bad(base)
    if before is not None:
        return Word.UNRESOLVED, f"{before[0]} at the merge base, not compared: {before[1]}"
    if base.inputs != work.inputs:
        return Word.METHOD_CHANGED, f"other inputs: {base.inputs or 'none'} -> {work.inputs or 'none'}"
    return None


def _bad(result: CaseResult) -> tuple[Word, str] | None:
    for word in (Word.WRONG, Word.BROKEN):
        found = [verdict for verdict in result.verdicts if verdict.word is word]
        if found:
            return word, "; ".join(verdict.reason for verdict in found)
    return None


def covered_metrics(base: CaseResult, work: CaseResult) -> frozenset[str]:
    """Timed metrics that cannot differ, because the device runs the very same code on both sides."""
    return frozenset(
        metric
        for reading in work.readings
        for metric in reading.covers
        if (other := base.reading(reading.metric)) is not None and other.value == reading.value
    )


def exact_rows(base: CaseResult, work: CaseResult, copy: CaseResult | None) -> list[Row]:
    """The exact metrics that moved. What differs between two checkouts of the base accuses nobody."""
    rows = []
    for reading in work.readings:
        before = base.reading(reading.metric)
        if reading.timed or before is None:
            continue
        verdict = judge_exact(reading, before.value)
        if verdict.word is Word.PASS:
            continue
        more = (spelled_out(reading.metric, work.readings, _exact_values(base)), reading.note)
        row = replace(
            _row(work, reading.metric, verdict.word, "; ".join(filter(None, (verdict.reason, *more))), reading),
            before=before.value, after=reading.value, effect=None if verdict.ratio is None else verdict.ratio - 1,
        )  # fmt: skip
        again = copy.reading(reading.metric) if copy else None
        if again is not None and judge_exact(again, before.value).word is not Word.PASS:
            unstable = describe_difference(again, before.value)
            row = replace(row, word=Word.UNRESOLVED, reason=f"differs between two checkouts of the base: {unstable}")
        rows.append(row)
    return rows


def _cause(metric: str, base: CaseResult, work: CaseResult) -> str:
    """Which exact metrics moved together with a time. Both sides ran in turns: the machine is no cause."""
    return because(metric, work.readings, _exact_values(base))


def _exact_values(result: CaseResult) -> dict[str, Value]:
    return {reading.metric: reading.value for reading in result.readings if not reading.timed}


def _unchanged(base: CaseResult, work: CaseResult, metric: str) -> Row:
    before, after = base.reading(metric), work.reading(metric)
    row = _row(work, metric, Word.UNCHANGED, "the device runs the very same code", after)
    return replace(row, before=before.value if before else None, after=after.value if after else None)


def _changes(progress: Progress) -> list[float]:
    return [difference.change for difference in progress.differences]


def _controls(progress: Progress) -> list[float]:
    return [difference.control for difference in progress.differences]


def _row(result: CaseResult, metric: str, word: Word, reason: str, reading: Reading | None = None) -> Row:
    case = result.case
    row = Row(case.suite, case.key, metric, word, reason, nodeid=case.nodeid)
    return row if reading is None else replace(row, unit=reading.unit, timer=reading.timer or "")
