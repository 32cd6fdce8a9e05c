"""Lists the baseline edits of a change, entry by entry, and the findings that they cover.

The baselines of the merge base judge. A finding is covered if its entry was edited to the measured value: an exact
metric passes under the edited value, and a time is at its new level, or moved by the ratio of the process pairs. Edits
of the spread, the number of sessions, the anchor or the toolchain have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median

from perfguard.github.lanes.baselines_at_commit import BaselineSet, folders_of
from perfguard.github.lanes.judge_again import declared
from perfguard.judge.lane import folder_of
from perfguard.judge.record import anchor_of, grow, slowdown
from perfguard.judge.update_plan import is_worse
from perfguard.model.limits import KERNEL_TIME, timed_kernel
from perfguard.model.records import (
    OTHER_CONDITIONS,
    Better,
    CaseResult,
    Entry,
    Reading,
    ReadingId,
    Recorded,
    Report,
    TimedEntry,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.baseline import as_stored
from perfguard.model.records.change import level
from perfguard.model.records.code import CODE, same_parts
from perfguard.model.units import Unit, format_value
from perfguard.render.findings import BaselineEdit

_SHOWN = 0.0005  # A time that rises less (a logarithm) is shown as 0.0 %.
# Verdicts that need no edit, and verdicts that no baseline can cover.
_NEVER = (
    *(Word.PASS, Word.UNCHANGED, Word.FASTER, Word.BETTER),
    *(Word.WRONG, Word.BROKEN, Word.OLD_FAULT, Word.UNSUPPORTED),
)


def list_edits(base: BaselineSet, head: BaselineSet, reports: Sequence[Report]) -> list[BaselineEdit]:
    """Every entry that differs between the baselines before and after a change, in the order of the files.

    Args:
        reports: the reports of the lanes, for units, directions and measured values.
    """
    readings = {
        (folder_of(report.hardware, reading, result.ranks), *result.id, reading.metric): reading
        for report in reports
        for result in report.results
        for reading in result.readings
    }
    cases = {
        (folder, suite, key)
        for baselines in (base, head)
        for folder, suites in baselines.folders.items()
        for suite, file in suites.items()
        for key in file.cases
    }
    edits = []
    for folder, suite, key in sorted(cases):
        old, new = base.case(folder, suite, key), head.case(folder, suite, key)
        entries = {**(old.entries if old else {}), **(new.entries if new else {})}
        for metric in sorted(entries):
            before, after = _entry(old, metric), _entry(new, metric)
            if before != after:
                reading = readings.get((folder, suite, key, metric))
                edits.append(
                    BaselineEdit(
                        folder=folder,
                        suite=suite,
                        case=key,
                        metric=metric,
                        unit=reading.unit if reading else _unit(metric, entries[metric]),
                        before=_shown(before),
                        after=_shown(after),
                        reason=_reason(old, new),
                        loosens=_loosens(metric, before, after, reading),
                        measured=reading.value if reading else None,
                    )
                )
    return edits


def accepted(
    judged: Report, under_edits: Report, missing: Sequence[ReadingId], base: BaselineSet, head: BaselineSet
) -> list[ReadingId]:
    """(suite, case key, metric) of the findings in `judged` that edits cover, and of the removed items in `missing`.

    Args:
        judged, under_edits: the report, judged by `base` and by `head`, the baselines before and after the change.
    """
    covered = []
    for result, again in zip(judged.results, under_edits.results, strict=True):
        passing = {verdict.metric for verdict in again.verdicts if verdict.word in (Word.PASS, Word.UNCHANGED)}
        # The time of a kernel in an observed test is not judged if the change records its launches.
        kernels = {verdict.metric for verdict in result.verdicts if timed_kernel(verdict.metric)}
        passing |= kernels - {verdict.metric for verdict in again.verdicts}
        for verdict in result.verdicts:
            if verdict.word not in _NEVER and _is_covered(judged, result, verdict, base, head, passing):
                covered.append(ReadingId(*result.id, verdict.metric))
    return [*covered, *(item for item in missing if item not in covered and _is_removed(item, judged, base, head))]


def _is_covered(
    judged: Report, result: CaseResult, verdict: Verdict, base: BaselineSet, head: BaselineSet, passing: Collection[str]
) -> bool:
    """Whether the change records the measured value, with a reason if that is worse than before.

    Code compiled for a target has no entry: the record of the kernels' code covers it.
    """
    reading = result.reading(verdict.metric)
    entry = result.reading(CODE) if reading is not None and reading.target else reading
    folders = [folder_of(judged.hardware, entry, result.ranks)] if entry else folders_of(judged)
    metric = KERNEL_TIME if timed_kernel(verdict.metric) else entry.metric if entry else verdict.metric
    for folder in folders:
        old, new = base.case(folder, *result.id), head.case(folder, *result.id)
        before, after = _entry(old, metric), _entry(new, metric)
        # Under other conditions, an edit renews the record even if its value stays the same.
        renewed = old is not None and old != new and before is not None and verdict.word in OTHER_CONDITIONS
        if new is None or after is None or (before == after and not renewed):
            continue
        if not _reason(old, new) and _needs_reason(verdict, reading, metric, old, new):
            continue
        if reading is not None and reading.target:
            now = None if entry is None else entry.value
            return isinstance(after, dict) and isinstance(now, dict) and same_parts(after, now)
        if reading is None or not reading.timed:
            return verdict.metric in passing
        equal = judged.base is not None and judged.base.equal and verdict.metric in passing
        return equal or _is_read(verdict, reading, before, after)
    return False


def _needs_reason(verdict: Verdict, reading: Reading | None, metric: str, old: Recorded | None, new: Recorded) -> bool:
    """Whether the edit lets a worse reading pass."""
    before, after = _entry(old, metric), new.entries[metric]
    if verdict.word in (Word.SLOWER, Word.CHANGED):
        return True
    if verdict.word not in OTHER_CONDITIONS or reading is None or old is None or before is None:
        return bool(_loosens(metric, before, after, reading))
    # Under other conditions, the rules of an update decide (`perfguard.judge.update_plan`).
    if not reading.timed:
        return is_worse(reading, before, after)
    if not isinstance(before, TimedEntry) or not isinstance(after, TimedEntry) or before.timer != after.timer:
        return False
    one_board = old.provenance.board is not None and old.provenance.board == new.provenance.board
    return old.inputs in ("", new.inputs) and grow(before, after, reading, one_board=one_board).needs_reason


def _is_read(verdict: Verdict, reading: Reading, before: Entry | None, after: Entry) -> bool:
    """Whether the reading of a time confirms the edit: it is within its promise of the new level, or process pairs show
    the same change as the edit, which is valid on boards with another level as well."""
    if not isinstance(after, TimedEntry) or after.timer != reading.timer or not isinstance(reading.value, int | float):
        return False
    if abs(slowdown(median(after.sessions), reading.value)) <= math.log1p(reading.promise):
        return True
    if verdict.interval is None or not isinstance(before, TimedEntry) or before.timer != after.timer:
        return False
    low, high = verdict.interval
    edge = 1 + (verdict.limit or 0.0)
    moved = math.exp(slowdown(median(before.sessions), median(after.sessions), reading.better))
    return low / edge <= moved <= high * edge


def _is_removed(item: ReadingId, report: Report, base: BaselineSet, head: BaselineSet) -> bool:
    """Whether the change removed the item from every folder that judges the report; False if a file is unreadable."""
    suite, key, metric = item

    def holds(baselines: BaselineSet) -> bool:
        cases = [baselines.case(folder, suite, key) for folder in folders_of(report)]
        return any(case is not None and (not metric or metric in case.entries) for case in cases)

    return holds(base) and not holds(head) and not head.problem_in(folders_of(report))


def _loosens(metric: str, before: Entry | None, after: Entry | None, reading: Reading | None) -> str:
    """The edit that lets a worse reading pass than before, in words; empty if none does.

    The worst of sessions and anchor counts for a time, since it rises with the level and with the noise.
    """
    if before is None or (reading is not None and not reading.gated and after == as_stored(reading.value)):
        return ""  # An ungated entry, such as a fingerprint, may be edited to the measured value.
    if after is None:
        return "no longer judged"
    limits = reading or declared(metric)
    better = Better.LOWER if limits is None else limits.better
    if isinstance(before, TimedEntry) and isinstance(after, TimedEntry):
        worst = min if better is Better.HIGHER else max
        old, new = (worst([*each.sessions, anchor_of(each)]) for each in (before, after))
        if after.timer != before.timer:
            return "another timer"
        what, unit = "worst session" if new in after.sessions else "anchor", Unit.MICROSECONDS
        moved = f"{what} {format_value(new, unit)}, was {format_value(old, unit)}"
        return moved if slowdown(old, new, better) > _SHOWN else ""
    if isinstance(before, int | float) and isinstance(after, int | float) and better is not Better.SAME:
        return "its value" if (after < before if better is Better.HIGHER else after > before) else ""
    return "its value" if before != after else ""


def _reason(old: Recorded | None, new: Recorded | None) -> str:
    """The reason of the change; "" if the case had it before, so that it belongs to another change."""
    return "" if new is None or (old is not None and old.provenance == new.provenance) else new.provenance.reason


def _entry(case: Recorded | None, metric: str) -> Entry | None:
    return case.entries.get(metric) if case else None


def _shown(entry: Entry | None) -> Value | None:
    return level(entry) if isinstance(entry, TimedEntry) else entry


def _unit(metric: str, entry: Entry) -> Unit:
    """The unit of an entry without a reading in the reports, by the name of the metric."""
    if isinstance(entry, TimedEntry):
        return Unit.MICROSECONDS
    if isinstance(entry, str | list) or (isinstance(entry, dict) and any(isinstance(p, str) for p in entry.values())):
        return Unit.TEXT
    return Unit.BYTES if metric.endswith("_bytes") else Unit.COUNT
