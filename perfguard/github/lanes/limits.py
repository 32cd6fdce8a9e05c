"""Restricts a report's readings to the limits that their metrics declare (`LIMITS` in perfguard/measure/metrics/).

A report contains the limits of its readings. They must not be more lenient than the declared ones, because the change's
own code, which made the report, may have edited them. The metrics' files load no torch, which the post job lacks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from perfguard.judge.lane import Lane
from perfguard.model.limits import Limits
from perfguard.model.records import CaseResult, Entry, Reading, TimedEntry

_HASH = re.compile(r"[0-9a-f]{16}")


def declared(metric: str, *, of_target: bool = False) -> Limits | None:
    """The limits that the metric's file declares; None for an unknown metric.

    Args:
        of_target: whether `metric` is the part of a name after the target.
    """
    # These are imported late, since the metrics' files import the timers.
    from perfguard.measure.metrics import all_limits, all_limits_of_targets

    return (all_limits_of_targets() if of_target else all_limits()).get(metric)


def hold(result: CaseResult, lane: Lane | None = None) -> CaseResult:
    """The case with limits no more lenient than the declared ones. Limits of unknown metrics are kept.

    Args:
        lane: the baselines that judge the case. No rival replaces their times, and a reading far below them does not
            make its own limit wider.
    """
    readings = [_held(reading) for reading in result.readings]
    held = result if readings == result.readings else replace(result, readings=readings)
    if lane is None:
        return held
    return replace(held, readings=[_held(each, lane.record(held, each).entry) for each in held.readings])


def lenient(results: Sequence[CaseResult]) -> Counter[str]:
    """Metric -> the number of its readings that `hold` makes stricter."""
    return Counter(each.metric for result in results for each in result.readings if _held(each) != each)


def _identifies_code(reading: Reading) -> bool:
    """Whether equal values mean equal code: a hash, or a part for each kernel."""
    return isinstance(reading.value, dict) or bool(_HASH.fullmatch(str(reading.value)))


def _held(reading: Reading, entry: Entry | None = None) -> Reading:
    """The reading within the declared limits, and within those of its record `entry`."""
    if entry is not None and reading.rival:
        reading = replace(reading, rival=0.0)
    target, _, name = reading.metric.rpartition(".")
    of_target = bool(target) and target == reading.target
    own = declared(name if of_target else reading.metric, of_target=of_target)
    if own is None:
        return reading
    floor = min(reading.floor, own.floor)
    promise = reading.promise
    if reading.timed and isinstance(reading.value, int | float):
        recorded = median(entry.sessions) if isinstance(entry, TimedEntry) else 0.0
        promise = min(promise, max(own.promise, 3 * floor / max(reading.value, recorded)))
    return replace(
        reading,
        better=own.better,
        gated=own.gated,
        stored=own.stored,
        portable=reading.portable if own.portable is None else own.portable,
        target=reading.target if of_target else "",  # Readings for a target are not compared with records.
        promise=promise,
        floor=floor,
        tolerance=min(reading.tolerance, own.tolerance),
        unrecorded=own.unrecorded,
        covers=[metric for metric in reading.covers if metric in own.covers and _identifies_code(reading)],
    )
