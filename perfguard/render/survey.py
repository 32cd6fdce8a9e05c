"""An overview counted and sorted once for all outputs: headline, counts per lane, findings with the worst first.

Names and reasons are unescaped here; each output escapes them in its own way. All outputs, including the terminal, show
the counts of `LaneSurvey.counts` and `Undecided`, and no others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from perfguard.model.lane_summary import BaselineEdit, Headline, LaneView, Overview
from perfguard.model.records import CaseResult, Provenance, Report, Verdict, Word
from perfguard.model.records.case import is_guarded
from perfguard.model.units import counted
from perfguard.render.words import NOT_TIMED, most_common

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
    """A verdict that no baseline edit covers, with its case and lane."""

    lane: str
    result: CaseResult
    verdict: Verdict

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
        return len({(each.lane, each.result.case.suite, each.result.case.key) for each in self.findings})

    @property
    def kind(self) -> str:
        """The most common cause in words without names."""
        return next((text for start, text in _KINDS.items() if self.most_common[0].startswith(start)), "not read")

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
        headline: the headline of this lane alone.
        cases: each case with its worst verdict that no edit covers, in the report's order.
        findings: verdicts that are not quiet, worst first.
        missing: (case, why) of each case that was expected and not measured: broken, refused, unmeasured.
    """

    lane: LaneView
    headline: Headline
    cases: list[tuple[CaseResult, Word]]
    findings: list[Finding]
    missing: list[tuple[str, str]]

    @cached_property
    def counts(self) -> Counter[Word]:
        """Cases by their worst verdict, and stale entries; a renamed case counts under its new name."""
        stale = self.lane.report.stale if self.lane.report else []
        gone = [verdict.word for verdict in stale if verdict.word is Word.STALE]
        return Counter([*(word for _, word in self.cases), *gone])

    @cached_property
    def undecided(self) -> Undecided:
        """Its timed cases that could not be judged, counted as in `perfguard.judge.is_inconclusive`."""
        timed = [
            Finding(self.lane.name, result, verdict)
            for result, verdict in self.lane.findings
            if (reading := result.reading(verdict.metric)) is not None and reading.timed and reading.gated
        ]
        open_ = [finding for finding in timed if finding.verdict.word in INCONCLUSIVE]
        return Undecided(open_, Undecided(timed, 0).cases)

    @cached_property
    def guarded(self) -> str:
        """`3 of 4 cases`: the guarded ones, counted as in `perfguard.judge.count_guarded`."""
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

    def count(self, words: Iterable[Word]) -> int:
        """Number of cases whose worst verdict is one of `words`."""
        return sum(self.counts[word] for word in words)

    @property
    def differences(self) -> list[Difference]:
        """Differences between the lane's environment and that of its baselines, most cases first."""
        report = self.lane.report
        return _differences(report, self.lane) if report else []


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
        return [(lane.lane.name, case, why) for lane in self.lanes for case, why in lane.missing]

    @property
    def reported(self) -> int:
        """Number of lanes with a report."""
        return sum(1 for lane in self.lanes if lane.lane.report is not None)

    @property
    def title(self) -> str:
        """The headline in words and numbers, without names, and the number of edits that let worse readings pass."""
        text = _TITLES[self.headline](self)
        if not self.loosened or self.headline is Headline.ACCEPTED:  # its text counts the edits
            return text
        edits = f", {counted(self.loosened, 'baseline edit')} let worse pass than before"
        return f"{text.removesuffix(ACTION)}{edits}{ACTION if text.endswith(ACTION) else ''}"

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
        return sum(lane.count(words) for lane in self.lanes)

    @property
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
    report = lane.report
    found: dict[tuple[str, str], list[Verdict]] = {}
    findings = []
    for result, verdict in lane.findings:
        found.setdefault((result.case.suite, result.case.key), []).append(verdict)
        if verdict.word not in QUIET:
            findings.append(Finding(lane.name, result, verdict))
    cases = []
    for result in report.results if report else []:
        words = [verdict.word for verdict in found.get((result.case.suite, result.case.key), [])]
        cases.append((result, min(words, key=URGENCY.__getitem__, default=Word.PASS)))
    missing = [
        (finding.result.case.key, finding.verdict.reason) for finding in findings if finding.verdict.word is Word.BROKEN
    ]
    missing += [(refused.name, refused.reason) for refused in lane.refused]
    missing += [(key, UNMEASURED) for key in lane.unmeasured]
    findings.sort(key=lambda finding: finding.urgency)
    return LaneSurvey(lane, Overview(lanes=[lane]).headline, cases, findings, missing)


def _differences(report: Report, lane: LaneView) -> list[Difference]:
    counts: Counter[tuple[str, str, str]] = Counter()
    now = _environment(report)
    for baseline in lane.baselines.values():
        judged = Counter(baseline.provenance_of(key) for key in baseline.cases)
        for provenance, cases in judged.items():
            for what, value in now.items():
                stored = _stored(provenance, what)
                if stored and value and stored != value:
                    counts[what, stored, value] += cases
    return [Difference(*key, cases) for key, cases in counts.most_common()]


