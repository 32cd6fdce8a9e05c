"""Time during which one call keeps a device with a queue busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers import prepare_device_time
from perfguard.measure.timers.timing import Timing
from perfguard.model.limits import COARSEST_TIMER_US, Limits
from perfguard.model.records import Better, Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

METRIC = "device_time_us"
_PROMISE = 0.03

LIMITS = {METRIC: Limits(Better.LOWER, promise=_PROMISE, floor=COARSEST_TIMER_US)}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`device_time_us`, promised to 3 %; nothing on a CPU, where `cpu_time_us` is read."""
    if not subject.timed or not device.asynchronous:
        return []
    stored = subject.stored_timers.get(METRIC)
    meter = prepare_device_time(subject.workload, device, seconds=subject.seconds, stored=stored)
    blocks = subject.collect(METRIC, meter, device, subject.seconds)
    return [Timing.of(meter, blocks).reading(METRIC, promise=_PROMISE)]
