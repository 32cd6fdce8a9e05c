"""Shuffled passes: every case gets its blocks apart in time, within memory and time."""

from __future__ import annotations

import pytest

from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.timers.interleaved import Interleaved
from perfguard.measure.timers.timing import Blocks, Meter
from perfguard.model.errors import MeasurementError

METRIC = "device_time_us"


class Suite:
    """Meters by name that note their blocks in one diary; a block takes 10 ms."""

    def __init__(self) -> None:
        self.device = FakeDevice(seed=1)
        self.session = Interleaved(self.device)
        self.diary: list[str] = []

    def measure(
        self,
        name: str,
        *,
        bytes: int = 0,
        fails_from: int = 10**6,
        seconds: float = 1.0,
        block_us: float = 10_000,
        in_pass: int = 3,
    ) -> Blocks:
        def block() -> float | None:
            self.diary.append(name)
            self.device.host_us += block_us
            count = self.diary.count(name)
            return 10.0 + 0.1 * count if count < fails_from else None

        meter = Meter("queue-cold", block, 0.05, 5, bytes=bytes, in_pass=in_pass)
        return self.session.of(name)(METRIC, meter, self.device, seconds)


def test_three_passes_of_three_blocks_with_all_cases_in_each() -> None:
    suite = Suite()
    names = [f"case{index}" for index in range(8)]
    firsts = {name: suite.measure(name) for name in names}
    assert all(len(first.times) == 3 for first in firsts.values())
    found = suite.session.finish()
    assert set(found) == {(name, METRIC) for name in names}
    for name in names:
        assert len(found[name, METRIC].times) == 9
        assert found[name, METRIC].times[:3] == firsts[name].times
    passes = [suite.diary[start : start + 24 : 3] for start in (0, 24, 48)]
    assert all(sorted(order) == names for order in passes)
    assert len({tuple(order) for order in passes}) == 3  # shuffled


def test_meters_beyond_a_quarter_of_the_memory_get_their_blocks_at_once() -> None:
    suite = Suite()
    quarter = (suite.device.identity.memory_bytes or 0) // 4
    suite.measure("large", bytes=quarter)
    assert len(suite.measure("second", bytes=1).times) > 3  # as many as the restless blocks need
    assert set(suite.session.finish()) == {("large", METRIC)}
    assert suite.diary.count("large") == 9


def test_a_pass_takes_its_share_of_the_time() -> None:
    suite = Suite()
    assert len(suite.measure("slow", seconds=1.0, block_us=400_000).times) == 1
    assert len(suite.session.finish()["slow", METRIC].times) == 3


@pytest.mark.parametrize(("block_us", "count"), [(10_000, 9), (20_000, 6), (60_000, 3)])
def test_long_blocks_are_fewer(block_us: float, count: int) -> None:
    suite = Suite()
    suite.measure("case", block_us=block_us)
    assert len(suite.session.finish()["case", METRIC].times) == count


def test_a_meter_that_asks_for_one_block_a_pass_gets_three_in_all() -> None:
    suite = Suite()
    assert len(suite.measure("case", in_pass=1).times) == 1
    assert len(suite.session.finish()["case", METRIC].times) == 3


def test_blocks_that_fail_later_are_counted() -> None:
    suite = Suite()
    suite.measure("case", fails_from=5)
    assert suite.session.finish() == {("case", METRIC): Blocks(pytest.approx((10.1, 10.2, 10.3, 10.4)), 3)}  # type: ignore[arg-type]


def test_nothing_readable_is_an_error_at_once_and_nothing_is_kept() -> None:
    suite = Suite()
    with pytest.raises(MeasurementError, match="device_time_us: 3 blocks"):
        suite.measure("case", fails_from=1)
    assert suite.session.finish() == {}


def test_the_end_lets_go_of_the_meters() -> None:
    suite = Suite()
    suite.measure("case")
    suite.session.finish()
    assert suite.session.finish() == {}
