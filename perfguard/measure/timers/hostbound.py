"""The last resort on asynchronous devices: event pairs that include host time.

Ids: `queue-cold-hostbound` (one call per pair, the cache flushed before) and `queue-warm-u64-hostbound` (64 calls per
pair, no flush). For calls that wait for the device or overfill its queue, cannot be captured, and cannot be profiled.
"""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

from perfguard.measure.timers.blocks import calls_in_sample, samples_in_block, warmed_up
from perfguard.measure.timers.filled_queue import event_grid_us
from perfguard.measure.timers.queue import MOST_CALLS, calls_in_pair, pairs
from perfguard.measure.timers.timing import Cache, Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

RANK = 50  # in the order of preference (`Timer`)

_ID = re.compile(r"queue-(?:cold|warm-u(?P<calls>\d{1,4}))-hostbound")


def _parse(timer: str | None, cache: Cache) -> int | None:
    """Calls per pair of an id for `cache`."""
    match = _ID.fullmatch(timer or "")
    if match is None or (match["calls"] is None) is not (cache == "cold"):
        return None
    calls = int(match["calls"] or 1)
    return calls if 1 <= calls <= MOST_CALLS else None


def suits(device: Device) -> bool:
    """Whether the device has a queue."""
    return device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return _parse(timer, "cold") is not None or _parse(timer, "warm") is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """Time on an idle device, each sample by itself, so that no queue hides the host's pace."""
    waited_us = warmed_up(workload, workload.run, device, seconds)
    grid_us = event_grid_us(device)
    counted = _parse(stored, workload.cache) or calls_in_pair(workload.cache, waited_us)
    calls = calls_in_sample(counted, waited_us)
    samples = samples_in_block(calls * waited_us, seconds)
    enqueue = pairs(workload.run, device, "warm", calls)

    def sample() -> float:
        if workload.cache == "cold":
            device.flush_cache()
        device.synchronize()
        ((start, end),) = enqueue(1)
        device.synchronize()
        return start.elapsed_us(end) / calls

    def block() -> float:
        return max(statistics.median(sample() for _ in range(samples)), grid_us / calls)

    return Meter(
        "queue-cold-hostbound" if workload.cache == "cold" else f"queue-warm-u{counted}-hostbound",
        block,
        floor_us(grid_us, calls),
        samples,
        note="host-bound: the call waits for the device or overfills its queue; the time includes host time",
        bytes=workload.bytes,
    )
