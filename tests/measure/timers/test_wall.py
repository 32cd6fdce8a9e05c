"""Wall time, on a simulated host clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers import wall
from tests.measure.timers.metering import measured


class Cpu(FakeDevice):
    """A simulated device whose calls return when the work is done."""

    asynchronous = False


def quiet() -> Cpu:
    return Cpu(session_noise=0, block_noise=0, launch_noise=0, seed=1)


def busy(device: FakeDevice, us: float) -> Callable[[], None]:
    def call() -> None:
        device.host_us += us

    return call


@pytest.mark.parametrize(
    ("us", "timer"),
    [
        (2_000.0, "wall-u1"),
        (990.0, "wall-u2"),
        (80.0, "wall-u16"),
        (3.0, "wall-u512"),
        (0.001, "wall-u16384"),  # with the 0.1 µs that waiting for the device costs
    ],
)
def test_calls_per_sample_fill_a_millisecond(us: float, timer: str) -> None:
    device = quiet()
    timing = measured(wall, busy(device, us), device, seconds=0.05)
    assert timing.timer == timer
    assert timing.value_us == pytest.approx(us, rel=1e-3)


def test_stored_id_is_used_again_by_a_slower_candidate() -> None:
    device = quiet()
    timing = measured(wall, busy(device, 500.0), device, stored="wall-u64")
    assert timing.timer == "wall-u64"
    assert timing.value_us == pytest.approx(500.0)


def test_a_far_slower_candidate_keeps_its_id_and_the_budget() -> None:
    device = quiet()
    started = device.now_us()
    timing = measured(wall, busy(device, 10_000.0), device, seconds=1.0, stored="wall-u65536")
    assert timing.timer == "wall-u65536"
    assert timing.value_us == pytest.approx(10_000.0)
    assert device.now_us() - started < 2e6


@pytest.mark.parametrize("stored", ["wall-u0", "wall-u999999", "wall-16", "queue-cold", "", None])
def test_stored_id_that_cannot_be_honoured(stored: str | None) -> None:
    device = quiet()
    assert measured(wall, busy(device, 80.0), device, stored=stored).timer == "wall-u16"


def test_a_drifting_clock_is_seen_in_the_spread() -> None:
    device = quiet()
    cost = [100.0]

    def slower_and_slower() -> None:
        device.host_us += cost[0]
        cost[0] += 0.01

    timing = measured(wall, slower_and_slower, device, seconds=0.2)
    assert timing.spread > 0.001
    assert len(timing.blocks) > 3
