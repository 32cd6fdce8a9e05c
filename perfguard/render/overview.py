"""The results of several lanes for one commit, counted and sorted once for all outputs and for the statuses.

`perfguard report` makes an overview from files, `perfguard comment` from validated artifacts. Names, values and reasons
may be untrusted: they are data, which each output escapes in its own way. All outputs, including the terminal, show
the counts of `LaneView.counts` and `Undecided`, and no others.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import msgspec
from msgspec import Struct

from perfguard.model.records import Baseline, Case, CaseResult, ReadingId, Report, Value, Verdict, Word
from perfguard.model.records.baseline import entries_of
from perfguard.model.records.case import (
    is_compared,
    is_guarded,
    is_inconclusive,
    is_mostly_undecided,
    is_unread,
    new_metrics,
    words_of,
    worst,
)
from perfguard.model.records.code import shows_other_code
from perfguard.model.units import Unit, counted, format_apart, format_value
from perfguard.render.causes import by_cause
from perfguard.render.findings import INCONCLUSIVE, MOVED, QUIET, Finding, OtherCode, Undecided
from perfguard.render.words import NOT_TIMED, OLD_FAULT

UNMEASURED = "has a baseline, but the report does not hold it"


class Headline(enum.StrEnum):
    """The overall result: the first that applies, most urgent first."""

    WRONG = "wrong"
    WORSE = "slower or heavier"
    INCOMPLETE = "incomplete"
    INCONCLUSIVE = "inconclusive"  # most times of a lane could not be judged
    UNVERIFIED = "not verified"  # only the report's own claims keep a case from its verdict
    UNDECIDED = "undecided"  # some times could not be judged
    NO_BASELINE = "no baseline"
    ACCEPTED = "accepted"
    FASTER = "faster"
    UNCHANGED = "no change"


SIGNS = {
    Headline.WRONG: "🔴", Headline.WORSE: "❌", Headline.INCOMPLETE: "⚠️", Headline.INCONCLUSIVE: "❓",
    Headline.UNVERIFIED: "🔎", Headline.UNDECIDED: "❔", Headline.NO_BASELINE: "🆕", Headline.ACCEPTED: "📝",
    Headline.FASTER: "⚡", Headline.UNCHANGED: "✅",
}  # fmt: skip


class Refused(Struct, frozen=True):
    """A case of a lane's report that could not be read, and why; it counts as a failure."""

    name: str
    reason: str


class BaselineEdit(Struct, frozen=True):
    """One entry of the baselines that the change edits.

    Attributes:
        folder: `nvidia-h200`, `cpu`.
        before, after: the entry's value, the centre of its sessions for a time; None where it is added or removed.
        loosens: the edit lets a worse reading pass than before (a removal does, too).
        measured: the reading in this change's own report, if any.
    """

    folder: str
    suite: str
    case: str
    metric: str
    unit: Unit
    before: Value | None
    after: Value | None
    reason: str = ""
    loosens: bool = False
    measured: Value | None = None

    def values(self, most: int) -> tuple[str, str, str]:
        """The entry before and after, and what was measured, as texts of at most `most` characters each."""
        measured = "not measured" if self.measured is None else format_value(self.measured, self.unit)
        if self.before is None or self.after is None:
            before = "none" if self.before is None else format_value(self.before, self.unit)
            return before, "removed" if self.after is None else format_value(self.after, self.unit), measured
        return *format_apart(self.before, self.after, self.unit, most), measured


