"""Exact gates: the reading's own direction, tolerance and floor decide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfguard.judge.exact import judge_exact
from perfguard.model.records import Better, Reading, Value, Verdict, Word
from perfguard.model.units import Unit

MIB = 2**20


def judged(value: Value, stored: Value, drift: list[str] | None = None, **reading: Any) -> Verdict:
    unit = reading.pop("unit", Unit.COUNT)
    return judge_exact(Reading(metric="things", unit=unit, value=value, **reading), stored, drift or [])


@pytest.mark.parametrize(
    ("stored", "value", "better", "word", "ratio"),
    [
        (1, 1, Better.LOWER, Word.PASS, 1.0),
        (1, 2, Better.LOWER, Word.CHANGED, 2.0),
        (2, 1, Better.LOWER, Word.FASTER, 0.5),
        (2, 1, Better.HIGHER, Word.CHANGED, 2.0),
        (1, 2, Better.HIGHER, Word.FASTER, 0.5),
        (1, 2, Better.SAME, Word.CHANGED, 2.0),
        (2, 1, Better.SAME, Word.CHANGED, 2.0),
        (0, 3, Better.LOWER, Word.CHANGED, None),
        (3, 0, Better.LOWER, Word.FASTER, 0.0),
        (3, 0, Better.HIGHER, Word.CHANGED, None),
        (0, 3, Better.HIGHER, Word.FASTER, 0.0),
        (0, 0, Better.LOWER, Word.PASS, 1.0),
        (-1, 1, Better.LOWER, Word.CHANGED, None),
    ],
)
def test_direction(stored: int, value: int, better: Better, word: Word, ratio: float | None) -> None:
    verdict = judged(value, stored, better=better)
    assert (verdict.word, verdict.ratio) == (word, ratio)
    assert (verdict.before, verdict.after, verdict.metric) == (stored, value, "things")


def test_zero_is_told_by_its_values() -> None:
    assert judged(3, 0).reason == "things 0 -> 3"


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (100 * MIB, Word.PASS),
        (100 * MIB + MIB // 2, Word.PASS),  # not beyond 0.5 %
        (100 * MIB + MIB * 3 // 4, Word.PASS),  # beyond 0.5 %, not beyond 1 MiB
        (102 * MIB, Word.CHANGED),
        (98 * MIB, Word.FASTER),
    ],
)
def test_tolerance_and_floor_must_both_be_exceeded(value: int, word: Word) -> None:
    verdict = judged(value, 100 * MIB, unit=Unit.BYTES, tolerance=0.005, floor=MIB)
    assert verdict.word is word


def test_floor_alone_is_not_enough() -> None:
    assert judged(1002 * MIB, 1000 * MIB, unit=Unit.BYTES, tolerance=0.005, floor=MIB).word is Word.PASS


def test_a_difference_within_the_tolerance_is_told() -> None:
    verdict = judged(101, 100, tolerance=0.02)
    assert verdict.word is Word.PASS
    assert verdict.reason == "within its tolerance: things 100 -> 101 (+1.0 %)"


def test_bytes_too_close_for_their_scaled_text_are_told_in_bytes() -> None:
    verdict = judged(100 * MIB + 8, 100 * MIB, unit=Unit.BYTES)
    assert verdict.word is Word.CHANGED
    assert "104857600 B -> 104857608 B" in verdict.reason


def test_a_fraction_is_compared_as_it_is_stored() -> None:
    assert judged(0.123449, 0.1234).word is Word.PASS
    assert judged(0.1236, 0.1234).word is Word.CHANGED
    assert judged(12346.0, 12345.0).word is Word.CHANGED  # whole numbers are stored exactly


def test_lists_say_what_came_and_went() -> None:
    verdict = judged(["a", "copy", "copy", "c"], ["a", "b", "copy"], unit=Unit.TEXT)
    assert verdict.word is Word.CHANGED
    assert verdict.ratio is None
    assert verdict.reason == "things + copy + c - b"
    assert judged(["x", "x"], [], unit=Unit.TEXT).reason == "things + x x2"


def test_order_of_a_list_counts() -> None:
    verdict = judged(["b", "a"], ["a", "b"], unit=Unit.TEXT)
    assert (verdict.word, verdict.reason) == (Word.CHANGED, "things in another order")


def test_text_is_equal_or_changed() -> None:
    assert judged("float8[2, 3]", "float8[2, 3]", unit=Unit.TEXT).word is Word.PASS
    verdict = judged("float32[2, 3]", "float8[2, 3]", unit=Unit.TEXT)
    assert (verdict.word, verdict.reason) == (Word.CHANGED, "things float8[2, 3] -> float32[2, 3]")


def test_what_is_not_gated_passes_and_is_told() -> None:
    verdict = judged(["a", "b"], ["a"], unit=Unit.TEXT, gated=False)
    assert (verdict.word, verdict.reason) == (Word.PASS, "not gated: things + b")
    assert judged(["a"], ["a"], unit=Unit.TEXT, gated=False).reason == ""


def test_another_toolchain_makes_compiler_dependent_counts_drift() -> None:
    drift = ["triton 3.6.0 -> 3.7.0"]
    verdict = judged(40, 32, drift, drifts=True)
    assert verdict.word is Word.DRIFT
    assert "things 32 -> 40" in verdict.reason
    assert "triton 3.6.0 -> 3.7.0" in verdict.reason
    assert judged(24, 32, drift, drifts=True).word is Word.DRIFT
    assert judged(32, 32, drift, drifts=True).word is Word.PASS
    assert judged(40, 32, drifts=True).word is Word.CHANGED
    assert judged(40, 32, drift).word is Word.CHANGED


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.sampled_from(Better))
def test_a_ratio_above_one_is_worse_and_below_one_better(stored: int, value: int, better: Better) -> None:
    verdict = judged(value, stored, better=better)
    if verdict.ratio is not None and verdict.word is Word.CHANGED:
        assert verdict.ratio > 1
    if verdict.word is Word.FASTER:
        assert verdict.ratio is not None
        assert verdict.ratio < 1
    assert (verdict.word is Word.PASS) == (stored == value)
