"""What a lane knows: versions, the noise of its timers, and how many readings share its false alarms."""

from __future__ import annotations

import pytest

from perfguard.judge import Lane, differing_versions, timer_class
from perfguard.judge.statistics import UNLEARNT
from perfguard.records import Baseline, CaseBaseline, Hardware, Provenance, TimedEntry, Toolchain

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1", target="any", power_limit_watts=700)
TOOLCHAIN = Toolchain(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.4")
PROVENANCE = Provenance(torch="2.11.0", triton="3.6.0", driver="580.1", python="3.11.9", power_limit_watts=700)


@pytest.mark.parametrize(
    ("timer", "name"),
    [
        ("wall-u16", "wall"),
        ("queue-cold", "queue-cold"),
        ("host-u16-blocked", "host-blocked"),
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


def test_a_lane_learns_its_noise_per_timer_and_counts_its_family() -> None:
    loud = [value + 5 * (value - 100) for value in QUIET]
    cases = {
        f"f[{index}]/forward": CaseBaseline(
            {"span": TimedEntry(QUIET, "clock"), "wait": TimedEntry(loud, "wall"), "steps": 1}
        )
        for index in range(6)
    } | {"g/forward": CaseBaseline({"span": TimedEntry(QUIET, "rare")})}
    own = Lane(HARDWARE, TOOLCHAIN, {"area": Baseline("here", "area", PROVENANCE, cases)})
    assert own.family_size == 13
    assert own.priors["rare"] == UNLEARNT
    assert own.family("wall").prior.sigma == pytest.approx(6 * own.family("clock").prior.sigma, rel=0.02)
    assert own.family("never seen").prior == UNLEARNT
    assert Lane(HARDWARE, TOOLCHAIN, own.baselines, timed_now=40).family("clock").size == 40
    assert Lane(HARDWARE, TOOLCHAIN).family("clock").size == 1
