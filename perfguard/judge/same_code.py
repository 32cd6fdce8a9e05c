"""Times that cannot have changed, because the device runs the same code (docs/judging.md, step 1)."""

from __future__ import annotations

from perfguard.judge.exact import describe_difference
from perfguard.judge.lane import Lane
from perfguard.model.records import CaseResult, TimedEntry


def covered(result: CaseResult, lane: Lane) -> frozenset[str]:
    """Names of the stored times that need no judging, because an exact reading that covers them equals the stored one.

    Inputs, power limit and toolchain must be those of the baseline, too.
    """
    return frozenset(covering(result, lane))


def covering(result: CaseResult, lane: Lane) -> dict[str, str]:
    """Covered metric -> the exact metric that covers it."""
    suite, key = result.case.suite, result.case.key
    found: dict[str, str] = {}
    if not lane.comparable(result):
        return found
    for reading in result.readings:
        if not reading.covers or reading.timed or not _is_as_stored(result, lane, reading.metric):
            continue
        for metric in reading.covers:
            if (suite, key, metric) in lane.timed:
                found.setdefault(metric, reading.metric)
    return found


def covered_beside(base: CaseResult, work: CaseResult) -> frozenset[str]:
    """Timed metrics that cannot differ from the base's, because the device runs the same code on both sides."""
    return frozenset(
        metric
        for reading in work.readings
        for metric in reading.covers
        if (other := base.reading(reading.metric)) is not None and other.value == reading.value
    )


def _is_as_stored(result: CaseResult, lane: Lane, metric: str) -> bool:
    reading = result.reading(metric)
    baseline = lane.baseline_of(result.case.suite, reading) if reading is not None else None
    stored = baseline.cases.get(result.case.key) if baseline else None
    if reading is None or stored is None or metric not in stored.entries:
        return False
    entry = stored.entries[metric]
    return not isinstance(entry, TimedEntry) and not describe_difference(reading, entry)
