"""An overview counted and sorted once for all outputs: headline, counts per lane, findings with the worst first.

Names and reasons are unescaped here; each output escapes them in its own way. All outputs, including the terminal, show
the counts of `LaneSurvey.counts` and `Undecided`, and no others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfguard.model.lane_summary import BaselineEdit, Headline, LaneView, Overview
from perfguard.model.records import Case, CaseResult, Provenance, Report, Verdict, Word
from perfguard.model.records.case import is_guarded
from perfguard.model.units import counted
from perfguard.render.causes import by_cause
from perfguard.render.words import NOT_TIMED, most_common, next_step

SIGNS = {
    Headline.WRONG: "🔴", Headline.WORSE: "❌", Headline.INCOMPLETE: "⚠️", Headline.INCONCLUSIVE: "❓",
    Headline.UNVERIFIED: "🔎", Headline.UNDECIDED: "❔", Headline.NO_BASELINE: "🆕", Headline.ACCEPTED: "📝",
    Headline.FASTER: "⚡", Headline.UNCHANGED: "✅",
}  # fmt: skip

# A SUSPECT in a report (of a killed run) is still undecided: it sorts after UNRESOLVED, not after PASS.
URGENCY = {word: float(place) for place, word in enumerate(Word)}
URGENCY[Word.SUSPECT] = URGENCY[Word.UNRESOLVED] + 0.5
MOVED = (Word.SLOWER, Word.CHANGED, Word.FASTER)
INCONCLUSIVE = (Word.UNRESOLVED, Word.SUSPECT)
QUIET = (Word.PASS, Word.UNCHANGED, Word.UNSUPPORTED)
NOT_GUARDED = tuple(word for word in Word if word.unguarded and word not in INCONCLUSIVE)
ACTION = " — action needed"
UNMEASURED = "has a baseline, but the report does not hold it"


@dataclass(frozen=True)
class Finding:
    """A verdict that no baseline edit covers, with its case and lane. `grouped`: it stands for the observed tests with
    one cause."""

    lane: str
    result: CaseResult
    verdict: Verdict
    grouped: bool = False

    @property
    def urgency(self) -> tuple[float, float]:
        """Sort key, worst first: by word, then by the size of the slowdown; FASTER sorts the best first."""
        ratio = self.verdict.ratio or 0.0
        return URGENCY[self.verdict.word], ratio if self.verdict.word is Word.FASTER else -ratio

    @property
    def kernel(self) -> str:
        """The guarded kernel, guessed from the case's name: the test without its parameters."""
        return re.split(r"[\[:/]", self.result.case.name, maxsplit=1)[0]


@dataclass(frozen=True)
class Undecided:
    """Timed cases that could not be judged.

    Attributes:
        findings: their undecided gated times.
        of: number of cases with a verdict on a gated time.
    """

    findings: list[Finding]
    of: int

    def __str__(self) -> str:
        return f"{self.cases} of {counted(self.of, 'timed case')} could not be judged"

    @property
    def cases(self) -> int:
        """Number of cases with undecided times."""
        return len({(each.lane, each.result.case) for each in self.findings})

    @property
    def kind(self) -> str:
        """The most common cause in words without names."""
        return next((text for start, text in _KINDS.items() if self.most_common[0].startswith(start)), "not read")

    def cause(self, nodeids: Sequence[str]) -> tuple[str, str]:
        """The most common cause, and what follows it: its share of the times, if not all, and the next step. Requires
        at least one finding.

        Args:
            nodeids: tests to name in the next step, if there is only one.
        """
        cause, share = self.most_common
        some = "" if share == len(self.findings) else f" ({share} of {len(self.findings)} times)"
        step = next_step(cause, nodeids)
        return cause, f"{some}; {step}" if step else some

    @property
    def most_common(self) -> tuple[str, int]:
        """The most common cause in their reasons, and the number of times with it; requires at least one finding."""
        return most_common([finding.verdict.reason for finding in self.findings])


_KINDS = {"UNPAIRED": "not measured beside a base", "UNDECIDED": "too few process pairs", "NOISY": "too noisy"}


@dataclass(frozen=True)
class Difference:
    """One version that differs between a lane's run and a baseline that judged it, with the number of cases."""

    what: str
    stored: str
    now: str
    cases: int


