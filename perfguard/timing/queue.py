"""Device time on asynchronous devices: event pairs round calls that wait, complete, behind a device sleep.

Ids: `queue-cold` (one call per pair, the cache flushed before each, outside the pair), `queue-warm-u64` (64
calls per pair, no flush), and either with `-hostbound`, where the host cannot be kept ahead of the device and
the pair holds host time too.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfguard.timing.ahead import FilledQueue, event_grid_us
from perfguard.timing.blocks import (
    SAMPLE_US,
    calls_in_sample,
    collect,
    collector_paused,
    power_of_two,
    samples_in_block,
    warm_up,
)
from perfguard.timing.timing import Cache, Timing, floor_us

if TYPE_CHECKING:
    from perfguard.hardware.device import Device, Event

Pair = tuple["Event", "Event"]

_MOST_CALLS = 256  # in a pair; a queue holds about a thousand launches
_MOST_PAIRS = 32  # in a batch
_LEAST_CALLS = 4  # in a batch: below, the host is not ahead in any way that lasts
_BATCH_HOST_US = 4_000.0
_ESTIMATE_PAIRS = 8
_ID = re.compile(r"queue-(?:cold|warm-u(?P<calls>\d{1,4}))(?P<bound>-hostbound)?")


@dataclass(frozen=True)
class _Method:
    """What the id says."""

    cache: Cache
    calls: int = 1  # per event pair
    host_bound: bool = False

    def __str__(self) -> str:
        calls = "" if self.cache == "cold" else f"-u{self.calls}"
        return f"queue-{self.cache}{calls}{'-hostbound' if self.host_bound else ''}"


def _parse(timer: str | None) -> _Method | None:
    match = _ID.fullmatch(timer or "")
    if match is None:
        return None
    host_bound = match["bound"] is not None
    if match["calls"] is None:
        return _Method("cold", host_bound=host_bound)
    calls = int(match["calls"])
    return _Method("warm", calls, host_bound) if 1 <= calls <= _MOST_CALLS else None


def suits(device: Device) -> bool:
    """Whether the device has a queue."""
    return device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return _parse(timer) is not None


def measure(
    call: Callable[[], object],
    device: Device,
    *,
    cache: Cache = "cold",
    seconds: float = 1.0,
    stored: str | None = None,
) -> Timing:
    """Device time of one call, free of host time wherever the host can be kept ahead.

    A stored id that fits `cache` is reproduced, a host-bound one too: a case must not change its method
    because it sits at the edge. Only a method that no longer works gives way to another, under another id.
    """
    wanted = _parse(stored)
    if wanted is not None and wanted.cache != cache:
        wanted = None
    with collector_paused():
        waited_us = warm_up(call, device, seconds)
        grid_us = event_grid_us(device)
        if wanted is None or not wanted.host_bound:
            timing = _time_ahead(call, device, cache, wanted, grid_us, seconds)
            if timing is not None:
                return timing
            wanted = _Method(cache, _calls_in_pair(cache, waited_us), host_bound=True)
        return _time_host_bound(call, device, wanted, grid_us, waited_us, seconds)


def _calls_in_pair(cache: Cache, call_us: float) -> int:
    return 1 if cache == "cold" else power_of_two(SAMPLE_US / max(call_us, 1e-3), _MOST_CALLS)


def _time_ahead(
    call: Callable[[], object],
    device: Device,
    cache: Cache,
    wanted: _Method | None,
    grid_us: float,
    seconds: float,
) -> Timing | None:
    """With the queue filled; None where it cannot be."""
    enqueue = _pairs(call, device, cache, 1)
    estimated = FilledQueue(device, enqueue, size=_ESTIMATE_PAIRS, smallest=1).run(enqueue)
    if estimated is None:
        return None
    call_us = max(grid_us, statistics.median(start.elapsed_us(end) for start, end in estimated.result))
    pair_host_us = estimated.host_us / estimated.size
    method = wanted or _Method(cache, _calls_in_pair(cache, call_us))
    while True:
        timing = _time_method(call, device, method, (call_us, pair_host_us), grid_us, seconds)
        if timing is not None or method.calls // 2 < _LEAST_CALLS:
            return timing
        method = replace(method, calls=method.calls // 2)


def _time_method(
    call: Callable[[], object],
    device: Device,
    method: _Method,
    estimate_us: tuple[float, float],
    grid_us: float,
    seconds: float,
) -> Timing | None:
    """`estimate_us`: device time of one call, host time of one event pair round one call."""
    call_us, pair_host_us = estimate_us
    calls = calls_in_sample(method.calls, call_us)
    samples = samples_in_block(calls * call_us, seconds)
    # A batch that costs the host little needs a short sleep (clocks sag in long ones) and fits into the queue.
    pairs = min(samples, _MOST_PAIRS, int(_BATCH_HOST_US / max(calls * pair_host_us, 1e-3)))
    smallest = min(samples, max(1, _LEAST_CALLS // calls))
    pairs = max(pairs, smallest)
    enqueue = _pairs(call, device, method.cache, calls)
    queue = FilledQueue(device, enqueue, size=pairs, smallest=smallest)

    def sample_block() -> float | None:
        times: list[float] = []
        while len(times) < samples:
            batch = queue.run(enqueue)
            if batch is None:
                return None
            times += [start.elapsed_us(end) / calls for start, end in batch.result]
        return max(statistics.median(times), grid_us / calls)  # a call that launches nothing takes no time

    blocks = collect(sample_block, device, seconds=seconds)
    if blocks is None:
        return None
    return Timing(str(method), blocks.medians, blocks.rejected, floor_us(grid_us, calls), samples)


def _time_host_bound(
    call: Callable[[], object],
    device: Device,
    method: _Method,
    grid_us: float,
    waited_us: float,
    seconds: float,
) -> Timing:
    """On an idle device, each sample by itself: what is read is the host's pace, so let nothing hide it."""
    calls = calls_in_sample(method.calls, waited_us)
    samples = samples_in_block(calls * waited_us, seconds)

    def sample() -> float:
        if method.cache == "cold":
            device.flush_cache()
        device.synchronize()
        ((start, end),) = _pairs(call, device, "warm", calls)(1)
        device.synchronize()
        return start.elapsed_us(end) / calls

    def sample_block() -> float:
        return max(statistics.median(sample() for _ in range(samples)), grid_us / calls)

    blocks = collect(sample_block, device, seconds=seconds)
    assert blocks is not None
    return Timing(
        str(method),
        blocks.medians,
        blocks.rejected,
        floor_us(grid_us, calls),
        samples,
        note="host-bound: the call waits for the device or overfills its queue; the time includes host time",
    )


def _pairs(call: Callable[[], object], device: Device, cache: Cache, calls: int) -> Callable[[int], list[Pair]]:
    """What enqueues n × [flush if cold, start, calls, end] and returns the n pairs."""

    def enqueue(count: int) -> list[Pair]:
        pairs = []
        for _ in range(count):
            if cache == "cold":
                device.flush_cache()
            start, end = device.event(), device.event()
            start.record()
            for _ in range(calls):
                call()
            end.record()
            pairs.append((start, end))
        return pairs

    return enqueue
