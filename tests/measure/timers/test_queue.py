"""Device time behind a filled queue: the proof that the host was ahead, and the times that it allows."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.measure.devices.device import Event
from perfguard.measure.timers import queue
from perfguard.measure.timers.queue import FilledQueue, event_grid_us
from perfguard.measure.timers.timing import Cache, Workload
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice, FakeEvent
from tests.measure.timers.metering import measured, quiet


class StallingHost:
    """Enqueues kernels; the host stalls once for so many µs when told to."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.stalls: list[float] = []

    def __call__(self, count: int) -> int:
        if self.stalls:
            self.device.host_us += self.stalls.pop(0)
        for _ in range(count):
            fake.launch("kernel", us=1, host_us=10)
        return count


@pytest.mark.parametrize(
    ("depth", "stalls", "size", "sleep_us"),
    [
        (1024, [], 32, 640),  # twice as long as enqueueing
        (1024, [5_000.0, 0.0], 32, 1280),  # a stalled batch is dropped, and the sleep doubles
        (20, [], 16, 320),  # no sleep is long enough: half the batch, and a sleep that fits it
        (3, [], None, None),
    ],
)
def test_a_batch_is_proven_to_be_ahead_of_the_device(
    depth: int, stalls: list[float], size: int | None, sleep_us: float | None
) -> None:
    device = quiet(queue_depth=depth)
    enqueue = StallingHost(device)
    filled = FilledQueue(device, enqueue, size=32, smallest=4)
    enqueue.stalls = stalls
    batch = filled.run(enqueue)
    if size is None:
        assert batch is None
    else:
        assert batch == queue.FilledBatch(size, size, pytest.approx(10 * size))  # type: ignore[arg-type]
        assert filled.sleep_us == pytest.approx(sleep_us)


def test_the_grid_is_probed_once_for_each_device() -> None:
    first, second = quiet(), quiet()
    for device in (first, second):
        grid_us, after_probe_us = event_grid_us(device), device.host_us
        assert after_probe_us > 1_000
        assert 0 < event_grid_us(device) == grid_us < 0.02  # of a clock without a grid
        assert device.host_us == after_probe_us


def kernel(us: float = 10.0, host_us: float = 30.0) -> Callable[[], None]:
    return lambda: fake.launch("kernel", us=us, host_us=host_us)


class CountingFake(FakeDevice):
    """Counts its flushes and remembers its sleeps."""

    flushes = 0
    slept: tuple[float, ...] = ()

    def flush_cache(self) -> None:
        self.flushes += 1
        super().flush_cache()

    def sleep(self, microseconds: float) -> None:
        self.slept += (microseconds,)
        super().sleep(microseconds)


class CoarseEvent(FakeEvent):
    """Time stamps of a clock that ticks once in a microsecond."""

    def elapsed_us(self, end: Event) -> float:
        super().elapsed_us(end)
        assert isinstance(end, CoarseEvent)
        assert self._at_us is not None
        assert end._at_us is not None
        return float(int(end._at_us) - int(self._at_us))


class CoarseFake(FakeDevice):
    """A GPU with such a clock."""

    def event(self) -> FakeEvent:
        return CoarseEvent(self)


@settings(max_examples=10, deadline=None)
@given(us=st.floats(1.0, 3000.0), host_us=st.floats(1.0, 100.0), cache=st.sampled_from(["cold", "warm"]))
def test_any_kernel_reads_its_own_time_and_not_its_launch(us: float, host_us: float, cache: Cache) -> None:
    reading = measured(queue.prepare, kernel(us, host_us), quiet(), cache=cache, seconds=0.05)
    assert (reading.value, reading.note) == (pytest.approx(us, rel=1e-6), "")


def test_noise_of_launches_is_averaged_out() -> None:
    device = FakeDevice(session_noise=0, block_noise=0.001, launch_noise=0.02, seed=3)
    reading = measured(queue.prepare, kernel(us=10), device)
    assert reading.value == pytest.approx(10.0, rel=0.003)
    assert 0 < (reading.spread or 0) < 0.003


def test_cold_flushes_outside_the_pair_before_each_call_and_warm_never() -> None:
    cold = quiet(CountingFake, cache_bytes=512 * 2**20)  # a flush of a millisecond
    assert measured(queue.prepare, kernel(), cold, cache="cold", seconds=0.05).value == pytest.approx(10.0)
    assert cold.flushes > 40
    warm = quiet(CountingFake)
    assert measured(queue.prepare, kernel(), warm, cache="warm", seconds=0.05).timer == "queue-warm-u128"
    assert warm.flushes == 0


