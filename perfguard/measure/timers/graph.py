"""Device time by captured graphs, with one event pair around each replay. The host launches a replay as a whole, so
host time is excluded.

- `graph-cold-u64-r16`: a replay is 64 calls over 16 copies of the inputs, enough for a copy to leave the cache before
  its next use. `graph-warm-u64`: 64 calls on the same inputs. The event pair's own time is divided by all calls.
- `graph-flushed-r16`: a replay is one call. 16 captures are replayed in turn, each on its own inputs (the first two on
  those of the call), and the cache is flushed before each, outside the event pair. This is for calls on so few bytes
  that no number of copies leaves the cache cold. A launch in a graph costs the same in every process, whereas thirty
  launches of a microsecond behind a filled queue took 160 to 186 µs, depending on the process. But each capture has its
  own time, probably because of its addresses: thirty backward launches took 73.4 to 76.4 µs, depending on the capture.
  So a block is the mean over several captures of their medians, since disturbed replays are outliers.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfguard.measure.timers import queue
from perfguard.measure.timers.blocks import SAMPLE_US, calls_in_sample, power_of_two, samples_in_block, warmed_up
from perfguard.measure.timers.timing import Cache, Meter, Workload
from perfguard.model.errors import DeviceError

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device, Graph

RANK = 10  # This is the timer's place in the order of preference (`Timer`).

_MOST_CALLS = 256  # A replay has at most so many calls.
_MOST_CAPTURES = 16
_CACHES = 5  # All copies are five times the cache's size, so that none survives there (FlashInfer's rule).
_WARM_UPS = 3
_MOST_AHEAD = 16  # A batch has at most so many replays.
_ROTATED = re.compile(r"graph-(?:cold-u(?P<cold>\d{1,3})-r(?P<copies>\d{1,3})|warm-u(?P<warm>\d{1,3}))")
_FLUSHED = re.compile(r"graph-flushed-r(?P<captures>[1-9]\d?)")

_Call = Callable[[], object]


@dataclass(frozen=True)
class _Rotation:
    """The parameters in the id of calls over copies of the inputs."""

    cache: Cache
    calls: int | None  # the calls of a replay; None before they are chosen
    copies: int = 1

    def __str__(self) -> str:
        return f"graph-cold-u{self.calls}-r{self.copies}" if self.cache == "cold" else f"graph-warm-u{self.calls}"


def _rotation(timer: str | None) -> _Rotation | None:
    match = _ROTATED.fullmatch(timer or "")
    if match is None:
        return None
    calls, copies = int(match["warm"] or match["cold"]), int(match["copies"] or 1)
    if not 1 <= copies <= calls <= _MOST_CALLS:
        return None
    return _Rotation("warm" if match["warm"] else "cold", calls, copies)


def _captures(timer: str | None) -> int | None:
    match = _FLUSHED.fullmatch(timer or "")
    return int(match["captures"]) if match is not None else None


def suits(device: Device) -> bool:
    """Whether the device captures work."""
    return device.captures


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return _rotation(timer) is not None or _captures(timer) is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
    """A meter by replays; None if the call cannot be captured, or if neither copies nor a flush make it cold."""
    ways = [_rotated, _flushed]
    if _captures(stored) is not None:
        ways.reverse()
    for way in ways:
        try:
            meter = way(workload, device, seconds, stored)
        except DeviceError:
            continue  # The reading of `capturable` has the reason.
        if meter is not None:
            return meter
    return None


def copies_for_cold(bytes: int, cache_bytes: int) -> int | None:
    """Number of copies of inputs and outputs of `bytes` that keeps each out of a cache of `cache_bytes`.

    It is ⌈5·cache/bytes⌉ + 1, or 1 if a single call fills the cache five times; rounded up to a power of two, so that
    successive replays rotate evenly over the copies. None if more than 256 are needed.
    """
    if bytes <= 0 or cache_bytes <= 0:
        return None
    if bytes >= _CACHES * cache_bytes:
        return 1
    copies = math.ceil(_CACHES * cache_bytes / bytes) + 1
    return None if copies > _MOST_CALLS else power_of_two(copies, _MOST_CALLS)


def _rotated(workload: Workload, device: Device, seconds: float, stored: str | None) -> Meter | None:
    """A meter of calls over rotated copies of the inputs, all in one graph."""
    wanted = _possible_rotation(workload, device, stored)
    if wanted is None:
        return None
    with device.aside():
        calls = [workload.run] if workload.copies is None else workload.copies(wanted.copies)
        call_us = _warm(workload, calls, device, seconds)
        count = wanted.calls or max(wanted.copies, power_of_two(SAMPLE_US / call_us, _MOST_CALLS))
        captured = calls_in_sample(count, call_us)
        graph = device.capture([calls[index % len(calls)] for index in range(captured)], keep=len(calls))
    replay = functools.partial(_replay, graph, calls)
    estimate = queue.estimated(replay, device, "warm", count=2)
    if estimate is None:
        return None
    # Several replays are enqueued ahead to hide the host time of their launches.
    samples = samples_in_block(estimate.call_us, seconds)
    rounds = queue.Rounds(queue.pairs(replay, device, "warm", 1), captured)
    batches = queue.Batches(rounds, device, size=min(samples, _MOST_AHEAD), smallest=1, in_block=samples)
    return batches.meter(str(replace(wanted, calls=count)))


def _possible_rotation(workload: Workload, device: Device, stored: str | None) -> _Rotation | None:
    """The stored rotation if it fits the workload, else a new one without a number of calls; None if it needs copies
    that cannot be made."""
    wanted = _rotation(stored)
    if wanted is None or wanted.cache != workload.cache:
        copies = 1
        if workload.cache == "cold":
            copies = copies_for_cold(workload.bytes, device.identity.cache_bytes or 0) or 0
        wanted = _Rotation(workload.cache, None, copies)
    possible = wanted.copies == 1 or (wanted.copies > 1 and workload.copies is not None)
    return wanted if possible else None


def _warm(workload: Workload, calls: Sequence[_Call], device: Device, seconds: float) -> float:
    """Run all copies in turn until they are warm; returns the approximate device time of one call, µs."""
    for call in calls:
        call()
    turns = itertools.cycle(calls)
    for _ in range(_WARM_UPS):
        next(turns)()
    waited_us = warmed_up(workload, lambda: next(turns)(), device, seconds)
    estimate = queue.estimated(lambda: next(turns)(), device, "warm")
    return max(1e-3, waited_us if estimate is None else estimate.call_us)


def _flushed(workload: Workload, device: Device, seconds: float, stored: str | None) -> Meter | None:
    """A meter of replays of one call in a flushed cache, over captures that last 1 ms in total, 16 at most.

    None if the call needs no flush. Also None, unless the stored id requires this method, if the call is so short that
    the event pair costs as much.
    """
    if workload.cache != "cold":
        return None
    count = _captures(stored)
    with device.aside():
        first = _captured(workload, device, 1, seconds)
        estimate = queue.estimated(first[0], device, "cold")
        if estimate is None or (count is None and estimate.call_us < queue.SHORT_US):
            return None
        count = count or power_of_two(SAMPLE_US / estimate.call_us, _MOST_CAPTURES)
        replays = [*first, *_captured(workload, device, count - 1, seconds)]
    turns = [queue.pairs(replay, device, "cold", 1) for replay in replays]

    def enqueue(rounds: int) -> list[queue.Pair]:
        return [pair for _ in range(rounds) for turn in turns for pair in turn(1)]

    timer = f"graph-flushed-r{count}"
    return queue.metered(timer, queue.Rounds(enqueue, 1, count), device, estimate, seconds)


def _captured(workload: Workload, device: Device, count: int, seconds: float) -> list[_Call]:
    """Replays of `count` captures of the call, each with its own memory."""
    calls = [workload.run] * count if workload.copies is None or not count else workload.copies(count)
    replays: list[_Call] = []
    for call in calls:
        for _ in range(_WARM_UPS):
            call()
        warmed_up(workload, call, device, seconds)
        replays.append(functools.partial(_replay, device.capture([call], keep=1), [call]))
    return replays


def _replay(graph: Graph, calls: Sequence[_Call]) -> None:
    """Replay `graph`. The reference to `calls` keeps the memory alive that the graph reads."""
    graph.replay()
