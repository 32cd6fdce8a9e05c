"""Host time per call on asynchronous devices: what enqueueing costs while the device sleeps.

Ids: `host-u16`, 16 calls per group; `host-u16-blocked` where the call itself waits for the device, so that
its host time holds device time too.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from perfguard.timing.ahead import FilledQueue
from perfguard.timing.blocks import collect, collector_paused, samples_in_block, warm_up
from perfguard.timing.timing import Timing, floor_us

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

_CALLS = 16
_LEAST_CALLS = 4
_LEAST_GROUPS = 5
_MOST_GROUPS = 25
_CLOCK_GRID_US = 0.1
_ID = re.compile(r"host-u(?P<calls>\d{1,3})(?P<blocked>-blocked)?")


def _parse(timer: str | None) -> tuple[int, bool] | None:
    match = _ID.fullmatch(timer or "")
    if match is None or not _LEAST_CALLS <= int(match["calls"]) <= 16 * _CALLS:
        return None
    return int(match["calls"]), match["blocked"] is not None


def measure(call: Callable[[], object], device: Device, *, seconds: float = 1.0, stored: str | None = None) -> Timing:
    """Host time of one call, µs; at least five groups, each proven not to have waited for the device."""
    calls, blocked = _parse(stored) or (_CALLS, False)

    def enqueue(count: int) -> None:
        for _ in range(count):
            call()

    with collector_paused():
        waited_us = warm_up(call, device, seconds)
        if not blocked:
            timing = _time_enqueue(enqueue, device, calls, seconds)
            if timing is not None:
                return timing
        return _time_blocked(enqueue, device, calls, waited_us, seconds)


def _time_enqueue(enqueue: Callable[[int], None], device: Device, calls: int, seconds: float) -> Timing | None:
    while calls >= _LEAST_CALLS:
        queue = FilledQueue(device, enqueue, size=calls, smallest=calls)  # its size stands in the id

        def sample_block(queue: FilledQueue = queue) -> float | None:
            group = queue.run(enqueue)
            return None if group is None else max(group.host_us / group.size, _CLOCK_GRID_US / group.size)

        blocks = collect(sample_block, device, seconds=seconds, least=_LEAST_GROUPS, most=_MOST_GROUPS)
        if blocks is not None:
            floor = floor_us(_CLOCK_GRID_US, calls)
            return Timing(f"host-u{calls}", blocks.medians, blocks.rejected, floor, 1)
        calls //= 2
    return None


def _time_blocked(
    enqueue: Callable[[int], None], device: Device, calls: int, waited_us: float, seconds: float
) -> Timing:
    groups = min(_LEAST_GROUPS, samples_in_block(calls * waited_us, seconds))

    def group() -> float:
        device.synchronize()
        started = device.now_us()
        enqueue(calls)
        return max((device.now_us() - started) / calls, _CLOCK_GRID_US / calls)

    def sample_block() -> float:
        return statistics.median(group() for _ in range(groups))

    blocks = collect(sample_block, device, seconds=seconds, least=_LEAST_GROUPS)
    device.synchronize()
    assert blocks is not None
    return Timing(
        f"host-u{calls}-blocked",
        blocks.medians,
        blocks.rejected,
        floor_us(_CLOCK_GRID_US, calls),
        groups,
        note="the call waits for the device: its host time includes device time",
    )
