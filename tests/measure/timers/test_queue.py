"""Device time behind a filled queue: the host's time never enters, or the id says so."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.measure.devices import fake
from perfguard.measure.devices.device import Event
from perfguard.measure.devices.fake import FakeDevice, FakeEvent
from perfguard.measure.timers import queue
from perfguard.measure.timers.timing import Cache, Workload
from tests.measure.timers.metering import measured, quiet


def kernel(us: float = 10.0, host_us: float = 30.0) -> Callable[[], None]:
    return lambda: fake.launch("kernel", us=us, host_us=host_us)


def naive_pair_us(call: Callable[[], object], device: FakeDevice) -> float:
    start, end = device.event(), device.event()
    start.record()
    call()
    end.record()
    device.synchronize()
    return start.elapsed_us(end)


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


def test_short_kernel_reads_its_own_time_and_not_its_launch() -> None:
    device = quiet()
    assert naive_pair_us(kernel(us=10, host_us=30), device) > 30
    timing = measured(queue, kernel(us=10, host_us=30), device)
    assert timing.timer == "queue-cold"
    assert timing.value_us == pytest.approx(10.0)
    assert timing.note == ""


@settings(max_examples=15, deadline=None)
@given(us=st.floats(1.0, 3000.0), host_us=st.floats(1.0, 100.0), cache=st.sampled_from(["cold", "warm"]))
def test_any_kernel_reads_its_own_time(us: float, host_us: float, cache: str) -> None:
    timing = measured(queue, kernel(us, host_us), quiet(), cache=cache, seconds=0.05)  # type: ignore[arg-type]
    assert timing.value_us == pytest.approx(us, rel=1e-6)
    assert "hostbound" not in timing.timer


def test_noise_of_launches_is_averaged_out() -> None:
    device = FakeDevice(session_noise=0, block_noise=0.001, launch_noise=0.02, seed=3)
    timing = measured(queue, kernel(us=10), device)
    assert timing.value_us == pytest.approx(10.0, rel=0.003)
    assert 0 < timing.spread < 0.003


def test_cold_flushes_before_each_call_and_warm_never() -> None:
    cold, warm = CountingFake(seed=1), CountingFake(seed=1)
    measured(queue, kernel(), cold, cache="cold", seconds=0.05)
    assert cold.flushes > 100
    fake_timing = measured(queue, kernel(), warm, cache="warm", seconds=0.05)
    assert warm.flushes == 0
    assert fake_timing.timer == "queue-warm-u128"  # the power of two that makes 10 µs last 1 ms


def test_the_flush_is_not_in_the_reading() -> None:
    device = quiet(cache_bytes=512 * 2**20)  # a flush of a millisecond
    assert measured(queue, kernel(us=10), device, seconds=0.05).value_us == pytest.approx(10.0)


def refused(call: Callable[[], object], device: FakeDevice, cache: Cache = "cold") -> bool:
    return queue.prepare(Workload(call, cache), device, seconds=0.05, stored=None) is None


def test_call_that_waits_for_the_device_is_refused() -> None:
    device = quiet()

    def waits() -> None:
        fake.launch("first", us=10, host_us=30)
        device.synchronize()
        fake.launch("second", us=10, host_us=30)

    assert refused(waits, device)


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_more_launches_than_the_queue_holds(cache: Cache) -> None:
    def many(launches: int) -> Callable[[], object]:
        def call() -> None:
            for _ in range(launches):
                fake.launch("kernel", us=1, host_us=2)

        return call

    # 32 calls overfill the queue of 1024, a few do not
    timing = measured(queue, many(100), quiet(queue_depth=1024), cache=cache, seconds=0.05)
    assert timing.value_us == pytest.approx(100)
    # not even one call fits
    assert refused(many(2000), quiet(queue_depth=1024), cache)


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_call_of_many_launches_is_timed_within_the_budget(cache: str) -> None:
    """On a real GPU it once took five seconds: long sleeps for batches that the queue could not hold."""

    def hundred() -> None:
        for _ in range(100):
            fake.launch("kernel", us=2.5, host_us=8)

    device = quiet(queue_depth=1024)
    timing = measured(queue, hundred, device, cache=cache, seconds=1.0)  # type: ignore[arg-type]
    assert timing.value_us == pytest.approx(250.0)
    assert device.now_us() < 1e6


def test_calls_per_pair_halve_until_they_fit() -> None:
    def ten() -> None:
        for _ in range(10):
            fake.launch("kernel", us=0.5, host_us=2)

    device = quiet(queue_depth=1024)
    assert measured(queue, ten, device, cache="warm", seconds=0.05).timer == "queue-warm-u64"  # 256 of 10 do not fit


def test_stored_id_is_used_again() -> None:
    timing = measured(queue, kernel(us=10), quiet(), cache="warm", stored="queue-warm-u16")
    assert timing.timer == "queue-warm-u16"
    assert timing.value_us == pytest.approx(10.0)


def test_a_slower_candidate_keeps_its_id() -> None:
    fast = measured(queue, kernel(us=10), quiet(), cache="warm", seconds=0.05)
    slow = measured(queue, kernel(us=1000), quiet(), cache="warm", seconds=0.05, stored=fast.timer)
    assert slow.timer == fast.timer
    assert slow.value_us == pytest.approx(1000.0)


@pytest.mark.parametrize(
    "stored",
    [
        "queue-warm-u64",  # of the other cache state
        "queue-warm-u0",
        "queue-cold-u4",
        "graph-cold-u64-r16",  # of another timer
        "queue-cold-hostbound",
        "queue-cold ",
        "",
    ],
)
def test_stored_id_that_cannot_be_honoured(stored: str) -> None:
    assert measured(queue, kernel(), quiet(), seconds=0.05, stored=stored).timer == "queue-cold"


def test_stored_calls_beyond_all_bounds_are_refused() -> None:
    timing = measured(queue, kernel(), quiet(), cache="warm", seconds=0.05, stored="queue-warm-u9999")
    assert timing.timer == "queue-warm-u128"


def test_a_coarse_clock_raises_the_floor() -> None:
    device = CoarseFake(session_noise=0, block_noise=0, launch_noise=0, seed=1)
    assert measured(queue, kernel(us=10), device, seconds=0.05).floor_us == pytest.approx(2.0)


def test_kernel_below_the_grid_is_timed_over_many_calls() -> None:
    device = CoarseFake(session_noise=0, block_noise=0, launch_noise=0, seed=1)
    timing = measured(queue, kernel(us=0.3), device, cache="warm", seconds=0.05)
    assert timing.timer == "queue-warm-u256"
    assert timing.value_us == pytest.approx(0.3, rel=0.02)
    assert timing.floor_us == 0.05


def test_call_that_launches_nothing_reads_one_step_of_the_clock() -> None:
    device = CoarseFake(session_noise=0, block_noise=0, launch_noise=0, seed=1)
    assert measured(queue, lambda: None, device, seconds=0.01).value_us == pytest.approx(1.0)


def test_long_calls_stay_near_the_budget() -> None:
    device = quiet()
    started = device.now_us()
    timing = measured(queue, kernel(us=60_000), device, seconds=1.0)
    assert len(timing.blocks) >= 3
    # warm-up (5 calls), estimate (two batches of 8), blocks (1 s) and a batch to size the sleep
    assert device.now_us() - started < 4e6


def test_no_sleep_longer_than_a_quarter_second() -> None:
    device = CountingFake(seed=1)

    def waits() -> None:
        fake.launch("kernel", us=1000, host_us=30_000)
        device.synchronize()

    assert refused(waits, device)
    assert max(device.slept) == 250_000


def test_exception_of_the_call_propagates_and_the_collector_is_back() -> None:
    def broken() -> None:
        raise RuntimeError("out of registers")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="out of registers"):
        measured(queue, broken, quiet())
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("times", "turns", "expected"),
    [
        ([1.0, 2.0, 3.0, 6.0, 90.0], 1, 11 / 3),  # few long samples: neither the least nor the greatest
        ([1.0, 1.0, 1.0, 9.0], 1, 1.0),
        ([1.0] * 12 + [5.0] * 9, 1, 1.0),  # many short ones: the median
        ([1.0, 3.0, 1.0, 60.0, 20.0, 3.0], 2, 2.0),  # of two things by turns, the mean of their medians
    ],
)
def test_what_a_block_is_kept_as(times: list[float], turns: int, expected: float) -> None:
    assert queue.middle(times, turns) == pytest.approx(expected)
