"""The clock beside a block: what the processors ran at while the time was taken; the time stays as it was read."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from perfguard.measure.devices import fake
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.devices.fake_clock import FakeClock
from perfguard.measure.timers import graph, prepare_device_time
from perfguard.measure.timers.timing import Meter, Workload

MUCH = 2**40  # bytes: overfills any cache in one call


def device(*, mhz: float = 1000.0, noise: float = 0.0) -> FakeDevice:
    clock = FakeClock(0.7, mhz, noise)
    return FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1, clock=clock)


def meter(on: FakeDevice, us: float = 100.0, *, bytes: int = MUCH, capturable: bool = True) -> Meter:
    def call() -> None:
        fake.launch("kernel", us=us, host_us=5, capturable=capturable)

    return prepare_device_time(Workload(call, bytes=bytes), on, seconds=0.1)


@pytest.mark.parametrize("mhz", [800.0, 1100.0])
@pytest.mark.parametrize(
    ("timer", "bytes", "capturable"),
    [("graph-cold-u16-r1", MUCH, True), ("graph-flushed-r16", 0, True), ("queue-cold", MUCH, False)],
)
def test_a_block_is_raw_time_and_its_clock_stands_beside_it(
    mhz: float, timer: str, bytes: int, capturable: bool
) -> None:
    found = meter(device(mhz=mhz), bytes=bytes, capturable=capturable)
    assert found.timer == timer
    assert found.block() == pytest.approx(100.0 * (1000 / mhz) ** 0.7)
    assert found.clock_mhz() == pytest.approx(mhz)


def test_the_clock_is_the_last_blocks_and_explains_its_time() -> None:
    found = meter(device(noise=0.04))
    clocks = []
    for _ in range(5):
        block_us, mhz = found.block(), found.clock_mhz()
        assert block_us is not None
        assert mhz is not None
        assert math.log(block_us / 100) == pytest.approx(-0.7 * math.log(mhz / 1000), abs=0.005)
        clocks.append(mhz)
    assert len(set(clocks)) == 5
    assert found.clock_mhz() == clocks[-1]


def test_nobody_tells_before_the_first_block() -> None:
    assert meter(device()).clock_mhz() is None


@pytest.mark.parametrize("us", [100.0, 5.0])
def test_nobody_tells_on_a_device_without_a_clock(us: float) -> None:
    found = meter(FakeDevice(seed=1), us)
    assert found.block() is not None
    assert found.clock_mhz() is None


def test_the_profiler_tells_no_clock() -> None:
    found = meter(device(), 5.0, capturable=False)
    assert (found.timer, found.block() is None, found.clock_mhz()) == ("profile-cold", False, None)


def test_a_block_that_cannot_be_read_has_no_clock() -> None:
    """The host falls behind: neither the time nor the clock is the block's before."""
    on = device()
    slow = [False]

    def call() -> None:
        fake.launch("kernel", us=100.0, host_us=5)

    found = graph.prepare(Workload(call, bytes=MUCH), on, seconds=0.1, stored=None)
    assert found is not None
    assert found.block() is not None
    enqueue: Callable[..., float] = on.enqueue

    def behind(*works_us: float, **options: object) -> float:
        done = enqueue(*works_us, **options)
        if slow[0]:
            on.host_us = max(on.host_us, done)
        return done

    on.enqueue = behind  # type: ignore[method-assign]
    slow[0] = True
    assert found.block() is None
    assert found.clock_mhz() is None
