"""The last resort: the time includes host time, and says so."""

from __future__ import annotations

import pytest

from perfguard.measure.devices import fake
from perfguard.measure.timers import hostbound
from perfguard.measure.timers.timing import Cache
from tests.measure.timers.metering import measured, quiet


@pytest.mark.parametrize(("cache", "timer"), [("cold", "queue-cold-hostbound"), ("warm", "queue-warm-u16-hostbound")])
def test_both_launches_are_in_the_time(cache: Cache, timer: str) -> None:
    device = quiet()

    def waits() -> None:
        fake.launch("first", us=10, host_us=30)
        device.synchronize()
        fake.launch("second", us=10, host_us=30)

    timing = measured(hostbound, waits, device, cache=cache)
    assert timing.timer == timer
    assert timing.value_us > 40
    assert "includes host time" in timing.note


@pytest.mark.parametrize(
    ("stored", "timer"),
    [
        ("queue-warm-u8-hostbound", "queue-warm-u8-hostbound"),
        ("queue-cold-hostbound", "queue-warm-u32-hostbound"),  # of the other cache state
        ("queue-warm-u0-hostbound", "queue-warm-u32-hostbound"),
        ("queue-warm-u999-hostbound", "queue-warm-u32-hostbound"),
        ("queue-warm-u8", "queue-warm-u32-hostbound"),
    ],
)
def test_stored_id(stored: str, timer: str) -> None:
    def call() -> None:
        fake.launch("kernel", us=10, host_us=30)

    assert measured(hostbound, call, quiet(), cache="warm", stored=stored).timer == timer
