"""The folded part: every case of a lane, its differences from the baselines' environment, its warnings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from perfguard.model.records import CaseResult, Verdict, Word
from perfguard.model.units import counted, format_percent
from perfguard.render.escaping import code
from perfguard.render.markdown.cells import NAME, before_and_after, change, text, together, value
from perfguard.render.markdown.tables import Bounds, table
from perfguard.render.survey import QUIET, LaneSurvey
from perfguard.render.words import environment, folded, why

HEADER = ("Case", "Verdict", "Metric", "Before", "Now", "Change", "% of copy", "Why")
Row = tuple[CaseResult, Verdict, str]  # the last: name of the verdict


def details(lanes: list[LaneSurvey], bounds: Bounds, *, all_cases: bool) -> Iterator[str]:
    """Markdown blocks that open, fill and close one `<details>`; none if there is nothing to show.

    Args:
        bounds: of each lane's table.
        all_cases: include passed cases, not only the findings.
    """
    shown = [lane for lane in lanes if lane.lane.report is not None]
    if not any(lane.cases for lane in shown):
        return
    cases = counted(sum(len(lane.cases) for lane in shown), "case")
    what = f"All cases of {counted(len(shown), 'lane')} ({cases})" if all_cases else "The worst findings of each lane"
    yield f"<details><summary>{what}, environments, warnings</summary>"
    for lane in shown:
        yield _environment(lane)
        rows = list(_all_rows(lane) if all_cases else _findings(lane))
        if rows:
            yield table(HEADER, (_cells(*row) for row in rows), len(rows), bounds)
    yield "</details>"


def _environment(lane: LaneSurvey) -> str:
    report = lane.lane.report
    assert report is not None
    lines = [
        f"- {counted(each.cases, 'case')} stored under {code(f'{each.what} {each.stored}')}, now {code(each.now)}"
        for each in lane.differences
    ]
    lines += [f"- warning: {code(warning)}" for warning in report.hardware.warnings]
    title = f"**{code(lane.lane.name, NAME)}** {code(environment(report))}"
    return "\n".join([title, "", *lines]) if lines else title


def _findings(lane: LaneSurvey) -> Iterator[Row]:
    by_case = groupby(lane.findings, key=lambda finding: (finding.result.case.suite, finding.result.case.key))
    for _, found in by_case:
        findings = list(found)
        for verdict in folded([finding.verdict for finding in findings]):
            yield findings[0].result, verdict, verdict.word.value


def _all_rows(lane: LaneSurvey) -> Iterator[Row]:
    """Every finding, worst first, then every other case: its accepted verdicts, else its first time or word alone."""
    yield from _findings(lane)
    told = {(finding.result.case.suite, finding.result.case.key) for finding in lane.findings}
    covered = set(lane.lane.accepted)
    for result, word in lane.cases:
        case = (result.case.suite, result.case.key)
        accepted = [verdict for verdict in result.verdicts if (*case, verdict.metric) in covered]
        for verdict in accepted:
            yield result, verdict, f"{verdict.word.value}, accepted"
        if not accepted and case not in told:
            yield result, _first_time(result, word), word.value


def _first_time(result: CaseResult, word: Word) -> Verdict:
    timed = {reading.metric for reading in result.readings if reading.timed}
    quiet = (verdict for verdict in result.verdicts if verdict.metric in timed and verdict.word in QUIET)
    return next(quiet, Verdict(word))


def _cells(result: CaseResult, verdict: Verdict, word: str) -> tuple[str, ...]:
    before, after = before_and_after(verdict)
    reading = result.reading(verdict.metric)
    if not after and reading is not None:
        after = value(reading.value, reading.unit)
    through = result.throughput
    timed = reading is not None and reading.timed
    share = together(format_percent(through.copy_fraction, 0)) if timed and through and through.copy_fraction else ""
    return (
        code(result.case.key), word, text(verdict.metric, NAME), before, after, change(verdict), share,
        text(why(verdict)),
    )  # fmt: skip
