"""Device time on asynchronous devices: event pairs around calls that are all enqueued behind a device sleep.

Ids: `queue-cold` (one call per pair, the cache flushed before each, outside the pair) and `queue-warm-u64` (64 calls
per pair, no flush).
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfguard.measure.timers.blocks import SAMPLE_US, calls_in_sample, power_of_two, samples_in_block, warmed_up
from perfguard.measure.timers.filled_queue import FilledQueue, event_grid_us
from perfguard.measure.timers.timing import Cache, Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import ClockMark, Device, Event

RANK = 40  # in the order of preference (`Timer`)

Pair = tuple["Event", "Event"]
Enqueue = Callable[[int], list[Pair]]

SHORT_US = 20.0  # an event pair around a shorter call costs as much as the call
MOST_CALLS = 256  # in a pair; a queue holds about a thousand launches
_MOST_PAIRS = 32  # in a batch
_LEAST_CALLS = 4  # in a batch; with fewer, the host's lead does not last
_BATCH_HOST_US = 4_000.0
_ESTIMATE_PAIRS = 8
_LEAST_TRIMMED, _MOST_TRIMMED = 5, 20  # number of samples; they last half a millisecond or more
_ID = re.compile(r"queue-(?:cold|warm-u(?P<calls>\d{1,4}))")


@dataclass(frozen=True)
class _Method:
    """The parameters in the id."""

    cache: Cache
    calls: int = 1  # per event pair

    def __str__(self) -> str:
        return "queue-cold" if self.cache == "cold" else f"queue-warm-u{self.calls}"


@dataclass(frozen=True)
class Estimate:
    """Times from a first batch of single calls, µs."""

    call_us: float  # device time, including the event pair's
    pair_host_us: float  # host time of one event pair with its call


def _parse(timer: str | None) -> _Method | None:
    match = _ID.fullmatch(timer or "")
    if match is None:
        return None
    if match["calls"] is None:
        return _Method("cold")
    calls = int(match["calls"])
    return _Method("warm", calls) if 1 <= calls <= MOST_CALLS else None


def suits(device: Device) -> bool:
    """Whether the device has a queue."""
    return device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return _parse(timer) is not None


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
    """Device time of one call, without host time; None if the host cannot be kept ahead of the device.

    A stored id that fits the workload's `cache` is reproduced, unless its batches no longer fit into the queue.
    """
    warmed_up(workload, workload.run, device, seconds)
    estimate = estimated(workload.run, device, workload.cache)
    if estimate is None:
        return None
    wanted = _parse(stored)
    if wanted is None or wanted.cache != workload.cache:
        wanted = _Method(workload.cache, calls_in_pair(workload.cache, estimate.call_us))
    while True:
        meter = _filled(workload, device, wanted, estimate, seconds)
        if meter is not None or wanted.calls // 2 < _LEAST_CALLS:
            return meter
        wanted = replace(wanted, calls=wanted.calls // 2)


def estimated(call: Callable[[], object], device: Device, cache: Cache) -> Estimate | None:
    """A first estimate of a warmed-up call behind a filled queue; None if the host cannot be kept ahead."""
    grid_us = event_grid_us(device)
    enqueue = pairs(call, device, cache, 1)
    batch = FilledQueue(device, enqueue, size=_ESTIMATE_PAIRS, smallest=1).run(enqueue)
    if batch is None:
        return None
    call_us = max(grid_us, statistics.median(start.elapsed_us(end) for start, end in batch.result))
    return Estimate(call_us, batch.host_us / batch.size)


def calls_in_pair(cache: Cache, call_us: float) -> int:
    """Number of calls in one event pair: as many as last 1 ms, or one if each needs a cold cache."""
    return 1 if cache == "cold" else power_of_two(SAMPLE_US / max(call_us, 1e-3), MOST_CALLS)


def _filled(workload: Workload, device: Device, method: _Method, estimate: Estimate, seconds: float) -> Meter | None:
    calls = calls_in_sample(method.calls, estimate.call_us)
    enqueue = pairs(workload.run, device, method.cache, calls)
    meter = metered(str(method), enqueue, device, calls=calls, estimate=estimate, seconds=seconds)
    return meter and replace(meter, bytes=workload.bytes)


def metered(
    timer: str,
    enqueue: Enqueue,
    device: Device,
    *,
    calls: int,
    turns: int = 1,
    estimate: Estimate,
    seconds: float,
) -> Meter | None:
    """A meter of samples of `calls` calls each; None if the host falls behind.

    `enqueue(n)` puts n rounds on the queue; a round has one event pair for each of `turns` callables.
    """
    per_round = turns * calls
    rounds = samples_in_block(per_round * estimate.call_us, seconds)
    # A batch with little host time fits into the queue and needs a short sleep only (clocks drop in long ones).
    size = min(rounds, _MOST_PAIRS, int(_BATCH_HOST_US / max(per_round * estimate.pair_host_us, 1e-3)))
    smallest = min(rounds, max(1, _LEAST_CALLS // per_round))
    batches = Batches(
        enqueue, device, size=max(size, smallest), smallest=smallest, rounds=rounds, calls=calls, turns=turns
    )
    return batches.meter(timer) if batches.proven() else None


class Batches:
    """Blocks of samples in proven batches, each batch between two readings of the device's clock."""

    def __init__(
        self,
        enqueue: Enqueue,
        device: Device,
        *,
        size: int,
        smallest: int,
        rounds: int,
        calls: int,
        turns: int = 1,
    ) -> None:
        """`enqueue(n)` puts n rounds on the queue. A round has one event pair around `calls` calls for each of `turns`
        callables.

        Args:
            size: rounds in a batch at first.
            smallest: least number of rounds in a batch.
            rounds: number of rounds in a block.
        """
        self._enqueue = enqueue
        self._device = device
        self._samples, self._calls, self._turns = turns * rounds, calls, turns
        self._grid_us = event_grid_us(device)
        self._marks: list[tuple[ClockMark, ClockMark]] = []  # around the batches of the last block
        device.clock_mark()  # compiles the clock's kernel, where there is one, before the first block
        self._queue = FilledQueue(device, self._marked, size=size, smallest=smallest)

    def proven(self) -> bool:
        """Whether the host can be kept ahead of the device."""
        return self._queue.run(self._marked) is not None

    def meter(self, timer: str) -> Meter:
        """The meter called `timer`."""
        floor = floor_us(self._grid_us, self._calls)
        return Meter(timer, self._block, floor, self._samples, clock_mhz=self._clock_mhz)

    def _marked(self, count: int) -> tuple[ClockMark | None, list[Pair], ClockMark | None]:
        first = self._device.clock_mark()
        return first, self._enqueue(count), self._device.clock_mark()

    def _block(self) -> float | None:
        times: list[float] = []
        self._marks = []
        while len(times) < self._samples:
            batch = self._queue.run(self._marked)
            if batch is None:
                return None
            first, found, last = batch.result
            if first is not None and last is not None:
                self._marks.append((first, last))
            # A call without launches takes no time.
            times += [max(start.elapsed_us(end), self._grid_us) / self._calls for start, end in found]
        return middle(times, self._turns)

    def _clock_mhz(self) -> float | None:
        told = [first.mhz_until(last) for first, last in self._marks]
        clocks = [mhz for mhz in told if mhz is not None]
        return statistics.fmean(clocks) if clocks else None


def middle(times: Sequence[float], turns: int = 1) -> float:
    """The time of a block: the median of its samples, or with several `turns` the mean of the median of each turn.

    For a few long samples it is the mean without the smallest and the largest. If a kernel takes one of two times, the
    median of nine would jump between the two.
    """
    if turns > 1:
        return statistics.fmean(statistics.median(times[turn::turns]) for turn in range(turns))
    if _LEAST_TRIMMED <= len(times) <= _MOST_TRIMMED:
        return statistics.fmean(sorted(times)[1:-1])
    return statistics.median(times)


def pairs(call: Callable[[], object], device: Device, cache: Cache, calls: int) -> Enqueue:
    """A function that enqueues n × [flush if cold, start, calls, end] and returns the n pairs."""

    def enqueue(count: int) -> list[Pair]:
        marks = []
        for _ in range(count):
            if cache == "cold":
                device.flush_cache()
            start, end = device.event(), device.event()
            start.record()
            for _ in range(calls):
                call()
            end.record()
            marks.append((start, end))
        return marks

    return enqueue
