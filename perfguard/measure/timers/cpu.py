"""CPU time of the process, on one thread, for devices whose calls return when the work is done.

Ids: `cpu-u16`, 16 calls per sample. Wall time on a shared processor depends on other processes: threads wait for each
other and for their turn. CPU time depends on them less, and its lowest samples least. So a block is its lowest sample,
and only the lowest blocks count (`floor.py`). Always warm: the cache of a case holds whatever its last call left there.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfguard.measure.timers.blocks import SAMPLE_US, calls_in_sample, power_of_two, samples_in_block, warm_up
from perfguard.measure.timers.floor import LEAST
from perfguard.measure.timers.timing import Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

RANK = 60  # in the order of preference (`Timer`)

_MOST_CALLS = 2**16
_NEAR = 0.01
_CLOCK_GRID_US = 1.0  # the clock ticks in nanoseconds, but a sample includes the system call that reads it
_ID = re.compile(r"cpu-u(?P<calls>\d{1,6})")


def _parse(timer: str | None) -> int | None:
    match = _ID.fullmatch(timer or "")
    calls = int(match["calls"]) if match else 0
    return calls if 1 <= calls <= _MOST_CALLS else None


def suits(device: Device) -> bool:
    """Whether calls return when the work is done."""
    return not device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return _parse(timer) is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """CPU time of one call; the workload's `cache` changes nothing here."""
    call = workload.run
    with one_thread():
        call()  # torch.compile specialises on the number of threads, and compiles again for one
        call_us = warm_up(call, device, seconds)
    counted = _parse(stored) or power_of_two(SAMPLE_US / max(call_us, 1e-3), _MOST_CALLS)
    calls = calls_in_sample(counted, call_us)
    samples = samples_in_block(calls * call_us, seconds, longest_us=math.inf)

    def sample() -> float:
        started = used_us()
        for _ in range(calls):
            call()
        return (used_us() - started) / calls

    def block() -> float:
        with one_thread():
            lowest = min(sample() for _ in range(samples))
        return max(lowest, _CLOCK_GRID_US / calls)

    floor = floor_us(_CLOCK_GRID_US, calls)
    return Meter(f"cpu-u{counted}", block, floor, samples, bytes=workload.bytes, in_pass=LEAST, near=_NEAR)


def used_us() -> float:
    """CPU time of all threads of this process, µs."""
    return time.process_time_ns() / 1e3


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operators on one thread while inside, and on the previous number afterwards."""
    import torch

    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
