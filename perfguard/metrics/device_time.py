"""Time that one call keeps the device busy; on a CPU, the time it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Reading
from perfguard.timing import prepare_device_time
from perfguard.timing.clock import at_one_clock, split
from perfguard.timing.timing import Timing

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = True

METRIC = "device_time_us"
_PROMISE = 0.03


def read(subject: Subject, device: Device) -> list[Reading]:
    """`device_time_us`, promised to 3 %; nothing for a subject that is not timed."""
    if not subject.timed:
        return []
    stored = subject.stored_timers.get(METRIC)
    timer, _ = split(stored)
    meter = prepare_device_time(subject.workload, device, seconds=subject.seconds, stored=timer)
    meter = at_one_clock(meter, device, stored)
    blocks = subject.collect(METRIC, meter, device, subject.seconds)
    return [Timing.of(meter, blocks).reading(METRIC, promise=_PROMISE)]
