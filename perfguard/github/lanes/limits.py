"""Restricts a report's readings to the limits that their metrics declare (`LIMITS` in perfguard/measure/metrics/).

A report contains the limits of its readings. They must not be more lenient than the declared ones, because the change's
own code, which made the report, may have edited them. The metrics' files load no torch, which the post job lacks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from perfguard.model.limits import Limits
from perfguard.model.records import CaseResult, Reading

_HASH = re.compile(r"[0-9a-f]{16}")


def declared(metric: str, *, of_target: bool = False) -> Limits | None:
    """The limits that the metric's file declares; None for an unknown metric.

    Args:
        of_target: whether `metric` is the part of a name after the target.
    """
    # These are imported late, since the metrics' files import the timers.
    from perfguard.measure.metrics import all_limits, all_limits_of_targets

    return (all_limits_of_targets() if of_target else all_limits()).get(metric)


def hold(result: CaseResult) -> CaseResult:
    """The case with limits no more lenient than the declared ones. Limits of unknown metrics are kept."""
    readings = [_held(reading) for reading in result.readings]
    return result if readings == result.readings else replace(result, readings=readings)


def lenient(results: Sequence[CaseResult]) -> Counter[str]:
    """Metric -> the number of its readings that `hold` makes stricter."""
    return Counter(each.metric for result in results for each in result.readings if _held(each) != each)


def _identifies_code(reading: Reading) -> bool:
    """Whether equal values mean equal code: a hash, or a part for each kernel."""
    return isinstance(reading.value, dict) or bool(_HASH.fullmatch(str(reading.value)))


def _held(reading: Reading) -> Reading:
    target, _, name = reading.metric.rpartition(".")
    of_target = bool(target) and target == reading.target
    own = declared(name if of_target else reading.metric, of_target=of_target)
    if own is None:
        return reading
    floor = min(reading.floor, own.floor)
    promise = reading.promise
    if reading.timed and isinstance(reading.value, int | float):
        promise = min(promise, max(own.promise, 3 * floor / reading.value))
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
