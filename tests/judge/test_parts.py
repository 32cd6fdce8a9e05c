"""A metric in parts: the worst part decides, and the words name it."""

from __future__ import annotations

import pytest

from perfguard.judge.exact import describe_difference, judge_exact
from perfguard.model.records import Better, Parts, Reading, Word
from perfguard.model.units import Unit


def reading(value: Parts, better: Better = Better.LOWER, unit: Unit = Unit.COUNT, **options: object) -> Reading:
    return Reading("sm_90.metric", unit, value, better=better, target="sm_90", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stored", "value", "better", "word", "reason"),
    [
        ({"a": 0, "b": 1}, {"a": 0, "b": 1}, Better.LOWER, Word.PASS, ""),
        ({"a": 0, "b": 1}, {"b": 1, "a": 0}, Better.LOWER, Word.PASS, ""),  # launched in another order
        ({"a": 0, "b": 8}, {"a": 4, "b": 0}, Better.LOWER, Word.CHANGED, "a 0 -> 4"),  # no part makes up for another
        ({"a": 4, "b": 8}, {"a": 4, "b": 2}, Better.LOWER, Word.FASTER, "b 8 -> 2 (-75.0 %)"),
        ({"a": 64}, {"a": 16}, Better.HIGHER, Word.CHANGED, "a 64 -> 16 (-75.0 %)"),
        ({"a": 16}, {"a": 64}, Better.HIGHER, Word.FASTER, "a 16 -> 64 (+300.0 %)"),
        ({"a": 16}, {"a": 8}, Better.SAME, Word.CHANGED, "a 16 -> 8 (-50.0 %)"),
        ({"a": 1}, {"a": 1, "b": 2}, Better.LOWER, Word.NEW, "+ b 2"),  # nothing to compare b with
        ({"a": 1, "b": 2}, {"a": 1}, Better.LOWER, Word.NEW, "- b"),
        ({"a": 1}, {"a": 2, "b": 2}, Better.LOWER, Word.CHANGED, "a 1 -> 2 (+100.0 %)"),
        ({"a": "HGMMA"}, {"a": "HMMA"}, Better.SAME, Word.CHANGED, "a HGMMA -> HMMA"),
        ({"a": "HGMMA"}, {"a": "HGMMA", "b": "none"}, Better.SAME, Word.NEW, "+ b none"),
        ({}, {"a": "needs 96 KB"}, Better.LOWER, Word.CHANGED, "a needs 96 KB"),  # a problem that was not there
        ({"a": "needs 96 KB"}, {}, Better.LOWER, Word.FASTER, "- a"),
        ({"a": "none", "b": "none"}, {"a": "none"}, Better.SAME, Word.NEW, "- b"),
        ({"a": "none"}, {}, Better.SAME, Word.CHANGED, "- a"),  # all of them are gone
        ({"a": "needs 96 KB"}, {"a": 40}, Better.LOWER, Word.FASTER, "a needs 96 KB -> 40"),
        ({"a": 12345.0}, {"a": 12346.0}, Better.LOWER, Word.CHANGED, "a 12345 -> 12346 (+0.0 %)"),  # stored exactly
        ({"a": 0.1234}, {"a": 0.123449}, Better.LOWER, Word.PASS, ""),
        ({}, {}, Better.LOWER, Word.PASS, ""),
    ],
)
def test_the_worst_part_decides(stored: Parts, value: Parts, better: Better, word: Word, reason: str) -> None:
    verdict = judge_exact(reading(value, better), stored)
    assert (verdict.word, verdict.reason.removeprefix("sm_90.metric ")) == (word, reason)
    assert (verdict.before, verdict.after) == (stored, value)


def test_a_part_within_the_tolerance_is_told_and_passes() -> None:
    verdict = judge_exact(reading({"a": 95.0}, Better.HIGHER, tolerance=0.1), {"a": 100.0})
    assert (verdict.word, verdict.reason) == (Word.PASS, "within its tolerance: sm_90.metric a 100 -> 95 (-5.0 %)")


def test_what_is_not_gated_explains_and_passes() -> None:
    verdict = judge_exact(reading({"a": 9}, gated=False), {"a": 1})
    assert (verdict.word, verdict.reason) == (Word.PASS, "not gated: sm_90.metric a 1 -> 9 (+800.0 %)")


def test_another_toolchain_is_named_and_fails_nothing() -> None:
    verdict = judge_exact(reading({"a": 9}, drifts=True), {"a": 1}, ["triton 3.6.0 -> 3.9.0"])
    assert verdict.word is Word.DRIFT
    assert verdict.reason.endswith("\nanother toolchain: triton 3.6.0 -> 3.9.0")


def test_a_difference_tells_only_the_parts_that_differ() -> None:
    assert describe_difference(reading({"a": 80, "b": 1}, unit=Unit.BYTES), {"a": 0, "b": 1}) == (
        "sm_90.metric a 0 B -> 80 B"
    )
