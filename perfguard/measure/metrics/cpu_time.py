"""CPU time of one call on one thread: the judged time on a CPU, where wall time includes the work of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.timing import Timing
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

METRIC = "cpu_time_us"
_PROMISE = 0.10  # between processes it varies by 0.6 to 3 %, and by up to 9 % on a crowded machine (docs/measuring.md)

LIMITS = {METRIC: Limits(Better.LOWER, promise=_PROMISE, floor=2.0)}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`cpu_time_us`, promised to 10 %; nothing on a device with a queue."""
    if not subject.timed or device.asynchronous:
        return []
    stored = subject.stored_timers.get(METRIC)
    meter = prepare_device_time(subject.workload, device, seconds=subject.seconds, stored=stored)
    blocks = subject.collect(METRIC, meter, device, subject.seconds)
    return [Timing.of(meter, blocks).reading(METRIC, promise=_PROMISE)]
