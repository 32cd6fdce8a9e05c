"""Device time by captured graphs of one call, with the cache flushed before each replay, outside the event pair.

Id: `graph-flushed-r16`, replays of 16 captures in turn, each on its own inputs (the first two on those of the call).
For calls on so few bytes that no number of copies leaves the cache cold. In a graph a launch costs the same in every
process. Behind a filled queue thirty launches of a microsecond took 160 to 186 µs, depending on the process. But each
capture has a time of its own as long as it lives, probably because of the addresses of its memory: thirty launches
backward took 73.4 to 76.4 µs, depending on the capture. So a block is the mean over several captures at different
addresses. Each contributes its median, since disturbed replays are outliers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfguard.measure.timers import queue
from perfguard.measure.timers.blocks import SAMPLE_US, power_of_two, warmed_up
from perfguard.measure.timers.timing import Meter, Workload
from perfguard.model.errors import DeviceError

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device, Graph

RANK = 20  # in the order of preference (`Timer`)

_ID = re.compile(r"graph-flushed-r(?P<captures>[1-9]\d?)")
_MOST_CAPTURES = 16
_WARM_UPS = 3

_Call = Callable[[], object]


def _captures(timer: str | None) -> int | None:
    match = _ID.fullmatch(timer or "")
    return int(match["captures"]) if match is not None else None


def suits(device: Device) -> bool:
    """Whether the device captures work."""
    return device.captures


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return _captures(timer) is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
    """Device time of one call by replays of its graphs in a cold cache.

    Uses as many captures as last 1 ms together, 16 at most. None if the call cannot be captured or needs no flush, or
    if it is so short that the event pair costs as much and no stored id requires this timer.
    """
    if workload.cache != "cold":
        return None
    count = _captures(stored)
    try:
        with device.aside():
            first = _captured(workload, device, 1, seconds)
            estimate = queue.estimated(first[0], device, "cold")
            if estimate is None or (count is None and estimate.call_us < queue.SHORT_US):
                return None
            count = count or power_of_two(SAMPLE_US / estimate.call_us, _MOST_CAPTURES)
            replays = [*first, *_captured(workload, device, count - 1, seconds)]
    except DeviceError:
        return None  # the reading of `capturable` has the reason
    timer = f"graph-flushed-r{count}"
    meter = queue.metered(
        timer, _rounds(replays, device), device, calls=1, turns=count, estimate=estimate, seconds=seconds
    )
    return meter and replace(meter, bytes=(count + 1) * workload.bytes)


def _captured(workload: Workload, device: Device, count: int, seconds: float) -> list[_Call]:
    """Replays of `count` captures of the call, each with its own memory."""
    calls = [workload.run] * count if workload.copies is None or not count else workload.copies(count)
    replays: list[_Call] = []
    for call in calls:
        for _ in range(_WARM_UPS):
            call()
        warmed_up(workload, call, device, seconds)
        replays.append(functools.partial(_replay, device.capture([call], keep=1), call))
    return replays


def _replay(graph: Graph, call: _Call) -> None:
    """Replay `graph`; `call` keeps the memory that it reads alive."""
    graph.replay()


def _rounds(replays: Sequence[_Call], device: Device) -> queue.Enqueue:
    """A function that enqueues n rounds over all `replays`, each replay behind a flush and between its own events."""
    turns = [queue.pairs(replay, device, "cold", 1) for replay in replays]

    def enqueue(count: int) -> list[queue.Pair]:
        return [pair for _ in range(count) for turn in turns for pair in turn(1)]

    return enqueue
