"""CPU time on one thread, for devices whose calls return when the work is done.

Ids: `cpu-u16` has 16 calls per sample. Wall time on a shared processor depends on other processes. CPU time depends on
them less, and its lowest samples depend least. So a block is its lowest sample, and only the lowest blocks count
(`blocks.lowest`). The cache is in the state that the last call left.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfguard.measure.timers.blocks import (
    SAMPLE_US,
    calls_in_sample,
    power_of_two,
    samples_in_block,
    warm_up,
)
from perfguard.measure.timers.timing import Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

RANK = 60  # This is the timer's place in the order of preference (`Timer`).

_MOST_CALLS = 2**16
_NEAR = 0.01
_GRID_US = 1.0  # The clock ticks in nanoseconds, but a sample includes the system call that reads it.


def suits(device: Device) -> bool:
    """Whether calls return when the work is done."""
    return not device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of CPU time."""
    return _stored_calls(timer) is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """A meter of one call's CPU time, which does not depend on the workload's `cache`."""
    call = workload.run
    with one_thread():
        call()  # torch.compile specialises on the number of threads, so it compiles again.
        call_us = warm_up(call, device, seconds)
    counted = _stored_calls(stored) or power_of_two(SAMPLE_US / max(call_us, 1e-3), _MOST_CALLS)
    calls = calls_in_sample(counted, call_us)
    samples = samples_in_block(calls * call_us, seconds, longest_us=math.inf)

    def sample() -> float:
        started = used_us()
        for _ in range(calls):
            call()
        return (used_us() - started) / calls

    @one_thread()
    def block() -> float:
        return max(min(sample() for _ in range(samples)), _GRID_US / calls)

    return Meter(f"cpu-u{counted}", block, floor_us(_GRID_US, calls), near=_NEAR)


def _stored_calls(timer: str | None) -> int | None:
    """The number of calls per sample in a timer's id; None if the id is none of this module's."""
    match = re.fullmatch(r"cpu-u(\d{1,6})", timer or "")
    return int(match[1]) if match and 1 <= int(match[1]) <= _MOST_CALLS else None


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
