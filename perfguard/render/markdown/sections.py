"""The unfolded parts of the comment; each is a whole block of Markdown or empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perfguard.model.lane_summary import BaselineEdit, Headline
from perfguard.model.records import OTHER_CONDITIONS, Accuracy, Word
from perfguard.model.units import counted, format_change
from perfguard.render.escaping import code, link
from perfguard.render.markdown.cells import NAME, before_and_after, change, device, text, together, value
from perfguard.render.markdown.tables import MORE_BY_GROUP_BYTES, MORE_BYTES, Bounds, table
from perfguard.render.survey import INCONCLUSIVE, NOT_GUARDED, SIGNS, Finding, LaneSurvey, Survey, by_kernel
from perfguard.render.words import NOT_TIMED, limit_text, more_lines, moved, next_step

_NOT_VERIFIED = (
    "**Not verified** (only the report's word keeps these from a verdict: record them on that hardware, "
    "or run the lane again)"
)
MOST_MOVED = 20  # unfolded rows of one word

Section = Callable[[Survey, Bounds], str]


def headline(found: Survey) -> str:
    """The comment's heading."""
    return f"### {found.sign} perfguard: {found.title}"


def judged_by(found: Survey) -> str:
    """The measured commit, the commit of the judging baselines, and the number of lanes that reported."""
    overview = found.overview
    parts = []
    if overview.head:
        parts.append(code(overview.head[:12]))
    if overview.base:
        age = overview.base_age_days
        old = "" if age is None else f", {counted(age, 'day')} old"
        parts.append(f"judged by the baselines at {code(overview.base[:12])}, the merge base{old}")
    beside = {lane.lane.report.base.commit for lane in found.lanes if lane.lane.report and lane.lane.report.base}
    if beside - {None}:
        told = ", ".join(code(commit[:12]) for commit in sorted(filter(None, beside)))
        parts = [", ".join([" ".join(parts), f"times beside {told}"]) if parts else f"times beside {told}"]
    reported = f"lanes: {found.reported} of {len(found.lanes)} reported"
    return " · ".join([" ".join(parts), reported]) if parts else reported


def resolved(found: Survey) -> str:
    """A line saying that all earlier findings are gone, with the commit and the lanes."""
    names = ", ".join(
        code(lane.lane.name, NAME) + (f" ({NOT_TIMED})" if lane.exact_only else "") for lane in found.lanes
    )
    judged = judged_by(found)
    return f"Resolved in {judged} · {names}" if found.overview.head else f"Resolved · {judged} · {names}"


def lanes(found: Survey, bounds: Bounds) -> str:
    """A row for every expected lane, including those without a result; empty columns are left out."""
    counts = {word.value: [lane.counts[word] for lane in found.lanes] for word in Word}
    counts["Not measured"] = [lane.absent for lane in found.lanes]
    counts = {name: column for name, column in counts.items() if any(column)}
    header = ("Lane", "Hardware", "Verdict", *counts, "Guarded")
    rows = (_lane_row(lane, [column[place] for column in counts.values()]) for place, lane in enumerate(found.lanes))
    return table(header, rows, len(found.lanes), bounds)


def _lane_row(lane: LaneSurvey, counts: list[int]) -> tuple[str, ...]:
    report = lane.lane.report
    name = code(lane.lane.name, NAME)
    if report is None:
        why = f": {code(lane.lane.problem)}" if lane.lane.problem else ""
        return name, "", f"⚠️ **no result**{why}", *[""] * (len(counts) + 1)
    verdict = f"{SIGNS[lane.headline]} {lane.headline.value}"
    if report.exact_only:
        verdict += f", {NOT_TIMED}"
    if not report.complete:
        verdict += ", run was cut short"
    return name, device(report), verdict, *(str(count or "") for count in counts), lane.guarded.rpartition(" ")[0]


MOVED_TITLES = {
    Word.SLOWER: "Slower** (beyond noise; worst first)",
    Word.CHANGED: "Changed** (exact metrics; worst first)",
    Word.FASTER: "Faster** (best first)",
}


def changed(found: Survey, bounds: Bounds) -> str:
    """The changed metrics, a table for each word, so that worse ones never hide better ones or vice versa."""
    rows = {word: found.findings(word) for word in MOVED_TITLES}
    rows = {word: findings for word, findings in rows.items() if findings}
    share = None if bounds.size is None else bounds.size // max(len(rows), 1)
    each = Bounds(None if bounds.rows is None else max(bounds.rows, MOST_MOVED), share)
    return "\n\n".join(_moved(found, word, findings, each) for word, findings in rows.items())


def _moved(found: Survey, word: Word, rows: list[Finding], bounds: Bounds) -> str:
    header: tuple[str, ...] = ("Lane", "Case", "Metric", "Before", "Now", "Change (95 % CI)", "Limit", "Why")
    width = len(header) - (not any(more_lines(finding.verdict) for finding in rows))
    header, cells = header[:width], (_moved_row(finding)[:width] for finding in rows)
    body = _by_lane(found, header, cells, len(rows), bounds, lambda first: _kernels(rows[first:]))
    return f"**{MOVED_TITLES[word]}\n\n{body}"


def _moved_row(finding: Finding) -> tuple[str, ...]:
    verdict = finding.verdict
    return (
        code(finding.lane, NAME), code(finding.result.case.key), code(verdict.metric, NAME),
        *before_and_after(verdict), change(verdict), together(limit_text(verdict)),
        text("; ".join(more_lines(verdict))),
    )  # fmt: skip


