"""A stand-in for torch.cuda and torch.xpu whose time is the fake device's, so that vendors run without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfguard.testing.fake import Allocation, FakeDevice, FakeEvent, FakeMemory

H200 = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "total_memory": 150109880320,
    "multi_processor_count": 132,
    "uuid": "2b4e226c-662d-8eb5-2ff7-6251948a4286",
    "L2_cache_size": 62914560,
}
CYCLES_PER_US = 1500
STEP = 64  # bytes that the stand-in's allocator reserves at once


class BackendEvent(FakeEvent):
    """torch's words for the fake's events."""

    def elapsed_time(self, end: BackendEvent) -> float:
        if not (self.query() and end.query()):
            raise RuntimeError("event is not ready")
        return self.elapsed_us(end) / 1e3


class Backend:
    """As much of torch.cuda as the vendors use; `gpu` is the machine behind it."""

    def __init__(self, properties: dict[str, Any], count: int = 1) -> None:
        self.gpu = FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1)
        self.current: int | None = None
        self.emptied = 0
        self._properties = SimpleNamespace(**properties)
        self._count = count
        self._reserved = 0
        self.memory = FakeMemory(2**40)
        self.rounded, self.counts = 0, True

    def is_available(self) -> bool:
        return self._count > 0

    def device_count(self) -> int:
        return self._count

    def set_device(self, index: int) -> None:
        self.current = index

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return self._properties

    def synchronize(self, index: int) -> None:
        self.gpu.synchronize()

    def Event(self, *, enable_timing: bool) -> BackendEvent:
        assert enable_timing
        return BackendEvent(self.gpu)

    def _sleep(self, cycles: int) -> None:
        self.gpu.enqueue(cycles / CYCLES_PER_US)

    def allocate(self, count: int) -> Allocation:
        """Device memory in a segment of its own; reserved in steps of `STEP`, until the cache is emptied."""
        allocation = Allocation(self.memory, count)
        self._reserved = max(self._reserved, -(-self.memory.total // STEP) * STEP)
        return allocation

    def memory_allocated(self, index: int) -> int:
        return self.memory.total

    def memory_stats(self, index: int) -> dict[str, int]:
        """By `rounded` more is allocated than asked for; what is asked for is not counted where `counts` is False."""
        total, peak = self.memory.total, self.memory.peak
        asked = {"current": total, "peak": peak, "allocated": total if self.counts else 0}
        made = {"current": total + self.rounded, "peak": peak + 2 * self.rounded}
        return {f"requested_bytes.all.{name}": count for name, count in asked.items()} | {
            f"allocated_bytes.all.{name}": count for name, count in made.items()
        }

    def memory_reserved(self, index: int) -> int:
        return self._reserved

    def reset_peak_memory_stats(self, index: int) -> None:
        self.memory.peak = self.memory.total

    def memory_snapshot(self) -> list[dict[str, Any]]:
        alive = self.memory.alive
        return [
            {"device": 0, "address": address, "blocks": [{"state": "active_allocated", "size": count}]}
            for address, count in alive.items()
        ]

    def empty_cache(self) -> None:
        self.emptied += 1
        self._reserved = -(-self.memory.total // STEP) * STEP


@pytest.fixture
def backend() -> Callable[..., Backend]:
    """Makes a stand-in; by default an H200, changed by the keywords."""

    def make(count: int = 1, **properties: Any) -> Backend:
        return Backend({**H200, **properties}, count)

    return make
