"""One table for every text that a quantity can become."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfguard.model.units import (
    Unit,
    format_apart,
    format_bandwidth,
    format_bytes,
    format_change,
    format_flops,
    format_list_change,
    format_move,
    format_percent,
    format_time,
    format_value,
    significant,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_time(61.234), "61.23 µs"),
        (format_time(0.5), "500 ns"),
        (format_time(0.0004), "0.4 ns"),
        (format_time(1530), "1.53 ms"),
        (format_time(2.5e6), "2.5 s"),
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(85196800), "81.25 MiB"),
        (format_bytes(-(1 << 20)), "-1 MiB"),
        (format_bandwidth(4.237e12), "4.24 TB/s"),
        (format_bandwidth(9.9e8), "990 MB/s"),
        (format_flops(6.09e14), "609 TFLOP/s"),
        (format_percent(0.0614), "6.1 %"),
        (format_percent(1, 0), "100 %"),
        (format_change(1.061), "+6.1 %"),
        (format_change(0.9), "-10.0 %"),
        (format_value(["a", "b"], Unit.TEXT), "a, b"),
        (format_list_change(["a", "b"], ["c", "a", "c"]), "+ c x2 - b"),
        (format_list_change(["a", "b"], ["b", "a"]), "in another order"),
        (format_value([], Unit.TEXT), "none"),
        (format_value("x", Unit.TEXT), "x"),
        (format_value(3, Unit.COUNT), "3"),
        (format_value(3.5, Unit.COUNT), "3.5"),
        (format_value(4.26478, Unit.COUNT), "4.265"),  # as stored: beside it nothing seems to have moved
        (format_value(2048, Unit.BYTES), "2 KiB"),
        (format_value(10, Unit.MICROSECONDS), "10 µs"),
        (format_move(1024, 2048, Unit.BYTES), "1 KiB -> 2 KiB"),
        (format_move(167837696, 167837700, Unit.BYTES), "167837696 B -> 167837700 B"),  # alike in MiB
        (format_move(1, 1, Unit.COUNT), "1 -> 1"),
    ],
)
def test_text(text: str, expected: str) -> None:
    assert text == expected


def test_four_significant_digits() -> None:
    assert [significant(value) for value in (61.2349, 0.000123456, 123456.0)] == [61.23, 0.0001235, 123500.0]


TEXTS = st.text(st.sampled_from("ab ;, \n\t\u200b'"), max_size=9) | st.builds(
    "".join, st.lists(st.sampled_from(["float32[64,48] strides (48,1); ", "x", " ", "a_kernel_of_a_long_name" * 4]))
)
NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.integers(0, 3)
VALUES = st.one_of(TEXTS, NUMBERS, st.lists(TEXTS, max_size=5), st.dictionaries(TEXTS, TEXTS | NUMBERS, max_size=5))


@given(VALUES, VALUES, st.sampled_from(Unit), st.sampled_from([None, 16, 60]))
@example("a " * 40 + "b", "a " * 40 + "c", Unit.TEXT, 60)
@example({"a": 1, "b": 3, **{f"kernel_{at}": at for at in range(20)}, "z": 1}, {"a": 1, "b": 3, "z": 2}, Unit.COUNT, 60)
@example(["a, b"], ["a", "b"], Unit.TEXT, None)
@example(3, "3", Unit.COUNT, None)
@example(61.2312, 61.2349, Unit.MICROSECONDS, 60)
@example({"scratch": 167837696}, {"scratch": 167837700}, Unit.BYTES, 60)
@settings(max_examples=1000)
def test_what_differs_is_seen(before: Any, after: Any, unit: Unit, most: int | None) -> None:
    then, now = format_apart(before, after, unit, most)
    assert (then == now) is (before == after and type(before) is type(after))
    for shown in (then, now):
        assert shown.isprintable()
        assert most is None or len(shown) <= most
    if isinstance(before, list) and isinstance(after, list) and before != after:
        assert format_list_change(before, after, most)


@given(st.lists(TEXTS, max_size=9), st.lists(TEXTS, max_size=9))
def test_what_a_list_lost_is_seen_beside_what_it_gained(before: list[str], after: list[str]) -> None:
    text = format_list_change(before, after, 60)
    assert ("+ " in text) >= bool(Counter(after) - Counter(before))
    assert ("- " in text) >= bool(Counter(before) - Counter(after))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1, "b": 3, "c": 5}, {"a": 1, "b": 4, "c": 5}, "b 3 -> b 4"),
        ({"a": 1}, {}, "a 1 -> none"),
        ("same words " * 9 + "1 and on", "same words " * 9 + "2 and on", "…1 … -> …2 …"),
        ("k" * 90 + "1", "k" * 90 + "2", f"…{'k' * 30}1 -> …{'k' * 30}2"),
        (["a", "b", "c"], ["b", "a", "c"], "a, b -> b, a"),
        ("a\tb", "a b", r"'a\tb' -> 'a b'"),
    ],
)
def test_only_what_differs_is_shown(before: Any, after: Any, expected: str) -> None:
    assert format_move(before, after, Unit.COUNT, 60) == expected


def test_a_long_list_shows_both_sides() -> None:
    before, after = [f"removed_kernel_{at}" for at in range(9)], [f"added_kernel_{at}" for at in range(9)]
    assert format_list_change(before, after, 60) == ("+ added_kernel_0 … and 8 more - removed_kernel_0 … and 8 more")
