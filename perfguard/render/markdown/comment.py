"""The comment: at most `MOST_LINES` lines (what happened, its causes, the next steps), then everything, folded.

A part is a block of Markdown, or empty. Parts that exceed the size that GitHub accepts are shortened by whole rows.
`perfguard.github.api` adds the first line of the comment, its marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from perfguard.model.records import OTHER_CONDITIONS, Verdict, Word
from perfguard.model.records.report import commits_beside
from perfguard.model.units import Unit, counted
from perfguard.render.causes import reasons_of
from perfguard.render.escaping import code, link
from perfguard.render.findings import INCONCLUSIVE, NOT_GUARDED, QUIET, BaselineEdit, Cause, Finding
from perfguard.render.markdown.cells import NAME, quantity, table, text, together, values
from perfguard.render.markdown.steps import next_steps
from perfguard.render.overview import SIGNS, Headline, LaneView, Overview
from perfguard.render.title import title_of
from perfguard.render.words import (
    MOST_OF_A_VALUE,
    NOT_TIMED,
    device,
    environment,
    folded,
    limit_text,
    listed,
    one_line,
    short,
    tally,
    why,
)

#: GitHub refuses comments above 65,536 characters; this leaves room for the marker.
COMMENT_BYTES = 57_000
#: The most lines that a reader sees before unfolding anything: about one screen.
MOST_LINES = 25
MOST_CAUSES = 8
_FEWEST_CAUSES = 3  # Rows that remain if other parts take the screen.
_MOST_EDITS, _MOST_REMARKS = 5, 3
_SENTENCE = 120  # The most characters of a change or reason in a cell.
_LEAST_ROW = 60  # A case takes at least this many bytes in the details.
_END_OF_DETAILS = 200  # Bytes of the first and last line of the folded part.

_SHORTENED = "_Shortened: only the worst findings; all of them are in the run's summary and report._"
_NOT_VERIFIED = (
    "**Not verified** (only the report's word keeps these from a verdict: record them on that hardware, "
    "or run the lane again)"
)
_CAUSES = ("", "Kernel or line", "What changed in it", "Cases", "Worst (95 % CI)", "Lanes")


def render_markdown(overview: Overview, budget: int = COMMENT_BYTES) -> str:
    """The text of the comment. If the whole exceeds `budget` UTF-8 bytes (at least 4,000), rows are left out, the worst
    remain, and a line says so."""
    assert budget >= 4000, "no room for headline and counts"
    if sum(len(lane.cases) for lane in overview.lanes) * _LEAST_ROW < budget:
        whole = _assembled(overview, None)
        if len(whole.encode()) <= budget:
            return whole
    return _assembled(overview, budget)


def _assembled(overview: Overview, budget: int | None) -> str:
    """All parts, each in its longest form that fits. `budget`: UTF-8 bytes; None: no limit."""
    end = [" ".join(filter(None, (_footer(overview), _SHORTENED if budget else "")))]
    kept = [_headline(overview), _judged_by(overview)]

    def left() -> int | None:
        return None if budget is None else budget - len(_joined([*kept, *end]).encode())

    causes, steps, notes = _causes(overview), next_steps(overview), [*_notes(overview)]
    fixed = [*kept, *end, steps, *notes, *("lanes", "header", "count of more rows", "summary of the details")]
    most = max(_FEWEST_CAUSES, min(MOST_CAUSES, MOST_LINES - sum(map(visible_lines, fixed))))
    tables = [_table_of(overview, causes, rows) for rows in (most, _FEWEST_CAUSES, 1)]
    for lengths in ([_lanes_line(overview)], tables, [steps], *([note] for note in notes)):
        room = left()
        kept += [each for each in lengths if room is None or len(each.encode()) + 2 <= room][:1]
    return _joined([*kept, *_details(overview, causes[most:], left()), *end])


def visible_lines(markdown: str) -> int:
    """The number of lines that a reader sees before unfolding anything; a row of a table counts as one."""
    unfolded = re.sub(
        r"^<details>(<summary>.*?</summary>).*?^</details>", r"\1", markdown, flags=re.DOTALL | re.MULTILINE
    )
    return sum(1 for line in unfolded.splitlines() if line and not line.startswith(("| ---", "```")))


def render_resolved(overview: Overview) -> str:
    """Three lines for a comment of an earlier run whose findings are all gone."""
    names = ", ".join(code(lane.name, NAME) + (f" ({NOT_TIMED})" if lane.exact_only else "") for lane in overview.lanes)
    start = "Resolved in" if overview.head else "Resolved ·"
    return _joined([_headline(overview), f"{start} {_judged_by(overview)} · {names}", _footer(overview)])


def _joined(blocks: Sequence[str]) -> str:
    return "\n\n".join(filter(None, blocks)) + "\n"


# -- the first screen --------------------------------------------------------------------------------------------------


def _headline(overview: Overview) -> str:
    return f"### {overview.sign} perfguard: {title_of(overview)}"


def _judged_by(overview: Overview) -> str:
    """The measured commit, the commits of the baselines and of the code that it was compared with, and the number of
    lanes that reported."""
    parts = []
    reports = [lane.report for lane in overview.lanes if lane.report]
    beside = sorted({commit for report in reports for commit in commits_beside(report)})
    if overview.head:
        parts.append(code(short(overview.head)))
    if overview.base:
        whole = beside == [overview.base]
        beside = [] if whole else beside
        what = "the baselines and the code" if whole else "the baselines"
        parts.append(f"judged by {what} at {code(short(overview.base))}, the merge base")
    commits = listed([code(short(commit)) for commit in beside])
    judged = ", ".join(filter(None, (" ".join(parts), f"beside {commits}" if commits else "")))
    return " · ".join(filter(None, (judged, f"lanes: {overview.reported} of {len(overview.lanes)} reported")))


def _lanes_line(overview: Overview) -> str:
    """Every expected lane with its result, linked to its job, on one line."""
    return " · ".join(_lane_text(lane) for lane in overview.lanes)


def _lane_text(lane: LaneView) -> str:
    sign, result = _result(lane)
    return f"{sign} {link(code(lane.name, NAME), lane.job_url)} {result}"


def _result(lane: LaneView) -> tuple[str, str]:
    why_not = f": {code(lane.problem)}" if lane.problem else ""
    return SIGNS[lane.headline], f"**no result**{why_not}" if lane.silent else lane.verdict


def _causes(overview: Overview) -> list[Cause]:
    """The rows of the first table: causes that fail, or without them the reasons why cases could not be judged."""
    if overview.causes or overview.headline is Headline.INCOMPLETE:
        return overview.causes
    words: tuple[Word, ...] = INCONCLUSIVE
    if overview.headline is Headline.NO_BASELINE:
        words = NOT_GUARDED
    elif overview.headline is Headline.UNVERIFIED:
        words = (*INCONCLUSIVE, *OTHER_CONDITIONS)
    return reasons_of(overview.findings(*words))


def _table_of(overview: Overview, causes: Sequence[Cause], most: int | None, first: int = 1) -> str:
    """A row for each cause. `first`: the number of the first row."""
    if not causes:
        return ""
    title, header = "", _CAUSES
    if not overview.causes:
        title = {Headline.NO_BASELINE: "**Not guarded**", Headline.UNVERIFIED: _NOT_VERIFIED}.get(overview.headline, "")
        header = ("", "Why", "", "Cases", "Such as", "Lanes")
    numbers = {id(each): str(number) for number, each in enumerate(causes, first)}

    def row(each: Cause) -> tuple[str, ...]:
        lanes = ", ".join(_lane_name(overview, name) for name in each.lanes) if len(overview.lanes) > 1 else ""
        change = text(each.change, _SENTENCE) if overview.causes else ""
        return numbers[id(each)], _name(overview, each), change, _counts(each), _worst(each.worst), lanes

    def rest(left: Sequence[Cause]) -> str:
        return f"{counted(sum(each.counts.total() for each in left), 'case')}, listed below"

    rows = table(header, causes, row, most=most, rest=rest)
    return f"{title}\n\n{rows}" if title else rows


def _counts(row: Cause) -> str:
    return tally(row.counts)


def _name(overview: Overview, row: Cause) -> str:
    """The kernel or line, linked to its line in the measured commit."""
    name = code(row.name, _SENTENCE)
    if not row.place:
        return name
    path, _, line = row.place.partition(":")
    place = code(row.place) if overview.causes else ""
    url = f"{overview.source_url}{path}{f'#L{line}' if line else ''}" if overview.source_url else ""
    return f"{name} {link(place, url)}" if row.place not in row.name else link(name, url)


def _lane_name(overview: Overview, name: str) -> str:
    url = next((lane.job_url for lane in overview.lanes if lane.name == name), "")
    return link(code(name, NAME), url)


def _worst(finding: Finding) -> str:
    """The case with its values and change, or with the sentence of a wrong result, which holds the failed limit."""
    verdict, case = finding.verdict, finding.result.case
    name = code(case.key, NAME)
    if verdict.word.unguarded or verdict.word is Word.BROKEN:  # The row is named after the reason.
        return name
    numbers = all(isinstance(value, int | float) for value in (verdict.before, verdict.after))
    if not numbers or verdict.unit is Unit.TEXT:
        beside = verdict.reason.partition("\n")[2] if verdict.word is Word.WRONG else ""  # What the base does.
        return f"{name} {'; '.join(filter(None, (text(one_line(verdict), _SENTENCE), text(beside, _SENTENCE))))}"
    before, now = values(finding)
    moved = ", ".join(filter(None, (f"{before} → {now}", together(finding.change))))
    return f"{name} {code(verdict.metric, NAME)} {moved}"


def _notes(overview: Overview) -> Iterator[str]:
    """What else a reader has to know: a line each beside causes, which come first; otherwise a few lines."""
    pressed = bool(overview.causes)
    yield _not_measured(overview)
    if overview.undecided.findings:
        reason, step = overview.undecided.cause([])
        yield f"**{overview.undecided}:** {code(reason)}{step}" if pressed or step else ""
    faster, better = overview.findings(Word.FASTER), overview.findings(Word.BETTER)
    parts = [f"**{counted(len(faster), 'time')} faster**, the best: {_worst(faster[0])}"] if faster else []
    parts += [f"**{counted(len(better), 'exact metric')} better**: {_worst(better[0])}"] if better else []
    yield "; ".join(parts)
    yield _edits_line(overview) if pressed else _edits(overview, _MOST_EDITS)
    yield "" if pressed else "\n".join([*_remarks(overview)][:_MOST_REMARKS])
    more = len(overview.warnings) - 1
    rest = f" and {counted(more, 'more warning')}, listed below" if more > 0 else ""
    yield "".join(f"⚠️ {code(warning)}{rest}" for warning in overview.warnings[:1])


def _not_measured(overview: Overview) -> str:
    """The cases that were expected, but that no report holds."""
    missing = [each for lane in overview.lanes for each in lane.unread]
    names, reasons = [code(name, NAME) for name, _ in missing], {reason for _, reason in missing}
    why_not = f" ({code(reasons.pop(), _SENTENCE)})" if len(reasons) == 1 else ""
    return f"**{counted(len(missing), 'case')} not measured**{why_not}: {listed(names)}" if missing else ""


def _edits_line(overview: Overview) -> str:
    if not overview.edits:
        return ""
    loose = f", ⚠️ {overview.loosened} let a worse reading pass than before" if overview.loosened else ""
    return f"**{counted(len(overview.edits), 'edit')} of baselines or settings**{loose}; listed below"


def _edits(overview: Overview, most: int | None) -> str:
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


def _details(overview: Overview, more: Sequence[Cause], size: int | None) -> list[str]:
    """One `<details>` element: causes beyond the first screen, counts by lane, edits, remarks, and each lane's
    environment and cases. `size`: the most UTF-8 bytes; None: no limit."""
    lanes = [lane for lane in overview.lanes if lane.report is not None]
    cases = sum(len(lane.cases) for lane in lanes)
    if not cases:
        return []
    what = f"All cases of {counted(len(lanes), 'lane')} ({counted(cases, 'case')})"
    blocks = [f"<details><summary>{what}, environments, warnings</summary>"]
    room = None if size is None else size - _END_OF_DETAILS

    def add(block: str) -> None:
        nonlocal room
        if room is None or len(block.encode()) + 2 <= room:
            blocks.append(block)
            room = None if room is None else room - len(block.encode()) - 2

    add(_table_of(overview, more, None if room is None else MOST_CAUSES, MOST_CAUSES + 1))
    add(_counts_by_lane(overview, room))
    remarks = [*_remarks(overview)][0 if overview.causes else _MOST_REMARKS :]  # The others are on the first screen.
    add("\n".join([*remarks, *(f"- ⚠️ {code(warning)}" for warning in overview.warnings[1:])]))
    add(_edits(overview, None if room is None else _MOST_EDITS))
    add(_missing(overview, None if room is None else MOST_CAUSES))
    header = ("Case", "Verdict", "Metric", "Before", "Now", "Change", "Limit", "% of copy", "Why")
    for place, lane in enumerate(lanes):
        add(_environment(lane))
        rows = [*_findings(lane), *(_others(lane) if room is None else ())]
        if rows:
            add(
                table(
                    header, rows, _cells, size=None if room is None else room // (len(lanes) - place) - _END_OF_DETAILS
                )
            )
    return [*blocks, "</details>"] if len(blocks) > 1 else []


def _counts_by_lane(overview: Overview, size: int | None) -> str:
    """A row for every expected lane, including lanes without a result."""
    header = ("Lane", "Hardware", "Verdict", *Word, "Not measured", "Guarded")
    return table(header, overview.lanes, _lane_row, size=size)


def _lane_row(lane: LaneView) -> tuple[str, ...]:
    report, name, result = lane.report, code(lane.name, NAME), " ".join(_result(lane))
    if report is None:
        return name, "", result, *[""] * (len(Word) + 2)
    counts = [str(count or "") for count in (*(lane.counts[word] for word in Word), lane.absent)]
    return name, code(device(report), NAME), result, *counts, lane.guarded.rpartition(" ")[0]


def _remarks(overview: Overview) -> Iterator[str]:
    """The remarks that require no action, one per line."""
    for lane in overview.lanes:
        for remark, names in lane.remarks:
            yield f"- {code(lane.name, NAME)}: {remark}: {listed([code(name, NAME) for name in names])}"


def _missing(overview: Overview, most: int | None) -> str:
    """Cases that were expected, but not measured."""
    missing = [(lane.name, *each) for lane in overview.lanes for each in lane.missing]
    rows = table(("Lane", "Case", "Why"), missing, lambda each: (code(each[0], NAME), *map(text, each[1:])), most=most)
    return f"**Broken or not measured**\n\n{rows}" if missing else ""


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
    limit = together(limit_text(row.verdict)) if row.verdict.word.fails and row.verdict.before is not None else ""
    return code(row.result.case.key), row.word, metric, *values(row), change, limit, share, text(why(row.verdict))