class LaneView(Struct, frozen=True, dict=True):
    """One expected lane.

    Attributes:
        name: name of the lane; by default its slug, for example `nvidia-h200`.
        report: the report with verdicts; None if no valid one arrived, for the reason in `problem`.
        baselines: suite -> the baseline that its readings were judged with; empty if unknown.
        refused: cases of the report that could not be read.
        unmeasured: keys of recorded cases that the report lacks.
        accepted: (suite, case key, metric) of findings that an edit of the baselines covers, with its reason.
    """

    name: str
    report: Report | None = None
    problem: str = ""
    baselines: dict[str, Baseline] = {}
    refused: list[Refused] = []
    unmeasured: list[str] = []
    accepted: list[ReadingId] = []

    @cached_property
    def _judged(self) -> list[tuple[CaseResult, list[Verdict], list[Verdict]]]:
        """Every case in the report's order, with its verdicts that no edit covers, and those that one does."""
        accepted = set(self.accepted)
        split: list[tuple[CaseResult, list[Verdict], list[Verdict]]] = []
        for result in self.report.results if self.report else []:
            by: tuple[list[Verdict], list[Verdict]] = ([], [])
            for verdict in result.verdicts:
                by[(*result.id, verdict.metric) in accepted].append(verdict)
            split.append((result, *by))
        return split

    @property
    def _uncovered(self) -> list[tuple[CaseResult, Verdict]]:
        return [(result, verdict) for result, uncovered, _ in self._judged for verdict in uncovered]

    @cached_property
    def cases(self) -> list[tuple[CaseResult, Word]]:
        """Each case with its worst verdict that no edit covers, in the report's order."""
        return [(result, worst(uncovered)) for result, uncovered, _ in self._judged]

    @cached_property
    def covered(self) -> dict[Case, list[Verdict]]:
        """Case -> its verdicts that an edit covers."""
        return {result.case: covered for result, _, covered in self._judged}

    @cached_property
    def findings(self) -> list[Finding]:
        """The verdicts that no edit covers and that are not quiet, worst first."""
        observed: list[tuple[CaseResult, Verdict]] = []
        rows = []
        new = {id(verdict) for result, _, _ in self._judged for verdict in new_metrics(result)}
        for result, verdict in self._uncovered:
            if result.case.direction == "test" and verdict.word in MOVED:
                observed.append((result, verdict))
            elif verdict.word not in QUIET and id(verdict) not in new:
                rows.append(Finding(self.name, result, verdict))
        rows += [Finding(self.name, *each, grouped=True) for each in by_cause(observed)]
        return sorted(rows, key=lambda finding: finding.urgency)

    @property
    def missing(self) -> list[tuple[str, str]]:
        """(case, why) of each case that was expected and not measured: broken, refused, unmeasured."""
        broken = [(result.case.key, each.reason) for result, each in self._uncovered if each.word is Word.BROKEN]
        refused = [(each.name, each.reason) for each in self.refused]
        return [*broken, *refused, *((key, UNMEASURED) for key in self.unmeasured)]

    @property
    def words(self) -> set[Word]:
        """Words of the verdicts that no edit covers, and of recorded cases that are gone."""
        gone = {verdict.word for verdict in self.report.stale} if self.report else set()
        return {word for result, uncovered, _ in self._judged for word in words_of(result, uncovered)} | gone

    @property
    def other_conditions(self) -> set[Case]:
        """Cases with a metric that has a record here and, by the report, was read under another driver, power limit,
        timer … or from other inputs."""
        return {
            result.case
            for result, verdict in self._uncovered
            if verdict.word in (Word.DRIFT, Word.METHOD_CHANGED)
            or (verdict.word is Word.OTHER_HARDWARE and self._holds(result, verdict.metric))
        }

    def _holds(self, result: CaseResult, metric: str) -> bool:
        return metric in entries_of(self.baselines, *result.id)

    @property
    def unpaired(self) -> set[Case]:
        """Cases with a time in question that no or too few process pairs of the report read."""
        return {result.case for result, verdict in self._uncovered if is_unread(verdict)}

    @property
    def is_inconclusive(self) -> bool:
        """Whether most of its times could not be judged, or a slower one was left unread; verdicts that an edit covers
        are left out."""
        return is_inconclusive(self._without_covered)

    @property
    def is_mostly_undecided(self) -> bool:
        """Whether most of its times could not be judged."""
        return is_mostly_undecided(self._without_covered)

    @property
    def _without_covered(self) -> list[CaseResult]:
        return [msgspec.structs.replace(result, verdicts=uncovered) for result, uncovered, _ in self._judged]

    @cached_property
    def headline(self) -> Headline:
        """The headline of this lane alone."""
        return headline_of([self])

    @property
    def verdict(self) -> str:
        """`slower or heavier, not timed, run was cut short`; of a lane with a report."""
        cut = ["run was cut short"] if self.report is not None and not self.report.complete else []
        other = [str(self.other_code)] if self.other_code.moved else []
        return ", ".join([self.headline.value, *[NOT_TIMED] * self.exact_only, *other, *cut])

    @property
    def new_metrics(self) -> list[str]:
        """Metrics without a record, of cases of which others were judged, that no edit records."""
        return list(
            dict.fromkeys(
                each.metric
                for result, uncovered, _ in self._judged
                if is_compared(uncovered)
                for each in new_metrics(msgspec.structs.replace(result, verdicts=uncovered))
            )
        )

    @property
    def remarks(self) -> list[tuple[str, list[str]]]:
        """What asks for nothing, a line each, with the names of what it is about: other code that nothing here times,
        old faults, new metrics, options that no case switches on."""
        other, new = self.other_code, self.new_metrics
        old = [finding.result.case.key for finding in self.findings if finding.verdict.word is Word.OLD_FAULT]
        old, same = list(dict.fromkeys(old)), self.unchecked
        return [
            *([(f"{other}, which nothing here times", other.kernels)] if other.moved else []),
            *([(f"{counted(len(old), 'case')} {OLD_FAULT}", old)] if old else []),
            *([(f"{counted(len(new), 'metric')} new", new)] if new else []),
            *([(f"{counted(len(same), 'option')} whose code is unchecked", same)] if same else []),
        ]

    @property
    def unchecked(self) -> list[str]:
        """`weight_decay of lion is 0.0 in every case`, of new cases and of those with other code."""
        moved = {result.case for result, *_ in self.other_code.moved} | {
            result.case for result, word in self.cases if word is Word.NEW
        }
        cases = [result for result, _ in self.cases if result.unchecked]
        asked = {name: value for result in cases if result.case in moved for name, value in result.unchecked.items()}
        varied = {name for result in cases for name, value in result.unchecked.items() if not value}
        return [f"{name} is {value} in every case" for name, value in asked.items() if name not in varied]

    @cached_property
    def other_code(self) -> OtherCode:
        """Nothing, of a lane that reads times."""
        return OtherCode([
            (result, reading, verdict)
            for result, uncovered, covered in (self._judged if self.exact_only else [])
            for verdict in (*uncovered, *covered)
            if (reading := result.reading(verdict.metric)) is not None and shows_other_code(reading, verdict)
        ])  # fmt: skip

    @cached_property
    def counts(self) -> Counter[Word]:
        """Cases by their worst verdict, and stale entries."""
        gone = [verdict.word for verdict in self.report.stale] if self.report else []
        return Counter([*(word for _, word in self.cases), *gone])

    @cached_property
    def undecided(self) -> Undecided:
        """Its timed cases that could not be judged, counted as in `is_inconclusive`."""
        timed = [
            Finding(self.name, result, verdict)
            for result, verdict in self._uncovered
            if (reading := result.reading(verdict.metric)) is not None and reading.timed and reading.gated
        ]
        open_ = [finding for finding in timed if finding.verdict.word in INCONCLUSIVE]
        return Undecided(open_, len({finding.result.case for finding in timed}))

    @cached_property
    def guarded(self) -> str:
        """`3 of 4 cases`: the guarded ones."""
        guarded = sum(1 for result, word in self.cases if is_guarded(result, word))
        return f"{guarded} of {counted(len(self.cases), 'case')}"

    @property
    def absent(self) -> int:
        """Cases that are missing or unreadable in the report."""
        return len(self.refused) + len(self.unmeasured)

    @property
    def exact_only(self) -> bool:
        """Whether the lane read no times."""
        return self.report is not None and self.report.exact_only


