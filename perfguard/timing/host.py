"""Host time per call on asynchronous devices: what enqueueing costs while the device sleeps.

Ids: `host-u16`, 16 calls per group, fewer of long ones; `host-u16-blocked` where the call itself waits for the device,
so that its host time holds device time too.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfguard.collector import collector_paused
from perfguard.timing.ahead import FilledQueue
from perfguard.timing.blocks import samples_in_block, warmed_up
from perfguard.timing.timing import Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

_CALLS = 16
_LEAST_CALLS = 4
_GROUP_US = 20_000.0  # of the device, in a group: all of it is waited for, and tells nothing about the host
_GROUPS = 1  # in a block
_SETTLED = 0.03  # between processes host times differ by several times as much
_CLOCK_GRID_US = 0.1
_ID = re.compile(r"host-u(?P<calls>\d{1,3})(?P<blocked>-blocked)?")


def _parse(timer: str | None) -> tuple[int, bool] | None:
    match = _ID.fullmatch(timer or "")
    if match is None or not _LEAST_CALLS <= int(match["calls"]) <= 16 * _CALLS:
        return None
    return int(match["calls"]), match["blocked"] is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter:
    """Host time of one call, µs, in groups each of which is proven not to have waited for the device."""
    run = workload.run

    def enqueue(count: int) -> None:
        for _ in range(count):
            run()

    with collector_paused():
        waited_us = warmed_up(workload, run, device, seconds)
        calls, blocked = _parse(stored) or (_calls_in_group(waited_us), False)
        meter = None if blocked else _behind_sleep(enqueue, device, calls)
        return meter or _blocked(enqueue, device, calls, waited_us, seconds)


def _calls_in_group(waited_us: float) -> int:
    calls = _CALLS
    while calls > _LEAST_CALLS and calls * waited_us > _GROUP_US:
        calls //= 2
    return calls


def _behind_sleep(enqueue: Callable[[int], None], device: Device, calls: int) -> Meter | None:
    while calls >= _LEAST_CALLS:
        queue = FilledQueue(device, enqueue, size=calls, smallest=calls)  # its size stands in the id

        def block(queue: FilledQueue = queue) -> float | None:
            times = []
            for _ in range(_GROUPS):
                group = queue.run(enqueue)
                if group is None:
                    return None
                times.append(max(group.host_us, _CLOCK_GRID_US) / group.size)
            return statistics.median(times)

        if queue.run(enqueue) is not None:
            floor = floor_us(_CLOCK_GRID_US, calls)
            return Meter(f"host-u{calls}", block, floor, _GROUPS, settled=_SETTLED)
        calls //= 2
    return None


def _blocked(enqueue: Callable[[int], None], device: Device, calls: int, waited_us: float, seconds: float) -> Meter:
    groups = min(_GROUPS, samples_in_block(calls * waited_us, seconds))

    def group() -> float:
        device.synchronize()
        started = device.now_us()
        enqueue(calls)
        return max(device.now_us() - started, _CLOCK_GRID_US) / calls

    def block() -> float:
        median_us = statistics.median(group() for _ in range(groups))
        device.synchronize()
        return median_us

    return Meter(
        f"host-u{calls}-blocked",
        block,
        floor_us(_CLOCK_GRID_US, calls),
        groups,
        note="the call waits for the device: its host time includes device time",
        settled=_SETTLED,
    )
