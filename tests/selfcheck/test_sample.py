"""What sessions share is kept; what they do not is named; other hardware is refused."""

from __future__ import annotations

import msgspec
import pytest

from perfguard.model.errors import UsageError
from perfguard.model.records import Report, Toolchain
from perfguard.selfcheck.sample import gather, primary, value_of
from tests.selfcheck.simulated import HARDWARE, TIMER, simulated_sessions

replace = msgspec.structs.replace


def changed(report: Report, case: int, **fields: object) -> Report:
    results = list(report.results)
    results[case] = replace(results[case], **fields)
    return replace(report, results=results)


def test_all_sessions_stand_side_by_side_without_covers() -> None:
    sample = gather(simulated_sessions(4, 3))
    assert (len(sample.sessions), len(sample.cases), sample.left_out) == (4, 3, ())
    for session in sample.sessions:
        for result in session.values():
            reading = primary(result)
            assert reading is not None
            assert reading.timer == TIMER
            assert [reading.covers for reading in result.readings] == [[], []]  # else nothing would be judged


def test_what_differs_between_sessions_is_left_out_and_named() -> None:
    first, second, third = simulated_sessions(3, 4)
    second = changed(second, 0, readings=[])
    second = changed(second, 1, inputs="float32[5]")
    readings = third.results[2].readings
    third = changed(third, 2, readings=[readings[0], replace(readings[1], timer="other")])
    sample = gather([first, second, third])
    assert [key for _, key in sample.cases] == ["case[002]/forward", "case[003]/forward"]
    assert primary(sample.sessions[0]["suite", "case[002]/forward"]) is None
    assert value_of(primary(sample.sessions[0]["suite", "case[003]/forward"])) > 0
    assert sorted(sample.left_out) == [
        "suite case[000]/forward: measured in 2 of 3 sessions",
        "suite case[001]/forward: its inputs differ between sessions",
        "suite case[002]/forward span_us: read by several timers: clock-cold, other",
    ]


def test_a_reading_that_is_no_time_leaves_its_metric_out() -> None:
    first, second = simulated_sessions(2, 1)
    readings = second.results[0].readings
    second = changed(second, 0, readings=[readings[0], replace(readings[1], value=0.0)])
    sample = gather([first, second])
    assert sample.left_out == ("suite case[000]/forward span_us: no time in some session",)
    assert [len(result.readings) for result in sample.sessions[1].values()] == [1]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hardware": replace(HARDWARE, slug="other-gpu")}, "another hardware"),
        ({"hardware": replace(HARDWARE, power_limit_watts=300.0)}, "another power limit"),
        ({"toolchain": Toolchain(torch="2.12.0")}, "another toolchain"),
    ],
)
def test_sessions_of_another_machine_are_refused(fields: dict[str, object], named: str) -> None:
    first, second = simulated_sessions(2, 1)
    with pytest.raises(UsageError, match=f"^session 2: {named} .*perfguard selfcheck -o"):
        gather([first, replace(second, **fields)])
