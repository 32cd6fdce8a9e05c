"""CPU time on one thread, and wall time, for devices whose calls return when the work is done.

Ids: `cpu-u16` and `wall-u16` have 16 calls per sample. Wall time on a shared processor depends on other processes, so
it is shown, but not judged. CPU time depends on them less, and its lowest samples depend least. So a block of CPU time
is its lowest sample, and only the lowest blocks count (`blocks.lowest`). Both times are warm: the cache is in the state
that the last call left.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class _Clock:
    """A clock of the host."""

    kind: str  # the beginning of the timer's id
    now_us: Callable[[], float]  # reads the clock, µs
    grid_us: float  # the approximate time of reading the clock twice and storing the difference
    middle: Callable[[Iterable[float]], float]  # computes the time of a block from the times of its samples

    def stored_calls(self, timer: str | None) -> int | None:
        """The number of calls per sample in a timer's id; None if the id belongs to another clock."""
        match = re.fullmatch(rf"{self.kind}-u(\d{{1,6}})", timer or "")
        return int(match[1]) if match and 1 <= int(match[1]) <= _MOST_CALLS else None

    def meter(self, workload: Workload, call_us: float, seconds: float, stored: str | None) -> Meter:
        counted = self.stored_calls(stored) or power_of_two(SAMPLE_US / max(call_us, 1e-3), _MOST_CALLS)
        calls = calls_in_sample(counted, call_us)
        samples = samples_in_block(calls * call_us, seconds, longest_us=math.inf)
        call = workload.run

        def sample() -> float:
            started = self.now_us()
            for _ in range(calls):
                call()
            return (self.now_us() - started) / calls

        def block() -> float:
            return max(self.middle(sample() for _ in range(samples)), self.grid_us / calls)

        return Meter(f"{self.kind}-u{counted}", block, floor_us(self.grid_us, calls))


def suits(device: Device) -> bool:
    """Whether calls return when the work is done."""
    return not device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of CPU time."""
    return _cpu_clock().stored_calls(timer) is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """A meter of one call's CPU time, which does not depend on the workload's `cache`."""
    with one_thread():
        workload.run()  # torch.compile specialises on the number of threads, so it compiles again.
        call_us = warm_up(workload.run, device, seconds)
    meter = _cpu_clock().meter(workload, call_us, seconds, stored)
    return replace(meter, block=one_thread()(meter.block), near=_NEAR)


def prepare_wall_time(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """A meter of one call's wall time, on the user's number of threads."""
    call_us = warm_up(workload.run, device, seconds)
    return _Clock("wall", device.now_us, 0.1, statistics.median).meter(workload, call_us, seconds, stored)


def _cpu_clock() -> _Clock:
    # The clock ticks in nanoseconds, but a sample includes the system call that reads it.
    return _Clock("cpu", used_us, 1.0, min)


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