def test_a_call_that_waits_for_the_device_is_refused_after_a_quarter_second() -> None:
    device = CountingFake(seed=1)

    def waits() -> None:
        fake.launch("kernel", us=1000, host_us=30_000)
        device.synchronize()

    assert queue.prepare(Workload(waits), device, seconds=0.05, stored=None) is None
    assert max(device.slept) == 250_000


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_more_launches_than_the_queue_holds(cache: Cache) -> None:
    """On a real GPU it once took five seconds: long sleeps for batches that the queue could not hold."""

    def many(launches: int) -> Callable[[], object]:
        def call() -> None:
            for _ in range(launches):
                fake.launch("kernel", us=2.5, host_us=8)

        return call

    device = quiet(queue_depth=1024)  # 32 calls overfill it, a few do not
    reading = measured(queue.prepare, many(100), device, cache=cache, seconds=0.1)
    assert reading.value == pytest.approx(250)
    assert device.now_us() < 1e6
    overfull = Workload(many(200), cache)  # not even one call fits
    assert queue.prepare(overfull, quiet(queue_depth=100), seconds=0.05, stored=None) is None


def test_calls_per_pair_halve_until_they_fit() -> None:
    def ten() -> None:
        for _ in range(10):
            fake.launch("kernel", us=0.5, host_us=2)

    reading = measured(queue.prepare, ten, quiet(queue_depth=1024), cache="warm", seconds=0.05)
    assert reading.timer == "queue-warm-u64"  # 256 of 10 do not fit


@pytest.mark.parametrize(
    ("cache", "stored", "timer"),
    [
        ("warm", "queue-warm-u16", "queue-warm-u16"),
        ("warm", "queue-warm-u9999", "queue-warm-u128"),
        ("cold", "queue-warm-u64", "queue-cold"),  # of the other cache state
        ("cold", "queue-warm-u0", "queue-cold"),
        ("cold", "queue-cold-u4", "queue-cold"),
        ("cold", "graph-cold-u64-r16", "queue-cold"),  # of another timer
        ("cold", "queue-cold ", "queue-cold"),
        ("cold", "", "queue-cold"),
    ],
)
def test_stored_id(cache: Cache, stored: str, timer: str) -> None:
    reading = measured(queue.prepare, kernel(), quiet(), cache=cache, seconds=0.05, stored=stored)
    assert (reading.timer, reading.value) == (timer, pytest.approx(10.0))


def test_a_slower_candidate_keeps_its_id() -> None:
    slow = measured(queue.prepare, kernel(us=1000), quiet(), cache="warm", seconds=0.05, stored="queue-warm-u128")
    assert (slow.timer, slow.value) == ("queue-warm-u128", pytest.approx(1000.0))


@pytest.mark.parametrize(
    ("call", "cache", "value", "floor"),
    [
        (kernel(us=10), "cold", pytest.approx(10.0), pytest.approx(2.0)),
        (kernel(us=0.3), "warm", pytest.approx(0.3, rel=0.02), 0.05),  # over 256 calls
        (lambda: None, "cold", pytest.approx(1.0), pytest.approx(2.0)),  # no launch: one step of the clock
    ],
)
def test_a_coarse_clock_raises_the_floor(call: Callable[[], None], cache: Cache, value: Any, floor: Any) -> None:
    reading = measured(queue.prepare, call, quiet(CoarseFake), cache=cache, seconds=0.02)
    assert (reading.value, reading.floor) == (value, floor)


def test_long_calls_stay_near_the_budget() -> None:
    device = quiet()
    reading = measured(queue.prepare, kernel(us=60_000), device, seconds=1.0)
    assert len(reading.blocks) >= 3
    # warm-up (5 calls), estimate (two batches of 8), blocks (1 s) and a batch to size the sleep
    assert device.now_us() < 4e6


def test_an_exception_of_the_call_propagates_and_the_collector_is_back() -> None:
    def broken() -> None:
        raise RuntimeError("out of registers")

    with pytest.raises(RuntimeError, match="out of registers"):
        measured(queue.prepare, broken, quiet())
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("times", "turns", "expected"),
    [
        ([1.0, 2.0, 3.0, 6.0, 90.0], 1, 11 / 3),  # few long samples: neither the least nor the greatest
        ([1.0, 1.0, 1.0, 9.0], 1, 1.0),
        ([1.0] * 12 + [5.0] * 9, 1, 1.0),  # many short ones: the median
        ([1.0, 3.0, 1.0, 60.0, 20.0, 3.0], 2, 2.0),  # of two turns, the mean of their medians
    ],
)
def test_the_time_of_a_block(times: list[float], turns: int, expected: float) -> None:
    assert queue.middle(times, turns) == pytest.approx(expected)
