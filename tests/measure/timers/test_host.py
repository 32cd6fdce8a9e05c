"""Host time per call behind a sleeping device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfguard.measure.timers import host
from perfguard.measure.timers.blocks import collect
from perfguard.measure.timers.timing import Workload
from perfguard.testing import fake
from tests.measure.timers.metering import measured, quiet


def kernels(count: int, us: float, host_us: float) -> Callable[[], None]:
    def call() -> None:
        for _ in range(count):
            fake.launch("kernel", us=us, host_us=host_us)

    return call


@pytest.mark.parametrize(
    ("launches", "us", "depth", "calls"),
    [
        (1, 1.0, 1024, 16),
        (1, 590.0, 1024, 16),
        (1, 1_200.0, 1024, 8),  # a group of 16 would last 20 ms, and twice that is waited for
        (1, 12_000.0, 1024, 4),
        (10, 1.0, 100, 8),  # 16 do not fit into the queue
    ],
)
def test_device_time_does_not_enter(launches: int, us: float, depth: int, calls: int) -> None:
    reading = measured(host.prepare, kernels(launches, us, 30.0 / launches), quiet(queue_depth=depth))
    assert reading.timer == f"host-low-u{calls}"
    assert reading.value == pytest.approx(30.0)


def test_a_call_that_waits_for_the_device_says_so() -> None:
    device = quiet()

    def waits() -> None:
        fake.launch("kernel", us=100.0, host_us=5.0)
        device.synchronize()

    reading = measured(host.prepare, waits, device)
    assert reading.timer == "host-low-u16-blocked"
    assert (reading.value or 0) > 100
    assert "includes device time" in reading.note


@pytest.mark.parametrize(
    ("stored", "timer"),
    [
        ("host-low-u32", "host-low-u32"),
        ("host-low-u16-blocked", "host-low-u16-blocked"),
        ("host-low-u2", "host-low-u16"),  # below four calls nothing is proven
        ("host-low-u999", "host-low-u16"),
        ("queue-cold", "host-low-u16"),
        (None, "host-low-u16"),
    ],
)
def test_stored_id(stored: str | None, timer: str) -> None:
    assert measured(host.prepare, kernels(1, us=1.0, host_us=5.0), quiet(), stored=stored).timer == timer


def test_the_lowest_of_five_groups_counts() -> None:
    """Other work on the host only adds time: a process that has waited for its turn finds its caches cold."""
    device, calls = quiet(), [0]

    def call() -> None:
        calls[0] += 1
        fake.launch("kernel", us=1.0, host_us=5.0 if calls[0] % 48 >= 16 else 100.0)

    reading = measured(host.prepare, call, device)
    assert reading.blocks == pytest.approx([5.0] * len(reading.blocks))


def test_eight_blocks_find_the_floor() -> None:
    device, calls = quiet(), [0]

    def call() -> None:
        calls[0] += 1
        fake.launch("kernel", us=1.0, host_us=5.0)

    meter = host.prepare(Workload(call, warmed=[6.0]), device, seconds=1.0, stored=None)
    assert len(collect("host_time_us", meter, device, 1.0).times) == 3
    assert calls[0] == 4 + 16 + 8 * 5 * 16  # four calls estimate the sleep, a group proves it
