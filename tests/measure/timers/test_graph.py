"""Device time by graphs: the host never enters, copies rotate, and what cannot be captured is left to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.measure.devices import fake
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers import graph
from perfguard.measure.timers.timing import Cache, Meter, Timing, Workload
from perfguard.model.errors import DeviceError
from tests.measure.timers.metering import measured, quiet, timed

MIB = 2**20
MUCH = 2**40  # bytes: overfills any cache in one call


def kernel(us: float = 10.0, host_us: float = 30.0) -> Callable[[], None]:
    return lambda: fake.launch("kernel", us=us, host_us=host_us)


def prepared(
    call: Callable[[], object], device: FakeDevice, *, bytes: int = MUCH, stored: str | None = None
) -> Meter | None:
    return graph.prepare(Workload(call, "cold", None, bytes), device, seconds=0.1, stored=stored)


@settings(max_examples=8, deadline=None)
@given(us=st.floats(1.0, 3000.0), host_us=st.floats(1.0, 100.0), cache=st.sampled_from(["cold", "warm"]))
def test_any_kernel_reads_its_own_time(us: float, host_us: float, cache: Cache) -> None:
    timing = measured(graph, kernel(us, host_us), quiet(), cache=cache, seconds=0.05, bytes=MUCH)
    assert timing.value_us == pytest.approx(us, rel=1e-6)


def test_more_launches_than_a_queue_holds() -> None:
    def many() -> None:
        for _ in range(2000):
            fake.launch("kernel", us=0.1, host_us=2)

    assert measured(graph, many, quiet(), cache="warm").value_us == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("us", "timer"),
    [
        (0.5, "graph-warm-u256"),
        (7.9, "graph-warm-u128"),
        (300.0, "graph-warm-u4"),
        (5000.0, "graph-warm-u1"),
    ],
)
def test_calls_fill_a_millisecond(us: float, timer: str) -> None:
    assert measured(graph, kernel(us, host_us=5), quiet(), cache="warm", seconds=0.1).timer == timer


@given(st.integers(1, 2**36), st.integers(1, 2**30))
def test_copies_fill_the_cache_five_times(bytes: int, cache: int) -> None:
    copies = graph.copies_for_cold(bytes, cache)
    if copies is None:
        assert 254 * bytes < 5 * cache
    elif copies == 1:
        assert bytes >= 5 * cache
    else:
        assert (copies - 1) * bytes >= 5 * cache
        assert copies & (copies - 1) == 0
        assert (copies // 2 - 1) * bytes < 5 * cache


def test_copies_of_unknown_sizes() -> None:
    assert graph.copies_for_cold(0, MIB) is None
    assert graph.copies_for_cold(MIB, 0) is None


class Copies:
    """Makes copies that count their calls."""

    def __init__(self, us: float = 10.0) -> None:
        self.us = us
        self.called: list[int] = []

    def __call__(self, count: int) -> Sequence[Callable[[], object]]:
        self.made = count
        return [lambda index=index: self.call(index) for index in range(count)]  # type: ignore[misc]

    def call(self, index: int) -> None:
        self.called.append(index)
        fake.launch("kernel", us=self.us)


def test_cold_calls_rotate_over_their_copies() -> None:
    copies = Copies(us=100.0)
    timing = measured(graph, kernel(100), quiet(cache_bytes=32 * MIB), copies=copies, bytes=16 * MIB)
    # ceil(5 * 32 / 16) + 1 = 11 copies; 1 ms takes 16 calls of 100 µs
    assert timing.timer == "graph-cold-u16-r16"
    assert copies.made == 16
    assert copies.called[-16:] == list(range(16))  # captured last


def test_there_are_at_least_as_many_calls_as_copies() -> None:
    timing = measured(graph, kernel(2000), quiet(cache_bytes=32 * MIB), copies=Copies(2000.0), bytes=16 * MIB)
    assert timing.timer == "graph-cold-u16-r16"
    assert timing.value_us == pytest.approx(2000.0)


def test_what_cannot_be_made_cold_is_left_to_others() -> None:
    device = quiet(cache_bytes=32 * MIB)
    assert prepared(kernel(), device, bytes=16 * MIB) is None  # no copies to be had
    workload = Workload(kernel(), "cold", Copies(), bytes=1000)  # thousands of copies
    assert graph.prepare(workload, device, seconds=0.1, stored=None) is None
    assert prepared(kernel(), device, bytes=0) is None


def test_copies_that_do_not_fit_are_left_to_others() -> None:
    def full(count: int) -> Sequence[Callable[[], object]]:
        raise DeviceError("inputs: 8 copies do not fit")

    workload = Workload(kernel(), "cold", full, bytes=32 * MIB)
    assert graph.prepare(workload, quiet(cache_bytes=32 * MIB), seconds=0.1, stored=None) is None


@pytest.mark.parametrize(
    ("stored", "timer"),
    [
        ("graph-cold-u8-r4", "graph-cold-u8-r4"),
        ("graph-cold-u8-r1", "graph-cold-u8-r1"),
        ("graph-cold-u4-r8", "graph-cold-u128-r16"),  # more copies than calls
        ("graph-cold-u999-r8", "graph-cold-u128-r16"),
        ("graph-warm-u8", "graph-cold-u128-r16"),
        ("queue-cold", "graph-cold-u128-r16"),
    ],
)
def test_stored_id(stored: str, timer: str) -> None:
    device = quiet(cache_bytes=32 * MIB)
    timing = measured(graph, kernel(), device, copies=Copies(), bytes=16 * MIB, stored=stored)
    assert timing.timer == timer
    assert timing.value_us == pytest.approx(10.0)


def test_a_slower_candidate_keeps_its_id() -> None:
    timing = measured(graph, kernel(us=20_000), quiet(), cache="warm", stored="graph-warm-u256")
    assert timing.timer == "graph-warm-u256"
    assert timing.value_us == pytest.approx(20_000)


def waits() -> None:
    fake.launch("kernel")
    device = fake.current()
    assert device is not None
    device.synchronize()


def refuses() -> None:
    fake.launch("kernel", capturable=False)


@pytest.mark.parametrize("call", [waits, refuses])
def test_what_cannot_be_captured_is_left_to_others(call: Callable[[], object]) -> None:
    device = quiet()
    assert prepared(call, device) is None
    assert prepared(kernel(), device) is not None  # the device is as usable as before


def test_an_error_outside_the_capture_is_raised() -> None:
    def broken() -> None:
        raise RuntimeError("out of registers")

    with pytest.raises(RuntimeError, match="out of registers"):
        prepared(broken, quiet())


def test_blocks_of_several_meters_alternate() -> None:
    device = quiet()
    fast, slow = prepared(kernel(10), device), prepared(kernel(20), device)
    assert fast is not None
    assert slow is not None
    found = [(fast.block(), slow.block()) for _ in range(3)]
    for pair in found:
        assert pair == pytest.approx((10.0, 20.0))


def test_kept_memory_is_known() -> None:
    device = quiet(cache_bytes=32 * MIB)
    meter = graph.prepare(Workload(kernel(), "cold", Copies(), 16 * MIB), device, seconds=0.1, stored=None)
    assert meter is not None
    assert meter.bytes == 17 * 16 * MIB  # 16 copies, and the case's own


def test_a_screen_costs_little_device_time() -> None:
    device = FakeDevice(seed=1)
    started = device.now_us()
    meter = prepared(kernel(us=3, host_us=10), device)
    assert meter is not None
    timing: Timing = timed(meter, device, 1.0)
    assert timing.value_us == pytest.approx(3.0, rel=0.02)
    assert device.now_us() - started < 0.2e6
