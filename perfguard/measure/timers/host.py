"""Host time per call on asynchronous devices: the time of enqueueing while the device sleeps.

Ids: `host-low-u16` has 16 calls per group, or fewer if calls are long; `host-low-u16-blocked` if the call itself waits
for the device, so that its host time includes device time. The lowest of several groups counts, because other work on
the processor only adds time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfguard.measure import collector_paused
from perfguard.measure.timers.blocks import warm_up
from perfguard.measure.timers.queue import FilledQueue
from perfguard.measure.timers.timing import Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

_WARM_UP_US = 5_000.0  # This applies if no timer ran before. The device's clock need not settle.
_CALLS = 16
_GROUPS = 5  # A block has several groups, because the first one finds the caches cold.
_LEAST_CALLS = 4
_GROUP_US = 10_000.0  # A longer group improves nothing, and the device sleeps twice as long.
# The promise of a host time is 50 %. On GPU machines the lowest blocks agreed to 1 % after four seconds or never.
_NEAR = 0.05
_CLOCK_GRID_US = 0.1
_NOTE = "the call waits for the device: its host time includes device time"
_ID = re.compile(r"host-low-u(?P<calls>\d{1,3})(?P<blocked>-blocked)?")


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """A meter of one call's host time, µs, in groups that provably do not wait for the device, if possible."""
    run = workload.run

    def enqueue(count: int) -> None:
        for _ in range(count):
            run()

    with collector_paused():
        waited_us = workload.warmed[0] if workload.warmed else warm_up(run, device, seconds, _WARM_UP_US)
        calls, blocked = _parse(stored) or (_calls_in_group(waited_us), False)
        behind_sleep = None if blocked else _behind_sleep(enqueue, device, calls)
        if behind_sleep is None:
            return _meter(f"host-low-u{calls}-blocked", _blocked(enqueue, device, calls), calls, _NOTE)
        group, calls = behind_sleep
        return _meter(f"host-low-u{calls}", group, calls)


def _parse(timer: str | None) -> tuple[int, bool] | None:
    match = _ID.fullmatch(timer or "")
    if match is None or not _LEAST_CALLS <= int(match["calls"]) <= 16 * _CALLS:
        return None
    return int(match["calls"]), match["blocked"] is not None


def _calls_in_group(waited_us: float) -> int:
    calls = _CALLS
    while calls > _LEAST_CALLS and calls * waited_us > _GROUP_US:
        calls //= 2
    return calls


_Group = Callable[[], float | None]  # It returns the host time of a group, µs; None if it cannot be read.


def _meter(timer: str, group: _Group, calls: int, note: str = "") -> Meter:
    def block() -> float | None:
        times = [us for _ in range(_GROUPS) if (us := group()) is not None]
        return max(min(times), _CLOCK_GRID_US) / calls if len(times) == _GROUPS else None

    return Meter(timer, block, floor_us(_CLOCK_GRID_US, calls), note=note, near=_NEAR)


def _behind_sleep(enqueue: Callable[[int], None], device: Device, calls: int) -> tuple[_Group, int] | None:
    """A group of `calls`, or half or a quarter as many, behind a device sleep, and its size; None if the calls wait."""
    while calls >= _LEAST_CALLS:
        queue = FilledQueue(device, enqueue, size=calls, smallest=calls)  # The id contains the size.

        def group(queue: FilledQueue = queue) -> float | None:
            filled = queue.run(enqueue)
            return None if filled is None else filled.host_us

        if group() is not None:
            return group, calls
        calls //= 2
    return None


def _blocked(enqueue: Callable[[int], None], device: Device, calls: int) -> _Group:
    def group() -> float:
        device.synchronize()
        started = device.now_us()
        enqueue(calls)
        host_us = device.now_us() - started
        device.synchronize()
        return host_us

    return group
