"""Exact gates: the reading's own direction, tolerance and floor decide; of a metric in parts the worst part."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.judge.exact import because, describe_difference, judge_exact
from perfguard.model.records import Better, Parts, Reading, Value, Verdict, Word
from perfguard.model.units import Unit

MIB = 2**20
SIZE = {"unit": Unit.BYTES, "tolerance": 0.005, "floor": MIB}
LOWER, HIGHER, SAME = Better.LOWER, Better.HIGHER, Better.SAME
DRIFT = ["triton 3.6.0 -> 3.7.0"]


def judged(value: Value, stored: Value, drift: list[str] | None = None, **reading: Any) -> Verdict:
    unit = reading.pop("unit", Unit.COUNT)
    return judge_exact(Reading(metric="things", unit=unit, value=value, **reading), stored, drift or [])


@pytest.mark.parametrize(
    ("stored", "value", "better", "word", "ratio"),
    [
        (1, 1, LOWER, Word.PASS, 1.0),
        (1, 2, LOWER, Word.CHANGED, 2.0),
        (2, 1, LOWER, Word.BETTER, 0.5),
        (2, 1, HIGHER, Word.CHANGED, 2.0),
        (1, 2, HIGHER, Word.BETTER, 0.5),
        (1, 2, SAME, Word.CHANGED, 2.0),
        (2, 1, SAME, Word.CHANGED, 2.0),
        (0, 3, LOWER, Word.CHANGED, None),
        (3, 0, LOWER, Word.BETTER, 0.0),
        (3, 0, HIGHER, Word.CHANGED, None),
        (0, 3, HIGHER, Word.BETTER, 0.0),
        (0, 0, LOWER, Word.PASS, 1.0),
        (-1, 1, LOWER, Word.CHANGED, None),
    ],
)
def test_direction(stored: int, value: int, better: Better, word: Word, ratio: float | None) -> None:
    verdict = judged(value, stored, better=better)
    assert (verdict.word, verdict.ratio) == (word, ratio)
    assert (verdict.before, verdict.after, verdict.metric) == (stored, value, "things")


@pytest.mark.parametrize(
    ("stored", "value", "fields", "word", "reason"),
    [
        (0, 3, {}, Word.CHANGED, "things 0 -> 3"),
        # tolerance and floor must both be exceeded
        (100 * MIB, 100 * MIB + MIB // 2, SIZE, Word.PASS, None),
        (100 * MIB, 100 * MIB + MIB * 3 // 4, SIZE, Word.PASS, None),
        (1000 * MIB, 1002 * MIB, SIZE, Word.PASS, None),
        (100 * MIB, 102 * MIB, SIZE, Word.CHANGED, None),
        (100 * MIB, 98 * MIB, SIZE, Word.BETTER, None),
        (100, 101, {"tolerance": 0.02}, Word.PASS, "within its tolerance: things 100 -> 101 (+1.0 %)"),
        # the scaled text would hide the difference
        (100 * MIB, 100 * MIB + 8, {"unit": Unit.BYTES}, Word.CHANGED, "things 104857600 B -> 104857608 B (+0.0 %)"),
        # a fraction is compared as it is stored, a whole number exactly
        (0.1234, 0.123449, {}, Word.PASS, ""),
        (0.1234, 0.1236, {}, Word.CHANGED, None),
        (12345.0, 12346.0, {}, Word.CHANGED, None),
        (["a", "b", "copy"], ["a", "copy", "copy", "c"], {}, Word.CHANGED, "things + copy + c - b"),
        ([], ["x", "x"], {}, Word.CHANGED, "things + x x2"),
        (["a", "b"], ["b", "a"], {}, Word.CHANGED, "things in another order"),
        ("float8[2]", "float32[2]", {}, Word.CHANGED, "things float8[2] -> float32[2]"),
        (["a"], ["a", "b"], {"gated": False}, Word.PASS, "not gated: things + b"),
        (["a"], ["a"], {"gated": False}, Word.PASS, ""),
    ],
)
def test_values_and_their_words(stored: Value, value: Value, fields: Any, word: Word, reason: str | None) -> None:
    verdict = judged(value, stored, **fields)
    assert verdict.word is word
    assert reason is None or verdict.reason == reason


def test_another_toolchain_makes_compiler_dependent_counts_drift() -> None:
    verdict = judged(40, 32, DRIFT, drifts=True)
    assert (verdict.word, verdict.reason.split("\n")[1]) == (Word.DRIFT, f"another toolchain: {DRIFT[0]}")
    assert judged(24, 32, DRIFT, drifts=True).word is Word.DRIFT
    assert judged(32, 32, DRIFT, drifts=True).word is Word.PASS
    assert judged(40, 32, drifts=True).word is Word.CHANGED
    assert judged(40, 32, DRIFT).word is Word.CHANGED
    assert judged({"a": 9}, {"a": 1}, DRIFT, drifts=True).word is Word.DRIFT


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.sampled_from(Better))
def test_a_ratio_above_one_is_worse_and_below_one_better(stored: int, value: int, better: Better) -> None:
    verdict = judged(value, stored, better=better)
    if verdict.ratio is not None and verdict.word is Word.CHANGED:
        assert verdict.ratio > 1
    if verdict.word is Word.BETTER:
        assert verdict.ratio is not None
        assert verdict.ratio < 1
    assert (verdict.word is Word.PASS) == (stored == value)


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "value", "better", "word", "reason"),
    [
        ({"a": 0, "b": 1}, {"b": 1, "a": 0}, LOWER, Word.PASS, ""),  # launched in another order
        ({"a": 0, "b": 8}, {"a": 4, "b": 0}, LOWER, Word.CHANGED, "a 0 -> 4"),  # no part makes up for another
        ({"a": 4, "b": 8}, {"a": 4, "b": 2}, LOWER, Word.BETTER, "b 8 -> 2 (-75.0 %)"),
        ({"a": 64}, {"a": 16}, HIGHER, Word.CHANGED, "a 64 -> 16 (-75.0 %)"),
        ({"a": 16}, {"a": 8}, SAME, Word.CHANGED, "a 16 -> 8 (-50.0 %)"),
        ({"a": 1}, {"a": 1, "b": 2}, LOWER, Word.NEW, "+ b 2"),  # nothing to compare b with
        ({"a": 1, "b": 2}, {"a": 1}, LOWER, Word.NEW, "- b"),
        ({"a": 1}, {"a": 2, "b": 2}, LOWER, Word.CHANGED, "a 1 -> 2 (+100.0 %)"),
        ({"a": "HGMMA"}, {"a": "HMMA"}, SAME, Word.CHANGED, "a HGMMA -> HMMA"),
        ({"a": "HGMMA"}, {"a": "HGMMA", "b": "none"}, SAME, Word.NEW, "+ b none"),
        ({}, {"a": "needs 96 KB"}, LOWER, Word.CHANGED, "a needs 96 KB"),  # a problem that was not there
        ({"a": "needs 96 KB"}, {}, LOWER, Word.BETTER, "- a"),
        ({"a": "none", "b": "none"}, {"a": "none"}, SAME, Word.NEW, "- b"),
        ({"a": "none"}, {}, SAME, Word.CHANGED, "- a"),  # all of them are gone
        ({"a": "needs 96 KB"}, {"a": 40}, LOWER, Word.BETTER, "a needs 96 KB -> 40"),
        ({"a": 0.1234}, {"a": 0.123449}, LOWER, Word.PASS, ""),
        ({}, {}, LOWER, Word.PASS, ""),
    ],
)
def test_the_worst_part_decides(stored: Parts, value: Parts, better: Better, word: Word, reason: str) -> None:
    verdict = judged(value, stored, better=better)
    assert (verdict.word, verdict.reason.removeprefix("things ")) == (word, reason)
    assert (verdict.before, verdict.after) == (stored, value)


def test_a_difference_tells_only_the_parts_that_differ() -> None:
    reading = Reading("sm_90.metric", Unit.BYTES, {"a": 80, "b": 1}, target="sm_90")
    assert describe_difference(reading, {"a": 0, "b": 1}) == "sm_90.metric a 0 B -> 80 B"


def test_a_cause_that_is_the_same_on_several_targets_is_named_once() -> None:
    spills = {"sm_80": {"kernel": 4}, "sm_90": {"kernel": 4}, "gfx942": {"kernel": 9}}
    readings: list[Reading] = [
        Reading(f"{target}.spills", Unit.COUNT, value, target=target) for target, value in spills.items()
    ]
    readings.append(Reading("launches", Unit.COUNT, 2))
    before: dict[str, Value] = {f"{target}.spills": {"kernel": 0} for target in spills} | {"launches": 1}
    assert because("device_time_us", readings, before) == (
        "because: spills kernel 0 -> 4 on sm_80 sm_90, gfx942.spills kernel 0 -> 9, launches 1 -> 2 (+100.0 %)"
    )


def test_a_cause_too_slight_to_be_shown_stands_back_unless_it_is_the_only_one() -> None:
    values = {"launches": 2, "peak": 641_600, "workspace": 1280}
    readings = [Reading(metric, Unit.BYTES, value) for metric, value in values.items()]
    before: dict[str, Value] = {"launches": 2, "peak": 641_400, "workspace": 960}
    said = because("device_time_us", readings, before)
    assert said.startswith("because: workspace 960 B -> ")
    assert "peak" not in said
    assert because("device_time_us", readings[:2], before).startswith("because: peak 626.4 KiB -> 626.6 KiB")
    assert because("device_time_us", readings, before | {"workspace": 2560}).startswith(
        "because: workspace 2.5 KiB -> "
    )


@pytest.mark.parametrize(
    ("stored", "value", "binding", "word", "reason"),
    [
        ("f32[3,4] strides (4,1)", "f32[3,4] strides (1,3)", None, Word.CHANGED, "strides (4,1) -> f32"),
        ("f32[3,4] strides (4,1)", "f32[3,4] strides (1,3)", [], Word.PASS, "things strides (4,1) -> (1,3)"),
        # the reference declares them
        ("f32[3,4] strides (4,1)", "f32[3,4] strides (1,3)", ["4,1"], Word.CHANGED, "strides (4,1) -> f32"),
        ("f32[3,4] strides (4,1)", "f32[3,4] strides (1,3)", ["1,3"], Word.PASS, "things strides (4,1) -> (1,3)"),
        ("f32[3,4] strides (8,1)", "f32[3,4] strides (1,3)", ["4,1"], Word.PASS, "things strides (8,1) -> (1,3)"),
        # each tensor for itself
        ("a strides (4,1); b strides ()", "a strides (1,3); b strides ()", ["1,3", ""], Word.PASS, "strides (4,1) ->"),
        ("a strides (4,1); b strides (2)", "a strides (1,3); b strides (1)", ["1,3", "2"], Word.CHANGED, "b strides"),
        # nothing but strides may differ
        ("f32[3,4] strides (4,1)", "f16[3,4] strides (1,3)", [], Word.CHANGED, "f32[3,4] strides (4,1) ->"),
        ("f32[3,4] strides (4,1)", "f32[3,4] strides (1,3) offset 1", [], Word.CHANGED, "offset 1"),
        ("f32[3,4] strides (4,1)", "f32[3,4] sparse_coo", [], Word.CHANGED, "sparse_coo"),
        ("f32[3,4] strides (4,1)", "f32[3,4] strides (4,1)", [], Word.PASS, ""),
    ],
)
def test_strides_bind_where_they_are_the_reference_s(
    stored: str, value: str, binding: list[str] | None, word: Word, reason: str
) -> None:
    verdict = judged(value, stored, unit=Unit.TEXT, better=SAME, binding_strides=binding)
    assert verdict.word is word
    assert reason in verdict.reason
    assert bool(verdict.reason) is (stored != value)
