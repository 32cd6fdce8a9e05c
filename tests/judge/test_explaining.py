"""The words behind a verdict: what moved, in the order of causes; else the code, else the machine."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.exact import because, machine_change, spelled_out
from perfguard.model.records import NO_BASE, BaseTree, Conditions, Provenance, Reading, TimedEntry, Value, Verdict, Word
from perfguard.model.units import Unit
from tests.judge.test_ladder import EQUAL, PROVENANCE, QUIET, SLOW, SPAN, STEPS, lane, result


def exact(metric: str, value: Value, **fields: Any) -> Reading:
    return Reading(metric, Unit.TEXT if isinstance(value, str | list) else Unit.COUNT, value, **fields)


WARPS = exact("num_warps", 4, rank=10)
SPILLS = exact("spills", 12, rank=15)
STEP = exact("occupancy", 1, rank=16)
CODE = exact("code", "abc", covers=["span"], gated=False)
HOST = Reading("host", Unit.MICROSECONDS, 9.0, timer="clock")
BEFORE: dict[str, Value] = {"num_warps": 8, "spills": 0, "occupancy": 2, "code": "old"}


def test_what_moved_in_the_order_of_its_rank() -> None:
    readings = [SPAN, STEP, SPILLS, CODE, WARPS]
    told = "because: num_warps 8 -> 4 (-50.0 %), spills 0 -> 12, occupancy 2 -> 1 (-50.0 %)"
    for seed in range(5):
        random.Random(seed).shuffle(readings)
        assert because("span", readings, BEFORE) == told


def test_details_stand_behind_what_they_spell_out() -> None:
    names = exact("names", ["a", "b"], details="count", rank=1)
    count = exact("count", 2, rank=30)
    before: dict[str, Value] = {"names": ["a"], "count": 1, "spills": 0}
    text = because("span", [names, SPILLS, count, SPAN], before)
    assert text == "because: spills 0 -> 12, count 1 -> 2 (+100.0 %), names + b"
    assert spelled_out("count", [names, SPILLS, count], before) == "names + b"
    assert spelled_out("spills", [names, SPILLS, count], before) == ""
    assert because("span", [names], {"names": ["a"]}) == "because: names + b"  # even where the count is as it was


def test_what_details_another_time_explains_that_one_alone() -> None:
    instructions = exact("instructions", 200, details="host")
    readings, before = [SPAN, HOST, instructions], {"instructions": 100}
    assert because("host", readings, before) == "because: instructions 100 -> 200 (+100.0 %)"
    assert because("span", readings, before) == "no exact metric moved"
    assert because("span", [SPAN, instructions], before).startswith("because: ")  # there is no host time apart


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ({"code": "abc"}, "no exact metric moved"),
        ({"code": "old"}, "no exact metric moved, but the code on the device did"),
        ({}, "no exact metric moved"),
        ({"spills": 0}, "because: spills 0 -> 12"),
        ({"spills": 0, "code": "old"}, "because: spills 0 -> 12"),
    ],
)
def test_code_explains_where_no_metric_does(before: dict[str, Value], text: str) -> None:
    assert because("span", [SPAN, CODE, SPILLS], before) == text


@pytest.mark.parametrize(
    ("clock", "now", "text"),
    [
        (1980, Conditions(clock_mhz=1755), "clocks 1980 -> 1755 MHz"),
        (1980, Conditions(clock_mhz=1965), ""),  # as between any two sessions
        (1980, Conditions(clock_mhz=1965, throttle_reasons=["sw_power_cap"]), ""),  # usual in tensor-core work
        (1980, Conditions(1200, throttle_reasons=["hw_thermal"]), "clocks 1980 -> 1200 MHz, throttled: hw_thermal"),
        (None, Conditions(1200, throttle_reasons=["hw_thermal"]), "throttled: hw_thermal"),
        (1980, Conditions(clock_mhz=1980, other_processes=2), "2 other processes on the device"),
        (1980, Conditions(), ""),
        (1980, None, ""),
    ],
)
def test_the_machine_s_own_change(clock: int | None, now: Conditions | None, text: str) -> None:
    assert machine_change(Provenance(clock_mhz=clock), now) == text


SLOWER_CLOCK = Conditions(clock_mhz=1755)


def judged(*readings: Reading, base: BaseTree = NO_BASE, **stored: Any) -> dict[str, Verdict]:
    """By metric, in a lane that was recorded at 1980 MHz."""
    known = lane({"span": TimedEntry(QUIET, "clock"), **stored}, base=base)
    provenance = msgspec.structs.replace(PROVENANCE, clock_mhz=1980)
    files = {"area": msgspec.structs.replace(known.baselines["area"], provenance=provenance)}
    measured = result(*readings, conditions=SLOWER_CLOCK)
    verdicts = judge_case(measured, replace(known, baselines=files))
    return {verdict.metric: verdict for verdict in verdicts}


def test_unchanged_code_that_ran_slower_names_the_machine() -> None:
    verdict = judged(SLOW, CODE, code="abc")["span"]
    assert verdict.word is Word.UNCHANGED
    assert verdict.reason == "code is as recorded, so the machine: clocks 1980 -> 1755 MHz"
    assert judged(SPAN, CODE, code="abc")["span"].reason == "code is as recorded"


def test_an_equal_tree_that_ran_slower_names_the_machine() -> None:
    verdict = judged(SLOW, base=EQUAL)["span"]
    assert verdict.word is Word.UNCHANGED
    assert verdict.reason.endswith(", but for documentation, so the machine: clocks 1980 -> 1755 MHz")
    assert judged(SPAN, base=EQUAL)["span"].reason.endswith(", but for documentation")


def test_a_changed_count_says_what_came_and_where() -> None:
    more = msgspec.structs.replace(STEPS, value=2, note="asked for at f.py:3 in g")
    names = exact("names", ["a", "b"], details="steps", gated=False)
    found = judged(SPAN, more, names, steps=1, names=["a"])
    assert found["steps"].reason == "steps 1 -> 2 (+100.0 %)\nnames + b\nasked for at f.py:3 in g"
    assert found["names"].word is Word.PASS
