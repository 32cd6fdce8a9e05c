"""A stand-in for torch.cuda and torch.xpu whose time is the fake device's, so that vendors run without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from perfguard.hardware.fake import Allocation, FakeDevice, FakeEvent

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
        self._held = self._peak = 0

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

    def hold(self, count: int) -> None:
        self._held += count
        self._peak = max(self._peak, self._held)

    def allocate(self, count: int) -> Allocation:
        return Allocation(self, count)  # type: ignore[arg-type]  # it only asks for hold()

    def memory_allocated(self, index: int) -> int:
        return self._held

    def max_memory_allocated(self, index: int) -> int:
        return self._peak

    def reset_peak_memory_stats(self, index: int) -> None:
        self._peak = self._held

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def backend() -> Callable[..., Backend]:
    """Makes a stand-in; by default an H200, changed by the keywords."""

    def make(count: int = 1, **properties: Any) -> Backend:
        return Backend({**H200, **properties}, count)

    return make
