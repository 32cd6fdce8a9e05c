"""Why a verdict came about: the exact readings that moved beside it, else the machine (docs/metrics.md).

Knows no metric by name. A reading says what it may explain: by its `rank` how close a cause it is, by `details` that
it spells out one other metric, by `covers` that where it is as stored the device runs the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfguard.judge.exact import describe_difference
from perfguard.records import Conditions, Provenance, Reading, Value

CLOCK_SHIFT = 0.02  # a smaller difference of clocks is the usual one between two sessions under load


def because(metric: str, readings: Sequence[Reading], before: Mapping[str, Value]) -> str:
    """Why the time `metric` moved: `because: spills 0 -> 12, launches 1 -> 2 (+100.0 %), kernels + copy`.

    Args:
        readings: all of the case, now.
        before: the same metrics' exact values before; those that are not known are left out.
    """
    timed = {reading.metric for reading in readings if reading.timed}
    known = [reading for reading in readings if not reading.timed and reading.metric in before]
    told = [reading for reading in known if not reading.covers and reading.details not in timed - {metric}]
    moved = [text for reading in _in_order(told) if (text := describe_difference(reading, before[reading.metric]))]
    if moved:
        return f"because: {', '.join(moved)}"
    codes = [reading.value != before[reading.metric] for reading in known if metric in reading.covers]
    return "no exact metric moved, but the code on the device did" if any(codes) else "no exact metric moved"


def spelled_out(metric: str, readings: Sequence[Reading], before: Mapping[str, Value]) -> str:
    """What the readings that detail the exact `metric` add to its change; empty where they moved not at all."""
    details = [reading for reading in readings if reading.details == metric and reading.metric in before]
    return ", ".join(filter(None, (describe_difference(reading, before[reading.metric]) for reading in details)))


def machine_change(before: Provenance, now: Conditions | None) -> str:
    """`clocks 1980 -> 1755 MHz, throttled: thermal`: what speaks for the machine as the cause; empty if nothing.

    Args:
        before: where the baseline comes from.
        now: the device's state while it was timed.
    """
    if now is None:
        return ""
    found = []
    old, new = before.clock_mhz, now.clock_mhz
    if old and new and abs(new / old - 1) > CLOCK_SHIFT:
        found.append(f"clocks {old} -> {new} MHz")
    if now.throttle_reasons and (found or not old):  # a power cap is the usual state of tensor-core work
        found.append(f"throttled: {', '.join(now.throttle_reasons)}")
    if now.other_processes:
        found.append(f"{now.other_processes} other process{'es' * (now.other_processes > 1)} on the device")
    return ", ".join(found)


def _in_order(readings: Sequence[Reading]) -> list[Reading]:
    """By rank, each behind the metric that it details."""
    place = {reading.metric: (reading.rank, index) for index, reading in enumerate(readings)}
    return sorted(readings, key=lambda each: (place.get(each.details, place[each.metric]), bool(each.details)))
