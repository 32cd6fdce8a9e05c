"""The limits of the trusted side are those that our metrics write: no honest reading is touched."""

from __future__ import annotations

import msgspec
import torch

from perfguard.github.lanes.judge_again import hold, lenient
from perfguard.measure.devices.vendors.cpu import CpuDevice
from perfguard.measure.metrics import all_limits, read_exact, read_timed
from perfguard.measure.metrics.subject import Subject
from perfguard.model.records import Better, Case, CaseResult, Reading
from perfguard.model.units import Unit
from perfguard.testing import fake
from perfguard.testing.fake import FakeDevice
from tests.github.reports import CODE, measured


def work() -> int:
    fake.launch("first", us=10.0, host_us=4.0)
    return 7


def case(readings: list[Reading]) -> CaseResult:
    return CaseResult(Case("area", "f", "forward"), readings=readings)


def test_what_our_metrics_write_passes_untouched() -> None:
    subjects = (
        (Subject(run=work), FakeDevice(seed=1)),
        (Subject(run=lambda: torch.ones(64, 64) + 1, seconds=0.01), CpuDevice()),
    )
    gpu, cpu = (read_exact(*each) + read_timed(*each) for each in subjects)
    for readings in (gpu, cpu):
        assert hold(case(readings)) == case(readings)
    read = {reading.metric for reading in [*gpu, *cpu]}
    gated = {reading.metric for reading in [*gpu, *cpu] if reading.gated}
    assert gated <= set(all_limits())  # else a report may choose how much worse is well
    assert {"capturable", "device_time_us", "fingerprint", "host_time_us", "kernels"} <= read & set(all_limits())


def test_every_lenient_field_is_held() -> None:
    time = Reading(
        "device_time_us", Unit.MICROSECONDS, 50.0, Better.HIGHER, timer="graph-cold", promise=9.0, floor=9.0,
        gated=False, portable=True, covers=["host_time_us"],
    )  # fmt: skip
    held = hold(case([time])).readings[0]
    assert (held.better, held.gated, held.portable, held.covers) == (Better.LOWER, True, False, [])
    assert (held.promise, held.floor) == (0.06, 1.0)
    assert lenient([case([time])]) == {"device_time_us": 1}


def test_a_report_may_not_say_what_an_older_record_stands_for() -> None:
    honest = Reading("nondeterministic_outputs", Unit.COUNT, 25, portable=True, unrecorded=0)
    forged = msgspec.structs.replace(honest, unrecorded=25)
    launches = Reading("launches", Unit.COUNT, 9, unrecorded=9)
    held = hold(case([honest, forged, launches])).readings
    assert held == [honest, honest, msgspec.structs.replace(launches, unrecorded=None)]


def test_limits_of_a_target_are_those_of_its_metric() -> None:
    honest = Reading("sm_90.fp64", Unit.COUNT, {"rows": 25}, tolerance=0.1, target="sm_90")
    forged = msgspec.structs.replace(honest, tolerance=9.0, gated=False)
    assert hold(case([honest, forged])).readings == [honest, honest]


def test_only_a_hash_covers_and_only_the_device_time() -> None:
    result = measured("f", code=CODE)
    assert hold(result) == result
    for reading in result.readings:
        if reading.metric == "fingerprint":
            wide = msgspec.structs.replace(reading, covers=["device_time_us", "host_time_us"])
            vague = msgspec.structs.replace(reading, value="unknown")
            assert hold(case([wide])).readings[0].covers == ["device_time_us"]
            assert hold(case([vague])).readings[0].covers == []


def test_a_metric_that_we_do_not_know_speaks_for_itself() -> None:
    theirs = Reading("bark_us", Unit.MICROSECONDS, 3.0, timer="dog", promise=0.8)
    assert hold(case([theirs])) == case([theirs])
