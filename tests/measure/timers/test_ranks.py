"""The time of a call that several simulated devices make together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

import pytest

from perfguard.measure.timers.ranks import Timed, measure
from perfguard.measure.timers.timing import Cache
from tests.measure.simulated_ranks import IDLE_US, MEETING_US, SPREAD_US, Simulated, on_ranks

Part = Callable[[Simulated, int], None]  # what a rank does in its call with this number


def timed(part: Part, cache: Cache = "warm", before_us: float = 2.0) -> Timed:
    """What two ranks read, which is one; hosts take `before_us` for what precedes the part that is timed."""

    def body(rank: Simulated) -> Timed:
        calls = 0

        def within(around: AbstractContextManager[object]) -> None:
            nonlocal calls
            rank.device.enqueue(500.0, host_us=before_us)
            with around:
                part(rank, calls)
            rank.device.enqueue(500.0)
            calls += 1

        return measure(within, rank.ranks(cache), seconds=0.1)

    one, other = on_ranks(2, body)
    assert (one.timer, one.call, one.least, one.notes) == (other.timer, other.call, other.least, other.notes)
    found: Timed = one
    return found


def test_the_slowest_rank_counts_and_is_named() -> None:
    found = timed(lambda rank, _: rank.device.enqueue(30.0 + 20.0 * rank.rank) and None)
    assert found.timer == "ranks-queue-warm-m12"
    assert median(found.call.times) == pytest.approx(50.0)
    assert found.notes == ["rank 1 takes the longest"]


def test_the_least_time_is_that_of_a_meeting_with_the_spread_of_the_start() -> None:
    found = timed(lambda rank, _: rank.device.enqueue(50.0) and None)
    assert found.least.times[0] == pytest.approx(MEETING_US + SPREAD_US)


def test_calls_count_one_by_one() -> None:
    """The median of the longest times, not the longest median: the ranks are slow by turns."""
    found = timed(lambda rank, call: rank.device.enqueue(80.0 if call % 2 == rank.rank else 30.0) and None)
    assert median(found.call.times) == pytest.approx(80.0)


def test_devices_sleep_until_the_slowest_host_has_enqueued_its_part() -> None:
    found = timed(lambda rank, _: rank.device.enqueue(50.0, host_us=3_000.0 * rank.rank) and None)
    assert found.timer == "ranks-queue-warm-m12"
    assert median(found.call.times) == pytest.approx(50.0)


def test_the_sleep_is_twice_what_the_slowest_host_takes_for_its_part() -> None:
    """What precedes the part, and hosts that come late to their meeting, ask for no more."""
    found = timed(lambda rank, _: rank.device.enqueue(50.0, host_us=1_000.0 * rank.rank) and None, before_us=50_000.0)
    assert found.ranks.sleep_us == pytest.approx(2_000.0, rel=0.1)


def test_links_that_slept_are_awake_when_the_call_begins() -> None:
    """Their first exchanges after a long sleep are slow."""
    found = timed(lambda rank, _: rank.device.enqueue(50.0, host_us=20_000.0) and None)
    assert found.ranks.sleep_us > IDLE_US
    assert found.least.times[0] == pytest.approx(MEETING_US + SPREAD_US)


def test_a_call_that_waits_for_its_device_is_timed_with_its_host_and_says_so() -> None:
    def waits(rank: Simulated, _: int) -> None:
        rank.device.enqueue(50.0)
        if rank.rank == 1:  # one is enough
            rank.device.synchronize()

    found = timed(waits, "cold")
    assert found.timer == "ranks-host-cold-m12"
    assert "hosts wait for their devices" in found.notes[1]
