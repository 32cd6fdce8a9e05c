"""Events, captured work and memory of the simulated device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from perfguard.measure.devices.activity import Ledger
from perfguard.model.errors import DeviceError
from perfguard.model.units import format_bytes

if TYPE_CHECKING:
    from perfguard.measure.devices.device import Event
    from perfguard.testing.fake import FakeDevice

_EVENT_HOST_US = 0.5
QUERY_HOST_US = 0.1
_REPLAY_HOST_US = 5.0


class FakeEvent:
    """A mark on the fake device's queue."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._at_us: float | None = None

    def record(self) -> None:
        """Enqueue the mark behind all work enqueued so far."""
        self._at_us = self._device.enqueue(0.0, host_us=_EVENT_HOST_US, noisy=False)

    def query(self) -> bool:
        """Whether the device has passed the mark; True, as in CUDA, for a mark never recorded."""
        self._device.refuse_capture()
        self._device.host_us += QUERY_HOST_US
        return self._at_us is None or self._device.host_us >= self._at_us

    def elapsed_us(self, end: Event) -> float:
        """Device time from this mark to `end`, µs.

        Raises:
            DeviceError: a mark that was never recorded, or that the device has not passed yet.
        """
        assert isinstance(end, FakeEvent)
        if self._at_us is None or end._at_us is None:
            raise DeviceError("fake event: was never recorded; call record() on both events first")
        if self._device.host_us < max(self._at_us, end._at_us):
            raise DeviceError("fake event: the device has not passed it yet; call synchronize() first")
        return end._at_us - self._at_us


class FakeGraph:
    """Captured work of the fake device."""

    def __init__(self, device: FakeDevice, works_us: Sequence[float]) -> None:
        self._device = device
        self._works_us = works_us

    def replay(self) -> None:
        """Enqueue all captured work, at the host cost of one replay."""
        self._device.enqueue(*self._works_us, host_us=_REPLAY_HOST_US)


class FakeMemory(Ledger):
    """Memory of `capacity` bytes, which is counted but never written. Each address is used once."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._addresses = itertools.count(1)

    def take(self, count: int) -> int:
        """Allocate `count` bytes and return their address.

        Raises:
            torch.OutOfMemoryError: fewer bytes are free.
        """
        free = self._capacity - self.total
        if count > free:
            import torch

            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {format_bytes(count)}. GPU 0 has a total capacity of "
                f"{format_bytes(self._capacity)} of which {format_bytes(free)} is free."
            )
        address = next(self._addresses)
        self.add(address, count)
        return address


class Allocation:
    """Device memory, which `free()`, the end of a `with` block, or the object's destruction frees."""

    def __init__(self, memory: FakeMemory | None, count: int) -> None:
        self._memory = None  # `take` may raise, and `__del__` still runs.
        self._address = 0 if memory is None else memory.take(count)
        self._memory = memory

    def free(self) -> None:
        """Free the memory; a second call does nothing."""
        if self._memory is not None:
            self._memory.remove(self._address)
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.free()

    def __del__(self) -> None:
        self.free()
