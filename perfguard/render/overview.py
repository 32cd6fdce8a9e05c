"""The results of several lanes for one commit, counted and sorted once for all outputs and for the statuses.

`perfguard report` makes an overview from files, `perfguard comment` from validated artifacts. Names, values and reasons
may be untrusted, and each output escapes them in its own way. All outputs, including the terminal, show the counts of
`LaneView.counts` and `Undecided`, and no others.
"""

from __future__ import annotations

import enum
from collections import ChainMap, Counter
from collections.abc import Sequence
from functools import cached_property

import msgspec
from msgspec import Struct

from perfguard.model.call import CONFIGURATIONS, HARD_KINDS
from perfguard.model.records import Baseline, Case, CaseResult, ReadingId, Recorded, Report, Verdict, Word
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
from perfguard.model.records.report import BOTH_WAYS, awaits_commit
from perfguard.model.units import counted
from perfguard.render.causes import bases_of, causes_of
from perfguard.render.findings import INCONCLUSIVE, MOVED, QUIET, BaselineEdit, Cause, Finding, OtherCode, Undecided
from perfguard.render.observed import by_cause
from perfguard.render.words import NOT_TIMED, OLD_FAULT

SPARED = "nothing to measure: only documents changed"
UNMEASURED = "has a baseline, but the report does not hold it"


class Headline(enum.StrEnum):
    """The overall result: the first member that applies, in order of urgency."""

    WRONG = "wrong"
    WORSE = "slower or heavier"
    INCOMPLETE = "incomplete"
    INCONCLUSIVE = "inconclusive"  # Most times of a lane could not be judged.
    UNVERIFIED = "not verified"  # Only claims of the report itself prevent a verdict on a case.
    UNDECIDED = "undecided"  # Some times could not be judged.
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
    """A case of a lane's report that could not be read, with the reason; it counts as a failure."""

    name: str
    reason: str


