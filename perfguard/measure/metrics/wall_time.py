"""Wall time of one call, with the user's number of threads: the time that a user of a CPU waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers import wall
from perfguard.measure.timers.blocks import collect
from perfguard.measure.timers.timing import Timing
from perfguard.model.limits import COARSEST_TIMER_US, Limits
from perfguard.model.records import Better, Reading

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

TIMED = True

METRIC = "wall_time_us"
_PROMISE = 0.10  # required, but not judged: the metric is only shown
_SECONDS = 0.05  # for its blocks; the warm-up takes half as long

LIMITS = {METRIC: Limits(Better.LOWER, gated=False, promise=_PROMISE, floor=COARSEST_TIMER_US)}


def read(subject: Subject, device: Device) -> list[Reading]:
    """`wall_time_us`, never gated; nothing on a device with a queue.

    Read directly, without a conductor or later passes, since it is not judged.
    """
    if not subject.timed or device.asynchronous:
        return []
    seconds = min(_SECONDS, subject.seconds)
    meter = wall.prepare(subject.workload, device, seconds=seconds, stored=subject.stored_timers.get(METRIC))
    blocks = collect(METRIC, meter, device, seconds)
    reading = Timing.of(meter, blocks).reading(METRIC, promise=_PROMISE)
    return [msgspec.structs.replace(reading, gated=False)]
