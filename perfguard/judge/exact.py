"""Compares exact metrics by the limits of the reading."""

from __future__ import annotations

from collections.abc import Sequence

from perfguard.judge.parts import describe_parts, judge_parts
from perfguard.model.records import Better, Reading, Value, Verdict, Word
from perfguard.model.units import Unit, format_change, format_list_change, format_value, significant


def judge_exact(reading: Reading, stored: Value, drift: Sequence[str] = ()) -> Verdict:
    """Judge an exact reading against its stored value.

    A number counts as changed if it differs by more than `reading.tolerance` (relative) and by more than
    `reading.floor`; text and lists if they are not equal. Worse is CHANGED, better is FASTER.

    Args:
        drift: the versions that differ from the baseline's, as text; empty under the same toolchain.
    """
    if isinstance(reading.value, dict) and isinstance(stored, dict):
        return judge_parts(reading, reading.value, stored, drift)
    moved, ratio = _moved(reading, stored)
    difference = describe_difference(reading, stored)
    word, reason = Word.PASS, difference
    if not reading.gated:
        reason = f"not gated: {difference}" if difference else ""
    elif moved and reading.drifts and drift:
        word, reason = Word.DRIFT, f"{difference}\nanother toolchain: {', '.join(drift)}"
    elif moved:
        word = Word.FASTER if _improved(reading, stored) else Word.CHANGED
    elif difference:
        reason = f"within its tolerance: {difference}"
    return Verdict(
        word=word,
        metric=reading.metric,
        reason=reason,
        before=stored,
        after=reading.value,
        unit=reading.unit,
        ratio=ratio,
        limit=_limit(reading, stored),
    )


def describe_difference(reading: Reading, stored: Value) -> str:
    """`name 1 -> 2 (+100.0 %)`, `name + added - removed`, or empty if both are equal."""
    value = reading.value
    if isinstance(value, dict) and isinstance(stored, dict):
        return describe_parts(reading, value, stored)
    if isinstance(value, list) and isinstance(stored, list):
        if value == stored:
            return ""
        return f"{reading.metric} {format_list_change(stored, value)}"
    if _number(value) == _number(stored):
        return ""
    before, after = format_value(stored, reading.unit), format_value(value, reading.unit)
    if before == after and reading.unit is Unit.BYTES:  # the scaled text hides the difference
        before, after = f"{stored} B", f"{value} B"
    change = ""
    if isinstance(value, int | float) and isinstance(stored, int | float) and stored > 0 and value > 0:
        change = f" ({format_change(value / stored)})"
    return f"{reading.metric} {before} -> {after}{change}"


def _number(value: Value) -> Value:
    # Baselines store fractions with four significant digits.
    return significant(value) if isinstance(value, float) and not value.is_integer() else value


def _moved(reading: Reading, stored: Value) -> tuple[bool, float | None]:
    """Whether the value is outside its limits, and the ratio (above 1 is worse; None if undefined)."""
    before, after = _number(stored), _number(reading.value)
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return before != after, None
    size = abs(after - before)
    moved = size > reading.tolerance * abs(before) and size > reading.floor
    if before == after:
        return moved, 1.0
    if min(before, after) < 0:
        return moved, None
    worse, better = (before, after) if reading.better is Better.HIGHER else (after, before)
    if reading.better is Better.SAME and worse < better:
        worse, better = better, worse
    return moved, worse / better if better > 0 else None


def _limit(reading: Reading, stored: Value) -> float | None:
    """The smallest relative change that counts; None for text and for a stored 0."""
    if isinstance(reading.value, str | list | dict) or isinstance(stored, str | list | dict) or stored == 0:
        return None
    return max(reading.tolerance, reading.floor / abs(stored))


def _improved(reading: Reading, stored: Value) -> bool:
    value = reading.value
    if reading.better is Better.SAME or isinstance(value, str | list | dict) or isinstance(stored, str | list | dict):
        return False
    return value > stored if reading.better is Better.HIGHER else value < stored
