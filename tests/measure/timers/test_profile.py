"""Device time from intervals: what runs at once counts once, and gaps do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices.device import Interval
from perfguard.measure.timers import profiler
from perfguard.measure.timers.timing import Cache, Workload
from perfguard.model.errors import DeviceError
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice
from tests.measure.timers.metering import measured, quiet


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))))
def test_union_counts_each_moment_once(found: list[tuple[int, int]]) -> None:
    moments = {moment for start, length in found for moment in range(start, start + length)}
    assert profiler.covered_us((start, start + length) for start, length in found) == len(moments)


def waiting(device: FakeDevice) -> Callable[[], None]:
    def call() -> None:
        fake.launch("first", us=30, host_us=100)
        device.synchronize()
        fake.launch("second", us=20, host_us=100)

    return call


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_call_that_waits_is_timed_without_the_host(cache: Cache) -> None:
    device = quiet()
    reading = measured(profiler.prepare, waiting(device), device, cache=cache)
    assert (reading.timer, reading.value) == (f"profile-{cache}", pytest.approx(50.0))


@pytest.mark.parametrize(
    ("us", "stored", "profiled"),
    [(3, None, True), (30, None, False), (30, "queue-cold", False), (30, "profile-cold", True)],
)
def test_a_long_call_is_left_to_events_unless_it_was_profiled_before(
    us: float, stored: str | None, profiled: bool
) -> None:
    workload = Workload(lambda: fake.launch("kernel", us=us, host_us=30))
    meter = profiler.prepare(workload, quiet(), seconds=0.1, stored=stored)
    assert (meter and meter.block()) == (pytest.approx(us) if profiled else None)


class Losing(FakeDevice):
    """A profiler that fails after so many profiles."""

    left = 0

    def intervals(self, *args: object, **options: object) -> list[list[Interval]]:
        self.left -= 1
        if self.left < 0:
            raise DeviceError("profiler: lost")
        return super().intervals(*args, **options)  # type: ignore[arg-type]


def test_a_profiler_that_fails_or_sees_no_work() -> None:
    assert profiler.prepare(Workload(lambda: None), quiet(), seconds=0.1, stored=None) is None
    device = Losing(seed=1)
    assert profiler.prepare(Workload(waiting(device)), device, seconds=0.1, stored=None) is None
    device.left = 3
    reading = measured(profiler.prepare, waiting(device), device)
    assert (len(reading.blocks), reading.rejected_blocks) == (2, 3)
