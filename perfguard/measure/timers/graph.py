"""Device time by captured graphs: many calls over rotated inputs, one event pair around each replay.

Ids: `graph-cold-u64-r16`, 64 calls over 16 copies of the inputs, enough for a copy to leave the cache before its next
use; `graph-warm-u64`, 64 calls on the same inputs. The host launches a replay as a whole, so host time is excluded.
The event pair's own time is divided by all calls.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfguard.measure.timers.blocks import SAMPLE_US, calls_in_sample, power_of_two, samples_in_block, warmed_up
from perfguard.measure.timers.filled_queue import FilledQueue, event_grid_us
from perfguard.measure.timers.queue import Batches, estimated, pairs
from perfguard.measure.timers.timing import Cache, Meter, Workload
from perfguard.model.errors import DeviceError

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

RANK = 10  # in the order of preference (`Timer`)

_MOST_CALLS = 256
_CACHES = 5  # size of all copies in caches, so that no copy survives there (FlashInfer's rule)
_LEAST_WARM_UPS = 3
_MOST_AHEAD = 16  # replays in a batch
_ID = re.compile(r"graph-(?:cold-u(?P<cold>\d{1,3})-r(?P<copies>\d{1,3})|warm-u(?P<warm>\d{1,3}))")


@dataclass(frozen=True)
class _Method:
    """The parameters in the id."""

    cache: Cache
    calls: int | None  # per replay; None: not decided yet
    copies: int = 1

    @property
    def id(self) -> str:
        return f"graph-cold-u{self.calls}-r{self.copies}" if self.cache == "cold" else f"graph-warm-u{self.calls}"


def _parse(timer: str | None) -> _Method | None:
    match = _ID.fullmatch(timer or "")
    if match is None:
        return None
    method = (
        _Method("warm", int(match["warm"]))
        if match["warm"]
        else _Method("cold", int(match["cold"]), int(match["copies"]))
    )
    assert method.calls is not None
    return method if 1 <= method.copies <= method.calls <= _MOST_CALLS else None


def suits(device: Device) -> bool:
    """Whether the device captures work."""
    return device.captures


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return _parse(timer) is not None


def copies_for_cold(bytes: int, cache_bytes: int) -> int | None:
    """Number of copies of inputs and outputs of `bytes` that keeps each out of a cache of `cache_bytes`.

    ⌈5·cache/bytes⌉ + 1, or 1 if a single call fills the cache five times. Rounded up to a power of two, so that the
    copies of one replay join on to those of the next. None if more than 256 are needed.
    """
    if bytes <= 0 or cache_bytes <= 0:
        return None
    if bytes >= _CACHES * cache_bytes:
        return 1
    copies = math.ceil(_CACHES * cache_bytes / bytes) + 1
    return None if copies > _MOST_CALLS else power_of_two(copies, _MOST_CALLS)


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
    """Device time of one call by replays of a graph; None if it cannot be captured or made cold.

    The graph is captured once, and replayed for all blocks.
    """
    method = _method(workload, device, stored)
    if method is None:
        return None
    try:
        with device.aside():
            calls = _copies(workload, method.copies)
            call_us = _warmed_up(workload, calls, device, seconds)
            count = method.calls or max(method.copies, power_of_two(SAMPLE_US / call_us, _MOST_CALLS))
            captured = calls_in_sample(count, call_us)
            graph = device.capture([calls[index % len(calls)] for index in range(captured)], keep=len(calls))
    except DeviceError:
        return None  # the reading of `capturable` has the reason
    method = _Method(method.cache, count, method.copies)

    def replay(kept: Sequence[Callable[[], object]] = calls) -> None:  # keeps the copies' memory for the graph
        graph.replay()

    return _replayed(replay, method, captured, workload, device, seconds)


def _method(workload: Workload, device: Device, stored: str | None) -> _Method | None:
    """The stored method if it fits, else a new one whose number of calls is still open."""
    wanted = _parse(stored)
    if wanted is None or wanted.cache != workload.cache:
        copies = 1
        if workload.cache == "cold":
            copies = copies_for_cold(workload.bytes, device.identity.cache_bytes or 0) or 0
        wanted = _Method(workload.cache, None, copies)
    possible = wanted.copies == 1 or (wanted.copies > 1 and workload.copies is not None)
    return wanted if possible else None


def _copies(workload: Workload, count: int) -> Sequence[Callable[[], object]]:
    return [workload.run] if workload.copies is None else workload.copies(count)


def _warmed_up(workload: Workload, calls: Sequence[Callable[[], object]], device: Device, seconds: float) -> float:
    """Run every copy, then all in turn until they are warm; returns the approximate device time of one call, µs."""
    for call in calls:
        call()
    turns = itertools.cycle(calls)
    for _ in range(_LEAST_WARM_UPS):
        next(turns)()
    waited_us = warmed_up(workload, lambda: next(turns)(), device, seconds)
    estimate = estimated(lambda: next(turns)(), device, "warm")
    return max(1e-3, waited_us if estimate is None else estimate.call_us)


def _replayed(
    replay: Callable[[], object], method: _Method, calls: int, workload: Workload, device: Device, seconds: float
) -> Meter | None:
    """A meter of replays, several of them enqueued ahead to hide the host time of their launches."""
    grid_us = event_grid_us(device)
    enqueue = pairs(replay, device, "warm", 1)
    first = FilledQueue(device, enqueue, size=2, smallest=1).run(enqueue)
    if first is None:
        return None
    replay_us = max(grid_us, statistics.median(start.elapsed_us(end) for start, end in first.result))
    samples = samples_in_block(replay_us, seconds)
    size = min(samples, _MOST_AHEAD)
    batches = Batches(enqueue, device, size=size, smallest=1, rounds=samples, calls=calls)
    return replace(batches.meter(method.id), bytes=workload.bytes * (method.copies + 1))