@dataclass(frozen=True)
class LaneSurvey:
    """One lane, counted.

    Attributes:
        cases: each case with its worst verdict that no edit covers, in the report's order.
        findings: verdicts that are not quiet, worst first.
        missing: (case, why) of each case that was expected and not measured: broken, refused, unmeasured.
        accepted: case -> its verdicts that an edit covers.
    """

    lane: LaneView
    cases: list[tuple[CaseResult, Word]]
    findings: list[Finding]
    missing: list[tuple[str, str]]
    accepted: dict[Case, list[Verdict]]

    @property
    def name(self) -> str:
        """The lane's name."""
        return self.lane.name

    @cached_property
    def headline(self) -> Headline:
        """The headline of this lane alone."""
        return Overview(lanes=[self.lane]).headline

    @property
    def verdict(self) -> str:
        """`slower or heavier, not timed, run was cut short`; of a lane with a report."""
        report = self.lane.report
        cut = report is not None and not report.complete
        return ", ".join([self.headline.value, *[NOT_TIMED] * self.exact_only, *["run was cut short"] * cut])

    @cached_property
    def counts(self) -> Counter[Word]:
        """Cases by their worst verdict, and stale entries."""
        gone = [verdict.word for verdict in self.lane.report.stale] if self.lane.report else []
        return Counter([*(word for _, word in self.cases), *gone])

    @cached_property
    def undecided(self) -> Undecided:
        """Its timed cases that could not be judged, counted as in `is_inconclusive`."""
        timed = [
            Finding(self.name, result, verdict)
            for result, verdict in self.lane.findings
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
        return len(self.lane.refused) + len(self.lane.unmeasured)

    @property
    def exact_only(self) -> bool:
        """Whether the lane read no times."""
        return self.lane.report is not None and self.lane.report.exact_only

    @property
    def differences(self) -> list[Difference]:
        """Differences between the lane's environment and that of its baselines, most cases first."""
        return _differences(self.lane.report, self.lane) if self.lane.report else []


@dataclass(frozen=True)
class Survey:
    """All lanes of an overview, counted; `edits` that let a worse reading pass come first."""

    overview: Overview
    headline: Headline
    lanes: list[LaneSurvey]
    edits: list[BaselineEdit] = field(default_factory=list)

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
        return sum(1 for lane in self.lanes if lane.lane.report is not None)

    @property
    def title(self) -> str:
        """The headline in words and numbers, without names, and the number of edits that let worse readings pass."""
        text = _title(self)
        if not self.loosened or self.headline is Headline.ACCEPTED:  # its text counts the edits
            return text
        edits = f", {counted(self.loosened, 'baseline edit')} let worse pass than before"
        return f"{text.removesuffix(ACTION)}{edits}{ACTION if text.endswith(ACTION) else ''}"

    @property
    def absent(self) -> int:
        """Cases of all lanes that are missing or unreadable in their reports."""
        return sum(lane.absent for lane in self.lanes)

    @property
    def loosened(self) -> int:
        """Number of baseline edits that let a worse reading pass."""
        return sum(1 for edit in self.edits if edit.loosens)

    @property
    def sign(self) -> str:
        """The headline's sign; a loosened baseline is never green."""
        quiet = self.headline in (Headline.FASTER, Headline.UNCHANGED)
        return SIGNS[Headline.INCOMPLETE] if quiet and self.loosened else SIGNS[self.headline]

    def total(self, *words: Word) -> int:
        """Number of cases over all lanes whose worst verdict is one of `words`."""
        return sum(lane.counts[word] for lane in self.lanes for word in words)

    @cached_property
    def undecided(self) -> Undecided:
        """The timed cases of all lanes that could not be judged."""
        found = [lane.undecided for lane in self.lanes]
        return Undecided([each for one in found for each in one.findings], sum(one.of for one in found))


def survey_report(report: Report) -> LaneSurvey:
    """One report, counted and sorted."""
    return _survey_lane(LaneView(report.lane, report))


def by_kernel(findings: Sequence[Finding]) -> list[tuple[str, list[Finding]]]:
    """Findings grouped by kernel, in their order; the kernel with most findings first."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.kernel, []).append(finding)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def survey(overview: Overview) -> Survey:
    """Count and sort an overview."""
    lanes = [_survey_lane(lane) for lane in overview.lanes]
    edits = sorted(overview.edits, key=lambda edit: not edit.loosens)
    return Survey(overview, overview.headline, lanes, edits)


def _survey_lane(lane: LaneView) -> LaneSurvey:
    found, cases, accepted = [], [], {}
    for result, uncovered, covered in lane.judged:
        found += [(result, verdict) for verdict in uncovered if verdict.word not in QUIET]
        words = [verdict.word for verdict in uncovered]
        cases.append((result, min(words, key=URGENCY.__getitem__, default=Word.PASS)))
        accepted[result.case] = covered
    observed = [each for each in found if each[0].case.direction == "test" and each[1].word in MOVED]
    rest = [each for each in found if not any(each is other for other in observed)]
    findings = [Finding(lane.name, *each) for each in rest]
    findings += [Finding(lane.name, *each, grouped=True) for each in by_cause(observed)]
    missing = [
        (finding.result.case.key, finding.verdict.reason) for finding in findings if finding.verdict.word is Word.BROKEN
    ]
    missing += [(refused.name, refused.reason) for refused in lane.refused]
    missing += [(key, UNMEASURED) for key in lane.unmeasured]
    findings.sort(key=lambda finding: finding.urgency)
    return LaneSurvey(lane, cases, findings, missing, accepted)


#: What a time depends on, as a field of a provenance.
_ENVIRONMENT = {"driver": "driver", "toolkit": "toolkit", "torch": "torch", "triton": "triton", "python": "python",
                "power limit": "power_limit_watts"}  # fmt: skip


def _differences(report: Report, lane: LaneView) -> list[Difference]:
    counts: Counter[tuple[str, str, str]] = Counter()
    now = _environment(report.provenance)
    for baseline in lane.baselines.values():
        for provenance, cases in Counter(map(baseline.provenance_of, baseline.cases)).items():
            stored = _environment(provenance)
            for what in stored:
                if stored[what] and now[what] and stored[what] != now[what]:
                    counts[what, stored[what], now[what]] += cases
    return [Difference(*key, cases) for key, cases in counts.most_common()]


def _environment(provenance: Provenance) -> dict[str, str]:
    found = {what: getattr(provenance, name) for what, name in _ENVIRONMENT.items()}
    return {what: f"{of:g} W" if isinstance(of, float) else of or "" for what, of in found.items()}


def _title(found: Survey) -> str:
    """The headline in words and numbers, without baseline edits."""
    lanes, undecided = counted(len(found.lanes), "lane"), found.undecided
    match found.headline:
        case Headline.WRONG | Headline.WORSE:
            return _failing(found) + ACTION
        case Headline.INCOMPLETE:
            return f"incomplete: {_incomplete(found)}"
        case Headline.INCONCLUSIVE:
            those = sum(lane.lane.is_inconclusive for lane in found.lanes)
            where = f" on {those} of {lanes}" if len(found.lanes) > 1 else ""
            return f"inconclusive{where}: {undecided}: {undecided.kind}"
        case Headline.UNVERIFIED:
            return f"not verified: {_unverified(found)}{ACTION}"
        case Headline.UNDECIDED:
            if undecided.findings:
                return f"undecided: {undecided}: {undecided.kind}"
            return f"undecided: {counted(found.total(*INCONCLUSIVE), 'case')} that could not be judged"
        case Headline.NO_BASELINE:
            return f"not guarded: {counted(found.total(*NOT_GUARDED), 'case')} without a comparable baseline"
        case Headline.ACCEPTED:
            accepted = sum(len(lane.lane.accepted) for lane in found.lanes)
            return f"accepted: {counted(accepted, 'finding')} covered by this change's baseline edits"
        case Headline.FASTER:
            return f"{counted(found.total(Word.FASTER), 'case')} faster or lighter, none worse"
        case Headline.UNCHANGED:
            untimed = sum(lane.exact_only for lane in found.lanes)
            some = "" if untimed == len(found.lanes) else f"{untimed} of them "
            text = f"no change in {counted(sum(len(lane.cases) for lane in found.lanes), 'case')} on {lanes}"
            return f"{text}, {some}{NOT_TIMED}" if untimed else text


def _failing(found: Survey) -> str:
    words = (Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED, Word.FASTER)
    told = [(found.total(word), word.value.lower()) for word in words]
    told.insert(-1, (found.absent, "not measured"))
    (count, word), *rest = [(count, word) for count, word in told if count]
    texts = [f"{counted(count, 'case')} {word}", *(f"{count} {word}" for count, word in rest)]
    if silent := len(found.lanes) - found.reported:
        texts.append(f"{counted(silent, 'lane')} without a result")
    if found.undecided.findings:
        texts.append(str(found.undecided))
    return ", ".join(texts)


def _incomplete(found: Survey) -> str:
    silent, broken = len(found.lanes) - found.reported, found.total(Word.BROKEN)
    cut = sum(lane.lane.report is not None and not lane.lane.report.complete for lane in found.lanes)
    parts = [
        "" if found.lanes else "no lane is expected",
        f"{silent} of {counted(len(found.lanes), 'lane')} without a result" if silent else "",
        f"{counted(broken, 'case')} broken" if broken else "",
        f"{counted(found.absent, 'case')} not measured" if found.absent else "",
        f"{counted(cut, 'run')} cut short" if cut else "",
        found.overview.unread,
    ]
    return ", ".join(filter(None, parts))


def _unverified(found: Survey) -> str:
    views = [lane.lane for lane in found.lanes]
    others = sum(len({result.case for result, _ in view.other_conditions}) for view in views)
    unpaired = sum(len({result.case for result, _ in view.unpaired}) for view in views)
    parts = [
        f"{counted(others, 'case')} under other conditions than recorded" if others else "",
        f"{counted(unpaired, 'case')} in question without process pairs" if unpaired else "",
    ]
    return ", ".join(filter(None, parts))
