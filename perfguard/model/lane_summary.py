"""The results of several lanes for one commit, from which the comment, the page and the statuses are made.

`perfguard report` makes it from files, `perfguard comment` from validated artifacts. The renderers and the statuses
only read it. It contains no markup from strangers: names, values and reasons are data, which the renderers escape.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from perfguard.model.records import Baseline, CaseResult, Report, Value, Verdict, Word
from perfguard.model.records.baseline import Recorded
from perfguard.model.records.case import is_inconclusive
from perfguard.model.units import Unit

NOT_PAIRED = ("UNPAIRED", "UNDECIDED")  # first words of UNRESOLVED reasons; NOISY times were paired to the end

#: Lane, suite, case key, metric -> the recorded levels of the time, oldest first.
Histories = Mapping[tuple[str, str, str, str], Sequence[Recorded]]
NO_HISTORIES: Histories = {}


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


class Refused(Struct, frozen=True):
    """A case of a lane's report that could not be read, and why; it counts as a failure."""

    name: str
    reason: str


class BaselineEdit(Struct, frozen=True):
    """One entry of the baselines that the change edits.

    Attributes:
        folder: `nvidia-h200`, `targets/sm_90`.
        before, after: the entry's value, the centre of its sessions for a time; None where it is added or removed.
        loosens: the edit lets a worse reading pass than before (a removal does, too).
        measured: the reading in this change's own report, if any.
        growth: growth over its anchor of a time that grew by more than its promise (0.03 is 3 %); otherwise None.
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
    growth: float | None = None


class LaneView(Struct, frozen=True):
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
    accepted: list[tuple[str, str, str]] = []

    @property
    def judged(self) -> list[tuple[CaseResult, list[Verdict], list[Verdict]]]:
        """Every case in the report's order, with its verdicts that no edit covers, and those that one does."""
        accepted = set(self.accepted)
        found: list[tuple[CaseResult, list[Verdict], list[Verdict]]] = []
        for result in self.report.results if self.report else []:
            by: tuple[list[Verdict], list[Verdict]] = ([], [])
            for verdict in result.verdicts:
                by[(result.case.suite, result.case.key, verdict.metric) in accepted].append(verdict)
            found.append((result, *by))
        return found

    @property
    def findings(self) -> list[tuple[CaseResult, Verdict]]:
        """Every verdict that no edit covers, with its case, in the report's order."""
        return [(result, verdict) for result, uncovered, _ in self.judged for verdict in uncovered]

    @property
    def words(self) -> set[Word]:
        """Words of the findings and of recorded cases that are gone."""
        gone = {verdict.word for verdict in self.report.stale} if self.report else set()
        return {verdict.word for _, verdict in self.findings} | gone

    @property
    def other_conditions(self) -> list[tuple[CaseResult, Verdict]]:
        """Findings on metrics with a record here that, by the report, were read under another driver, power limit,
        timer … or from other inputs."""
        return [
            (result, verdict)
            for result, verdict in self.findings
            if verdict.word in (Word.DRIFT, Word.METHOD_CHANGED)
            or (verdict.word is Word.OTHER_HARDWARE and self._holds(result, verdict.metric))
        ]

    @property
    def unpaired(self) -> list[tuple[CaseResult, Verdict]]:
        """Times in question with no or too few process pairs in the report."""
        return [
            (result, verdict)
            for result, verdict in self.findings
            if verdict.word is Word.UNRESOLVED and verdict.reason.startswith(NOT_PAIRED)
        ]

    def _holds(self, result: CaseResult, metric: str) -> bool:
        file = self.baselines.get(result.case.suite)
        case = file.cases.get(result.case.key) if file else None
        return case is not None and metric in case.entries

    @property
    def is_inconclusive(self) -> bool:
        """Whether most of its times could not be judged; verdicts that an edit covers are left out."""
        return is_inconclusive(
            msgspec.structs.replace(result, verdicts=uncovered) for result, uncovered, _ in self.judged
        )


class Overview(Struct, frozen=True):
    """All lanes of one commit.

    Attributes:
        head: the commit that was measured; "" where unknown.
        base: the commit whose baselines judged; "" if the reports' own run judged.
        base_age_days: how old `base` is.
        unread: part of the change that could not be read in full, so that its edits are unknown; "": none.
        run_url, artifacts_until: location of the full reports, and their last day (ISO date).
    """

    lanes: list[LaneView]
    edits: list[BaselineEdit] = []
    head: str = ""
    base: str = ""
    base_age_days: int | None = None
    unread: str = ""
    run_url: str = ""
    artifacts_until: str = ""
    warnings: list[str] = []

    @property
    def headline(self) -> Headline:
        """The most urgent result of any lane."""
        words = {word for lane in self.lanes for word in lane.words}
        if Word.WRONG in words:
            return Headline.WRONG
        if words & {Word.SLOWER, Word.CHANGED}:
            return Headline.WORSE
        silent = any(lane.report is None or lane.refused or lane.unmeasured for lane in self.lanes)
        if (
            silent
            or not self.lanes
            or self.unread
            or Word.BROKEN in words
            or any(not lane.report.complete for lane in self.lanes if lane.report)
        ):
            return Headline.INCOMPLETE
        if any(lane.is_inconclusive for lane in self.lanes):
            return Headline.INCONCLUSIVE
        if any(lane.other_conditions or lane.unpaired for lane in self.lanes):
            return Headline.UNVERIFIED
        if words & {Word.UNRESOLVED, Word.SUSPECT}:
            return Headline.UNDECIDED
        if any(word.unguarded for word in words):
            return Headline.NO_BASELINE
        if any(lane.accepted for lane in self.lanes):
            return Headline.ACCEPTED
        return Headline.FASTER if Word.FASTER in words else Headline.UNCHANGED
