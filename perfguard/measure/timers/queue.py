"""Device time on asynchronous devices: event pairs around calls that are all enqueued behind a device sleep.

Ids: `queue-cold` has one call per pair, and the cache is flushed before each pair; `queue-warm-u64` has 64 calls per
pair and no flush. Other timers use the filled queue, too.
"""

from __future__ import annotations

import itertools
import re
import statistics
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from perfguard.measure.timers.blocks import SAMPLE_US, calls_in_sample, power_of_two, samples_in_block, warmed_up
from perfguard.measure.timers.timing import Cache, Meter, Workload, floor_us

if TYPE_CHECKING:
    from perfguard.measure.devices.device import ClockMark, Device, Event

RANK = 40  # This is the timer's place in the order of preference (`Timer`).

T = TypeVar("T")
Pair = tuple["Event", "Event"]
Enqueue = Callable[[int], list[Pair]]

SHORT_US = 20.0  # An event pair around a shorter call costs as much as the call.
_MOST_CALLS = 256  # A pair has at most so many calls, because a queue holds about a thousand launches.
_MOST_PAIRS = 32  # A batch has at most so many pairs.
_LEAST_CALLS = 4  # With fewer calls per batch the host's lead does not last.
_BATCH_HOST_US = 4_000.0
_ESTIMATE_PAIRS = 8
_LEAST_TRIMMED, _MOST_TRIMMED = 5, 20  # Blocks with so many samples use a trimmed mean.
_ID = re.compile(r"queue-(?:cold|warm-u(?P<calls>\d{1,4}))")

_LONGEST_SLEEP_US = 250_000.0
_SHORTEST_SLEEP_US = 200.0
_LEAST_SLEEP_LIMIT_US = 20_000.0
_ESTIMATE_ITEMS = 4  # So many items give a first estimate of an item's host time.
_GRID_MARKS = 64
_GRID_LEAD_US = 2_000.0
_DEFAULT_GRID_US = 0.032
_grids: weakref.WeakKeyDictionary[Device, float] = weakref.WeakKeyDictionary()


def suits(device: Device) -> bool:
    """Whether the device has a queue."""
    return device.asynchronous


def understands(timer: str) -> bool:
    """Whether `timer` is an id of this module."""
    return any(_stored_calls(timer, cache) is not None for cache in ("cold", "warm"))


def prepare(workload: Workload, device: Device, *, seconds: float, stored: str | None) -> Meter | None:
    """A meter of one call's device time; None if the host cannot be kept ahead of the device.

    A stored id that fits the workload's `cache` is reproduced, if its batches still fit into the queue.
    """
    warmed_up(workload, workload.run, device, seconds)
    estimate = estimated(workload.run, device, workload.cache)
    if estimate is None:
        return None
    counted = _stored_calls(stored, workload.cache)
    if counted is None:
        # A pair has as many calls as last 1 ms, or one if each needs a cold cache.
        calls = SAMPLE_US / max(estimate.call_us, 1e-3)
        counted = 1 if workload.cache == "cold" else power_of_two(calls, _MOST_CALLS)
    while True:
        timer = "queue-cold" if workload.cache == "cold" else f"queue-warm-u{counted}"
        calls = calls_in_sample(counted, estimate.call_us)
        rounds = Rounds(pairs(workload.run, device, workload.cache, calls), calls)
        meter = metered(timer, rounds, device, estimate, seconds)
        if meter is not None:
            return meter
        counted //= 2
        if counted < _LEAST_CALLS:
            return None


def _stored_calls(timer: str | None, cache: Cache) -> int | None:
    """The number of calls per pair in a timer's id; None if the id is not for `cache`."""
    match = _ID.fullmatch(timer or "")
    if match is None or (match["calls"] is None) is not (cache == "cold"):
        return None
    calls = int(match["calls"] or 1)
    return calls if 1 <= calls <= _MOST_CALLS else None


@dataclass(frozen=True)
class FilledBatch(Generic[T]):
    """A batch that was completely enqueued before the device began it."""

    result: T
    size: int
    host_us: float  # the host time of enqueueing the batch, µs


