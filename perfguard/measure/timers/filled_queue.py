"""Batches enqueued with proof that the host stays ahead of an asynchronous device, and the grid of its clock."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Device

T = TypeVar("T")

LONGEST_SLEEP_US = 250_000.0
_SHORTEST_SLEEP_US = 200.0
_PATIENCE_US = 20_000.0
_TRIED = 4  # items enqueued for a first estimate of an item's host time
_GRID_MARKS = 64
_GRID_LEAD_US = 2_000.0
_DEFAULT_GRID_US = 0.032
_grids: weakref.WeakKeyDictionary[Device, float] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Filled(Generic[T]):
    """A batch that was completely enqueued before the device began with it."""

    result: T
    size: int
    host_us: float  # host time of enqueueing the batch


class FilledQueue:
    """Enqueues batches behind a device sleep, and adapts the length of the sleep and the size of a batch.

    The proof: when the whole batch is enqueued, the device must not have passed a mark right behind the sleep. Then
    no item of the batch waited for the host. A candidate that waits for the device, or that overfills the queue,
    cannot pass this check.
    """

    def __init__(self, device: Device, enqueue: Callable[[int], object], *, size: int, smallest: int) -> None:
        """`enqueue(n)` puts n items on the queue. A batch has `size` items, and at least `smallest` after halving."""
        self._device = device
        self._smallest = smallest
        self.size = size
        device.synchronize()
        tried = min(size, _TRIED)
        started = device.now_us()
        enqueue(tried)
        self._item_us = (device.now_us() - started) / tried
        device.synchronize()
        self.sleep_us = self._first_sleep_us

    @property
    def _first_sleep_us(self) -> float:
        return min(LONGEST_SLEEP_US, max(_SHORTEST_SLEEP_US, 2 * self.size * self._item_us))

    @property
    def _longest_sleep_us(self) -> float:
        # If a sleep many times as long as enqueueing is still too short, a longer one will not help.
        return min(LONGEST_SLEEP_US, max(_PATIENCE_US, 8 * self.size * self._item_us))

    def run(self, enqueue: Callable[[int], T]) -> Filled[T] | None:
        """One proven and completed batch; None if the host cannot be kept ahead of the device.

        A batch without proof is dropped. The next one has twice the sleep, or, at the longest sleep, half the size.
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
                return Filled(result, self.size, host_us)
            if self.sleep_us < self._longest_sleep_us:
                self.sleep_us = min(2 * self.sleep_us, self._longest_sleep_us)
            else:
                self.size //= 2
                self.sleep_us = self._first_sleep_us
        return None


def event_grid_us(device: Device) -> float:
    """Step of the clock behind the device's events, µs: the least difference between different elapsed times.

    32 ns on an H200, about 1 µs elsewhere. Probed once per process, at the first call.
    """
    if device not in _grids:
        _grids[device] = _probed_grid_us(device)
    return _grids[device]


def _probed_grid_us(device: Device) -> float:
    """Each gap contains a sleep 10 ns longer than the last, so gaps differ even on a device without jitter."""
    marks = []
    device.sleep(_GRID_LEAD_US)  # without it the gaps would be host time
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
