"""Times at one clock: on a device whose clock drifts, sessions agree, and a slower candidate is still found."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.hardware import fake
from perfguard.hardware.fake import FakeDevice
from perfguard.hardware.fake_clock import FakeClock
from perfguard.judge import timer_class
from perfguard.judge.explaining import machine_change
from perfguard.metrics import device_time
from perfguard.metrics.subject import Subject
from perfguard.records import Conditions, Provenance, Reading
from perfguard.timing.blocks import read_block
from perfguard.timing.clock import Correction, at_one_clock, fitted, split
from perfguard.timing.timing import Clocked, Meter, Stretch

MUCH = 2**40  # bytes: overfills any cache in one call
GRAPH = "graph-cold-u16-r1"


def block(us: float, mhz: float | None) -> Clocked:
    return Clocked((Stretch((us,), mhz),))


def kernel(us: float = 100.0, **options: bool) -> Callable[[], None]:
    return lambda: fake.launch("kernel", us=us, host_us=5, **options)


def device(elasticity: float = 0.7, *, mhz: float = 1000.0, noise: float = 0.04, seed: int = 1) -> FakeDevice:
    clock = FakeClock(elasticity, mhz, noise)
    return FakeDevice(session_noise=0, block_noise=0.001, launch_noise=0.001, seed=seed, clock=clock)


def read(call: Callable[[], object], on: FakeDevice, stored: str | None = None, bytes: int = MUCH) -> Reading:
    timers = {} if stored is None else {device_time.METRIC: stored}
    (reading,) = device_time.read(Subject(run=call, bytes=bytes, stored_timers=timers, seconds=0.1), on)
    return reading


def value(reading: Reading) -> float:
    assert isinstance(reading.value, float)
    return reading.value


def cv(values: list[float]) -> float:
    return statistics.stdev(map(math.log, values))


def test_sessions_at_other_clocks_agree() -> None:
    chosen = read(kernel(), device()).timer
    clocks = [random.Random(seed).uniform(800, 1100) for seed in range(12)]
    corrected = [value(read(kernel(), device(mhz=mhz, seed=seed), chosen)) for seed, mhz in enumerate(clocks)]
    raw = [value(read(kernel(), device(mhz=mhz, seed=seed), GRAPH)) for seed, mhz in enumerate(clocks)]
    assert cv(raw) > 0.03
    assert cv(corrected) < 0.003


@pytest.mark.parametrize("elasticity", [0.3, 0.7, 1.0])
def test_the_elasticity_is_found_once_and_kept(elasticity: float) -> None:
    chosen = read(kernel(), device(elasticity)).timer
    timer, correction = split(chosen)
    assert timer == GRAPH
    assert correction is not None
    assert [correction.below / 100, correction.above / 100] == pytest.approx([elasticity] * 2, abs=0.04)
    # Another elasticity, even: what is stored decides what a time means.
    assert read(kernel(), device(0.1, mhz=800, seed=2), chosen).timer == chosen


def test_a_clock_that_falls_within_a_block() -> None:
    """Under a power cap the clock is high behind a pause and falls from sample to sample: each has its own."""

    def falling(mhz: float, seed: int) -> FakeDevice:
        return FakeDevice(session_noise=0, launch_noise=0.001, seed=seed, clock=FakeClock(0.9, mhz, 0.02, falls=0.1))

    chosen = read(kernel(3000.0), falling(1000, 1)).timer
    correction = split(chosen)[1]
    assert correction is not None
    assert [correction.below, correction.above] == pytest.approx([90] * 2, abs=3)
    corrected = [
        value(read(kernel(3000.0), falling(random.Random(seed).uniform(800, 1100), seed), chosen)) for seed in range(12)
    ]
    assert cv(corrected) < 0.002


@pytest.mark.parametrize("mhz", [850.0, 1100.0])
def test_a_slowdown_of_3_percent_shows_at_another_clock(mhz: float) -> None:
    first = read(kernel(), device())
    slower = read(kernel(103.0), device(mhz=mhz, seed=3), first.timer)
    assert value(slower) / value(first) == pytest.approx(1.03, abs=0.005)


def test_times_that_the_clock_does_not_move_stay_as_read() -> None:
    reading = read(kernel(), device(elasticity=0.0))
    split_off = split(reading.timer)[1]
    assert split_off is None or max(split_off.below, split_off.above) <= 2  # the fit's own error
    assert value(reading) == pytest.approx(100.0, rel=0.003)


def test_an_old_id_stands_for_times_as_read() -> None:
    old = read(kernel(), device(mhz=800, noise=0.0), GRAPH)
    assert old.timer == GRAPH
    assert value(old) == pytest.approx(100.0 * (1000 / 800) ** 0.7, rel=0.005)
    assert old.note == ""


def test_a_device_that_rested_is_heated_for_longer() -> None:
    """Its power control lets a cold GPU run on at its highest clock for a while, and sessions later it does not."""
    rested = FakeDevice(session_noise=0, block_noise=0.001, seed=1, clock=FakeClock(0.7, heats_after_us=100_000))
    _, correction = split(read(kernel(), rested).timer)
    assert correction is not None
    assert [correction.below, correction.above] == pytest.approx([70] * 2, abs=5)


def test_the_reading_says_at_which_clock() -> None:
    reading = read(kernel(), device())
    correction = split(reading.timer)[1]
    assert correction is not None
    assert reading.note == f"times are given at {correction.mhz} MHz"


def test_a_device_without_a_clock_gives_times_as_read() -> None:
    without = FakeDevice(seed=1)
    assert read(kernel(), without).timer == GRAPH
    assert read(kernel(), without, f"{GRAPH}-c1000-e70").timer == GRAPH  # and the judge says METHOD_CHANGED


def test_queues_are_corrected_and_profiles_are_not() -> None:
    queue = read(kernel(capturable=False), device())
    assert (queue.timer or "").startswith("queue-cold-c")
    assert read(kernel(5.0, capturable=False), device()).timer == "profile-cold"


def test_another_timer_than_the_stored_one_is_not_corrected() -> None:
    assert read(kernel(capturable=False), device(), f"{GRAPH}-c1000-e70").timer == "queue-cold"


def test_a_long_call_is_looked_at_for_half_a_second_only() -> None:
    on = device()
    blocks: list[float] = []

    def clocked() -> Clocked:
        on.host_us += 300_000
        blocks.append(300_000)
        return block(300_000, 1000.0)

    meter = Meter(GRAPH, lambda: 1.0, 0.05, 5, clocked=clocked)
    assert at_one_clock(meter, on, None) is meter
    assert len(blocks) == 2


def test_a_block_without_a_clock_is_rejected() -> None:
    told: list[float | None] = [1000.0, None, 500.0]
    meter = Meter(GRAPH, lambda: 1.0, 0.05, 5, clocked=lambda: block(10.0, told.pop(0)))
    on = device()
    steady = at_one_clock(meter, on, f"{GRAPH}-c1000-e100")
    assert [steady.block() for _ in range(3)] == [10.0, None, 5.0]


def test_a_power_cap_that_the_clock_explains_rejects_nothing() -> None:
    """Even where the device names its power brake beside heat: at one clock the block is not odd."""
    meter = Meter(GRAPH, lambda: 1.0, 0.05, 5, clocked=lambda: block(12.5, 800.0))
    on = device()
    on.state = Conditions(clock_mhz=800, throttle_reasons=["sw_power_cap", "sw_thermal_slowdown"])
    assert read_block(at_one_clock(meter, on, f"{GRAPH}-c1000-e100"), on, [10.0, 10.01]) == pytest.approx(10.0)
    assert read_block(at_one_clock(meter, on, f"{GRAPH}-c1000-e0"), on, [10.0, 10.01]) is None


CLOCKS = (850.0, 860.0, 855.0, 1000.0, 1010.0, 990.0)


@given(st.floats(0.05, 1.1), st.floats(1.0, 1e5))
def test_a_straight_line_is_found(elasticity: float, us: float) -> None:
    correction = fitted([block(us * (1000 / mhz) ** elasticity, mhz) for mhz in CLOCKS])
    assert correction is not None
    assert [correction.below, correction.above] == pytest.approx([100 * elasticity] * 2, abs=0.51)
    assert 855 < correction.mhz < 1000


def test_a_line_that_bends() -> None:
    """A kernel that waits for the memory at high clocks and for the processors at low ones has two elasticities."""

    def us(mhz: float) -> float:
        return 100.0 * (900 / mhz) ** (0.9 if mhz < 900 else 0.2)

    clocks = [mhz for first in (820, 850, 880, 920, 960, 1000) for mhz in range(first, first + 5)]
    correction = fitted([Clocked(tuple(Stretch((us(mhz),), float(mhz)) for mhz in clocks))])
    assert correction == Correction(902, 90, 20)
    at_one_clock = [correction.us(block(us(mhz), float(mhz))) for mhz in clocks]
    assert at_one_clock == pytest.approx([us(902)] * len(clocks), rel=0.002)


def test_a_bend_is_looked_for_near_the_reference_clock() -> None:
    """Behind a rest the clock is as high as in no session; what holds there must not bend the line where they run."""

    def us(mhz: float) -> float:
        return 100.0 * (1600 / mhz) ** (0.9 if mhz < 1600 else 0.2)

    clocks = [float(mhz) for first in (1350, 1400, 1450, 1470, 1500, 1900) for mhz in range(first, first + 8)]
    correction = fitted([Clocked(tuple(Stretch((us(mhz),), mhz) for mhz in clocks))])
    assert correction is not None
    assert (correction.below, correction.above) == (90, 90)


def test_a_few_points_on_one_side_have_the_elasticity_of_all() -> None:
    """Three points beyond a bend are no slope."""
    clocks = [850.0] * 3 + [1000.0] * 3
    correction = fitted([block(100.0 * 1000 / mhz, mhz) for mhz in clocks])
    assert correction is not None
    assert (correction.below, correction.above) == (100, 100)


@pytest.mark.parametrize(("samples", "expected"), [((1.0, 2.0, 3.0, 4.0, 90.0), 3.0), ((1.0, 1.0, 1.0, 9.0), 1.0)])
def test_a_few_long_samples_are_averaged(samples: tuple[float, ...], expected: float) -> None:
    """All but the least and the greatest, from five on; of short ones, which share a stretch, the median."""
    assert Clocked(tuple(Stretch((us,), None) for us in samples)).us == expected
    assert Clocked((Stretch((1.0, 1.0, 5.0, 5.0, 1.0), None),)).us == 1.0


def test_one_odd_block_does_not_turn_the_line() -> None:
    blocks = [block(1000.0 / mhz, mhz) for mhz in CLOCKS]
    blocks[1] = block(1.1 * blocks[1].us, CLOCKS[1])
    correction = fitted(blocks)
    assert correction is not None
    assert [correction.below, correction.above] == pytest.approx([100] * 2, abs=3)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([], None),
        ([block(10.0, None)] * 6, None),
        ([block(10.0, mhz) for mhz in (1000.0, 1010.0, 1020.0)], None),  # it hardly moved
        ([block(mhz, mhz) for mhz in CLOCKS], None),  # slower at a higher clock: something else
        ([block(1e9 / mhz**3, mhz) for mhz in CLOCKS], Correction(923, 110, 110)),
    ],
)
def test_what_cannot_be_is_not_believed(blocks: list[Clocked], expected: Correction | None) -> None:
    assert fitted(blocks) == expected


@pytest.mark.parametrize(
    "timer",
    [
        GRAPH,
        "graph-warm-u64",
        "queue-cold",
        "profile-cold",
        "graph-cold-u1-r1-c1530-e300",
        "graph-cold-u1-r1-c1530-e98-h300",
    ],
)
def test_ids_without_a_correction(timer: str) -> None:
    assert split(timer) == (timer, None)


def test_the_id_and_the_class_of_its_timer() -> None:
    timer = f"{GRAPH}-{Correction(1530, 98, 91)}"
    assert timer == "graph-cold-u16-r1-c1530-e98-h91"
    assert split(timer) == (GRAPH, Correction(1530, 98, 91))
    assert split(f"{GRAPH}-c1530-e98") == (GRAPH, Correction(1530, 98, 98))
    assert str(Correction(1530, 98, 98)) == "c1530-e98"
    assert split(None) == (None, None)
    assert timer_class(timer) == timer_class(GRAPH)


def test_the_judge_tells_the_clock_from_the_times() -> None:
    slow = machine_change(Provenance(clock_mhz=1980), Conditions(clock_mhz=1530), [read(kernel(), device(), GRAPH)])
    assert slow == "clocks 1980 -> 1530 MHz"
    given_at = read(kernel(), device(), f"{GRAPH}-c1000-e70")
    slow = machine_change(Provenance(clock_mhz=1980), Conditions(clock_mhz=1530), [given_at])
    assert slow == "clocks 1980 -> 1530 MHz (device times are given at 1000 MHz)"


def test_samples_of_several_things_in_turn_give_the_mean_of_their_medians() -> None:
    rounds = (1.0, 3.0), (1.0, 60.0), (20.0, 3.0)
    assert Clocked(tuple(Stretch(us, None) for us in rounds), turns=2).us == 2.0
    assert Clocked((Stretch(sum(rounds, ()), None),), turns=2).us == 2.0
