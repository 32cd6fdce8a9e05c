"""The comment in two sizes: whole, or shortened to the worst findings with a line that says so.

A part is a block of Markdown, or empty. `perfguard.github.api` adds the first line of the comment, its marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from perfguard.model.records import OTHER_CONDITIONS, Verdict, Word
from perfguard.model.records.report import commits_beside
from perfguard.model.units import counted
from perfguard.render.escaping import code, link
from perfguard.render.findings import INCONCLUSIVE, NOT_GUARDED, QUIET, Finding, by_kernel
from perfguard.render.markdown.cells import NAME, quantity, table, text, together, values
from perfguard.render.markdown.steps import next_steps
from perfguard.render.overview import SIGNS, BaselineEdit, Headline, LaneView, Overview
from perfguard.render.title import title_of
from perfguard.render.words import (
    MOST_OF_A_VALUE,
    NOT_TIMED,
    device,
    environment,
    folded,
    limit_text,
    listed,
    more_lines,
    moved,
    why,
)

#: GitHub refuses comments above 65,536 characters; this leaves room for the marker.
COMMENT_BYTES = 57_000
MOST_KERNELS = 5  # The most kernels that the count of the remaining rows names.
MOST_WARNINGS = 10
_LEAST_ROW = 60  # A case takes at least this many bytes in the details.

_ROWS, _FEWER_ROWS = 10, 5  # Rows of a table that is not folded; tables of changed metrics have twice as many.
_SHORTENED = "_Shortened: only the worst findings; all of them are in the run's summary and report._"
_NOT_VERIFIED = (
    "**Not verified** (only the report's word keeps these from a verdict: record them on that hardware, "
    "or run the lane again)"
)
MOVED_TITLES = {
    Word.SLOWER: "Slower** (beyond noise; worst first)",
    Word.CHANGED: "Changed** (exact metrics; worst first)",
    Word.FASTER: "Faster** (best first)",
    Word.BETTER: "Better** (exact metrics, which tell of no time)",
}


def render_markdown(overview: Overview, budget: int = COMMENT_BYTES) -> str:
    """The text of the comment, shortened if the whole exceeds `budget` UTF-8 bytes (at least 4,000)."""
    if sum(len(lane.cases) for lane in overview.lanes) * _LEAST_ROW < budget:
        parts = [_lanes(overview), *_open(overview, _ROWS), *_details(overview.lanes), _footer(overview)]
        text = _joined([_headline(overview), _judged_by(overview), *parts])
        if len(text.encode()) <= budget:
            return text
    return render_short(overview, budget)


def render_short(overview: Overview, budget: int = COMMENT_BYTES) -> str:
    """Headline, counts, and the other parts, which are shortened or left out if they exceed `budget` UTF-8 bytes."""
    assert budget >= 4000, "no room for headline and counts"
    parts = [_headline(overview), _judged_by(overview), _lanes(overview, budget // 2)]
    end = [_footer(overview), _SHORTENED]
    for lengths in zip(_open(overview, _ROWS), _open(overview, _FEWER_ROWS), strict=True):
        fitting = [each for each in lengths if len(_joined([*parts, each, *end]).encode()) <= budget]
        parts += fitting[:1]
    return _joined([*parts, *end])


def render_resolved(overview: Overview) -> str:
    """Three lines for a comment of an earlier run whose findings are all gone."""
    names = ", ".join(code(lane.name, NAME) + (f" ({NOT_TIMED})" if lane.exact_only else "") for lane in overview.lanes)
    start = "Resolved in" if overview.head else "Resolved ·"
    return _joined([_headline(overview), f"{start} {_judged_by(overview)} · {names}", _footer(overview)])


def _joined(blocks: Sequence[str]) -> str:
    return "\n\n".join(filter(None, blocks)) + "\n"


def _open(overview: Overview, most: int) -> Iterator[str]:
    """The parts that follow the counts and are not folded."""
    yield _remarks(overview)
    yield _numerics(overview, most)
    yield from _moved(overview, 2 * most)
    yield _missing(overview, most)
    yield _undecided(overview, most)
    yield _edits(overview, most)
    yield next_steps(overview)
    yield "\n".join(f"- ⚠️ {code(warning)}" for warning in overview.warnings[:MOST_WARNINGS])


def _headline(overview: Overview) -> str:
    return f"### {overview.sign} perfguard: {title_of(overview)}"


def _judged_by(overview: Overview) -> str:
    """The measured commit, the commits of the baselines and of the code that it was compared with, and the number of
    lanes that reported."""
    parts = []
    reports = [lane.report for lane in overview.lanes if lane.report]
    beside = sorted({commit for report in reports for commit in commits_beside(report)})
    if overview.head:
        parts.append(code(overview.head[:12]))
    if overview.base:
        whole = beside == [overview.base]
        beside = [] if whole else beside
        what = "the baselines and the code" if whole else "the baselines"
        parts.append(f"judged by {what} at {code(overview.base[:12])}, the merge base")
    commits = listed([code(commit[:12]) for commit in beside])
    judged = ", ".join(filter(None, (" ".join(parts), f"beside {commits}" if commits else "")))
    return " · ".join(filter(None, (judged, f"lanes: {overview.reported} of {len(overview.lanes)} reported")))


def _lanes(overview: Overview, size: int | None = None) -> str:
    """A row for every expected lane, including lanes without a result."""
    header = ("Lane", "Hardware", "Verdict", *Word, "Not measured", "Guarded")
    return table(header, overview.lanes, _lane_row, size=size)


def _lane_row(lane: LaneView) -> tuple[str, ...]:
    report = lane.report
    name = code(lane.name, NAME)
    if report is None:
        why_not = f": {code(lane.problem)}" if lane.problem else ""
        return name, "", f"⚠️ **no result**{why_not}", *[""] * (len(Word) + 2)
    counts = [*(lane.counts[word] for word in Word), lane.absent]
    return (
        name, code(device(report), NAME), f"{SIGNS[lane.headline]} {lane.verdict}",
        *(str(count or "") for count in counts), lane.guarded.rpartition(" ")[0],
    )  # fmt: skip


def _remarks(overview: Overview) -> str:
    """The remarks that require no action, one per line."""
    return "\n".join(
        f"- {code(lane.name, NAME)}: {remark}: {listed([code(name, NAME) for name in names])}"
        for lane in overview.lanes
        for remark, names in lane.remarks
    )


def _by_lane(
    overview: Overview,
    header: Sequence[str],
    rows: Sequence[Finding],
    row: Callable[[Finding], tuple[str, ...]],
    most: int,
    rest: Callable[[Sequence[Finding]], str] = lambda _: "",
) -> str:
    """A table of findings. Its first column is the lane, unless there is only one."""
    if len(overview.lanes) == 1:
        return table(header, rows, row, most=most, rest=rest)
    return table(
        ("Lane", *header), rows, lambda finding: (code(finding.lane, NAME), *row(finding)), most=most, rest=rest
    )


def _moved(overview: Overview, most: int) -> Iterator[str]:
    """The changed metrics in a table per word, so that worse ones never hide better ones or vice versa."""
    header = ("Case", "Metric", "Before", "Now", "Change (95 % CI)", "Limit", "Why")
    for word, title in MOVED_TITLES.items():
        rows = overview.findings(word)
        if rows:
            yield f"**{title}\n\n{_by_lane(overview, header, rows, _moved_row, most, _kernels)}"


def _moved_row(finding: Finding) -> tuple[str, ...]:
    verdict = finding.verdict
    return (
        code(finding.result.case.key), code(verdict.metric, NAME), *values(finding), together(finding.change),
        together(limit_text(verdict)), text("; ".join(more_lines(verdict))),
    )  # fmt: skip


def _kernels(rows: Sequence[Finding]) -> str:
    """`a` 480 (up to 12.3 % slower), `b` 12 (…): the number of rows per kernel, the largest first."""
    parts: list[str] = []
    groups = by_kernel(rows)
    for kernel, findings in groups[:MOST_KERNELS]:
        worst = moved(findings[0].verdict).partition(" (")[0]
        parts.append(f"{code(kernel, NAME)} {len(findings)}{f' (up to {together(worst)})' if worst else ''}")
    if len(groups) > MOST_KERNELS:
        parts.append(counted(len(groups) - MOST_KERNELS, "more kernel"))
    return ", ".join(parts)


def _numerics(overview: Overview, most: int) -> str:
    """Wrong results, for the given inputs (whose cases were not timed) or beside them."""
    rows = overview.findings(Word.WRONG)
    if not rows:
        return ""
    body = _by_lane(overview, ("Case", "Output", "Limit", "Got", "Why"), rows, _wrong_row, most)
    return f"**Numerics** (wrong results)\n\n{body}"


def _wrong_row(finding: Finding) -> tuple[str, ...]:
    verdict = finding.verdict
    # The errors on the given inputs are shown only if they exceed their limit.
    errors = [
        (f"RMSE {accuracy.limit:.3g}", f"RMSE {accuracy.rmse:.3g}")
        for accuracy in finding.result.accuracy
        if accuracy.output == verdict.metric and accuracy.rmse is not None and accuracy.limit is not None
        if accuracy.rmse > accuracy.limit
    ]
    first, _, rest = verdict.reason.partition("\n")
    reason = "; ".join(filter(None, (text(first), text(rest))))  # Each is cut separately.
    return code(finding.result.case.key), text(verdict.metric, NAME), *(errors or [("", "")])[0], reason


def _missing(overview: Overview, most: int) -> str:
    """Cases that were expected, but not measured."""
    if not overview.missing:
        return ""
    one = len(overview.lanes) == 1
    body = table(
        ("" if one else "Lane", "Case", "Why"),
        overview.missing,
        lambda missing: ("" if one else code(missing[0], NAME), code(missing[1]), text(missing[2])),
        most=most,
    )
    return f"**Broken or not measured**\n\n{body}"


def _undecided(overview: Overview, most: int) -> str:
    """The undecided times and the next step to decide them. Cases are listed only if nothing is more urgent."""
    title = ""
    words: tuple[Word, ...] = INCONCLUSIVE
    if overview.headline is Headline.NO_BASELINE:
        title, words = "**Not guarded**", NOT_GUARDED
    elif overview.headline is Headline.UNVERIFIED:
        title, words = _NOT_VERIFIED, (*INCONCLUSIVE, *OTHER_CONDITIONS)
    elif overview.undecided.findings:
        reason, rest = overview.undecided.cause([])
        title = f"**{overview.undecided}:** {code(reason)}{rest}"
    if overview.headline in (Headline.WRONG, Headline.WORSE, Headline.INCOMPLETE):
        return title
    rows = overview.findings(*words)
    if not rows:
        return ""
    body = _by_lane(overview, ("Case", "Metric", "Verdict", "Why"), rows, _open_row, most)
    return f"{title or '**Not judged**'}\n\n{body}"


def _open_row(finding: Finding) -> tuple[str, ...]:
    verdict = finding.verdict
    return code(finding.result.case.key), text(verdict.metric, NAME), verdict.word.value, text(why(verdict))


def _edits(overview: Overview, most: int) -> str:
    """Every setting and baseline entry edited by the change, loosening edits first."""
    if not overview.edits:
        return ""
    of = f"{overview.loosened} of {len(overview.edits)}"
    loose = f" (⚠️ {of} let a worse reading pass than before)" if overview.loosened else ""
    header = ("Folder", "Case", "Metric", "Old → new", "Reason", "Measured here")
    return f"**Edits of baselines and settings**{loose}\n\n{table(header, overview.edits, _edit_row, most=most)}"


def _edit_row(edit: BaselineEdit) -> tuple[str, ...]:
    old, new, measured = edit.values(MOST_OF_A_VALUE)
    looser = f" ⚠️ looser: {together(edit.loosens)}" if edit.loosens else ""
    return (
        code(edit.folder, NAME), code(edit.case), code(edit.metric, NAME),
        f"{quantity(edit.before, old)} → {quantity(edit.after, new)}{looser}",
        text(edit.reason) or "no reason", quantity(edit.measured, measured),
    )  # fmt: skip


def _footer(overview: Overview) -> str:
    """The links to the full results, and the origin of the numbers."""
    if not overview.run_url:
        return ""
    run = link("summary of the run", overview.run_url)
    return f"Everything: {run} · report artifact · the numbers were produced by this change's code"


# -- the folded part ---------------------------------------------------------------------------------------------------


def _details(lanes: Sequence[LaneView]) -> Iterator[str]:
    """The blocks of one `<details>` element with each lane's environment and all its cases."""
    shown = [lane for lane in lanes if lane.report is not None]
    cases = sum(len(lane.cases) for lane in shown)
    if not cases:
        return
    what = f"All cases of {counted(len(shown), 'lane')} ({counted(cases, 'case')})"
    yield f"<details><summary>{what}, environments, warnings</summary>"
    header = ("Case", "Verdict", "Metric", "Before", "Now", "Change", "% of copy", "Why")
    for lane in shown:
        yield _environment(lane)
        rows = [*_findings(lane), *_others(lane)]
        if rows:
            yield table(header, rows, _cells)
    yield "</details>"


