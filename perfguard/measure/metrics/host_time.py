"""Host time of one call on a device with a queue: the decisive time if kernels are short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers.host import prepare
from perfguard.measure.timers.timing import Timing
from perfguard.model.limits import Limits
from perfguard.model.records import Better, Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

METRIC = "host_time_us"
# Between processes the host time of one Python launch path differed by 2-11 % (coefficient of variation, 39 cases,
# five sessions on an H200 machine). With five sessions stored this resolves 20-44 %. A stray 50 µs of Python
# lengthens a launch by half.
_PROMISE = 0.50
_FLOOR_US = 2.0

LIMITS = {METRIC: Limits(Better.LOWER, promise=_PROMISE, floor=_FLOOR_US)}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`host_time_us`, promised to 50 % and 2 µs; nothing on a CPU, where all time is host time."""
    if not subject.timed or not device.asynchronous:
        return []
    stored = subject.stored_timers.get(METRIC)
    meter = prepare(subject.workload, device, seconds=subject.seconds, stored=stored)
    blocks = subject.collect(METRIC, meter, device, subject.seconds)
    return [Timing.of(meter, blocks).reading(METRIC, promise=_PROMISE, floor=_FLOOR_US)]
