"""Keeping the host ahead of an asynchronous device, with proof, and the grid of the device's clock."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from perfguard.hardware.device import Device

T = TypeVar("T")

LONGEST_SLEEP_US = 250_000.0
_SHORTEST_SLEEP_US = 200.0
_PATIENCE_US = 20_000.0
_TRIED = 4  # items enqueued to learn what one costs the host: it is a first guess
_GRID_MARKS = 64
_GRID_LEAD_US = 2_000.0
_DEFAULT_GRID_US = 0.032
_grids: weakref.WeakKeyDictionary[Device, float] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Filled(Generic[T]):
    """A batch that stood complete in the queue before the device began with it."""

    result: T
    size: int
    host_us: float  # what enqueueing the batch cost the host


class FilledQueue:
    """Enqueues batches behind a device sleep; learns how long the sleep must be and how large a batch may be.

    The proof: a mark right behind the sleep must not have been passed when the whole batch is enqueued. Then
    nothing in the batch ever waited for the host. A candidate that waits for the device, or more work than
    the queue holds, fails this check by itself.
    """

    def __init__(self, device: Device, enqueue: Callable[[int], object], *, size: int, smallest: int) -> None:
        """`enqueue(n)` puts n items on the queue; batches have `size` of them, >= `smallest`."""
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
        # Many times as long as enqueueing took, and still too short: a longer sleep will not help.
        return min(LONGEST_SLEEP_US, max(_PATIENCE_US, 8 * self.size * self._item_us))

    def run(self, enqueue: Callable[[int], T]) -> Filled[T] | None:
        """One proven batch, all of it done; None where the host cannot be kept ahead of the device.

        A batch without proof is dropped; then the sleep doubles, and at its longest the batch halves.
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
    """Step of the clock behind the device's events, µs: the least difference between unlike elapsed times.

    32 ns on an H200, about 1 µs elsewhere. Probed once in a process, when it is first asked for.
    """
    if device not in _grids:
        _grids[device] = _probed_grid_us(device)
    return _grids[device]


def _probed_grid_us(device: Device) -> float:
    """The gaps hold sleeps that grow by 10 ns, so that they differ even on a device without any jitter."""
    marks = []
    device.sleep(_GRID_LEAD_US)  # else the gaps would be the host's
    for index in range(_GRID_MARKS):
        mark = device.event()
        mark.record()
        marks.append(mark)
        device.sleep(1.0 + 0.01 * index)
    device.synchronize()
    gaps = sorted(start.elapsed_us(end) for start, end in itertools.pairwise(marks))
    # Elapsed times may arrive as float32 milliseconds: what differs by less than 1 ns is the same.
    steps = [after - before for before, after in itertools.pairwise(gaps) if after - before > 1e-3]
    return min(steps, default=_DEFAULT_GRID_US)