class LaneView(Struct, frozen=True, dict=True):
    """One expected lane.

    Attributes:
        name: the name of the lane, by default its slug, for example `nvidia-h200`.
        report: the report with verdicts; None if no valid one arrived, for the reason in `problem`.
        spared: whether no report is needed, because the change edits documents alone.
        baselines: suite -> the baseline by which its readings were judged; empty if unknown.
        refused: the cases of the report that could not be read.
        unmeasured: the keys of recorded cases that the report lacks.
        accepted: (suite, case key, metric) of findings that an edit of the baselines covers, with its reason.
        history: suite -> case key -> its records in the last commits of their file, oldest first, each with the entries
            that differ from the one before, the first with its times and what changed later; empty if unknown.
        job_url: the URL of the job that measured; "" if unknown.
    """

    name: str
    report: Report | None = None
    problem: str = ""
    spared: bool = False
    baselines: dict[str, Baseline] = {}
    refused: list[Refused] = []
    unmeasured: list[str] = []
    accepted: list[ReadingId] = []
    history: dict[str, dict[str, list[Recorded]]] = {}
    job_url: str = ""

    @cached_property
    def _judged(self) -> list[tuple[CaseResult, list[Verdict], list[Verdict]]]:
        """(case, verdicts that no edit covers, covered verdicts) in the order of the report."""
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
        """Each case with its worst verdict that no edit covers, in the order of the report."""
        return [(result, worst(uncovered)) for result, uncovered, _ in self._judged]

    @cached_property
    def covered(self) -> dict[Case, list[Verdict]]:
        """Case -> its verdicts that an edit covers."""
        return {result.case: covered for result, _, covered in self._judged}

    @cached_property
    def findings(self) -> list[Finding]:
        """The verdicts that no edit covers and that are not quiet, worst first."""
        rows = []
        for result, uncovered, _ in self._judged:
            moved = [each for each in uncovered if result.case.direction == "test" and each.word in MOVED]
            quiet = {id(verdict) for verdict in (*new_metrics(result), *moved)}
            rows += [Finding(self.name, *each) for each in by_cause(result, moved)]
            rows += [
                Finding(self.name, result, each)
                for each in uncovered
                if each.word not in QUIET and id(each) not in quiet
            ]
        return sorted(rows, key=lambda finding: finding.urgency)

    @property
    def missing(self) -> list[tuple[str, str]]:
        """(case, reason) of each case that was expected, but not measured: broken, refused, unmeasured."""
        broken = [(result.case.key, each.reason) for result, each in self._uncovered if each.word is Word.BROKEN]
        return [*broken, *self.unread]

    @property
    def unread(self) -> list[tuple[str, str]]:
        """(case, reason) of each case that was refused or is missing in the report."""
        return [*((each.name, each.reason) for each in self.refused), *((key, UNMEASURED) for key in self.unmeasured)]

    @property
    def words(self) -> set[Word]:
        """The words of the verdicts that no edit covers, and of recorded cases that are gone."""
        gone = {verdict.word for verdict in self.report.stale} if self.report else set()
        return {word for result, uncovered, _ in self._judged for word in words_of(result, uncovered)} | gone

    @property
    def other_conditions(self) -> set[Case]:
        """Cases with a recorded metric that was read, by the report, under another driver, power limit or timer, or
        from other inputs."""
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
        """Cases with a time in question that no process pairs, or too few, of the report read."""
        return {result.case for result, verdict in self._uncovered if is_unread(verdict)}

    @property
    def is_inconclusive(self) -> bool:
        """Whether most of its times could not be judged, or a slower time was not read by process pairs; without
        verdicts that an edit covers."""
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
    def silent(self) -> bool:
        """Whether a report is needed, and none arrived."""
        return self.report is None and not self.spared

    @property
    def verdict(self) -> str:
        """`slower or heavier, not timed, run was cut short`, for a lane that is not silent."""
        if self.spared:
            return SPARED
        cut = ["run was cut short"] if self.report is not None and not self.report.complete else []
        other = [str(self.other_code)] if self.other_code.moved else []
        return ", ".join([self.headline.value, *[NOT_TIMED] * self.exact_only, *other, *cut])

    @property
    def new_metrics(self) -> list[str]:
        """Metrics without a record that no edit records, in cases with other judged metrics."""
        own = [msgspec.structs.replace(result, verdicts=kept) for result, kept, _ in self._judged if is_compared(kept)]
        new = (each.metric for result in own for each in new_metrics(result) if not awaits_commit(each))
        return list(dict.fromkeys(new))

    @property
    def remarks(self) -> list[tuple[str, list[str]]]:
        """Remarks that require no action, each with the names that it concerns: other code that is not timed here, old
        faults, new metrics, warps that rise and fall between targets, options that no case switches on, kinds of hard
        inputs and configurations that no run has reached."""
        other, new, same = self.other_code, self.new_metrics, self.unchecked
        old = [*dict.fromkeys(each.result.case.key for each in self.findings if each.verdict.word is Word.OLD_FAULT)]
        mixed = [each.reason for _, each in self._uncovered if each.reason.startswith(BOTH_WAYS)]
        both = [reason.removeprefix(BOTH_WAYS) for reason in dict.fromkeys(mixed)]
        return [
            *([(f"{other}, which nothing here times", other.kernels)] if other.moved else []),
            *([(f"{counted(len(old), 'case')} {OLD_FAULT}", old)] if old else []),
            *([(f"{counted(len(new), 'metric')} new", new)] if new else []),
            *([("resident warps both ways between targets, not gated", both)] if both else []),
            *([(f"{counted(len(same), 'option')} whose code is unchecked", same)] if same else []),
            *([("kinds never tried here", self.untried)] if self.untried else []),
        ]

    @property
    def untried(self) -> list[str]:
        """`modes (3 cases)`: the kinds of which no run has tried anything, those of most cases first."""
        cases = Counter(kind for result, _ in self.cases if result.hard for kind in set(result.hard.untried))
        kinds = sorted({*HARD_KINDS, CONFIGURATIONS} & {*cases}, key=lambda kind: (-cases[kind], kind))
        return [f"{kind} ({counted(cases[kind], 'case')})" for kind in kinds]

    @property
    def unchecked(self) -> list[str]:
        """`weight_decay of lion is 0.0 in every case`, for new cases and cases with other code."""
        moved = {result.case for result, *_ in self.other_code.moved} | {
            result.case for result, word in self.cases if word is Word.NEW
        }
        cases = [result for result, _ in self.cases if result.unchecked]
        asked = {name: value for result in cases if result.case in moved for name, value in result.unchecked.items()}
        varied = {name for result in cases for name, value in result.unchecked.items() if not value}
        return [f"{name} is {value} in every case" for name, value in asked.items() if name not in varied]

    @cached_property
    def other_code(self) -> OtherCode:
        """Kernels with other code than recorded; none for a lane that reads times."""
        return OtherCode([
            (result, reading, verdict)
            for result, uncovered, covered in (self._judged if self.exact_only else [])
            for verdict in (*uncovered, *covered)
            if (reading := result.reading(verdict.metric)) is not None and shows_other_code(reading, verdict)
        ])  # fmt: skip

    @cached_property
    def counts(self) -> Counter[Word]:
        """The number of cases by worst verdict, and of stale entries."""
        gone = [verdict.word for verdict in self.report.stale] if self.report else []
        return Counter([*(word for _, word in self.cases), *gone])

    @property
    def uncommitted(self) -> list[Finding]:
        """Times that are only shown, because no commit has their test yet."""
        return [Finding(self.name, *each) for each in self._uncovered if awaits_commit(each[1])]

    @cached_property
    def undecided(self) -> Undecided:
        """Its timed cases that could not be judged; a slower one was, whatever its host time."""
        timed = [
            Finding(self.name, result, verdict)
            for result, verdict in self._uncovered
            if (reading := result.reading(verdict.metric)) is not None and reading.timed and reading.gated
        ]
        slower = {finding.result.case for finding in timed if finding.verdict.word is Word.SLOWER}
        open_ = [each for each in timed if each.verdict.word in INCONCLUSIVE and each.result.case not in slower]
        return Undecided(open_, len({finding.result.case for finding in timed}))

    @cached_property
    def guarded(self) -> str:
        """`3 of 4 cases`: the number of guarded cases."""
        guarded = sum(1 for result, word in self.cases if is_guarded(result, word))
        return f"{guarded} of {counted(len(self.cases), 'case')}"

    @property
    def absent(self) -> int:
        """The number of cases that are missing or unreadable in the report."""
        return len(self.refused) + len(self.unmeasured)

    @property
    def exact_only(self) -> bool:
        """Whether the lane read no times."""
        return self.report is not None and self.report.exact_only


