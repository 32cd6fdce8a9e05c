"""Sessions are stored one by one, a cut-short series goes on, and only what all sessions read alike is kept."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.selfcheck.sessions import gather
from perfguard.model.errors import UsageError
from perfguard.model.records import Report, Toolchain
from tests.selfcheck.simulated import HARDWARE, simulated_sessions

replace = msgspec.structs.replace


def changed(report: Report, case: int, **fields: object) -> Report:
    results = list(report.results)
    results[case] = replace(results[case], **fields)
    return replace(report, results=results)


def test_what_differs_between_sessions_is_left_out_and_named() -> None:
    first, second, third = simulated_sessions(3, 5)
    second = changed(second, 0, readings=[])
    second = changed(second, 1, inputs="float32[5]")
    count, time = third.results[2].readings
    third = changed(third, 2, readings=[count, replace(time, timer="other")])
    third = changed(third, 3, readings=[count, replace(time, value=0.0)])
    sample = gather([first, second, third])
    assert len(sample.sessions) == 3
    metrics = [
        {key: [each.metric for each in result.readings] for (_, key), result in session.items()}
        for session in sample.sessions
    ]
    shared = {"case[002]/forward": ["launches"], "case[003]/forward": ["launches"],
              "case[004]/forward": ["launches", "span_us"]}  # fmt: skip
    assert metrics == [shared] * 3
    assert sample.left_out == [
        "suite case[000]/forward: measured in 2 of 3 sessions, or unlike inputs",
        "suite case[001]/forward: measured in 3 of 3 sessions, or unlike inputs",
        "suite case[002]/forward span_us: not read alike in all sessions",
        "suite case[003]/forward span_us: not read alike in all sessions",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"hardware": replace(HARDWARE, slug="other-gpu")},
        {"hardware": replace(HARDWARE, power_limit_watts=300.0)},
        {"toolchain": Toolchain(torch="2.12.0")},
    ],
)
def test_sessions_of_another_machine_are_refused(fields: dict[str, object]) -> None:
    first, second = simulated_sessions(2, 1)
    with pytest.raises(UsageError, match=r"^session 2: another hardware, power limit or .*--output"):
        gather([first, replace(second, **fields)])
