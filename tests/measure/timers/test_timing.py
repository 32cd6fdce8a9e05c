"""Readings of blocks, the choice of the timer, and the clock beside a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from perfguard.measure.devices.device import ClockMark, Device
from perfguard.measure.timers import all_timers, prepare_device_time
from perfguard.measure.timers.timing import Blocks, Meter, Workload, floor_us, spread
from perfguard.model.errors import MeasurementError
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice
from tests.measure.timers.metering import MUCH, device_time, quiet


def test_a_reading_is_the_median_of_its_blocks() -> None:
    meter = Meter("queue-cold", lambda: None, 0.05)
    reading = meter.reading("device_time_us", Blocks((10.0, 12.0, 11.0, 90.0), 1), promise=0.03)
    assert reading.value == 11.5
    assert (reading.blocks, reading.rejected_blocks) == ([10.0, 12.0, 11.0, 90.0], 1)
    assert (reading.metric, reading.timer, reading.floor) == ("device_time_us", "queue-cold", 0.05)
    assert (reading.spread, reading.promise) == (spread(reading.blocks), 0.03)
    coarse = meter.reading("host_time_us", Blocks((10.0,), 0), promise=0.03, floor=2.0)
    assert (coarse.promise, coarse.floor) == (pytest.approx(0.6), 2.0)


def test_spread_by_hand() -> None:
    blocks = [100.0, 100.0 * math.exp(0.01), 100.0 * math.exp(-0.02)]
    # deviations of the logs from their median 0: 0, 0.01, 0.02
    assert spread(blocks) == pytest.approx(1.4826 * 0.01 * 1.2533 / math.sqrt(3))


@pytest.mark.parametrize(
    ("grid_us", "calls", "floor"),
    [
        (0.032, 1, 0.064),  # one call per pair: two steps of an H200's clock
        (0.032, 64, 0.05),  # shared by 64 calls the grid is nothing; 50 ns remain
        (1.0, 8, 0.25),
    ],
)
def test_floor(grid_us: float, calls: int, floor: float) -> None:
    assert floor_us(grid_us, calls) == floor


class Cpu(FakeDevice):
    """A simulated device whose calls return when the work is done."""

    asynchronous = False
    captures = False


class Blind(FakeDevice):
    """A simulated GPU without graphs and profiler."""

    captures = False
    intervals = Device.intervals


def short() -> None:
    fake.launch("kernel", us=10.0, host_us=3.0)


def waits() -> None:
    fake.launch("kernel", us=50.0)
    device = fake.current()
    assert device is not None
    device.synchronize()


def long() -> None:
    fake.launch("kernel", us=50.0)


def long_and_not_capturable() -> None:
    fake.launch("kernel", us=50.0, capturable=False)


@pytest.mark.parametrize(
    ("kind", "call", "bytes", "timer"),
    [
        (FakeDevice, short, MUCH, "graph-cold-u128-r1"),
        (FakeDevice, long, 0, "graph-flushed-r16"),  # no number of copies makes it cold, but a flush does
        (FakeDevice, short, 0, "profile-cold"),  # nor is it long enough for a flush
        (FakeDevice, waits, MUCH, "profile-cold"),
        (FakeDevice, long_and_not_capturable, MUCH, "queue-cold"),
        (Blind, short, 0, "queue-cold"),
        (Cpu, short, 0, "cpu-u128"),
    ],
)
def test_the_call_decides_the_timer(kind: type[FakeDevice], call: Callable[[], object], bytes: int, timer: str) -> None:
    assert prepare_device_time(Workload(call, bytes=bytes), kind(seed=1), seconds=0.1).timer == timer


def test_a_call_that_waits_needs_the_profiler() -> None:
    with pytest.raises(MeasurementError, match=r"fake-gpu: no timer can time the call\. .*run `perfguard doctor`$"):
        device_time(waits, Blind(seed=1))


@pytest.mark.parametrize(
    ("stored", "timer"),
    [
        *((each, each) for each in ("graph-cold-u16-r1", "graph-cold-u64-r16", "graph-flushed-r16", "profile-cold")),
        ("queue-cold", "queue-cold"),
        ("cpu-u16", "graph-cold-u32-r1"),  # of another kind of device
        ("graph-warm-u64", "graph-cold-u32-r1"),
        ("graph-cold-u16-r1-c1530-e98", "graph-cold-u32-r1"),  # of an earlier version
        ("sundial", "graph-cold-u32-r1"),
    ],
)
def test_a_stored_timer_is_used_again_where_it_suits(stored: str, timer: str) -> None:
    copies = [long] * 16
    reading = device_time(
        long, FakeDevice(seed=1), seconds=0.1, stored=stored, bytes=MUCH, copies=lambda count: copies[:count]
    )
    assert reading.timer == timer


@pytest.mark.parametrize(
    ("timer", "count"),
    [
        *((each, 1) for each in ("graph-cold-u64-r16", "graph-warm-u64", "graph-flushed-r16", "profile-cold")),
        *((each, 1) for each in ("profile-warm", "queue-cold", "queue-warm-u64", "cpu-u16")),
        ("host-low-u16", 0),  # no device time
        ("wall-u16", 0),
    ],
)
def test_one_timer_understands_an_id(timer: str, count: int) -> None:
    assert sum(candidate.understands(timer) for candidate in all_timers()) == count


@dataclass(frozen=True)
class Mark:
    """A reading of a simulated clock, MHz."""

    mhz: float

    def mhz_until(self, end: ClockMark) -> float:
        assert isinstance(end, Mark)
        return (self.mhz + end.mhz) / 2


class Clocked(FakeDevice):
    """A GPU whose clock is redrawn whenever the host waits; kernel times follow it with an elasticity of 0.7."""

    mean_mhz, noise, now_mhz = 1000.0, 0.0, 1000.0

    def synchronize(self) -> None:
        super().synchronize()
        self.now_mhz = self.mean_mhz * self._random.gauss(1.0, self.noise)
        self.slowdown = (1000 / self.now_mhz) ** 0.7

    def clock_mark(self) -> Mark:
        return Mark(self.now_mhz)


def clocked(mhz: float = 1000.0, noise: float = 0.0) -> FakeDevice:
    device: Clocked = quiet(Clocked)
    device.mean_mhz, device.noise = mhz, noise
    return device


def meter(on: FakeDevice, us: float = 100.0, *, bytes: int = MUCH, capturable: bool = True) -> Meter:
    def call() -> None:
        fake.launch("kernel", us=us, host_us=5, capturable=capturable)

    return prepare_device_time(Workload(call, bytes=bytes), on, seconds=0.1)


@pytest.mark.parametrize("mhz", [800.0, 1100.0])
@pytest.mark.parametrize(("bytes", "capturable"), [(MUCH, True), (0, True), (MUCH, False)])
def test_a_block_is_raw_time_with_its_clock_beside_it(mhz: float, bytes: int, capturable: bool) -> None:
    found = meter(clocked(mhz), bytes=bytes, capturable=capturable)
    assert found.clock_mhz() is None  # before the first block
    assert found.block() == pytest.approx(100.0 * (1000 / mhz) ** 0.7)
    assert found.clock_mhz() == pytest.approx(mhz)


def test_the_clock_is_the_last_blocks_and_explains_its_time() -> None:
    found = meter(clocked(noise=0.04))
    clocks = []
    for _ in range(5):
        block_us, mhz = found.block(), found.clock_mhz()
        assert block_us is not None
        assert mhz is not None
        assert math.log(block_us / 100) == pytest.approx(-0.7 * math.log(mhz / 1000), abs=0.005)
        clocks.append(mhz)
    assert len(set(clocks)) == 5


@pytest.mark.parametrize(("made", "us"), [(quiet, 100.0), (clocked, 5.0)], ids=["no clock", "profiler"])
def test_no_clock_is_known(made: Callable[[], FakeDevice], us: float) -> None:
    found = meter(made(), us, capturable=us > 20)
    assert found.block() is not None
    assert found.clock_mhz() is None


def test_a_block_that_cannot_be_read_has_no_clock() -> None:
    """The host falls behind: neither the time nor the clock is the block's before."""
    on = clocked()
    found = meter(on)
    assert found.block() is not None
    enqueue: Callable[..., float] = on.enqueue

    def behind(*works_us: float, **options: object) -> float:
        done = enqueue(*works_us, **options)
        on.host_us = max(on.host_us, done)
        return done

    on.enqueue = behind  # type: ignore[method-assign]
    assert found.block() is None
    assert found.clock_mhz() is None
