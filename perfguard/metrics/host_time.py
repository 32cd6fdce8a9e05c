"""Time that one call costs the host on a device with a queue: what decides where kernels are short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfguard.metrics.subject import Subject
from perfguard.records import Reading
from perfguard.timing.host import measure
from perfguard.units import Unit

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
    return [
        Reading(
            _METRIC,
            Unit.MICROSECONDS,
            timing.value_us,
            timer=timing.timer,
            blocks=list(timing.blocks),
            rejected_blocks=timing.rejected,
            spread=timing.spread,
            # Where 2 µs are much of the call, the promise is what they allow: the ladder fails from a third of it.
            promise=max(_PROMISE, 3 * _FLOOR_US / timing.value_us),
            floor=max(_FLOOR_US, timing.floor_us),
            drifts=True,
            note=timing.note,
        )
    ]
