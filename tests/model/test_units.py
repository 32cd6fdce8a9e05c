"""One table for every text that a quantity can become."""

from __future__ import annotations

import pytest

from perfguard.model.units import (
    Unit,
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
