"""Baseline edits of a change, entry by entry, and the findings that they cover.

The merge base's baselines still judge. A finding counts as accepted only if the edited value equals the measurement: an
edited spread, fewer sessions, another anchor or an edited toolchain have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from perfguard.github.lanes.baselines_at_commit import BaselineSet, Recorded, folders_of
from perfguard.github.lanes.limits import declared
from perfguard.judge.lane import differing_versions, folder_of, other_power
from perfguard.judge.statistics import remember
from perfguard.judge.time_record import anchor_of, grow, slowdown
from perfguard.judge.update_plan import is_worse
from perfguard.model.limits import KERNEL_TIME, Limits, timed_kernel
from perfguard.model.records import (
    OTHER_CONDITIONS,
    Baseline,
    Better,
    CaseBaseline,
    CaseResult,
    Entry,
    Reading,
    ReadingId,
    Report,
    TimedEntry,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.baseline import as_stored
from perfguard.model.records.change import level
from perfguard.model.records.code import CODE, same_parts
from perfguard.model.units import Unit
from perfguard.render.overview import BaselineEdit

_CONDITIONS = "conditions"  # metric of an edit that changes no entry but the inputs or provenance of the case
_SEEN_SIGMA = 0.0005  # a smaller rise of the upper edge would be shown as 0.0 %
# Verdicts that need no edit, and those that no baseline can cover.
_NEVER = (
    *(Word.PASS, Word.UNCHANGED, Word.FASTER, Word.BETTER),
    *(Word.WRONG, Word.BROKEN, Word.OLD_FAULT, Word.UNSUPPORTED),
)


@dataclass(frozen=True)
class Edited:
    """Baselines before and after a change, in the folders `among`."""

    base: BaselineSet
    head: BaselineSet
    among: Sequence[str]

    def cases(self) -> Iterator[tuple[str, str, str, Recorded | None, Recorded | None]]:
        """Folder, suite, key, and the case before and after, of each case that differs."""
        for folder in self.among:
            files = [each.folders.get(folder, {}) for each in (self.base, self.head)]
            names = {(suite, key) for suites in files for suite, file in suites.items() for key in file.cases}
            for suite, key in sorted(names):
                old, new = self.base.case(folder, suite, key), self.head.case(folder, suite, key)
                if old != new:
                    yield folder, suite, key, old, new


def list_edits(edited: Edited, reports: Sequence[Report]) -> list[BaselineEdit]:
    """Every entry that the change edits, in the order of the files.

    Args:
        reports: of the lanes; they give the units, the better direction and the measured values.
    """
    readings = _readings(reports)
    edits = []
    for folder, suite, key, old, new in edited.cases():
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
                        loosens=not _is_of_measured_code(reading, after)
                        and _loosens(before, after, _limits(metric, reading)),
                        measured=reading.value if reading else None,
                        growth=_growth(before, after, _limits(metric, reading)),
                    )
                )
        if old and new and not _read_under(new, folder, suite, key, reports):
            before_text, after_text = _conditions(old), _conditions(new)
            if before_text != after_text:
                edits.append(
                    BaselineEdit(folder, suite, key, _CONDITIONS, Unit.TEXT, before_text, after_text, loosens=True)
                )
    return edits


def _reason(old: Recorded | None, new: Recorded | None) -> str:
    """The reason of the change; one that a case had before is of another change."""
    return "" if new is None or (old is not None and old.provenance == new.provenance) else new.provenance.reason


def _read_under(case: Recorded, folder: str, suite: str, key: str, reports: Sequence[Report]) -> bool:
    """Whether a lane read the case under its stored conditions; if not, its metrics are no longer compared."""
    for report in reports:
        if folder in folders_of(report):
            portable = folder == report.hardware.target
            result = next((each for each in report.results if each.id == (suite, key)), None)
            same = not differing_versions(case.provenance, report.toolchain, portable=portable)
            powered = portable or not other_power(case.provenance, report.hardware)
            if result is not None and case.inputs in ("", result.inputs) and same and powered:
                return True
    return False


def patched(edited: Edited) -> BaselineSet:
    """The baselines with the values of the change, but with the noise that was stored before."""
    folders: dict[str, dict[str, Baseline]] = {name: dict(suites) for name, suites in edited.base.folders.items()}
    for folder, suite, key, old, new in edited.cases():
        if new is None:
            continue
        entries = {metric: _recentred(_entry(old, metric), entry) for metric, entry in new.entries.items()}
        suites = folders.setdefault(folder, {})
        file, recording = (suites.get(suite) or Baseline(folder, suite)).with_recording(new.provenance)
        suites[suite] = replace(file, cases={**file.cases, key: CaseBaseline(entries, new.inputs, recording)})
    return BaselineSet(folders)


def accepted(judged: Report, under_edits: Report, missing: Sequence[ReadingId], edited: Edited) -> list[ReadingId]:
    """(suite, case key, metric) of the findings of `judged`, and of the removed items of `missing`, that edits cover.

    A finding is covered if its entry was edited to the measured value, with a reason if the edit lets a worse reading
    pass. An exact metric, or a time that needed no reading, equals the edit if it passes under the edited value
    (`under_edits`: the report judged by `patched`). `_is_read` decides for a time that was read. A reading under other
    conditions than the base's record is covered by a record under the new conditions (`_is_afresh`). What compilers
    make of the kernels for a target is no entry: the record of their code covers it, if it has a reason.
    """
    edits = {(edit.folder, edit.suite, edit.case, edit.metric): edit for edit in list_edits(edited, [judged])}
    covered = []
    for result, again in zip(judged.results, under_edits.results, strict=True):
        passing = {verdict.metric for verdict in again.verdicts if verdict.word in (Word.PASS, Word.UNCHANGED)}
        # The time of a kernel in a test, whose facts are as the change records them.
        kernels = {verdict.metric for verdict in result.verdicts if timed_kernel(verdict.metric)}
        passing |= kernels - {verdict.metric for verdict in again.verdicts}
        for verdict in result.verdicts:
            if verdict.word in _NEVER:
                continue
            reading = result.reading(verdict.metric)
            entry = reading if reading is None or not reading.target else result.reading(CODE)
            folders = [folder_of(judged.hardware, entry, result.ranks)] if entry else folders_of(judged)
            metric = KERNEL_TIME if timed_kernel(verdict.metric) else entry.metric if entry else verdict.metric
            names = [(folder, *result.id, metric) for folder in folders]
            edit = next((edits[name] for name in names if name in edits), None)
            if _is_edited(edit, verdict, result, edited, passing) or (
                reading is not None
                and verdict.word in OTHER_CONDITIONS
                and _is_afresh(judged, result, reading, verdict, edited, passing)
            ):
                covered.append((*result.id, verdict.metric))
    covered += [item for item in missing if item not in covered and _is_removed(item, judged, edited)]
    return covered


def _is_edited(
    edit: BaselineEdit | None, verdict: Verdict, result: CaseResult, edited: Edited, passing: Collection[str]
) -> bool:
    """Whether the edit sets the entry to what was measured. What is worse than at the base asks for a reason, whatever
    the record was."""
    if edit is None or edit.after is None or ((edit.loosens or verdict.word is Word.CHANGED) and not edit.reason):
        return False
    reading = result.reading(verdict.metric)
    if reading is not None and reading.target:
        code = result.reading(CODE)
        recorded, now = edit.after, None if code is None else code.value
        return isinstance(recorded, dict) and isinstance(now, dict) and same_parts(recorded, now)
    if reading is None or not reading.timed:
        return verdict.metric in passing
    where = edit.folder, edit.suite, edit.case
    return _is_read(verdict, reading, *(_entry(each.case(*where), edit.metric) for each in (edited.base, edited.head)))


def _is_afresh(
    judged: Report, result: CaseResult, reading: Reading, verdict: Verdict, edited: Edited, passing: Collection[str]
) -> bool:
    """Whether the change records the case under the report's conditions and with its readings, as an update does after
    an upgrade, including the reason if the update asks for one."""
    where = folder_of(judged.hardware, reading, result.ranks), *result.id
    old, new = edited.base.case(*where), edited.head.case(*where)
    before, after = _entry(old, reading.metric), _entry(new, reading.metric)
    if old is None or new is None or old == new or before is None or after is None:
        return False
    if _asks(before, after, old, new, reading) and not _reason(old, new):
        return False
    if not reading.timed:
        return reading.metric in passing
    equal = judged.base is not None and judged.base.equal and reading.metric in passing
    return equal or _is_read(verdict, reading, before, after)


def _asks(before: Entry, after: Entry, old: Recorded, new: Recorded, reading: Reading) -> bool:
    """Whether an update would ask for a reason to replace the entry (`perfguard.judge.update_plan`)."""
    if not reading.timed:
        return is_worse(reading, before, after)
    if not isinstance(before, TimedEntry) or not isinstance(after, TimedEntry) or before.timer != after.timer:
        return False
    if old.inputs not in ("", new.inputs):
        return False
    one_board = old.provenance.board is not None and old.provenance.board == new.provenance.board
    return grow(before, after, reading, one_board=one_board).asks


def _is_read(verdict: Verdict, reading: Reading, before: Entry | None, after: Entry | None) -> bool:
    """Whether the reading of a time confirms the edit: it lies within its promise of the new level, or process pairs
    show the same change as the edit. The second holds even on a board with another level."""
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


def _is_removed(item: ReadingId, report: Report, edited: Edited) -> bool:
    """Whether the change removed the item from every folder that judges the report; False if a file is unreadable."""
    suite, key, metric = item

    def holds(remembered: BaselineSet) -> bool:
        cases = [remembered.case(folder, suite, key) for folder in folders_of(report)]
        return any(case is not None and (not metric or metric in case.entries) for case in cases)

    return holds(edited.base) and not holds(edited.head) and not edited.head.problems


def _readings(reports: Sequence[Report]) -> dict[tuple[str, str, str, str], Reading]:
    return {
        (folder_of(report.hardware, reading, result.ranks), *result.id, reading.metric): reading
        for report in reports
        for result in report.results
        for reading in result.readings
    }


def _entry(case: Recorded | None, metric: str) -> Entry | None:
    return case.entries.get(metric) if case else None


def _shown(entry: Entry | None) -> Value | None:
    return level(entry) if isinstance(entry, TimedEntry) else entry


def _unit(metric: str, entry: Entry) -> Unit:
    """The unit by our naming of metrics, for entries without a reading in the reports."""
    if isinstance(entry, TimedEntry):
        return Unit.MICROSECONDS
    if isinstance(entry, str | list) or (isinstance(entry, dict) and any(isinstance(p, str) for p in entry.values())):
        return Unit.TEXT
    return Unit.BYTES if metric.endswith("_bytes") else Unit.COUNT


def _conditions(case: Recorded) -> str:
    """The conditions under which readings are compared, as text."""
    provenance = case.provenance
    versions = [
        f"{name} {getattr(provenance, name)}"
        for name in provenance.__struct_fields__
        if name not in ("commit", "recorded", "reason") and getattr(provenance, name) is not None
    ]
    return ", ".join([case.inputs or "any inputs", *versions])


def _limits(metric: str, reading: Reading | None) -> Limits:
    """The limits of the entry: those of the reading, else those of our own metrics."""
    if reading is None:
        return declared(metric) or Limits(Better.LOWER)
    return Limits(reading.better, promise=reading.promise)


def _is_of_measured_code(reading: Reading | None, after: Entry | None) -> bool:
    """Whether the edit of an entry that gates nothing, as a fingerprint, is to what was measured here."""
    return reading is not None and not reading.gated and not reading.timed and after == as_stored(reading.value)


def _loosens(before: Entry | None, after: Entry | None, limits: Limits) -> bool:
    """Whether a worse reading can pass than before, or readings are no longer judged."""
    better = limits.better
    if before is None:
        return False
    if isinstance(before, TimedEntry) and isinstance(after, TimedEntry):
        wider = _edge(after, better) > _edge(before, better) + _SEEN_SIGMA
        return after.timer != before.timer or wider or _creeps(before, after, limits)
    if isinstance(before, int | float) and isinstance(after, int | float) and better is not Better.SAME:
        return after < before if better is Better.HIGHER else after > before
    return before != after


def _creeps(before: TimedEntry, after: TimedEntry, limits: Limits) -> bool:
    """Whether the new level exceeds the anchor by more than the promise, or the anchor itself was raised."""
    over, lifted = (
        growth_over(before, after, limits.better),
        slowdown(anchor_of(before), anchor_of(after), limits.better),
    )
    return over > limits.promise or lifted > 2 * _SEEN_SIGMA  # baselines store four digits


def growth_over(before: TimedEntry, after: TimedEntry, better: Better = Better.LOWER) -> float:
    """How much worse the new level is than the anchor of the entry it replaces: 0.03 is 3 %."""
    return math.expm1(slowdown(anchor_of(before), median(after.sessions), better))


def _growth(before: Entry | None, after: Entry | None, limits: Limits) -> float | None:
    """How far the new level exceeds the anchor; None within the promise."""
    if not isinstance(before, TimedEntry) or not isinstance(after, TimedEntry) or before.timer != after.timer:
        return None
    over = growth_over(before, after, limits.better)
    return over if over > limits.promise else None


def _edge(entry: TimedEntry, better: Better) -> float:
    """The centre plus two standard deviations towards worse, as a logarithm."""
    history = remember(entry.sessions)
    centre = -history.centre if better is Better.HIGHER else history.centre
    return centre + 2 * math.sqrt(history.variance)


def _recentred(before: Entry | None, after: Entry) -> Entry:
    """The edited level with the noise stored before."""
    if not isinstance(before, TimedEntry) or not isinstance(after, TimedEntry) or before.timer != after.timer:
        return after
    old, new = level(before), level(after)
    assert old is not None
    assert new is not None
    return replace(before, sessions=[value * new / old for value in before.sessions])
