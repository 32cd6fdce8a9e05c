"""Device time by captured graphs of one call, with the cache flushed before each replay, outside the event pair.

Id: `graph-flushed-r16`, replays of 16 captures by turns, each on inputs of its own (the first two on the call's). For
calls on so few bytes that no number of copies leaves the cache cold. In a graph a launch costs the same in every
process; behind a filled queue thirty launches of a microsecond took 160 to 186 µs, by process. But a capture keeps a
time of its own for as long as it lives, likely by where its memory lies (thirty launches backward took 73.4 to 76.4 µs,
by capture), so a block gives the mean over several that lie apart: of each the median, since a replay that was
disturbed tells nothing of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfguard.errors import DeviceError
from perfguard.timing import queue
from perfguard.timing.blocks import SAMPLE_US, power_of_two, warmed_up
from perfguard.timing.timing import Meter, Workload

if TYPE_CHECKING:
    from perfguard.hardware.device import Device, Graph

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

    As many captures as last 1 ms together, 16 at most. None where the call cannot be captured or needs no flush, and,
    unless a stored id asks for it, where it is so short that the event pair costs as much.
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
        return None  # why not stands in the reading of `capturable`
    timer = f"graph-flushed-r{count}"
    meter = queue.metered(
        timer, _rounds(replays, device), device, calls=1, turns=count, estimate=estimate, seconds=seconds
    )
    return meter and replace(meter, bytes=(count + 1) * workload.bytes)


def _captured(workload: Workload, device: Device, count: int, seconds: float) -> list[_Call]:
    """Replays of `count` captures of the call, whose memory lies apart."""
    calls = [workload.run] * count if workload.copies is None or not count else workload.copies(count)
    replays: list[_Call] = []
    for call in calls:
        for _ in range(_WARM_UPS):
            call()
        warmed_up(workload, call, device, seconds)
        replays.append(functools.partial(_replay, device.capture([call], keep=1), call))
    return replays


def _replay(graph: Graph, call: _Call) -> None:
    """Replay `graph`, which reads the memory of `call`."""
    graph.replay()


def _rounds(replays: Sequence[_Call], device: Device) -> queue.Enqueue:
    """What enqueues n rounds over all `replays`, each replay between events of its own and behind a flush."""
    turns = [queue.pairs(replay, device, "cold", 1) for replay in replays]

    def enqueue(count: int) -> list[queue.Pair]:
        return [pair for _ in range(count) for turn in turns for pair in turn(1)]

    return enqueue
