"""The record every timer returns, and the choice of the timer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices import fake
from perfguard.measure.devices.device import Device
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers import all_timers
from perfguard.measure.timers.timing import Blocks, Timing, floor_us, renewed, spread
from perfguard.model.errors import DeviceError
from tests.measure.timers.metering import device_time


class Cpu(FakeDevice):
    """A simulated device whose calls return when the work is done."""

    asynchronous = False
    captures = False


def kernel() -> None:
    fake.launch("kernel", us=10.0, host_us=3.0)


def test_value_is_the_median_of_the_blocks() -> None:
    timing = Timing("cpu-u1", (10.0, 12.0, 11.0, 90.0), rejected=0, floor_us=0.05, samples=5)
    assert timing.value_us == 11.5


def test_a_reading_renewed_with_more_blocks() -> None:
    reading = Timing("queue-cold", (10.0, 12.0, 11.0), 1, 0.05, 5).reading("device_time_us", promise=0.03)
    more = renewed(reading, Blocks((10.0, 12.0, 11.0, 10.0, 10.0), 2))
    assert (more.value, more.blocks, more.rejected_blocks) == (10.0, [10.0, 12.0, 11.0, 10.0, 10.0], 2)
    assert more.spread == spread(more.blocks)
    assert (more.metric, more.timer, more.promise, more.floor) == ("device_time_us", "queue-cold", 0.03, 0.05)


def test_spread_by_hand() -> None:
    blocks = [100.0, 100.0 * math.exp(0.01), 100.0 * math.exp(-0.02)]
    # deviations of the logs from their median 0: 0, 0.01, 0.02
    assert spread(blocks) == pytest.approx(1.4826 * 0.01 * 1.2533 / math.sqrt(3))


@given(st.floats(0.01, 1e6), st.integers(1, 9))
def test_equal_blocks_have_no_spread(block: float, count: int) -> None:
    assert spread([block] * count) == 0


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=9), st.floats(0.1, 10.0))
def test_spread_is_relative(blocks: list[float], factor: float) -> None:
    assert spread([factor * block for block in blocks]) == pytest.approx(spread(blocks), abs=1e-9)


@pytest.mark.parametrize(
    ("grid_us", "calls", "floor"),
    [
        (0.032, 1, 0.064),  # one call per pair: two steps of an H200's clock
        (0.032, 64, 0.05),  # shared by 64 calls the grid is nothing; 50 ns remain
        (1.0, 1, 2.0),
        (1.0, 8, 0.25),
    ],
)
def test_floor(grid_us: float, calls: int, floor: float) -> None:
    assert floor_us(grid_us, calls) == floor


def waits() -> None:
    fake.launch("kernel", us=50.0)
    device = fake.current()
    assert device is not None
    device.synchronize()


def long() -> None:
    fake.launch("kernel", us=50.0)


def long_and_not_capturable() -> None:
    fake.launch("kernel", us=50.0, capturable=False)


MUCH = 2**40  # bytes: overfills the cache in one call


@pytest.mark.parametrize(
    ("call", "bytes", "timer"),
    [
        (kernel, MUCH, "graph-cold-u128-r1"),
        (kernel, 0, "profile-cold"),  # nothing tells how many copies make it cold, and it is short
        (long, 0, "graph-flushed-r16"),  # nor is a flush dear beside it
        (long_and_not_capturable, MUCH, "queue-cold"),
        (waits, MUCH, "profile-cold"),
    ],
)
def test_the_call_decides_the_timer(call: Callable[[], object], bytes: int, timer: str) -> None:
    assert device_time(call, FakeDevice(seed=1), bytes=bytes).timer == timer


@pytest.mark.parametrize(("call", "timer"), [(kernel, "queue-cold"), (waits, "queue-cold-hostbound")])
def test_without_a_profiler_events_are_left(call: Callable[[], object], timer: str) -> None:
    class Blind(FakeDevice):
        captures = False
        intervals = Device.intervals

    assert device_time(call, Blind(seed=1)).timer == timer


def test_a_processor_is_timed_by_what_it_was_used() -> None:
    assert device_time(kernel, Cpu(seed=1)).timer.startswith("cpu-u")


@pytest.mark.parametrize(
    "stored",
    [
        "graph-cold-u16-r1",
        "graph-cold-u64-r16",
        "graph-flushed-r16",
        "queue-cold",
        "queue-cold-hostbound",
        "profile-cold",
    ],
)
def test_a_stored_timer_is_used_again(stored: str) -> None:
    copies = [long] * 16
    timing = device_time(long, FakeDevice(seed=1), stored=stored, bytes=MUCH, copies=lambda count: copies[:count])
    assert timing.timer == stored


@pytest.mark.parametrize("stored", ["cpu-u16", "graph-warm-u64", "graph-cold-u16-r1-c1530-e98", "sundial"])
def test_a_stored_timer_that_does_not_suit_is_not_used(stored: str) -> None:
    assert device_time(long, FakeDevice(seed=1), stored=stored).timer == "graph-flushed-r16"


IDS = (
    "graph-cold-u64-r16", "graph-warm-u64", "graph-flushed-r16", "profile-cold", "profile-warm", "queue-cold",
    "queue-warm-u64", "queue-cold-hostbound", "queue-warm-u64-hostbound", "cpu-u16",
)  # fmt: skip


@pytest.mark.parametrize("timer", IDS)
def test_no_two_timers_understand_one_id(timer: str) -> None:
    assert sum(candidate.understands(timer) for candidate in all_timers()) == 1


@pytest.mark.parametrize("timer", ["host-low-u16", "wall-u16"])
def test_other_times_are_no_device_times(timer: str) -> None:
    assert not any(candidate.understands(timer) for candidate in all_timers())


def test_a_device_that_no_timer_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfguard.measure.timers.all_timers", tuple)
    with pytest.raises(DeviceError, match="fake-gpu: no timer suits"):
        device_time(kernel, FakeDevice(seed=1))


def test_median_of_sessions_finds_a_change_of_three_percent() -> None:
    """With the fake's session noise of 0.2 %, five sessions a side."""

    def sessions(us: float, first_seed: int) -> list[float]:
        values = []
        for seed in range(first_seed, first_seed + 5):
            device = FakeDevice(seed=seed)
            timing = device_time(lambda: fake.launch("k", us=us), device, seconds=0.1)
            values.append(timing.value_us)
        return values

    before, after = sessions(50.0, 0), sessions(51.5, 100)
    assert statistics.median(after) / statistics.median(before) == pytest.approx(1.03, abs=0.01)
