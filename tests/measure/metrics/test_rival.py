"""The candidate's time beside its rival's: read by turns, so that only their ratio is left."""

from __future__ import annotations

import statistics

import pytest

from perfguard.measure.devices import fake
from perfguard.measure.devices.device import Device
from perfguard.measure.devices.fake import FakeDevice
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import read_timed
from perfguard.measure.metrics.subject import Subject
from perfguard.measure.timers.timing import Workload
from perfguard.model.records import Reading


def subject(ours_us: float, theirs_us: float, launches: int = 1, **options: object) -> Subject:
    def ours() -> None:
        for _ in range(launches):
            fake.launch("ours", us=ours_us / launches)

    ready = Workload(lambda: fake.launch("theirs", us=theirs_us), options.get("cache", "cold"))  # type: ignore[arg-type]
    return Subject(ours, rival=lambda: ready, **options)  # type: ignore[arg-type]


def read(subject: Subject, device: Device) -> list[Reading]:
    return read_timed(subject, device, {"device_time_us", "host_time_us", "cpu_time_us", "wall_time_us"})


def test_the_ratio_is_the_one_of_the_two() -> None:
    (reading,) = read(subject(30.0, 50.0), FakeDevice(session_noise=0, block_noise=0, launch_noise=0, seed=1))
    assert (reading.value, reading.rival) == (pytest.approx(30.0), pytest.approx(50.0))
    assert reading.timer is not None
    assert "-beside-" in reading.timer
    assert reading.timed
    assert reading.note == ""


def test_a_clock_that_moves_moves_both() -> None:
    """Sessions of a device whose clock is anywhere within 20 %: its time moves by as much, the ratio hardly."""
    times, shares = [], []
    for seed in range(32):
        device = FakeDevice(block_noise=0.02, seed=seed)
        device.slowdown = 1000 / (900 + 25 * (seed % 8))
        (reading,) = read(subject(60.0, 50.0), device)
        assert isinstance(reading.value, float)
        times.append(reading.value / 60.0)
        shares.append(reading.value / reading.rival / 1.2)
    assert statistics.stdev(times) > 0.05
    assert statistics.stdev(shares) < 0.02
    assert abs(statistics.mean(shares) - 1) < 0.01


def test_more_launches_than_the_rival_are_told() -> None:
    (reading,) = read(subject(60.0, 50.0, launches=6), FakeDevice(seed=1))
    assert reading.note == "6 launches, its rival 1"


def test_a_fresh_process_reads_both_as_its_parent_did() -> None:
    stored = {"beside_rival_us": "queue-warm-u8-beside-queue-warm-u4"}
    (reading,) = read(subject(30.0, 50.0, cache="warm", stored_timers=stored), FakeDevice(seed=1))
    assert reading.timer == stored["beside_rival_us"]


def test_nothing_without_a_rival_and_nothing_untimed() -> None:
    assert read(Subject(lambda: None), FakeDevice(seed=1)) == []
    assert read(subject(30.0, 50.0, timed=False), FakeDevice(seed=1)) == []


def test_on_a_cpu_cpu_times() -> None:
    ready = Workload(lambda: sum(range(200_000)))
    (reading,) = read(Subject(lambda: sum(range(20_000)), rival=lambda: ready, seconds=0.2), CpuDevice())
    assert isinstance(reading.value, float)
    assert reading.value < reading.rival
    assert (reading.timer or "").startswith("cpu-u")
