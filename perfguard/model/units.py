"""Formats all quantities as text. Base units: microseconds, bytes, counts."""

from __future__ import annotations

import enum
from collections import Counter

_Value = float | int | str | list[str] | dict[str, int | float | str]


class Unit(enum.StrEnum):
    """The unit of each kind of quantity, the same throughout the program."""

    MICROSECONDS = "us"
    BYTES = "bytes"
    COUNT = "count"
    TEXT = "text"


def significant(value: float, digits: int = 4) -> float:
    """`value` rounded to `digits` significant digits, as stored in baselines."""
    return float(f"{value:.{digits}g}")


def rounded(value: float) -> float:
    """A number other than a time, as stored in baselines: whole numbers exactly, fractions with four digits."""
    return significant(value) if isinstance(value, float) and not value.is_integer() else value


def _scaled(value: float, steps: list[tuple[float, str]], digits: int = 4) -> str:
    for factor, suffix in steps:
        if abs(value) >= factor:
            return f"{significant(value / factor, digits):g} {suffix}"
    factor, suffix = steps[-1]
    return f"{significant(value / factor, digits):g} {suffix}"


def format_time(microseconds: float) -> str:
    """61.2 -> '61.2 µs', 1530 -> '1.53 ms'."""
    return _scaled(microseconds, [(1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns")])


def format_bytes(count: float) -> str:
    """85196800 -> '81.25 MiB'; below 1 KiB as '512 B'."""
    return _scaled(count, [(2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")])


def format_bandwidth(bytes_per_second: float) -> str:
    """4.2e12 -> '4.2 TB/s' (decimal, as vendors state it)."""
    return _scaled(bytes_per_second, [(1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")], 3)


def format_flops(flop_per_second: float) -> str:
    """6.09e14 -> '609 TFLOP/s'."""
    return _scaled(flop_per_second, [(1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")], 3)


def format_percent(fraction: float, digits: int = 1) -> str:
    """0.061 -> '6.1 %'."""
    return f"{100 * fraction:.{digits}f} %"


def format_change(ratio: float) -> str:
    """Ratio new/old as a signed change: 1.061 -> '+6.1 %'."""
    return f"{100 * (ratio - 1):+.1f} %"


def format_minutes(seconds: float) -> str:
    """65 -> '1:05', for waiting times."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def counted(count: int, noun: str) -> str:
    """1, 'case' -> '1 case'; 3, 'case' -> '3 cases'."""
    return f"{count} {noun}{'s' * (count != 1)}"


def format_list_change(before: list[str], after: list[str]) -> str:
    """`+ added x2 - removed`; `in another order` if the entries are equal."""
    added, removed = Counter(after) - Counter(before), Counter(before) - Counter(after)
    parts = [
        f"{sign} {name}" if count == 1 else f"{sign} {name} x{count}"
        for sign, names in (("+", added), ("-", removed))
        for name, count in names.items()
    ]
    return " ".join(parts) or "in another order"


def format_move(before: _Value, after: _Value, unit: Unit) -> str:
    """`81.25 MiB -> 91.25 MiB`; in bytes if they look alike in a larger unit."""
    then, now = format_value(before, unit), format_value(after, unit)
    if then == now and unit is Unit.BYTES:
        then, now = (f"{format_value(value, Unit.COUNT)} B" for value in (before, after))
    return f"{then} -> {now}"


def format_value(value: _Value, unit: Unit) -> str:
    """A reading's value in its unit."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {format_value(part, unit)}" for name, part in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, str):
        return value
    if unit is Unit.MICROSECONDS:
        return format_time(value)
    if unit is Unit.BYTES:
        return format_bytes(value)
    return f"{rounded(value):g}" if isinstance(value, float) else str(value)
