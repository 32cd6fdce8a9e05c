"""The simulated GPU behaves like one: a queue behind a clock, memory that is held, noise of a known size."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch

from perfguard.model.errors import DeviceError
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice
from tests.measure.timers.metering import quiet


def timed(device: FakeDevice, call: Callable[[], object], *, sleep_us: float = 0.0) -> tuple[float, bool]:
    """Device time of `call`, and whether its queue was full until everything was enqueued."""
    guard, start, end = device.event(), device.event(), device.event()
    if sleep_us:
        device.sleep(sleep_us)
    guard.record()
    start.record()
    call()
    end.record()
    full = not guard.query()
    device.synchronize()
    return start.elapsed_us(end), full


def test_a_full_queue_shows_the_kernel_and_an_empty_one_the_host() -> None:
    def slow_host() -> None:
        for _ in range(3):
            fake.launch("k", us=1.0, host_us=20.0)

    time_us, full = timed(quiet(), slow_host)
    assert not full
    assert time_us > 60
    assert timed(quiet(), slow_host, sleep_us=1000) == (pytest.approx(3.0), True)
    assert not timed(quiet(queue_depth=2), slow_host, sleep_us=1000)[1]  # the host waits for a place


def test_no_event_is_passed_before_its_time() -> None:
    device = quiet()
    start, end = device.event(), device.event()
    start.record()
    fake.launch("k", us=50.0)
    end.record()
    assert not end.query()
    with pytest.raises(DeviceError, match="synchronize"):
        start.elapsed_us(end)
    with pytest.raises(DeviceError, match="record"):
        start.elapsed_us(device.event())
    while not end.query():
        pass
    assert start.elapsed_us(end) >= 50


def test_launches_in_order_and_only_during_the_call() -> None:
    device = quiet()
    fake.launch("before")

    def call() -> None:
        fake.launch("a")
        device.flush_cache()
        fake.launch("b")

    assert device.activity(call).launches == ["a", "b"]
    assert not device.activity(lambda: None).launches


def test_memory_is_counted_and_ends() -> None:
    device = quiet()
    with fake.allocate(1000):

        def call() -> fake.Allocation:
            kept = fake.allocate(100)
            with fake.allocate(50):
                pass
            fake.allocate(20).free()
            return kept

        assert device.memory(call).peak == 150
    with fake.allocate(10 << 30):
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 8 GiB.* of which 6 GiB is free"):
            fake.allocate(8 << 30)
        with fake.allocate(6 << 30):
            pass
    assert device.memory(lambda: fake.allocate(16 << 30).free()).peak == 16 << 30


def test_session_noise_lies_between_instances_not_within() -> None:
    def session(seed: int | None) -> list[float]:
        device = FakeDevice(seed=seed)
        return [timed(device, lambda: fake.launch("k", us=100.0), sleep_us=50)[0] for _ in range(20)]

    sessions = [session(seed) for seed in range(60)]
    within = statistics.mean(statistics.stdev(session) for session in sessions)
    between = statistics.stdev(statistics.mean(session) for session in sessions)
    assert 0.1 < within < 0.2  # block 0.1 % and launch 0.1 % of 100 µs
    assert 0.15 < between < 0.27  # session 0.2 %
    assert session(3) == sessions[3]
    assert session(None) != session(None)


def test_calls_that_wait_for_the_device_cannot_be_captured() -> None:
    device = quiet()
    mark = device.event()
    for call in (device.synchronize, mark.query, lambda: fake.launch("k", capturable=False)):
        with pytest.raises(DeviceError, match=r"^fake-gpu: cannot be captured .*not permitted"):
            device.capture([call], keep=1)
        call()
        assert timed(device, lambda: fake.launch("k", us=10.0), sleep_us=100)[0] == pytest.approx(10.0)


def test_intervals_of_each_call_without_what_comes_before() -> None:
    device = quiet()

    def call() -> None:
        fake.launch("a", us=10.0, host_us=50.0)
        device.synchronize()
        fake.launch("b", us=5.0, host_us=50.0)

    found = device.intervals([call, lambda: None, call], device.flush_cache)
    assert [[round(end - start, 6) for start, end in call] for call in found] == [[10.0, 5.0], [], [10.0, 5.0]]
    (_, first_end), (second_start, _) = found[0]
    assert second_start >= first_end + 50


def test_a_fault_loses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(seed=1)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        fake.fault()
    for use in (device.synchronize, lambda: fake.launch("kernel")):
        with pytest.raises(RuntimeError, match="illegal memory access"):
            use()
    FakeDevice(seed=1).synchronize()
    monkeypatch.setattr(fake, "_current", None)
    fake.launch("k")  # without a device nothing is simulated
    fake.allocate(10).free()