class FilledQueue:
    """Enqueues batches behind a device sleep, and adapts the length of the sleep and the size of a batch.

    A batch is proven if the device has not passed a mark right behind the sleep when the whole batch is enqueued: then
    no item waited for the host. A candidate that waits for the device, or overfills the queue, fails this check.
    """

    def __init__(self, device: Device, enqueue: Callable[[int], object], *, size: int, smallest: int) -> None:
        """`enqueue(n)` enqueues n items. A batch has `size` items, and at least `smallest` after halving."""
        self._device = device
        self._smallest = smallest
        self.size = size
        device.synchronize()
        tried = min(size, _ESTIMATE_ITEMS)
        started = device.now_us()
        enqueue(tried)
        self._item_us = (device.now_us() - started) / tried
        device.synchronize()
        self.sleep_us = self._first_sleep_us

    @property
    def _first_sleep_us(self) -> float:
        return min(_LONGEST_SLEEP_US, max(_SHORTEST_SLEEP_US, 2 * self.size * self._item_us))

    @property
    def _longest_sleep_us(self) -> float:
        # If a sleep many times as long as enqueueing is still too short, a longer one will not help.
        return min(_LONGEST_SLEEP_US, max(_LEAST_SLEEP_LIMIT_US, 8 * self.size * self._item_us))

    def run(self, enqueue: Callable[[int], T]) -> FilledBatch[T] | None:
        """Run one proven batch; None if the host cannot be kept ahead of the device.

        A batch without proof is dropped. The next one has twice the sleep or, at the longest sleep, half the size.
        """
        while self.size >= self._smallest:
            self._device.synchronize()
            self._device.sleep(self.sleep_us)
            behind_sleep = self._device.event()
            behind_sleep.record()
            started = self._device.now_us()
            result = enqueue(self.size)
            host_us = self._device.now_us() - started
            ahead = not behind_sleep.query()
            self._device.synchronize()
            if ahead:
                return FilledBatch(result, self.size, host_us)
            if self.sleep_us < self._longest_sleep_us:
                self.sleep_us = min(2 * self.sleep_us, self._longest_sleep_us)
            else:
                self.size //= 2
                self.sleep_us = self._first_sleep_us
        return None


def event_grid_us(device: Device) -> float:
    """Step of the clock behind the device's events, µs: the least difference between different elapsed times.

    It is 32 ns on an H200, and about 1 µs on other GPUs. The first call in a process probes it.
    """
    if device not in _grids:
        _grids[device] = _probed_grid_us(device)
    return _grids[device]


def _probed_grid_us(device: Device) -> float:
    """Probe the step of the clock. Each sleep is 10 ns longer than the last, so gaps differ even without jitter."""
    marks = []
    device.sleep(_GRID_LEAD_US)  # Without this lead the gaps would be host time.
    for index in range(_GRID_MARKS):
        mark = device.event()
        mark.record()
        marks.append(mark)
        device.sleep(1.0 + 0.01 * index)
    device.synchronize()
    gaps = sorted(start.elapsed_us(end) for start, end in itertools.pairwise(marks))
    # Elapsed times may be float32 milliseconds, so differences below 1 ns are rounding.
    steps = [after - before for before, after in itertools.pairwise(gaps) if after - before > 1e-3]
    return min(steps, default=_DEFAULT_GRID_US)


def pairs(call: Callable[[], object], device: Device, cache: Cache, calls: int) -> Enqueue:
    """A function that enqueues n × [flush if cold, start, `calls` calls, end], and returns the n pairs."""

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


@dataclass(frozen=True)
class Estimate:
    """Times from a first batch of single calls, µs."""

    call_us: float  # device time, including that of the event pair
    pair_host_us: float  # host time of one event pair with its call


