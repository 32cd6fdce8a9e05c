"""Decides which times of kernels in observed tests are in question.

A test runs once, so that the run itself reads no time. If the binary, the number of launches or the grids of a kernel
differ from the record, its device time may differ from the base's, and process pairs decide (docs/observe.md).
"""

from __future__ import annotations

from msgspec.structs import replace

from perfguard.judge.lane import Lane
from perfguard.model.limits import KERNEL_TIME, KERNEL_TIME_LIMITS, kernel_time, timed_kernel
from perfguard.model.records import NO_BASE, CaseResult, Reading, Verdict, Word
from perfguard.model.records.baseline import UNSTABLE
from perfguard.model.records.code import CODE, same_code
from perfguard.model.units import Unit


def judge_kernel_times(result: CaseResult, lane: Lane) -> list[Verdict]:
    """SUSPECT for the time of each kernel in question, UNRESOLVED without a base; and one verdict that shows the times
    that are stored."""
    verdicts = []
    entry = lane.stored(*result.id).get(KERNEL_TIME)
    stored = entry if isinstance(entry, dict) else {}
    if stored and result.reading(KERNEL_TIME) is None:
        reason = "not gated: as it was recorded; a run reads no times of tests"
        verdicts.append(Verdict(Word.PASS, KERNEL_TIME, reason, stored, unit=Unit.MICROSECONDS))
    base = lane.base_of(*result.id)
    if base == NO_BASE or base.equal:
        return verdicts
    for kernel, moved in moved_kernels(result, lane).items():
        reason, before = f"to be paired: {moved} moved", stored.get(kernel)
        verdict = Verdict(Word.SUSPECT, kernel_time(kernel), reason, before, unit=Unit.MICROSECONDS)
        if base.commit is None:
            verdict = replace(verdict, word=Word.UNRESOLVED, reason=f"UNPAIRED: {base.problem}")
        verdicts.append(verdict)
    return verdicts


def moved_kernels(result: CaseResult, lane: Lane) -> dict[str, str]:
    """Kernel -> the first exact metric by which its launches or its binary differ from the record. Kernels that are as
    recorded or no longer launched are left out, as are readings that differed between processes when recorded."""
    moved: dict[str, str] = {}
    for reading in result.readings:
        record = lane.record(result, reading)
        before = record.implied
        if KERNEL_TIME not in reading.covers or record.case is None or before in (None, UNSTABLE):
            continue
        if record.case.inputs not in ("", result.inputs):
            continue  # The test was edited.
        then = before if isinstance(before, dict) else {}
        for part, value in reading.value.items() if isinstance(reading.value, dict) else ():
            if not _is_equal(reading.metric, then.get(part), value):
                moved.setdefault(part.partition("/")[0], reading.metric)  # `rows/2` is the second specialisation.
    return moved


def _is_equal(metric: str, before: object, now: object) -> bool:
    return same_code(str(before), str(now)) if metric == CODE else before == now


def reading_of(result: CaseResult, metric: str) -> Reading | None:
    """The reading that a verdict judges. For a kernel of an observed test, which has none, it only holds the limits."""
    if timed_kernel(metric):
        limits = KERNEL_TIME_LIMITS
        return Reading(metric, Unit.MICROSECONDS, {}, promise=limits.promise, floor=limits.floor)
    return result.reading(metric)
