"""Device time on asynchronous devices by the profiler: the intervals in which kernels and copies of a call ran.

Ids: `profile-cold` (the cache is flushed before each call) and `profile-warm`. A call's time is the length of the union
of its intervals, without host time and gaps between kernels. The profiler is preferred to event pairs for short calls,
for which the pair costs as much as the call, and for calls that wait for the device or overfill its queue.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING

from perfguard.measure.timers.blocks import samples_in_block, warmed_up
from perfguard.measure.timers.queue import SHORT_US, estimated, event_grid_us
from perfguard.measure.timers.timing import Meter, Workload, floor_us
from perfguard.model.errors import DeviceError

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device, Interval

RANK = 30  # This is the timer's place in the order of preference (`Timer`).

_MOST_CALLS = 50  # A block has at most so many calls, because the profiler keeps tens of events per call.


def suits(device: Device) -> bool:
    """Whether the device is asynchronous. `prepare` tests whether it can be profiled."""
    return device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return timer in ("profile-cold", "profile-warm")


def covered_us(intervals: Iterable[Interval]) -> float:
    """Length of the union of `intervals`, µs: overlapping work counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
    """A meter of one call's device time by the profiler.

    None if the profiler reports nothing. Also None, unless the stored id requires this timer, if event pairs are as
    good: the host can be kept ahead, and the call is so long that a pair costs little.
    """
    timer = f"profile-{workload.cache}"
    waited_us = warmed_up(workload, workload.run, device, seconds)
    grid_us = event_grid_us(device)
    if stored != timer:
        estimate = estimated(workload.run, device, workload.cache)
        if estimate is not None and estimate.call_us >= SHORT_US:
            return None
    samples = min(_MOST_CALLS, samples_in_block(waited_us, seconds))
    before = device.flush_cache if workload.cache == "cold" else None

    def block() -> float | None:
        try:
            calls = device.intervals([workload.run] * samples, before)
        except DeviceError:
            return None
        times = [covered_us(intervals) for intervals in calls]
        return statistics.median(times) if all(times) else None  # A zero means that the profiler lost a call's work.

    if block() is None:
        return None
    return Meter(timer, block, floor_us(grid_us, 1))
