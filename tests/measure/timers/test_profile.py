"""Device time from intervals: what runs at once counts once, and gaps do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices import fake
from perfguard.measure.devices.device import Interval
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers import profiler
from perfguard.measure.timers.timing import Cache, Workload
from perfguard.model.errors import DeviceError
from tests.measure.timers.metering import measured, quiet


@pytest.mark.parametrize(
    ("intervals", "covered"),
    [
        ([], 0.0),
        ([(0.0, 2.0), (5.0, 6.0)], 3.0),
        ([(0.0, 4.0), (1.0, 2.0)], 4.0),  # one stream inside another's time
        ([(3.0, 6.0), (0.0, 4.0)], 6.0),
    ],
)
def test_union(intervals: list[Interval], covered: float) -> None:
    assert profiler.covered_us(intervals) == covered


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
    timing = measured(profiler, waiting(device), device, cache=cache)
    assert timing.timer == f"profile-{cache}"
    assert timing.value_us == pytest.approx(50.0)


def test_a_short_call() -> None:
    timing = measured(profiler, lambda: fake.launch("kernel", us=3, host_us=30), quiet())
    assert timing.value_us == pytest.approx(3.0)


def prepared(call: Callable[[], object], device: FakeDevice, stored: str | None = None) -> bool:
    return profiler.prepare(Workload(call), device, seconds=0.1, stored=stored) is not None


def test_a_long_call_is_left_to_events_unless_it_was_profiled_before() -> None:
    def call() -> None:
        fake.launch("kernel", us=30, host_us=30)

    assert not prepared(call, quiet())
    assert not prepared(call, quiet(), "queue-cold")
    assert prepared(call, quiet(), "profile-cold")


def test_a_call_without_work_is_not_timed() -> None:
    assert not prepared(lambda: None, quiet())


class Losing(FakeDevice):
    """A profiler that fails after so many profiles."""

    left = 0

    def intervals(self, *args: object, **options: object) -> list[list[Interval]]:
        self.left -= 1
        if self.left < 0:
            raise DeviceError("profiler: lost")
        return super().intervals(*args, **options)  # type: ignore[arg-type]


def test_a_profiler_that_fails() -> None:
    device = Losing(seed=1)
    assert not prepared(waiting(device), device)
    device.left = 3
    timing = measured(profiler, waiting(device), device)
    assert timing.rejected == 3
    assert len(timing.blocks) == 2