def headline_of(lanes: Sequence[LaneView], unread: str = "") -> Headline:
    """The most urgent result of these lanes. `unread` is that of `Overview`."""
    words = {word for lane in lanes for word in lane.words}
    if Word.WRONG in words:
        return Headline.WRONG
    if words & {Word.SLOWER, Word.CHANGED}:
        return Headline.WORSE
    silent = any(lane.silent or lane.absent or (lane.report and not lane.report.complete) for lane in lanes)
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
    return Headline.FASTER if Word.FASTER in words else Headline.UNCHANGED  # BETTER metrics are no times.


class Overview(Struct, frozen=True, dict=True):
    """All lanes of one commit.

    Attributes:
        edits: the edits of the baselines; those that let a worse reading pass come first.
        head: the commit that was measured; "" if unknown.
        base: the commit whose baselines judged; "" if the run of the reports judged.
        unread: the part of the change that could not be read in full, so that its edits are unknown; "": none.
        run_url: the URL of the full reports.
        source_url: the beginning of the URLs of the measured commit's files; "" if unknown.
        changed_places: place of a cause -> the changed line inside its function, for annotations of a diff.
    """

    lanes: list[LaneView]
    edits: list[BaselineEdit] = []
    head: str = ""
    base: str = ""
    unread: str = ""
    run_url: str = ""
    source_url: str = ""
    changed_places: dict[str, str] = {}
    warnings: list[str] = []

    @cached_property
    def headline(self) -> Headline:
        """The most urgent result of any lane."""
        return headline_of(self.lanes, self.unread)

    @property
    def sign(self) -> str:
        """The sign of the headline, which is never green if an edit loosens a baseline."""
        quiet = self.headline in (Headline.FASTER, Headline.UNCHANGED)
        return SIGNS[Headline.INCOMPLETE] if quiet and self.loosened else SIGNS[self.headline]

    def findings(self, *words: Word) -> list[Finding]:
        """The findings of all lanes with these words, worst first."""
        found = [finding for lane in self.lanes for finding in lane.findings if finding.verdict.word in words]
        return sorted(found, key=lambda finding: finding.urgency)

    @cached_property
    def causes(self) -> list[Cause]:
        """The causes of the failing findings of all lanes, the most urgent first."""
        asked = [bases_of(lane.name, lane.report) for lane in self.lanes if lane.report]
        return causes_of(self.findings(*(word for word in Word if word.fails)), dict(ChainMap(*asked)))

    @property
    def reported(self) -> int:
        """The number of lanes with a report."""
        return sum(1 for lane in self.lanes if lane.report is not None)

    @property
    def silent(self) -> int:
        """The number of lanes whose report is missing."""
        return sum(lane.silent for lane in self.lanes)

    @property
    def absent(self) -> int:
        """The number of cases of all lanes that are missing or unreadable in the reports."""
        return sum(lane.absent for lane in self.lanes)

    @property
    def loosened(self) -> int:
        """The number of baseline edits that let a worse reading pass."""
        return sum(1 for edit in self.edits if edit.loosens)

    def total(self, *words: Word) -> int:
        """The number of cases of all lanes whose worst verdict is one of `words`."""
        return sum(lane.counts[word] for lane in self.lanes for word in words)

    @cached_property
    def undecided(self) -> Undecided:
        """The timed cases of all lanes that could not be judged."""
        by_lane = [lane.undecided for lane in self.lanes]
        return Undecided([each for one in by_lane for each in one.findings], sum(one.of for one in by_lane))
