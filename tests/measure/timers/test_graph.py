"""Device time by graphs: the host never enters, copies rotate or the cache is flushed, the rest is left to others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfguard.measure.timers import graph
from perfguard.measure.timers.timing import Cache, Meter, Workload
from perfguard.model.errors import DeviceError
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice
from tests.measure.timers.metering import MUCH, measured, quiet, timed

MIB = 2**20


def kernel(us: float = 10.0, host_us: float = 30.0) -> Callable[[], None]:
    return lambda: fake.launch("kernel", us=us, host_us=host_us)


def prepared(
    call: Callable[[], object], device: FakeDevice, *, bytes: int = MUCH, stored: str | None = None
) -> Meter | None:
    return graph.prepare(Workload(call, "cold", None, bytes), device, seconds=0.1, stored=stored)


@settings(max_examples=8, deadline=None)
@given(us=st.floats(1.0, 3000.0), host_us=st.floats(1.0, 100.0), cache=st.sampled_from(["cold", "warm"]))
def test_any_kernel_reads_its_own_time(us: float, host_us: float, cache: Cache) -> None:
    reading = measured(graph.prepare, kernel(us, host_us), quiet(), cache=cache, seconds=0.05, bytes=MUCH)
    assert reading.value == pytest.approx(us, rel=1e-6)


def test_more_launches_than_a_queue_holds() -> None:
    def many() -> None:
        for _ in range(2000):
            fake.launch("kernel", us=1, host_us=2)

    reading = measured(graph.prepare, many, quiet(), cache="warm", seconds=0.05)
    assert reading.value == pytest.approx(2000.0)


@pytest.mark.parametrize(("us", "calls"), [(0.5, 256), (7.9, 128), (300.0, 4), (5000.0, 1)])
def test_calls_fill_a_millisecond(us: float, calls: int) -> None:
    reading = measured(graph.prepare, kernel(us, host_us=5), quiet(), cache="warm", seconds=0.1)
    assert reading.timer == f"graph-warm-u{calls}"


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


@pytest.mark.parametrize("us", [100.0, 2000.0])  # of the long ones, one would fill a millisecond
def test_cold_calls_rotate_over_their_copies(us: float) -> None:
    copies, device = Copies(us), quiet(cache_bytes=32 * MIB)
    workload = Workload(kernel(us), "cold", copies, 16 * MIB)
    meter = graph.prepare(workload, device, seconds=0.1, stored=None)
    assert meter is not None
    # ceil(5 * 32 / 16) + 1 = 11 copies; 1 ms takes 16 calls of 100 µs
    assert (meter.timer, copies.made) == ("graph-cold-u16-r16", 16)
    assert copies.called[-16:] == list(range(16))  # captured last
    assert meter.block() == pytest.approx(us)


def test_calls_that_cannot_be_made_cold_or_captured_are_left_to_others() -> None:
    def full(count: int) -> Sequence[Callable[[], object]]:
        raise DeviceError("inputs: 8 copies do not fit")

    def waits() -> None:
        fake.launch("kernel")
        device.synchronize()

    device = quiet(cache_bytes=32 * MIB)
    for workload in (
        Workload(kernel(), bytes=16 * MIB),  # no copies to be had, and too short for a flush
        Workload(kernel(), copies=Copies(), bytes=1000),  # thousands of copies
        Workload(kernel(), bytes=0),
        Workload(kernel(), copies=full, bytes=32 * MIB),
        Workload(waits, bytes=MUCH),
        Workload(lambda: fake.launch("kernel", capturable=False), bytes=MUCH),
    ):
        assert graph.prepare(workload, device, seconds=0.1, stored=None) is None
    assert prepared(kernel(), device) is not None  # the device is as usable as before


@pytest.mark.parametrize(
    ("stored", "timer"),
    [
        ("graph-cold-u8-r4", "graph-cold-u8-r4"),
        ("graph-cold-u8-r1", "graph-cold-u8-r1"),
        ("graph-cold-u4-r8", "graph-cold-u128-r16"),  # more copies than calls
        ("graph-cold-u4-r0", "graph-cold-u128-r16"),
        ("graph-cold-u999-r8", "graph-cold-u128-r16"),
        ("graph-warm-u8", "graph-cold-u128-r16"),
        ("queue-cold", "graph-cold-u128-r16"),
        ("graph-flushed-r4", "graph-flushed-r4"),
    ],
)
def test_stored_id(stored: str, timer: str) -> None:
    device = quiet(cache_bytes=32 * MIB)
    reading = measured(graph.prepare, kernel(), device, copies=Copies(), bytes=16 * MIB, stored=stored)
    assert (reading.timer, reading.value) == (timer, pytest.approx(10.0))


def test_a_slower_candidate_keeps_its_id() -> None:
    reading = measured(graph.prepare, kernel(us=20_000), quiet(), cache="warm", stored="graph-warm-u256")
    assert (reading.timer, reading.value) == ("graph-warm-u256", pytest.approx(20_000))


def test_an_error_outside_the_capture_is_raised() -> None:
    def broken() -> None:
        raise RuntimeError("out of registers")

    with pytest.raises(RuntimeError, match="out of registers"):
        prepared(broken, quiet())


def test_a_case_costs_little_device_time() -> None:
    device = FakeDevice(seed=1)
    meter = prepared(kernel(us=3, host_us=10), device)
    assert meter is not None
    assert timed(meter, device, 1.0).value == pytest.approx(3.0, rel=0.02)
    assert device.now_us() < 0.2e6


# Flushed: replays of one call, for calls on few bytes.


def many(us: float = 2.0, count: int = 30) -> Callable[[], None]:
    def call() -> None:
        for _ in range(count):
            fake.launch("kernel", us=us, host_us=8.0)

    return call


class Replayed(FakeDevice):
    """Notes flushes and replays of 30 launches; replay number n takes `longer(n)` times as long."""

    def __init__(self, longer: Callable[[int], float] = lambda _: 1.0) -> None:
        super().__init__(session_noise=0, block_noise=0, launch_noise=0, seed=1)
        self.notes: list[str] = []
        self.longer = longer

    def flush_cache(self) -> None:
        self.notes.append("flush")
        super().flush_cache()

    def enqueue(self, *works_us: float, **options: object) -> float:
        if len(works_us) == 30:
            works_us = tuple(self.longer(self.notes.count("replay")) * us for us in works_us)
            self.notes.append("replay")
        return super().enqueue(*works_us, **options)  # type: ignore[arg-type]


def test_host_time_and_flush_are_excluded_though_each_replay_follows_a_flush() -> None:
    device = Replayed()
    reading = measured(graph.prepare, many(), device, seconds=0.05)
    assert reading.timer == "graph-flushed-r16"
    assert reading.value == pytest.approx(60.0, rel=0.01)
    followed = [before == "flush" for before, note in itertools.pairwise(device.notes) if note == "replay"]
    assert len(followed) > 15
    assert sum(followed) > 0.9 * len(followed)  # but for the warm-up


@pytest.mark.parametrize(
    ("count", "stored", "timer"),
    [
        (5, None, None),  # short
        (5, "graph-flushed-r16", "graph-flushed-r16"),
        (30, "graph-flushed-r4", "graph-flushed-r4"),
        (30, None, "graph-flushed-r16"),
        (100, None, "graph-flushed-r8"),
        (1000, None, "graph-flushed-r1"),
    ],
)
def test_captures_fill_a_millisecond(count: int, stored: str | None, timer: str | None) -> None:
    meter = prepared(many(count=count), quiet(), bytes=0, stored=stored)
    assert (meter and meter.timer) == timer


def test_a_time_that_belongs_to_the_capture_is_averaged() -> None:
    """Each capture keeps one of two times, as on an H200, where it depends on addresses."""
    device = quiet()
    capture, captured = device.capture, []

    def with_a_level(calls: Sequence[Callable[[], object]], keep: int) -> fake.FakeGraph:
        us = 58.0 if len(captured) % 4 == 0 else 62.0
        captured.append(us)
        graph: fake.FakeGraph = capture([many(us=us / 30)], keep)
        return graph

    device.capture = with_a_level
    reading = measured(graph.prepare, many(), device)
    assert len(captured) == 16
    assert reading.value == pytest.approx(61.0, rel=0.002)
    assert (reading.spread or 0) < 0.001


def test_disturbed_replays_are_left_out() -> None:
    """One replay in 37, so that most rounds hold none or one, and each capture meets it in turn."""
    device = Replayed(lambda number: 20.0 if number % 37 == 0 else 1.0)
    reading = measured(graph.prepare, many(), device)
    assert device.notes.count("replay") > 37 * 10
    assert reading.value == pytest.approx(60.0, rel=0.002)


def test_each_capture_has_inputs_of_its_own() -> None:
    asked: list[int] = []

    def copies(count: int) -> list[Callable[[], None]]:
        asked.append(count)
        return [many() for _ in range(count)]

    measured(graph.prepare, many(), quiet(), copies=copies)
    assert sum(asked) == 16