def estimated(
    call: Callable[[], object], device: Device, cache: Cache, count: int = _ESTIMATE_PAIRS
) -> Estimate | None:
    """A first estimate of a warmed-up call, from `count` calls or fewer; None if the host cannot be kept ahead."""
    grid_us = event_grid_us(device)
    enqueue = pairs(call, device, cache, 1)
    batch = FilledQueue(device, enqueue, size=count, smallest=1).run(enqueue)
    if batch is None:
        return None
    call_us = max(grid_us, statistics.median(start.elapsed_us(end) for start, end in batch.result))
    return Estimate(call_us, batch.host_us / batch.size)


@dataclass(frozen=True)
class Rounds:
    """A function `enqueue(n)` that enqueues n rounds. A round has one event pair around `calls` calls for each of
    `turns` callables."""

    enqueue: Enqueue
    calls: int
    turns: int = 1


def metered(timer: str, rounds: Rounds, device: Device, estimate: Estimate, seconds: float) -> Meter | None:
    """A meter of `rounds`; None if the host falls behind."""
    per_round = rounds.turns * rounds.calls
    count = samples_in_block(per_round * estimate.call_us, seconds)
    # A batch with little host time fits into the queue and needs only a short sleep. Clocks drop in long sleeps.
    size = min(count, _MOST_PAIRS, int(_BATCH_HOST_US / max(per_round * estimate.pair_host_us, 1e-3)))
    smallest = min(count, max(1, _LEAST_CALLS // per_round))
    batches = Batches(rounds, device, size=max(size, smallest), smallest=smallest, in_block=count)
    return batches.meter(timer) if batches.proven() else None


class Batches:
    """Blocks of samples in proven batches, each batch between two readings of the device's clock."""

    def __init__(self, rounds: Rounds, device: Device, *, size: int, smallest: int, in_block: int) -> None:
        """A batch has `size` rounds, and at least `smallest` after halving. A block has `in_block` rounds."""
        self._rounds = rounds
        self._device = device
        self._samples = rounds.turns * in_block
        self._grid_us = event_grid_us(device)
        self._marks: list[tuple[ClockMark, ClockMark]] = []  # These pairs surround the batches of the last block.
        device.clock_mark()  # This compiles the clock's kernel, if there is one, before the first block.
        self._queue = FilledQueue(device, self._marked, size=size, smallest=smallest)

    def proven(self) -> bool:
        """Whether the host can be kept ahead of the device."""
        return self._queue.run(self._marked) is not None

    def meter(self, timer: str) -> Meter:
        """The meter with the id `timer`."""
        return Meter(timer, self._block, floor_us(self._grid_us, self._rounds.calls), clock_mhz=self._clock_mhz)

    def _marked(self, count: int) -> tuple[ClockMark | None, list[Pair], ClockMark | None]:
        first = self._device.clock_mark()
        return first, self._rounds.enqueue(count), self._device.clock_mark()

    def _block(self) -> float | None:
        times: list[float] = []
        self._marks = []
        while len(times) < self._samples:
            batch = self._queue.run(self._marked)
            if batch is None:
                return None
            first, pairs, last = batch.result
            if first is not None and last is not None:
                self._marks.append((first, last))
            # A call without launches takes no time.
            times += [max(start.elapsed_us(end), self._grid_us) / self._rounds.calls for start, end in pairs]
        return middle(times, self._rounds.turns)

    def _clock_mhz(self) -> float | None:
        clocks = [mhz for first, last in self._marks if (mhz := first.mhz_until(last)) is not None]
        return statistics.fmean(clocks) if clocks else None


def middle(times: Sequence[float], turns: int = 1) -> float:
    """The time of a block: the median of its samples, or with several `turns` the mean of the turns' medians.

    For a few long samples it is the mean without the smallest and the largest: if a kernel takes one of two times, the
    median of nine samples would jump between the two.
    """
    if turns > 1:
        return statistics.fmean(statistics.median(times[turn::turns]) for turn in range(turns))
    if _LEAST_TRIMMED <= len(times) <= _MOST_TRIMMED:
        return statistics.fmean(sorted(times)[1:-1])
    return statistics.median(times)
