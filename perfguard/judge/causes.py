"""Explains a verdict by the exact metrics that changed with it, else by the machine (docs/metrics.md).

No metric is known by name. Each reading declares what it explains. `rank` orders causes, `details` names the metric
that it details, and `covers` lists the times that cannot change while the reading equals the stored one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfguard.judge.exact import describe_difference
from perfguard.model.records import Conditions, Provenance, Reading, Value

CLOCK_SHIFT = 0.02  # smaller clock differences are usual between two sessions under load


def because(metric: str, readings: Sequence[Reading], before: Mapping[str, Value]) -> str:
    """Why the time `metric` changed: `because: spills 0 -> 12, launches 1 -> 2 (+100.0 %), kernels + copy`.

    Args:
        readings: all current readings of the case.
        before: earlier values of the exact metrics; unknown ones are left out.
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
    """The changes of the readings that detail the exact `metric`; empty if there are none."""
    details = [reading for reading in readings if reading.details == metric and reading.metric in before]
    return ", ".join(filter(None, (describe_difference(reading, before[reading.metric]) for reading in details)))


def machine_change(before: Provenance, now: Conditions | None) -> str:
    """`clocks 1980 -> 1755 MHz, throttled: thermal`: evidence for the machine as the cause; empty without any.

    Args:
        before: provenance of the baseline.
        now: state of the device while timing.
    """
    if now is None:
        return ""
    found = []
    old, new = before.clock_mhz, now.clock_mhz
    if old and new and abs(new / old - 1) > CLOCK_SHIFT:
        found.append(f"clocks {old} -> {new} MHz")
    if now.throttle_reasons and (found or not old):  # power capping is normal for tensor-core work
        found.append(f"throttled: {', '.join(now.throttle_reasons)}")
    if now.other_processes:
        found.append(f"{now.other_processes} other process{'es' * (now.other_processes > 1)} on the device")
    return ", ".join(found)


def _in_order(readings: Sequence[Reading]) -> list[Reading]:
    """The readings by rank, each after the metric that it details."""
    place = {reading.metric: (reading.rank, index) for index, reading in enumerate(readings)}
    return sorted(readings, key=lambda each: (place.get(each.details, place[each.metric]), bool(each.details)))