def _kernels(rows: list[Finding]) -> str:
    """`a` 480 (up to 12.3 % slower), `b` 12 (…): the rows counted by kernel, the kernel with most rows first."""
    told: list[str] = []
    groups = by_kernel(rows)
    room = MORE_BY_GROUP_BYTES - 2 * MORE_BYTES
    for kernel, findings in groups:
        worst = moved(findings[0].verdict).partition(" (")[0]
        line = f"{code(kernel, NAME)} {len(findings)}{f' (up to {together(worst)})' if worst else ''}"
        room -= len(line.encode()) + 2
        if room < 0:
            break
        told.append(line)
    if len(told) < len(groups):
        told.append(counted(len(groups) - len(told), "more kernel"))
    return ", ".join(told)


def numerics(found: Survey, bounds: Bounds) -> str:
    """Wrong results; these cases have no times."""
    rows = found.findings(Word.WRONG)
    if not rows:
        return ""
    header = ("Lane", "Case", "Output", "Limit", "Got", "Why")
    body = _by_lane(found, header, (_wrong_row(finding) for finding in rows), len(rows), bounds)
    return f"**Numerics** (wrong results; nothing was timed)\n\n{body}"


def _wrong_row(finding: Finding) -> tuple[str, ...]:
    verdict = finding.verdict
    by_output = {accuracy.output: accuracy for accuracy in finding.result.accuracy}
    return (
        code(finding.lane, NAME), code(finding.result.case.key), text(verdict.metric, NAME),
        *_errors(by_output.get(verdict.metric)), text(verdict.reason),
    )  # fmt: skip


def _errors(accuracy: Accuracy | None) -> tuple[str, str]:
    if accuracy is None or accuracy.limit is None or accuracy.rmse is None:
        return "", ""
    return f"RMSE {accuracy.limit:.3g}", f"RMSE {accuracy.rmse:.3g}"


def missing(found: Survey, bounds: Bounds) -> str:
    """Cases that were expected and not measured."""
    rows = found.missing
    if not rows:
        return ""
    cells = ((code(lane, NAME), code(case), text(why)) for lane, case, why in rows)
    return f"**Broken or not measured**\n\n{_by_lane(found, ('Lane', 'Case', 'Why'), cells, len(rows), bounds)}"


def undecided(found: Survey, bounds: Bounds) -> str:
    """The undecided times and the next step to decide them. The cases, or those without a baseline, are listed only if
    nothing is more urgent."""
    if found.headline is Headline.NO_BASELINE:
        return _said(found, "**Not guarded**", NOT_GUARDED, bounds)
    if found.headline is Headline.UNVERIFIED:
        return _said(found, _NOT_VERIFIED, (*INCONCLUSIVE, *OTHER_CONDITIONS), bounds)
    open_ = found.undecided
    title = ""
    if open_.findings:
        reason, share = open_.most_common
        some = "" if share == len(open_.findings) else f" ({share} of {len(open_.findings)} times)"
        step = next_step(reason, [])
        title = f"**{open_}:** {code(reason)}{some}{f'; {step}' if step else ''}"
    if found.headline in (Headline.INCONCLUSIVE, Headline.UNDECIDED):
        return _said(found, title or "**Not judged**", INCONCLUSIVE, bounds)
    return title


def _said(found: Survey, title: str, words: Iterable[Word], bounds: Bounds) -> str:
    rows = found.findings(*words)
    if not rows:
        return ""
    cells = (
        (
            code(each.lane, NAME), code(each.result.case.key), text(each.verdict.metric, NAME), each.verdict.word.value,
            text(each.verdict.reason),
        )
        for each in rows
    )  # fmt: skip
    header = ("Lane", "Case", "Metric", "Verdict", "Why")
    return f"{title}\n\n{_by_lane(found, header, cells, len(rows), bounds)}"


def _by_lane(
    found: Survey,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    total: int,
    bounds: Bounds,
    about: Callable[[int], str] | None = None,
) -> str:
    """A table whose first column is the lane. A single lane is not repeated here: the table of lanes names it."""
    if len(found.lanes) > 1:
        return table(header, rows, total, bounds, about)
    return table(header[1:], (row[1:] for row in rows), total, bounds, about)


def edits(found: Survey, bounds: Bounds) -> str:
    """Every baseline entry edited by the change, loosening edits first."""
    if not found.edits:
        return ""
    loose = sum(1 for edit in found.edits if edit.loosens)
    note = f" (⚠️ {loose} of {len(found.edits)} let a worse reading pass than before)" if loose else ""
    header = ("Folder", "Case", "Metric", "Old → new", "Reason", "Measured here")
    body = table(header, (_edit_row(edit) for edit in found.edits), len(found.edits), bounds)
    return f"**Baseline edits in this change**{note}\n\n{body}"


def _edit_row(edit: BaselineEdit) -> tuple[str, ...]:
    old, new = value(edit.before, edit.unit, "none"), value(edit.after, edit.unit, "removed")
    return (
        code(edit.folder, NAME), code(edit.case), code(edit.metric, NAME),
        f"{old} → {new}{_looser(edit)}", text(edit.reason) or "no reason",
        value(edit.measured, edit.unit, "not measured"),
    )  # fmt: skip


def _looser(edit: BaselineEdit) -> str:
    """` ⚠️ looser`, with the distance over the anchor for a time that crept up."""
    over = "" if edit.growth is None else f", {format_change(1 + edit.growth)} over its anchor"
    return f" ⚠️ looser{over}" if edit.loosens else ""


def footer(found: Survey) -> str:
    """Links to the full results, and the origin of the numbers."""
    overview = found.overview
    if not overview.run_url:
        return ""
    until = f" until {code(overview.artifacts_until)}" if overview.artifacts_until else ""
    run = link("summary of the run", overview.run_url)
    return f"Everything: {run} · report artifact{until} · the numbers were produced by this change's code"