def _environment(report: Report) -> dict[str, str]:
    tools, power = report.toolchain, report.hardware.power_limit_watts
    named = {name: getattr(tools, name) or "" for name in ("driver", "toolkit", "torch", "triton", "python")}
    return named | {"power limit": f"{power:g} W" if power else ""}


def _stored(provenance: Provenance, what: str) -> str:
    if what == "power limit":
        return f"{provenance.power_limit_watts:g} W" if provenance.power_limit_watts else ""
    return getattr(provenance, what) or ""


def _failing(found: Survey) -> str:
    words = (Word.WRONG, Word.BROKEN, Word.SLOWER, Word.CHANGED, Word.FASTER)
    told = [(found.total(word), word.value.lower()) for word in words]
    told.insert(-1, (sum(lane.absent for lane in found.lanes), "not measured"))
    told = [(count, word) for count, word in told if count]
    texts = [f"{counted(told[0][0], 'case')} {told[0][1]}", *(f"{count} {word}" for count, word in told[1:])]
    silent = len(found.lanes) - found.reported
    if silent:
        texts.append(f"{counted(silent, 'lane')} without a result")
    open_ = found.undecided
    if open_.findings:
        texts.append(str(open_))
    return ", ".join(texts) + ACTION


def _incomplete(found: Survey) -> str:
    if not found.lanes:
        return "incomplete: no lane is expected"
    silent = len(found.lanes) - found.reported
    cut = sum(1 for lane in found.lanes if lane.lane.report is not None and not lane.lane.report.complete)
    parts = []
    if silent:
        parts.append(f"{silent} of {counted(len(found.lanes), 'lane')} without a result")
    if broken := found.total(Word.BROKEN):
        parts.append(f"{counted(broken, 'case')} broken")
    if absent := sum(lane.absent for lane in found.lanes):
        parts.append(f"{counted(absent, 'case')} not measured")
    if cut:
        parts.append(f"{counted(cut, 'run')} cut short")
    if found.overview.unread:
        parts.append(found.overview.unread)
    return "incomplete: " + ", ".join(parts)


def _inconclusive(found: Survey) -> str:
    open_ = found.undecided
    lanes = [lane for lane in found.lanes if lane.lane.is_inconclusive]
    where = f" on {len(lanes)} of {counted(len(found.lanes), 'lane')}" if len(found.lanes) > 1 else ""
    return f"inconclusive{where}: {open_}: {open_.kind}"


def _unverified(found: Survey) -> str:
    views = [lane.lane for lane in found.lanes]
    others, unpaired = (
        sum(len({(result.case.suite, result.case.key) for result, _ in each}) for each in lanes)
        for lanes in ([view.other_conditions for view in views], [view.unpaired for view in views])
    )
    parts = [
        f"{counted(others, 'case')} under other conditions than recorded" if others else "",
        f"{counted(unpaired, 'case')} in question without process pairs" if unpaired else "",
    ]
    return f"not verified: {', '.join(filter(None, parts))}{ACTION}"


def _undecided(found: Survey) -> str:
    open_ = found.undecided
    if open_.findings:
        return f"undecided: {open_}: {open_.kind}"
    return f"undecided: {counted(found.total(*INCONCLUSIVE), 'case')} that could not be judged"


def _accepted(found: Survey) -> str:
    count = sum(len(lane.lane.accepted) for lane in found.lanes)
    return f"accepted: {counted(count, 'finding')} covered by this change's baseline edits"


def _quiet(found: Survey) -> str:
    cases = sum(len(lane.cases) for lane in found.lanes)
    untimed = [lane for lane in found.lanes if lane.exact_only]
    text = f"no change in {counted(cases, 'case')} on {counted(len(found.lanes), 'lane')}"
    if not untimed:
        return text
    return f"{text}, {NOT_TIMED if len(untimed) == len(found.lanes) else f'{len(untimed)} of them {NOT_TIMED}'}"


_TITLES = {
    Headline.WRONG: _failing,
    Headline.WORSE: _failing,
    Headline.INCOMPLETE: _incomplete,
    Headline.INCONCLUSIVE: _inconclusive,
    Headline.UNVERIFIED: _unverified,
    Headline.UNDECIDED: _undecided,
    Headline.NO_BASELINE: lambda found: (
        f"not guarded: {counted(found.total(*NOT_GUARDED), 'case')} without a comparable baseline"
    ),
    Headline.ACCEPTED: _accepted,
    Headline.FASTER: lambda found: f"{counted(found.total(Word.FASTER), 'case')} faster or lighter, none worse",
    Headline.UNCHANGED: _quiet,
}
