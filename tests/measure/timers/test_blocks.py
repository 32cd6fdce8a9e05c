"""Blocks: how many, when to stop, which are dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from perfguard.measure.timers import blocks
from perfguard.measure.timers.timing import Blocks, Meter, Workload
from perfguard.model.errors import MeasurementError
from perfguard.model.records import Conditions
from perfguard.testing.fake import FakeDevice


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
) -> Blocks:
    """Collects blocks of 10 ms with these times; a block above 10.5 µs comes with throttling for `reason`."""
    left = list(times)

    def block() -> float | None:
        median = left.pop(0)
        device.host_us += block_us
        hot = reason if median is not None and median > 10.5 else ""
        device.state = Conditions(throttle_reasons=[hot] if hot else [])
        return median

    return blocks.collect("device_time_us", Meter("queue-cold", block, 0.05), device, seconds)


RESTLESS = [10.0, 10.2, 10.1, 10.3, 9.9, 10.2, 10.0, 10.4, 10.1, 10.0]


def test_settled_blocks_stop_early() -> None:
    device = AskedFake(seed=1)
    assert gather(device, [10.0] * 9) == Blocks((10.0,) * 3, 0)
    assert device.asked == 0


@pytest.mark.parametrize(
    ("seconds", "block_us", "count"),
    [
        (1.0, 10_000, 9),
        (0.05, 10_000, 5),
        (0.001, 10_000, 3),
        (1.0, 60_000, 3),  # a tenth of a second at most
    ],
)
def test_restless_blocks_go_on_until_the_time_is_over(seconds: float, block_us: float, count: int) -> None:
    assert len(gather(FakeDevice(seed=1), RESTLESS, seconds=seconds, block_us=block_us).times) == count


@pytest.mark.parametrize(
    "reason",
    ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "Thermal limit"],
)
def test_throttled_blocks_are_dropped_counted_and_measured_again(reason: str) -> None:
    device = AskedFake(seed=1)
    found = gather(device, [10.0, 11.0, 10.0, 12.0, 10.0], reason=reason)
    assert found == Blocks((10.0, 10.0, 10.0), rejected=2)
    assert device.asked == 2


@pytest.mark.parametrize("reason", ["", "sw_power_cap", "power_cap", "applications_clocks_setting"])
def test_a_power_cap_drops_nothing(reason: str) -> None:
    found = gather(FakeDevice(seed=1), [10.0, 11.0, 10.0, 10.0, 10.0], reason=reason)
    assert found.rejected == 0
    assert 11.0 in found.times


def test_three_dropped_blocks_are_enough() -> None:
    found = gather(FakeDevice(seed=1), [10.0, None, *[11.0] * 9], reason="hw_slowdown")
    assert found == Blocks((10.0,), 3)


@pytest.mark.parametrize(
    ("sample_us", "count"),
    [(10.0, 500), (1_000.0, 10), (2_500.0, 5), (5_000.0, 5), (8_000.0, 3), (12_800.0, 1), (1e5, 1)],
)
def test_a_block_is_10_ms_and_five_samples_where_these_are_short(sample_us: float, count: int) -> None:
    assert blocks.samples_in_block(sample_us, 1.0) == count
    assert blocks.samples_in_block(sample_us, 1.0, longest_us=math.inf) >= min(5, 1e6 // (3 * sample_us))  # on a CPU
    assert 3 * sample_us * blocks.samples_in_block(sample_us, 0.01) <= max(1e4, 3 * sample_us)  # within the time


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


def test_a_floor_is_reached_once_the_lowest_three_of_eight_blocks_agree() -> None:
    assert blocks.lowest([3.0, 1.0, 2.0, 5.0]) == (1.0, 2.0, 3.0)
    assert not blocks.agree([1.0] * 7, 0.01)
    assert blocks.agree([1.0] * 8, 0.01)
    burst = [3.0] * 20
    assert not blocks.agree([*burst, 1.0, 1.005], 0.01)
    assert blocks.agree([*burst, 1.0, 1.005, 1.009], 0.01)


def test_a_meter_whose_blocks_cannot_be_read_is_an_error() -> None:
    unreadable = Meter("queue-cold", lambda: None, 0.05)
    with pytest.raises(MeasurementError, match=r"^device_time_us: 3 blocks by queue-cold .* run the case again$"):
        blocks.collect("device_time_us", unreadable, FakeDevice(seed=1), 1.0)
