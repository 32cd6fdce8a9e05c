"""Time that one call keeps the device busy; on a CPU, the time it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Reading
from perfguard.timing import measure_device_time

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = True

_METRIC = "device_time_us"
_PROMISE = 0.03


def read(subject: Subject, device: Device) -> list[Reading]:
    """`device_time_us`, promised to 3 %; nothing for a subject that is not timed."""
    if not subject.timed:
        return []
    timing = measure_device_time(
        subject.run,
        device,
        cache=subject.cache,
        seconds=subject.seconds,
        stored=subject.stored_timers.get(_METRIC),
    )
    return [timing.reading(_METRIC, promise=_PROMISE)]
