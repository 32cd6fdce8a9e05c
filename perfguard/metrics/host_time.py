"""Time that one call costs the host on a device with a queue: what decides where kernels are short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Reading
from perfguard.timing.host import measure

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

TIMED = True

_METRIC = "host_time_us"
_PROMISE = 0.10
_FLOOR_US = 2.0


def read(subject: Subject, device: Device) -> list[Reading]:
    """`host_time_us`, promised to 10 % and 2 µs; nothing on a CPU: it has but one time."""
    if not subject.timed or not device.asynchronous:
        return []
    stored = subject.stored_timers.get(_METRIC)
    timing = measure(subject.run, device, seconds=subject.seconds, stored=stored)
    return [timing.reading(_METRIC, promise=_PROMISE, floor=_FLOOR_US)]
