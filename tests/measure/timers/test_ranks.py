"""The time of a call that several simulated devices make together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

import pytest

from perfguard.measure.metrics.rank_times import measure
from perfguard.measure.timers.timing import Cache
from perfguard.testing import FakeDevice
from tests.measure.simulated_ranks import IDLE_US, MEETING_US, SPREAD_US, Simulated, on_ranks

Part = Callable[[Simulated, int], object]  # what a rank does in its call with this number


def timed(part: Part, cache: Cache = "warm", before_us: float = 2.0) -> tuple[str, float, str]:
    """What two ranks read, which is one: the timer, the time, the note. Hosts take `before_us` for what precedes the
    part that is timed."""

    def body(rank: Simulated) -> tuple[str, float, str]:
        calls = 0

        def within(around: AbstractContextManager[object]) -> None:
            nonlocal calls
            rank.device.enqueue(500.0, host_us=before_us)
            with around:
                part(rank, calls)
            rank.device.enqueue(500.0)
            calls += 1

        meter, blocks = measure(within, rank.ranks(cache), seconds=0.1)
        return meter.timer, median(blocks.times), meter.note

    one, other = on_ranks(2, body)
    assert one == other
    found: tuple[str, float, str] = one
    return found


def test_the_slowest_rank_counts_and_is_named() -> None:
    found = timed(lambda rank, _: rank.device.enqueue(30.0 + 20.0 * rank.rank))
    assert found == ("ranks-queue-warm-m12", pytest.approx(50.0), "rank 1 takes the longest")


def test_the_least_time_is_that_of_a_meeting_with_the_spread_of_the_start() -> None:
    _, time_us, _ = timed(lambda rank, _: rank.device_barrier())
    assert time_us == pytest.approx(MEETING_US + SPREAD_US)


def test_calls_count_one_by_one() -> None:
    """The median of the longest times, not the longest median: the ranks are slow by turns."""
    _, time_us, _ = timed(lambda rank, call: rank.device.enqueue(80.0 if call % 2 == rank.rank else 30.0))
    assert time_us == pytest.approx(80.0)


def test_devices_sleep_until_the_slowest_host_has_enqueued_its_part() -> None:
    timer, time_us, _ = timed(lambda rank, _: rank.device.enqueue(50.0, host_us=3_000.0 * rank.rank))
    assert (timer, time_us) == ("ranks-queue-warm-m12", pytest.approx(50.0))


def test_the_sleep_is_twice_what_the_slowest_host_takes_for_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """What precedes the part, and hosts that come late to their meeting, ask for no more."""
    asked: list[float] = []
    sleep = FakeDevice.sleep

    def noted(device: FakeDevice, microseconds: float) -> None:
        asked.append(microseconds)
        sleep(device, microseconds)

    monkeypatch.setattr(FakeDevice, "sleep", noted)
    timed(lambda rank, _: rank.device.enqueue(50.0, host_us=1_000.0 * rank.rank), before_us=50_000.0)
    assert asked[-1] == pytest.approx(2_000.0, rel=0.1)


def test_links_that_slept_are_awake_when_the_call_begins() -> None:
    """Their first exchanges after a long sleep are slow."""
    host_us = 20_000.0

    def part(rank: Simulated, _: int) -> None:
        rank.device_barrier()
        rank.device.enqueue(0.0, host_us=host_us)

    assert 2 * host_us > IDLE_US  # devices sleep for twice as long as hosts enqueue
    _, time_us, _ = timed(part)
    assert time_us == pytest.approx(MEETING_US + SPREAD_US)


def test_a_call_that_waits_for_its_device_is_timed_with_its_host_and_says_so() -> None:
    def waits(rank: Simulated, _: int) -> None:
        rank.device.enqueue(50.0)
        if rank.rank == 1:  # one is enough
            rank.device.synchronize()

    timer, _, note = timed(waits, "cold")
    assert timer == "ranks-host-cold-m12"
    assert "hosts wait for their devices" in note
