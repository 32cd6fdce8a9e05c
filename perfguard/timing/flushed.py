"""Device time by a captured graph of one call, with the cache flushed before each replay, outside the event pair.

Id: `graph-flushed`. For calls on so few bytes that no number of copies leaves the cache cold. In a graph a launch costs
the same in every process; behind a filled queue thirty launches of a microsecond took 160 to 186 µs, by process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from perfguard.errors import DeviceError
from perfguard.timing import queue
from perfguard.timing.ahead import event_grid_us
from perfguard.timing.blocks import warmed_up
from perfguard.timing.timing import Meter, Workload

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

_ID = "graph-flushed"
_WARM_UPS = 3


def suits(device: Device) -> bool:
    """Whether the device captures work."""
    return device.captures


def understands(timer: str) -> bool:
    """Whether `timer` is the id of this module."""
    return timer == _ID


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
    """Device time of one call by replays of its graph in a cold cache.

    None where it cannot be captured or needs no flush, and, unless the stored id asks for it, where the call is so
    short that the event pair costs as much.
    """
    if workload.cache != "cold":
        return None
    try:
        with device.aside():
            (call,) = [workload.run] if workload.copies is None else workload.copies(1)
            for _ in range(_WARM_UPS):
                call()
            warmed_up(workload, call, device, seconds)
            graph = device.capture([call], keep=1)
    except DeviceError:
        return None  # why not stands in the reading of `capturable`

    def replay(kept: Callable[[], object] = call) -> None:  # the graph reads its memory
        graph.replay()

    if stored != _ID:
        estimate = queue.estimated(replay, device, "cold", event_grid_us(device))
        if estimate is None or estimate.call_us < queue.SHORT_US:
            return None
    meter = queue.prepare(replace(workload, run=replay, copies=None), device, seconds=seconds, stored=None)
    return None if meter is None else replace(meter, timer=_ID, bytes=2 * workload.bytes)
