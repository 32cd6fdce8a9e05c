"""The source of a time's new level, for the baselines of a report.

If at least three fresh processes read the time, their values are the sessions. Otherwise, if process pairs decided, the
new sessions are the stored ones multiplied by the ratio of the pairs. A ratio holds on any board. The record therefore
keeps its board and the noise read on it, and no other board enters its history. The ratio holds only under the
toolchain of the record, and only if the record is of the base's code.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perfguard.judge.lane import differing_versions, folder_of
from perfguard.judge.time_record import TimeRecord, is_stored
from perfguard.judge.update_plan import plan
from perfguard.model.records import Baseline, CaseResult, PairedCase, Provenance, Reading, Report, TimedEntry, Word
from perfguard.model.records.change import Change
from perfguard.store.baseline_files import Store

LEAST_FRESH = 3  # least number of processes for a level
_TOLD = (Word.SLOWER, Word.FASTER, Word.PASS)


def measured_changes(store: Store, judged: Report, result: CaseResult, sessions: int) -> list[Change]:
    """The changes of one case that the report leads to. Those that may not be written are refused, with the reason.

    Args:
        judged: the report, judged by the baselines of this checkout.
        sessions: number of sessions for a recorded time.

    Raises:
        BaselineError: a file that cannot be read.
    """
    name = result.case.suite, result.case.key
    fresh = [each for session in judged.fresh for each in session.results if (each.case.suite, each.case.key) == name]
    records = {
        reading.metric: _record(store, judged, result, reading) for reading in result.readings if is_stored(reading)
    }
    counts = {metric: sum(each.reading(metric) is not None for each in fresh) for metric in records}
    scaled = _scaled(judged, result, [each for metric, each in records.items() if counts[metric] < LEAST_FRESH])
    if not scaled:
        changes = plan(store, judged.hardware, [result], {name: fresh}, [], judged.provenance, sessions)
        return [_checked(change, records, counts, judged) for change in changes]
    # The record keeps its board and clock: its times are still those of that board.
    then = next(iter(scaled.values())).provenance
    own = replace(then, commit=judged.commit, recorded=judged.started[:10])
    values = {metric: _times(record, result) for metric, record in scaled.items()}
    alike = [_session(result, values, place) for place in range(max(map(len, values.values())))]
    changes = plan(store, judged.hardware, [result], {name: alike}, [], own, sessions, paired=True)
    return [
        _named(replace(change, provenance=own), result)
        if change.metric in scaled
        else _checked(change, records, counts, judged)
        for change in changes
    ]


def other_toolchain(versions: str) -> str:
    """The reason why values of another toolchain cannot be recorded here."""
    return f"measured under another toolchain ({versions}); record it there: {_update('changed')}"


def _record(store: Store, judged: Report, result: CaseResult, reading: Reading) -> TimeRecord:
    def file(other: Reading) -> Baseline | None:
        return store.load(folder_of(judged.hardware, other), result.case.suite)

    return TimeRecord(result, reading, file, judged.hardware, judged.toolchain)


def _scaled(judged: Report, result: CaseResult, records: Sequence[TimeRecord]) -> dict[str, TimeRecord]:
    """Metric -> the record of each time that process pairs decided."""
    told = {verdict.metric for verdict in result.verdicts if verdict.word in _TOLD and verdict.interval is not None}
    beside = _beside(judged, result)
    return {
        record.reading.metric: record
        for record in records
        if record.reading.metric in told
        and record.entry is not None
        and not record.under_other_conditions
        and _is_of_base(record, beside)
    }


def _beside(judged: Report, result: CaseResult) -> CaseResult | None:
    """The case's result in the base's process."""
    cases: list[PairedCase] = [case for pairing in judged.pairings for case in pairing.cases]
    name = result.case.suite, result.case.key
    return next((case.base for case in cases if (case.suite, case.key) == name), None)


def _is_of_base(record: TimeRecord, base: CaseResult | None) -> bool:
    """Whether the record may be of the base's code: nothing shows that it was read from other code."""
    if base is None:
        return True
    return TimeRecord(base, record.reading, record.file, record.hardware, record.toolchain).same_code is not False


def _times(record: TimeRecord, result: CaseResult) -> list[float]:
    ratio = next(each.ratio for each in result.verdicts if each.metric == record.reading.metric)
    entry = record.comparable
    assert entry is not None
    assert ratio is not None
    return [value * ratio for value in entry.sessions]


def _session(result: CaseResult, values: dict[str, list[float]], place: int) -> CaseResult:
    readings = [
        replace(reading, value=values[reading.metric][place])
        for reading in result.readings
        if place < len(values.get(reading.metric, ()))
    ]
    return CaseResult(result.case, result.inputs, readings=readings)


def _named(change: Change, result: CaseResult) -> Change:
    """Give a time that the pairs found slower the category `slower`, for any amount, so that its reason is stored."""
    slower = any(each.word is Word.SLOWER and each.metric == change.metric for each in result.verdicts)
    return replace(change, category="slower") if slower and change.category == "changed" else change


def _checked(change: Change, records: dict[str, TimeRecord], counts: dict[str, int], judged: Report) -> Change:
    """The change of a time that does not come from pairs: refused unless enough fresh processes read it."""
    record = records.get(change.metric)
    if change.refused or record is None or not isinstance(change.after, TimedEntry):
        return change
    then: Provenance = record.provenance if record.entry is not None else Provenance()
    versions = differing_versions(then, judged.toolchain)
    if versions:
        return replace(change, refused=other_toolchain(", ".join(versions)))
    if counts[change.metric] < LEAST_FRESH:
        read = f"{counts[change.metric]} of {LEAST_FRESH} fresh processes read it, and no process pairs told"
        if _beside(judged, record.result) is not None and not _is_of_base(record, _beside(judged, record.result)):
            read += " (its record is of other code than the base's)"
        return replace(change, refused=f"{read}; record it there: {_update(change.category)}")
    return change


def _update(category: str) -> str:
    return f"pytest --perfguard --perfguard-update={category}"