def headline_of(lanes: Sequence[LaneView], unread: str = "") -> Headline:
    """The most urgent result of these lanes. `unread`: as of `Overview`."""
    words = {word for lane in lanes for word in lane.words}
    if Word.WRONG in words:
        return Headline.WRONG
    if words & {Word.SLOWER, Word.CHANGED}:
        return Headline.WORSE
    silent = any(lane.report is None or lane.absent or not lane.report.complete for lane in lanes)
    if silent or not lanes or unread or Word.BROKEN in words:
        return Headline.INCOMPLETE
    unverified = any(lane.other_conditions or lane.unpaired for lane in lanes)
    if any(lane.is_mostly_undecided if unverified else lane.is_inconclusive for lane in lanes):
        return Headline.INCONCLUSIVE
    if unverified:
        return Headline.UNVERIFIED
    if words & {Word.UNRESOLVED, Word.SUSPECT}:
        return Headline.UNDECIDED
    if any(word.unguarded for word in words):
        return Headline.NO_BASELINE
    if any(lane.accepted for lane in lanes):
        return Headline.ACCEPTED
    return Headline.FASTER if Word.FASTER in words else Headline.UNCHANGED  # nothing static is good news


class Overview(Struct, frozen=True, dict=True):
    """All lanes of one commit.

    Attributes:
        edits: of the baselines, those that let a worse reading pass first.
        head: the commit that was measured; "" where unknown.
        base: the commit whose baselines judged; "" if the reports' own run judged.
        unread: part of the change that could not be read in full, so that its edits are unknown; "": none.
        run_url: location of the full reports.
    """

    lanes: list[LaneView]
    edits: list[BaselineEdit] = []
    head: str = ""
    base: str = ""
    unread: str = ""
    run_url: str = ""
    warnings: list[str] = []

    @cached_property
    def headline(self) -> Headline:
        """The most urgent result of any lane."""
        return headline_of(self.lanes, self.unread)

    @property
    def sign(self) -> str:
        """The headline's sign; a loosened baseline is never green."""
        quiet = self.headline in (Headline.FASTER, Headline.UNCHANGED)
        return SIGNS[Headline.INCOMPLETE] if quiet and self.loosened else SIGNS[self.headline]

    def findings(self, *words: Word) -> list[Finding]:
        """Findings of these words over all lanes, worst first."""
        found = [finding for lane in self.lanes for finding in lane.findings if finding.verdict.word in words]
        return sorted(found, key=lambda finding: finding.urgency)

    @property
    def missing(self) -> list[tuple[str, str, str]]:
        """(lane, case, why) over all lanes."""
        return [(lane.name, case, why) for lane in self.lanes for case, why in lane.missing]

    @property
    def reported(self) -> int:
        """Number of lanes with a report."""
        return sum(1 for lane in self.lanes if lane.report is not None)

    @property
    def absent(self) -> int:
        """Cases of all lanes that are missing or unreadable in their reports."""
        return sum(lane.absent for lane in self.lanes)

    @property
    def loosened(self) -> int:
        """Number of baseline edits that let a worse reading pass."""
        return sum(1 for edit in self.edits if edit.loosens)

    def total(self, *words: Word) -> int:
        """Number of cases over all lanes whose worst verdict is one of `words`."""
        return sum(lane.counts[word] for lane in self.lanes for word in words)

    @cached_property
    def undecided(self) -> Undecided:
        """The timed cases of all lanes that could not be judged."""
        by_lane = [lane.undecided for lane in self.lanes]
        return Undecided([each for one in by_lane for each in one.findings], sum(one.of for one in by_lane))
