"""Replays of one captured call in a flushed cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest

from perfguard.measure.devices import fake
from perfguard.measure.timers import flushed
from perfguard.measure.timers.timing import Cache, Workload
from tests.measure.timers.metering import measured, quiet


def many(us: float = 2.0, count: int = 30, **options: bool) -> Callable[[], None]:
    def call() -> None:
        for _ in range(count):
            fake.launch("kernel", us=us, host_us=8.0, **options)  # type: ignore[arg-type]

    return call


def prepared(call: Callable[[], None], stored: str | None = None, cache: Cache = "cold") -> bool:
    return flushed.prepare(Workload(call, cache), quiet(), seconds=1.0, stored=stored) is not None


def test_host_time_and_flush_do_not_enter() -> None:
    timing = measured(flushed, many(), quiet())
    assert timing.timer == "graph-flushed-r16"
    assert timing.value_us == pytest.approx(60.0, rel=0.01)


def test_the_cache_is_flushed_before_each_replay() -> None:
    device, order = quiet(), []
    flush = device.flush_cache

    device.flush_cache = lambda: (order.append("flush"), flush())  # type: ignore[func-returns-value,method-assign]
    enqueue = device.enqueue

    def enqueued(*works_us: float, **options: object) -> float:
        if len(works_us) == 30:
            order.append("replay")
        return enqueue(*works_us, **options)  # type: ignore[arg-type]

    device.enqueue = enqueued  # type: ignore[method-assign,assignment]
    measured(flushed, many(), device)
    replays = [at for at, what in enumerate(order) if what == "replay"]
    assert len(replays) > 15
    assert sum(order[at - 1] == "flush" for at in replays) > 0.9 * len(replays)  # but for the warm-up


@pytest.mark.parametrize(
    ("call", "cache"),
    [(many(count=5), "cold"), (many(capturable=False), "cold"), (many(), "warm")],
    ids=["short", "not capturable", "needs no flush"],
)
def test_what_others_time_better(call: Callable[[], None], cache: Cache) -> None:
    assert not prepared(call, cache=cache)


def test_a_stored_id_is_used_for_a_call_that_became_short() -> None:
    assert prepared(many(count=5), stored="graph-flushed-r16")


@pytest.mark.parametrize(("count", "captures"), [(30, 16), (60, 16), (100, 8), (1000, 1)])
def test_longer_calls_need_fewer_captures(count: int, captures: int) -> None:
    assert measured(flushed, many(count=count), quiet()).timer == f"graph-flushed-r{captures}"


def test_a_stored_id_keeps_its_captures() -> None:
    assert measured(flushed, many(), quiet(), stored="graph-flushed-r4").timer == "graph-flushed-r4"


def test_a_time_that_belongs_to_the_capture_is_averaged() -> None:
    """Each capture keeps one of two times, as on an H200, where it depends on addresses."""
    device = quiet()
    capture, captured = device.capture, []

    def with_a_level(calls: Sequence[Callable[[], object]], keep: int) -> fake.FakeGraph:
        us = 58.0 if len(captured) % 4 == 0 else 62.0
        captured.append(us)
        return capture([many(us=us / 30)], keep)

    device.capture = with_a_level  # type: ignore[method-assign]
    timing = measured(flushed, many(), device)
    assert len(captured) == 16
    assert timing.value_us == pytest.approx(61.0, rel=0.002)
    assert timing.spread < 0.001


def test_replays_that_were_disturbed_are_left_out() -> None:
    """One replay in 37, so that most rounds hold none or one, and each capture meets it in turn."""
    device = quiet()
    enqueue, replays = device.enqueue, itertools.count()

    def enqueued(*works_us: float, **options: object) -> float:
        if len(works_us) == 30 and next(replays) % 37 == 0:
            works_us = tuple(20 * us for us in works_us)
        return enqueue(*works_us, **options)  # type: ignore[arg-type]

    device.enqueue = enqueued  # type: ignore[method-assign,assignment]
    timing = measured(flushed, many(), device)
    assert next(replays) > 37 * 10
    assert timing.value_us == pytest.approx(60.0, rel=0.002)


def test_each_capture_has_inputs_of_its_own() -> None:
    asked: list[int] = []

    def copies(count: int) -> list[Callable[[], None]]:
        asked.append(count)
        return [many() for _ in range(count)]

    measured(flushed, many(), quiet(), copies=copies)
    assert sum(asked) == 16
