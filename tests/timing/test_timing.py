"""The record every timer returns, and the choice of the timer."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.errors import DeviceError
from perfguard.hardware import fake
from perfguard.hardware.fake import FakeDevice
from perfguard.timing import TIMERS, measure_device_time
from perfguard.timing.timing import Timing, floor_us, spread


class Cpu(FakeDevice):
    """A simulated device whose calls return when the work is done."""

    asynchronous = False


def kernel() -> None:
    fake.launch("kernel", us=10.0, host_us=3.0)


def test_value_is_the_median_of_the_blocks() -> None:
    timing = Timing("wall-u1", (10.0, 12.0, 11.0, 90.0), rejected=0, floor_us=0.05, samples=5)
    assert timing.value_us == 11.5


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


def test_the_device_decides_the_timer() -> None:
    device = FakeDevice(seed=1)
    assert measure_device_time(kernel, device).timer == "queue-cold"
    cpu = Cpu(seed=1)
    assert measure_device_time(kernel, cpu).timer.startswith("wall-u")


def test_a_stored_id_of_a_timer_that_does_not_suit_is_not_used() -> None:
    device = FakeDevice(seed=1)
    assert measure_device_time(kernel, device, stored="wall-u16").timer == "queue-cold"


def test_no_two_timers_understand_one_id() -> None:
    for timer in ("queue-cold", "queue-warm-u64", "queue-cold-hostbound", "wall-u16"):
        assert sum(candidate.understands(timer) for candidate in TIMERS) == 1
    assert not any(candidate.understands("host-u16") for candidate in TIMERS)


def test_a_device_that_no_timer_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfguard.timing.TIMERS", ())
    with pytest.raises(DeviceError, match="fake-gpu: no timer suits"):
        measure_device_time(kernel, FakeDevice(seed=1))


def test_median_of_sessions_finds_a_change_of_three_percent() -> None:
    """With the fake's session noise of 0.2 %, five sessions a side."""

    def sessions(us: float, first_seed: int) -> list[float]:
        values = []
        for seed in range(first_seed, first_seed + 5):
            device = FakeDevice(seed=seed)
            timing = measure_device_time(lambda: fake.launch("k", us=us), device, seconds=0.1)
            values.append(timing.value_us)
        return values

    before, after = sessions(50.0, 0), sessions(51.5, 100)
    assert statistics.median(after) / statistics.median(before) == pytest.approx(1.03, abs=0.01)
