"""Blocks: how many, when to stop, which are dropped."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.hardware.fake import FakeDevice
from perfguard.records import Conditions
from perfguard.timing import blocks


class AskedFake(FakeDevice):
    """Counts how often it is asked for its conditions."""

    asked = 0

    def conditions(self) -> Conditions:
        self.asked += 1
        return super().conditions()


def sampler(device: FakeDevice, medians: list[float | None], reasons: str = "") -> Callable[[], float | None]:
    """Blocks of 10 ms; a block above 10.5 µs comes with throttling."""

    def sample_block() -> float | None:
        median = medians.pop(0)
        device.host_us += 10_000
        hot = reasons if median is not None and median > 10.5 else ""
        device.state = Conditions(throttle_reasons=[hot] if hot else [])
        return median

    return sample_block


def test_settled_blocks_stop_early() -> None:
    device = AskedFake(seed=1)
    assert blocks.collect(sampler(device, [10.0] * 9), device, seconds=1) == blocks.Blocks((10.0,) * 3, 0)
    assert device.asked == 0


def test_restless_blocks_go_on_to_the_most() -> None:
    device = FakeDevice(seed=1)
    restless: list[float | None] = [10.0, 10.2, 10.1, 10.3, 9.9, 10.2, 10.0, 10.4, 10.1, 10.0]
    found = blocks.collect(sampler(device, restless), device, seconds=1)
    assert found is not None
    assert len(found.medians) == blocks.MOST_BLOCKS


def test_budget_ends_the_blocks_but_not_before_three() -> None:
    device = FakeDevice(seed=1)
    restless: list[float | None] = [10.0, 10.2, 10.1, 10.3, 9.9, 10.2]
    found = blocks.collect(sampler(device, list(restless)), device, seconds=0.001)
    assert found is not None
    assert len(found.medians) == 3
    found = blocks.collect(sampler(device, list(restless)), device, seconds=0.05)
    assert found is not None
    assert len(found.medians) == 5


@pytest.mark.parametrize(
    "reason",
    ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "Thermal limit"],
)
def test_throttled_blocks_are_dropped_counted_and_measured_again(reason: str) -> None:
    device = AskedFake(seed=1)
    found = blocks.collect(sampler(device, [10.0, 11.0, 10.0, 12.0, 10.0], reason), device, seconds=1)
    assert found == blocks.Blocks((10.0, 10.0, 10.0), rejected=2)
    assert device.asked == 2


@pytest.mark.parametrize("reason", ["", "sw_power_cap", "power_cap", "applications_clocks_setting"])
def test_a_power_cap_drops_nothing(reason: str) -> None:
    device = FakeDevice(seed=1)
    found = blocks.collect(sampler(device, [10.0, 11.0, 10.0, 10.0, 10.0], reason), device, seconds=1)
    assert found is not None
    assert found.rejected == 0
    assert 11.0 in found.medians


def test_three_dropped_blocks_are_enough() -> None:
    device = FakeDevice(seed=1)
    always_hot: list[float | None] = [10.0, *[11.0] * 9]
    assert blocks.collect(sampler(device, always_hot, "hw_slowdown"), device, seconds=1) == blocks.Blocks((10.0,), 3)


def test_a_block_that_cannot_be_measured_ends_it() -> None:
    device = FakeDevice(seed=1)
    assert blocks.collect(sampler(device, [10.0, None]), device, seconds=1) is None


@given(st.floats(0, 1e9), st.integers(0, 16))
def test_power_of_two_covers_the_count(count: float, exponent: int) -> None:
    most = 2**exponent
    found = blocks.power_of_two(count, most)
    assert found in [2**k for k in range(exponent + 1)]
    assert found >= min(count, most)
    assert found == 1 or found / 2 < count


@given(st.floats(0, 1e8), st.floats(0.01, 10))
def test_least_blocks_fit_into_the_budget(sample_us: float, seconds: float) -> None:
    samples = blocks.samples_in_block(sample_us, seconds)
    assert 1 <= samples <= 500
    assert samples == 1 or samples * sample_us * blocks.LEAST_BLOCKS <= 1e6 * seconds * (1 + 1e-9)


def test_calls_in_a_sample_shrink_only_when_it_would_last_for_ever() -> None:
    assert blocks.calls_in_sample(64, 20.0) == 64
    assert blocks.calls_in_sample(64, 1_000.0) == 64
    assert blocks.calls_in_sample(64, 10_000.0) == 10
    assert blocks.calls_in_sample(64, 1e7) == 1


def test_warm_up_is_five_calls_and_25_milliseconds() -> None:
    device = FakeDevice(session_noise=0, seed=1)
    calls = []

    def short() -> None:
        calls.append(1)
        device.host_us += 100

    assert blocks.warm_up(short, device, seconds=1) == pytest.approx(100, rel=0.01)
    assert 240 <= len(calls) <= 250

    calls.clear()

    def long() -> None:
        calls.append(1)
        device.host_us += 100_000

    blocks.warm_up(long, device, seconds=1)
    assert len(calls) == 5
    calls.clear()
    blocks.warm_up(long, device, seconds=0.15)
    assert len(calls) == 2


def test_warm_up_ends_without_a_clock_that_moves() -> None:
    class Still(FakeDevice):
        def now_us(self) -> float:
            return 0.0

    assert blocks.warm_up(lambda: None, Still(seed=1), seconds=1) == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled: bool) -> None:
    try:
        if not enabled:
            gc.disable()
        with blocks.collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
