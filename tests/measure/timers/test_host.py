"""Host time per call behind a sleeping device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfguard.measure.devices import fake
from perfguard.measure.timers import host
from perfguard.measure.timers.blocks import collect
from perfguard.measure.timers.timing import Workload
from tests.measure.timers.metering import measured, quiet


def kernels(count: int, us: float, host_us: float) -> Callable[[], None]:
    def call() -> None:
        for _ in range(count):
            fake.launch("kernel", us=us, host_us=host_us)

    return call


@pytest.mark.parametrize("us", [1.0, 500.0])
def test_device_time_does_not_enter(us: float) -> None:
    timing = measured(host, kernels(1, us=us, host_us=30.0), quiet())
    assert timing.timer == "host-low-u16"
    assert timing.value_us == pytest.approx(30.0)
    assert timing.samples * len(timing.blocks) >= 3


@pytest.mark.parametrize(("us", "calls"), [(590.0, 16), (1_200.0, 8), (12_000.0, 4)])
def test_long_calls_are_fewer(us: float, calls: int) -> None:
    """What the device takes for a group is waited for."""
    timing = measured(host, kernels(1, us=us, host_us=30.0), quiet())
    assert timing.timer == f"host-low-u{calls}"
    assert timing.value_us == pytest.approx(30.0)


def test_calls_halve_where_the_queue_is_too_short() -> None:
    timing = measured(host, kernels(10, us=1.0, host_us=3.0), quiet(queue_depth=100))
    assert timing.timer == "host-low-u8"
    assert timing.value_us == pytest.approx(30.0)


def test_call_that_waits_for_the_device_says_so() -> None:
    device = quiet()

    def waits() -> None:
        fake.launch("kernel", us=100.0, host_us=5.0)
        device.synchronize()

    timing = measured(host, waits, device)
    assert timing.timer == "host-low-u16-blocked"
    assert timing.value_us > 100
    assert "includes device time" in timing.note


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
    assert measured(host, kernels(1, us=1.0, host_us=5.0), quiet(), stored=stored).timer == timer


def test_other_work_on_the_host_only_adds() -> None:
    """Of five groups the lowest counts: a process that has waited for its turn finds its caches cold."""
    device, calls = quiet(), [0]

    def call() -> None:
        calls[0] += 1
        fake.launch("kernel", us=1.0, host_us=5.0 if calls[0] % 48 >= 16 else 100.0)

    timing = measured(host, call, device)
    assert timing.blocks == pytest.approx([5.0] * len(timing.blocks))


def test_eight_blocks_find_the_floor() -> None:
    device, calls = quiet(), [0]

    def call() -> None:
        calls[0] += 1
        fake.launch("kernel", us=1.0, host_us=5.0)

    workload = Workload(call, warmed=[6.0])
    meter = host.prepare(workload, device, seconds=1.0, stored=None)
    blocks = collect("host_time_us", meter, device, 1.0)
    assert len(blocks.times) == 3
    assert calls[0] == 4 + 16 + 8 * 5 * 16  # four calls tell how long the device must sleep, a group proves it
