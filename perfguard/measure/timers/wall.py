"""Wall time, for devices whose calls return when the work is done (CPU): shown, but not judged.

Ids: `wall-u16`, 16 calls per sample. Always warm: the cache of a case holds whatever its last call left there.
"""

from __future__ import annotations

import math
import re
import statistics
from typing import TYPE_CHECKING

from perfguard.measure.timers.blocks import SAMPLE_US, calls_in_sample, power_of_two, samples_in_block, warm_up
from perfguard.measure.timers.timing import Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

_MOST_CALLS = 2**16
_CLOCK_GRID_US = 0.1  # about the time of reading the clock twice and storing the difference
_ID = re.compile(r"wall-u(?P<calls>\d{1,6})")


def _parse(timer: str | None) -> int | None:
    match = _ID.fullmatch(timer or "")
    calls = int(match["calls"]) if match else 0
    return calls if 1 <= calls <= _MOST_CALLS else None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """Wall time of one call; the workload's `cache` changes nothing here."""
    call = workload.run
    call_us = warm_up(call, device, seconds)
    counted = _parse(stored) or power_of_two(SAMPLE_US / max(call_us, 1e-3), _MOST_CALLS)
    calls = calls_in_sample(counted, call_us)
    samples = samples_in_block(calls * call_us, seconds, longest_us=math.inf)

    def sample() -> float:
        started = device.now_us()
        for _ in range(calls):
            call()
        return (device.now_us() - started) / calls

    def block() -> float:
        return max(statistics.median(sample() for _ in range(samples)), _CLOCK_GRID_US / calls)

    return Meter(f"wall-u{counted}", block, floor_us(_CLOCK_GRID_US, calls), samples, bytes=workload.bytes)