def _environment(lane: LaneView) -> str:
    report = lane.report
    assert report is not None
    lines = [f"- warning: {code(warning)}" for warning in report.hardware.warnings]
    title = f"**{code(lane.name, NAME)}** {code(environment(report))}"
    return "\n".join([title, "", *lines]) if lines else title


def _findings(lane: LaneView) -> Iterator[Finding]:
    """The findings, worst first."""
    for _, found in groupby(lane.findings, key=lambda finding: finding.result.case):
        findings = list(found)
        for verdict in folded([finding.verdict for finding in findings]):
            yield Finding(lane.name, findings[0].result, verdict)


def _others(lane: LaneView) -> Iterator[Finding]:
    """Every case without findings, with its accepted verdicts, otherwise with its first time or its word alone."""
    with_findings = {finding.result.case for finding in lane.findings}
    for result, word in lane.cases:
        accepted = lane.covered[result.case]
        for verdict in accepted:
            yield Finding(lane.name, result, verdict, accepted=True)
        if not accepted and result.case not in with_findings:
            timed = {reading.metric for reading in result.readings if reading.timed}
            quiet = (verdict for verdict in result.verdicts if verdict.metric in timed and verdict.word in QUIET)
            yield Finding(lane.name, result, next(quiet, Verdict(word)))


def _cells(row: Finding) -> tuple[str, ...]:
    metric = text(row.verdict.metric, NAME)
    change, share = together(row.change), together(row.share)
    return code(row.result.case.key), row.word, metric, *values(row), change, share, text(why(row.verdict))
