"""Rates with exact intervals, the promises, and the table, of findings that are made up."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.selfcheck.findings import (
    SCHEMA,
    SLOWDOWNS,
    Findings,
    Power,
    Rate,
    Suites,
    TimerPower,
    clustered_rate,
)
from benchmarks.selfcheck.table import show
from perfguard.model.records import Toolchain
from tests.selfcheck.simulated import HARDWARE


def exact(hits: int, trials: int) -> tuple[float, float]:
    interval = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
    return interval.low, interval.high


@given(st.sampled_from([0, 1]), st.integers(1, 400))
def test_all_or_nothing_counts_each_cluster_as_one_trial(hit: int, clusters: int) -> None:
    """Zero of n sessions excludes about 3/n, however many decisions each of them holds."""
    rate = clustered_rate((session, bool(hit)) for session in range(clusters) for _ in range(5))
    assert (rate.value, rate.trials, rate.clusters) == (hit, 5 * clusters, clusters)
    assert (rate.low, rate.high) == pytest.approx(exact(hit * clusters, clusters), abs=1e-9)


def test_outcomes_that_stand_and_fall_together_widen_the_interval() -> None:
    single = clustered_rate((number, number < 30) for number in range(300))
    assert (single.low, single.high) == pytest.approx(exact(30, 300), rel=0.02)  # their variance is estimated
    together = clustered_rate((session, session < 2) for session in range(20) for _ in range(40))
    apart = clustered_rate((session, number < 4) for session in range(20) for number in range(40))
    assert together.value == apart.value == 0.1
    assert together.high - together.low > 3 * (apart.high - apart.low)
    assert together.high == pytest.approx(exact(2, 20)[1], rel=0.05)
    assert clustered_rate([]) == Rate(0, 0, 0, 0.0, 1.0)


def rate(hits: int, trials: int) -> Rate:
    return clustered_rate((number, number < hits) for number in range(trials))


def powers(found: dict[float, int]) -> list[Power]:
    """Of 100 cases at each slowdown."""
    return [Power(slowdown, rate(found.get(slowdown, 100), 100)) for slowdown in SLOWDOWNS]


def suites(alarms: int, undecided: int = 0) -> Suites:
    return Suites(40, rate(alarms, 100), rate(0, 100), rate(undecided, 2000), 3.25)


POWERS = powers({0.01: 10, 0.02: 95})
FINDINGS = Findings(
    schema=SCHEMA, perfguard="0", date="2026-11-21", hardware=HARDWARE, toolchain=Toolchain(), commit=None,
    sessions=20, first_session="2026-11-20T10:00:00", last_session="2026-11-21T10:00:00",
    cases=44, timed_cases=40, left_out=["suite [odd] case: measured in 2 of 20 sessions"], seconds_per_case=0.12,
    exact=rate(0, 20), suites=suites(0), alarms=[], timers=[TimerPower("span_us", "clock", 40, 0.0021, POWERS)],
    power=POWERS, promised=rate(100, 100),
)  # fmt: skip
CPU = msgspec.structs.replace(HARDWARE, vendor="cpu")


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, {}),
        ({"exact": rate(1, 20)}, {}),  # one alarm in 20 sessions does not refute 1 %; five do
        ({"exact": rate(5, 20)}, {0: False}),
        ({"suites": suites(9)}, {1: False}),
        ({"suites": suites(0, undecided=200)}, {2: False}),
        ({"power": powers({0.02: 80})}, {3: False}),
        ({"power": powers({0.02: 88})}, {3: None}),  # 100 tell too little
        ({"promised": rate(85, 100)}, {4: False}),
        ({"promised": rate(0, 0)}, {4: None}),  # never green
    ],
)
def test_promises_are_kept_broken_or_not_shown(fields: dict[str, object], kept: dict[int, bool | None]) -> None:
    """Exact metrics, suites, undecided, 2 %, what is promised."""
    found = [promise.kept for promise in msgspec.structs.replace(FINDINGS, **fields).promises()]
    assert found == [kept.get(place, True) for place in range(5)]


def test_a_processor_promises_less() -> None:
    texts = [promise.text for promise in msgspec.structs.replace(FINDINGS, hardware=CPU).promises()]
    assert not any("undecided" in text or "at 2 %" in text for text in texts)
    assert "power: at least 95 % at what is promised, injected slowdowns" in texts


def test_the_table_says_everything(capsys: pytest.CaptureFixture[str]) -> None:
    show(FINDINGS)
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].endswith("20 sessions, 2026-11-20 to 2026-11-21; 44 cases, 40 of them timed, 0.12 s a case")
    assert "unchanged: 100 suites of 40 cases" in lines
    assert "exact metrics moved 0 of 20 (0.00 %, 95 % interval 0.00 % to 16.84 %)" in lines
    assert any(line.startswith("times undecided 0 of 2000") and line.endswith("3.2 pairs a case") for line in lines)
    assert "span_us clock 40 0.21 % 10 % 95 % 100 % 100 % 100 %" in lines
    assert "suite [odd] case: measured in 2 of 20 sessions" in lines
    assert text.count("kept ") == 5
    alarms = [f"[{number}] SLOWER" for number in range(23)]
    show(msgspec.structs.replace(FINDINGS, alarms=alarms))
    text = capsys.readouterr().out
    assert "[19] SLOWER" in text
    assert "and 3 more" in text
