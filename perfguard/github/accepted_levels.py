"""The new level of a time that process pairs judged: the stored sessions multiplied by the ratio of the pairs.

A ratio holds on any board. The record therefore keeps its board and the noise read on it, and no other board enters its
history. The ratio holds only under the toolchain of the record, and only if the record is of the base's code. A time
that no pair judged, such as a new one, is recorded on its own machine.
"""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from perfguard.judge.lane import Lane, differing_versions
from perfguard.judge.time_record import TimeRecord
from perfguard.judge.update_plan import lane_of, plan
from perfguard.model.limits import KERNEL_TIME, KERNEL_TIME_LIMITS, timed_kernel
from perfguard.model.records import CaseResult, Parts, Provenance, Report, TimedEntry, Word
from perfguard.model.records.change import Change
from perfguard.model.units import Unit
from perfguard.store.baseline_files import Store

_JUDGED = (Word.SLOWER, Word.FASTER, Word.PASS)


def measured_changes(store: Store, judged: Report, result: CaseResult) -> list[Change]:
    """The changes of one case that the report leads to. Those that may not be written are refused, with the reason.

    Args:
        judged: the report, judged by the baselines of this checkout.

    Raises:
        BaselineError: a file that cannot be read.
    """
    lane = lane_of(store, judged.hardware, judged.toolchain, result)
    result = _with_kernel_times(lane, result)
    times = [each for each in result.readings if each.timed and each.is_recorded]
    records = {each.metric: TimeRecord(result, each, lane) for each in times}
    base = _result_of_base(judged, result)
    scaled = {
        metric: [value * ratio for value in record.comparable.sessions]
        for metric, record in records.items()
        if (ratio := _ratio(result, metric)) is not None and record.comparable is not None
        if not record.under_other_conditions and _is_of_base(record, base) and not _is_accepted(record, judged)
    }
    provenance = judged.provenance
    if scaled:  # the record keeps its board and clock: its times are still those of that board
        then = records[next(iter(scaled))].provenance
        provenance = replace(then, commit=judged.commit, recorded=judged.started[:10])
    changes = plan(store, judged.hardware, [result], {}, [], provenance, scaled)
    return [
        _named(replace(change, provenance=provenance), result)
        if change.metric in scaled
        else _checked(change, records.get(change.metric), judged, base)
        for change in changes
    ]


def other_toolchain(versions: str) -> str:
    """The reason why values of another toolchain cannot be recorded here."""
    return f"measured under another toolchain ({versions}); record it there: {_update('changed')}"


def _with_kernel_times(lane: Lane, result: CaseResult) -> CaseResult:
    """An observed test with the new levels of its kernels' times. They are written with the kernels' new facts."""
    stored = lane.stored(*result.id).get(KERNEL_TIME)
    times: Parts = dict(stored) if isinstance(stored, dict) else {}
    paired = {
        kernel: each
        for each in result.verdicts
        if (kernel := timed_kernel(each.metric)) and each.interval is not None and each.ratio is not None
    }
    for kernel, verdict in paired.items():
        before, after = times.get(kernel), verdict.after
        if isinstance(before, int | float) and verdict.ratio is not None:
            times[kernel] = before * verdict.ratio
        elif isinstance(after, int | float):
            times[kernel] = after
    if not paired:
        return result
    reading = KERNEL_TIME_LIMITS.reading(KERNEL_TIME, Unit.MICROSECONDS, times, drifts=True)
    return replace(result, readings=[*result.readings, reading])


def _ratio(result: CaseResult, metric: str) -> float | None:
    """Working tree / base, from process pairs that judged the time; None if none did."""
    verdicts = [each for each in result.verdicts if each.metric == metric and each.word in _JUDGED]
    return next((each.ratio for each in verdicts if each.interval is not None), None)


def _result_of_base(judged: Report, result: CaseResult) -> CaseResult | None:
    """The case's result in the base's process."""
    name = result.id
    cases = [case for pairing in judged.pairings for case in pairing.cases]
    return next((case.base for case in cases if case.id == name), None)


def _is_of_base(record: TimeRecord, base: CaseResult | None) -> bool:
    """Whether the record may be of the base's code: nothing shows that it was read from other code."""
    return base is None or dataclasses.replace(record, result=base).same_code is not False


def _is_accepted(record: TimeRecord, judged: Report) -> bool:
    """Whether the record is of the measured commit already, so that the ratio must not be applied again."""
    return judged.commit is not None and record.provenance.commit == judged.commit


def _named(change: Change, result: CaseResult) -> Change:
    """Give a time that the pairs found slower the category `slower`, for any amount, so that its reason is stored."""
    slower = any(each.word is Word.SLOWER and each.metric == change.metric for each in result.verdicts)
    return replace(change, category="slower") if slower and change.category == "changed" else change


def _checked(change: Change, record: TimeRecord | None, judged: Report, base: CaseResult | None) -> Change:
    """The change; of a time that no pair judged, refused."""
    if change.refused or record is None or not isinstance(change.after, TimedEntry):
        return change
    then = record.provenance if record.entry is not None else Provenance()
    versions = differing_versions(then, judged.toolchain)
    if versions:
        return replace(change, refused=other_toolchain(", ".join(versions)))
    why = "no process pair judged it" if _is_of_base(record, base) else "its record is of other code than the base's"
    return replace(change, refused=f"{why}; record it there: {_update(change.category)}")


def _update(category: str) -> str:
    return f"pytest --perfguard --perfguard-update={category}"
