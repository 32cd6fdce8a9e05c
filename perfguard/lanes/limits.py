"""The limits that this perfguard's own metrics gate by. A report describes its readings itself; here it may not
describe them more leniently: the report comes from the change's own code, which may have edited its limits.

tests/lanes/test_limits.py holds these against what the metrics write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfguard.records import Better, CaseResult, Reading

_MIB = 2.0**20
_HASH = re.compile(r"[0-9a-f]{16}")


class Limits(Struct, frozen=True):
    """The most lenient that a metric of ours is on any device.

    Attributes:
        promise: of a time, before the timer's own floor is allowed for (as in `Timing.reading`).
        floor: of an exact metric in its unit, of a time in µs.
        covers: times that cannot have moved where the reading, a hash, is as stored.
    """

    better: Better
    gated: bool = True
    promise: float = 0.03
    floor: float = 0.0
    tolerance: float = 0.0
    covers: tuple[str, ...] = ()
    portable: bool = False


# Events tick in steps of 0.5 µs at most on any GPU we know, and a timer tells two steps.
_COARSEST_TIMER_US = 1.0

OWN: dict[str, Limits] = {
    "capturable": Limits(Better.SAME),
    "contract": Limits(Better.SAME, portable=True),
    "device_time_us": Limits(Better.LOWER, promise=0.03, floor=_COARSEST_TIMER_US),
    "fingerprint": Limits(Better.SAME, gated=False, covers=("device_time_us",)),
    "host_time_us": Limits(Better.LOWER, promise=0.50, floor=2.0),
    "kernels": Limits(Better.SAME, gated=False),
    "launches": Limits(Better.LOWER),
    "operator_names": Limits(Better.SAME, gated=False, portable=True),
    "operators": Limits(Better.LOWER, portable=True),
    "peak_memory_bytes": Limits(Better.LOWER, tolerance=0.005, floor=_MIB),
}


def hold(result: CaseResult) -> CaseResult:
    """The case with limits no more lenient than ours. What a metric that we do not know says of itself stands."""
    readings = [_held(reading) for reading in result.readings]
    return result if readings == result.readings else replace(result, readings=readings)


def lenient(given: Sequence[CaseResult], held: Sequence[CaseResult]) -> dict[str, int]:
    """Metric -> how many of its readings `hold` has made stricter."""
    counts: dict[str, int] = {}
    for before, after in zip(given, held, strict=True):
        for reading, kept in zip(before.readings, after.readings, strict=True):
            if reading != kept:
                counts[reading.metric] = counts.get(reading.metric, 0) + 1
    return counts


def _held(reading: Reading) -> Reading:
    own = OWN.get(reading.metric)
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
        portable=own.portable,
        promise=promise,
        floor=floor,
        tolerance=min(reading.tolerance, own.tolerance),
        covers=[metric for metric in reading.covers if metric in own.covers and _HASH.fullmatch(str(reading.value))],
    )
