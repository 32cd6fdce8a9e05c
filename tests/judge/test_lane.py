"""What a lane knows: versions, the noise of its timers, what is remembered of a case and where it was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from perfguard.judge.lane import Lane, differing_versions, other_power, same_board, timer_class
from perfguard.judge.statistics import UNLEARNT
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    Conditions,
    Hardware,
    Provenance,
    TimedEntry,
    Toolchain,
)

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1", target="any", power_limit_watts=700)
TOOLCHAIN = Toolchain(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.4")
PROVENANCE = Provenance(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.9", power_limit_watts=700)


@pytest.mark.parametrize(
    ("timer", "name"),
    [
        ("wall-u16", "wall"),
        ("queue-cold", "queue-cold"),
        ("host-low-u16-blocked", "host-low-blocked"),
        ("queue-warm-u4-hostbound", "queue-warm-hostbound"),
        ("graph-cold-u64-r12", "graph-cold"),
    ],
)
def test_timer_class(timer: str, name: str) -> None:
    assert timer_class(timer) == name


def test_versions_that_differ() -> None:
    assert differing_versions(PROVENANCE, TOOLCHAIN) == []
    now = Toolchain(torch="2.11.0", triton=None, driver="590.2", toolkit="13", python="3.12.1")
    assert differing_versions(PROVENANCE, now) == [
        "triton 3.6.0 -> unknown", "driver 580.1 -> 590.2", "python 3.11 -> 3.12"
    ]  # fmt: skip
    assert differing_versions(PROVENANCE, now, portable=True) == [
        "triton 3.6.0 -> unknown", "python 3.11 -> 3.12"
    ]  # fmt: skip


def lane(cases: dict[str, CaseBaseline], **fields: Any) -> Lane:
    baseline = Baseline("here", "area", msgspec.structs.replace(PROVENANCE, board="a"), cases)
    return Lane(HARDWARE, TOOLCHAIN, {"area": baseline}, **fields)


def test_a_lane_learns_its_noise_per_timer() -> None:
    loud = [value + 5 * (value - 100) for value in QUIET]
    cases = {
        f"f[{index}]/forward": CaseBaseline(
            {"span": TimedEntry(QUIET, "clock-u4"), "wait": TimedEntry(loud, "wall"), "steps": 1}
        )
        for index in range(15)
    } | {"g/forward": CaseBaseline({"span": TimedEntry(QUIET, "rare")})}
    own = lane(cases)
    assert len(own.timed) == 31
    assert own.prior("rare") == own.prior("never seen") == UNLEARNT
    assert own.prior("wall").sigma == pytest.approx(6 * own.prior("clock").sigma, rel=0.02)


@pytest.mark.parametrize(
    ("stored", "now", "same"), [("a", "a", True), ("a", "b", False), ("a", None, False), (None, None, False)]
)
def test_a_board_is_the_same_where_it_is_known_to_be(stored: str | None, now: str | None, same: bool) -> None:
    result = CaseResult(Case("area", "f", "forward"), conditions=Conditions(board=now))
    assert same_board(Provenance(board=stored), result) is same
    assert not same_board(Provenance(board=stored), msgspec.structs.replace(result, conditions=None))


@pytest.mark.parametrize(
    ("stored", "now", "told"),
    [
        (700.0, 500.0, "recorded under a power limit of 700 W, now 500 W"),
        (700.0, 700.4, ""),
        (None, 500.0, ""),
        (700.0, None, ""),
    ],
)
def test_another_power_limit(stored: float | None, now: float | None, told: str) -> None:
    hardware = msgspec.structs.replace(HARDWARE, power_limit_watts=now)
    assert other_power(Provenance(power_limit_watts=stored), hardware) == told


def test_times_are_comparable_under_the_same_conditions_only() -> None:
    case = CaseBaseline({"span": TimedEntry(QUIET, "clock")}, "x")
    result = CaseResult(Case("area", "f", "forward"), "x")
    assert lane({"f/forward": case}).comparable(result)
    assert not lane({"g/forward": case}).comparable(result)
    assert not lane({"f/forward": case}).comparable(msgspec.structs.replace(result, inputs="y"))
    newer = msgspec.structs.replace(TOOLCHAIN, torch="2.12.0")
    assert not replace(lane({"f/forward": case}), toolchain=newer).comparable(result)


def test_a_lane_without_a_base_says_so() -> None:
    assert lane({}).base.commit is None
    assert lane({}).base.problem
    assert lane({}, base=BaseTree("c" * 40)).base.commit == "c" * 40
