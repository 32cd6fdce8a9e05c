"""Blocks: how many, when to stop, which are dropped."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.measure.devices.cpu import CpuDevice
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers import blocks
from perfguard.measure.timers.timing import Meter, Workload
from perfguard.model.errors import MeasurementError
from perfguard.model.records import Conditions


class AskedFake(FakeDevice):
    """Counts how often it is asked for its conditions."""

    asked = 0

    def conditions(self) -> Conditions:
        self.asked += 1
        return super().conditions()


def gather(
    device: FakeDevice,
    times: Sequence[float | None],
    *,
    seconds: float = 1.0,
    reason: str = "",
    block_us: float = 10_000,
) -> blocks.Blocks:
    """Collects blocks of 10 ms with these times; a block above 10.5 µs comes with throttling for `reason`."""
    left = list(times)

    def block() -> float | None:
        median = left.pop(0)
        device.host_us += block_us
        hot = reason if median is not None and median > 10.5 else ""
        device.state = Conditions(throttle_reasons=[hot] if hot else [])
        return median

    return blocks.collect("device_time_us", Meter("queue-cold", block, 0.05, 5), device, seconds)


RESTLESS = [10.0, 10.2, 10.1, 10.3, 9.9, 10.2, 10.0, 10.4, 10.1, 10.0]


def test_settled_blocks_stop_early() -> None:
    device = AskedFake(seed=1)
    assert gather(device, [10.0] * 9) == blocks.Blocks((10.0,) * 3, 0)
    assert device.asked == 0


def test_restless_blocks_go_on_to_the_most() -> None:
    assert len(gather(FakeDevice(seed=1), RESTLESS).times) == blocks.MOST_BLOCKS


@pytest.mark.parametrize(("seconds", "count"), [(0.001, 3), (0.05, 5)])
def test_budget_ends_the_blocks_but_not_before_three(seconds: float, count: int) -> None:
    assert len(gather(FakeDevice(seed=1), RESTLESS, seconds=seconds).times) == count


@pytest.mark.parametrize(
    "reason",
    ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "Thermal limit"],
)
def test_throttled_blocks_are_dropped_counted_and_measured_again(reason: str) -> None:
    device = AskedFake(seed=1)
    found = gather(device, [10.0, 11.0, 10.0, 12.0, 10.0], reason=reason)
    assert found == blocks.Blocks((10.0, 10.0, 10.0), rejected=2)
    assert device.asked == 2


@pytest.mark.parametrize("reason", ["", "sw_power_cap", "power_cap", "applications_clocks_setting"])
def test_a_power_cap_drops_nothing(reason: str) -> None:
    found = gather(FakeDevice(seed=1), [10.0, 11.0, 10.0, 10.0, 10.0], reason=reason)
    assert found.rejected == 0
    assert 11.0 in found.times


def test_three_dropped_blocks_are_enough() -> None:
    found = gather(FakeDevice(seed=1), [10.0, *[11.0] * 9], reason="hw_slowdown")
    assert found == blocks.Blocks((10.0,), 3)


def test_a_block_that_cannot_be_read_is_rejected() -> None:
    found = gather(FakeDevice(seed=1), [10.0, None, 10.0, None, 10.0])
    assert found == blocks.Blocks((10.0, 10.0, 10.0), rejected=2)


def test_no_block_at_all_is_an_error_that_names_the_metric_and_the_next_step() -> None:
    with pytest.raises(MeasurementError, match=r"^device_time_us: 3 blocks by queue-cold .* run the case again$"):
        gather(FakeDevice(seed=1), [None] * 3)


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


@pytest.mark.parametrize(
    ("sample_us", "count"),
    [(10.0, 500), (1_000.0, 10), (2_500.0, 5), (5_000.0, 5), (8_000.0, 3), (12_800.0, 1), (1e5, 1)],
)
def test_a_block_is_10_ms_and_five_samples_where_these_are_short(sample_us: float, count: int) -> None:
    assert blocks.samples_in_block(sample_us, 1.0) == count


def test_a_cpu_has_five_samples_of_any_length() -> None:
    assert blocks.samples_in_block(50_000.0, 1.0, longest_us=math.inf) == 5


def test_a_device_of_its_own_gets_a_tenth_of_a_second_at_most() -> None:
    assert blocks.budget_us(FakeDevice(seed=1), 1.0) == 1e5
    assert blocks.budget_us(FakeDevice(seed=1), 0.05) == 5e4
    assert blocks.budget_us(CpuDevice(), 1.0) == 1e6


def test_long_blocks_are_three() -> None:
    assert len(gather(FakeDevice(seed=1), RESTLESS, block_us=60_000).times) == blocks.LEAST_BLOCKS


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


def test_a_workload_is_warmed_up_once_whoever_asks() -> None:
    device = FakeDevice(session_noise=0, seed=1)
    calls = []

    def call() -> None:
        calls.append(1)
        device.host_us += 1_000

    workload = Workload(call)
    first_us = blocks.warmed_up(workload, call, device, seconds=1)
    assert first_us == pytest.approx(1_000, rel=0.01)
    count = len(calls)
    assert count >= 25
    assert blocks.warmed_up(workload, call, device, seconds=1) == first_us
    assert len(calls) == count


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
