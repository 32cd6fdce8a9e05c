"""Formats all quantities as text. Base units: microseconds, bytes, counts."""

from __future__ import annotations

import enum
import itertools
from collections import Counter

_Parts = dict[str, int | float | str]
_Value = float | int | str | list[str] | _Parts
_TIMES = [(1e6, "s"), (1e3, "ms"), (1.0, "µs"), (1e-3, "ns")]
_MORE_DIGITS = (6, 8, 12, 17)  # Two times that look alike with four digits get more.


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


def as_recorded(part: object) -> object:
    """A part of a metric as stored in baselines: numbers `rounded`, texts and lists as they are."""
    return rounded(part) if isinstance(part, float) else part


def _scaled(value: float, steps: list[tuple[float, str]], digits: int = 4) -> str:
    factor, suffix = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{significant(value / factor, digits):.{max(6, digits)}g} {suffix}"


def format_time(microseconds: float) -> str:
    """61.2 -> '61.2 µs', 1530 -> '1.53 ms'."""
    return _scaled(microseconds, _TIMES)


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


def format_list_change(before: list[str], after: list[str], most: int | None = None) -> str:
    """`+ added x2 - removed`; `in another order` if the entries are equal.

    Args:
        most: about the most characters; added and removed entries get half of them each.
    """
    added, removed = (
        [name if count == 1 else f"{name} x{count}" for name, count in (Counter(these) - Counter(those)).items()]
        for these, those in ((after, before), (before, after))
    )
    if most is not None and added and removed:
        most //= 2
        for at, entries in enumerate(zip(added, removed, strict=False)):
            added[at], removed[at] = _cut_apart(*entries, most)
    parts = [_signed("+", added, most), _signed("-", removed, most)]
    return " ".join(filter(None, parts)) or "in another order"


def _signed(sign: str, names: list[str], most: int | None) -> str:
    """`+ a + b … and 3 more`: the names that fit, at least one."""
    texts = [f"{sign} {name}" for name in names]
    ends = itertools.accumulate(len(text) + 1 for text in texts)
    fit = len(texts) if most is None else max(1, sum(end <= most for end in ends))
    shown = " ".join(text if most is None else _cut(text, most) for text in texts[:fit])
    return f"{shown} … and {len(texts) - fit} more" if fit < len(texts) else shown


def format_move(before: _Value, after: _Value, unit: Unit, most: int | None = None) -> str:
    """`81.25 MiB -> 91.25 MiB`, the two texts of `format_apart`."""
    return " -> ".join(format_apart(before, after, unit, most))


def format_parts_change(before: _Parts, after: _Parts, unit: Unit, most: int | None = None) -> str:
    """`spills 0 -> 12, + new, - gone`: each part that differs once numbers are rounded as in records.

    Args:
        most: the most characters of each value, as in `format_apart`.
    """
    parts = [
        f"{name} {format_move(before[name], after[name], unit, most)}"
        for name in after
        if name in before and as_recorded(before[name]) != as_recorded(after[name])
    ]
    parts += [f"+ {name}" for name in after if name not in before]
    return ", ".join([*parts, *(f"- {name}" for name in before if name not in after)])


def format_apart(before: _Value, after: _Value, unit: Unit, most: int | None = None) -> tuple[str, str]:
    """Two values on one line each. If they differ, so do their texts, which leave out equal parts and entries, and what
    long texts share at either end. Numbers that look alike get more digits.

    Args:
        most: the most characters of each text, at least 16; None: no limit.
    """
    if type(before) is type(after) and before == after:
        text = _line(format_value(before, unit))
        return (text, text) if most is None else (_cut(text, most), _cut(text, most))
    then, now = _texts_apart(before, after, unit)
    return (then, now) if most is None else _cut_apart(then, now, most)


def _texts_apart(before: _Value, after: _Value, unit: Unit) -> tuple[str, str]:
    if isinstance(before, dict) and isinstance(after, dict):
        then, now = _parts_apart(before, after, unit)
    elif isinstance(before, list) and isinstance(after, list):
        gone, came = Counter(before) - Counter(after), Counter(after) - Counter(before)
        lists = ([*gone.elements()], [*came.elements()]) if gone or came else _reordered(before, after)
        then, now = (_line(format_value(each, unit)) for each in lists)
    elif isinstance(before, int | float) and isinstance(after, int | float):
        return _numbers_apart(before, after, unit)
    else:
        then, now = (_line(format_value(value, unit)) for value in (before, after))
    return (then, now) if then != now else (repr(before), repr(after))  # For example, blanks differ.


def _parts_apart(before: _Parts, after: _Parts, unit: Unit) -> tuple[str, str]:
    texts: tuple[list[str], list[str]] = ([], [])
    for name in dict.fromkeys((*before, *after)):
        if name in before and name in after:
            if before[name] != after[name]:
                for side, part in zip(texts, format_apart(before[name], after[name], unit), strict=True):
                    side.append(_line(f"{name} {part}"))
        else:
            side, value = (texts[0], before[name]) if name in before else (texts[1], after[name])
            side.append(_line(f"{name} {format_value(value, unit)}"))
    then, now = (", ".join(side) or "none" for side in texts)
    return then, now


def _reordered(before: list[str], after: list[str]) -> tuple[list[str], list[str]]:
    """Two orders of the same entries, from the first to the last entry that moved."""
    places = [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    return before[places[0] : places[-1] + 1], after[places[0] : places[-1] + 1]


def _numbers_apart(before: int | float, after: int | float, unit: Unit) -> tuple[str, str]:
    then, now = format_value(before, unit), format_value(after, unit)
    if then == now and unit is Unit.BYTES:
        then, now = (f"{format_value(value, Unit.COUNT)} B" for value in (before, after))
    for digits in _MORE_DIGITS if unit is Unit.MICROSECONDS and then == now else ():
        then, now = (_scaled(value, _TIMES, digits) for value in (before, after))
        if then != now:
            break
    return (then, now) if then != now else (repr(before), repr(after))


def _line(text: str) -> str:
    """`text` on one line. Invisible characters are written as escapes, since outputs omit them."""
    line = " ".join(text.split())
    return line if line.isprintable() else repr(line)[1:-1]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _shared(one: str, other: str) -> int:
    """The number of characters with which both texts begin."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut_apart(one: str, other: str, most: int) -> tuple[str, str]:
    """Two different texts, cut to at most `most` characters that include a difference."""
    if max(len(one), len(other)) <= most:
        return one, other
    alike = _shared(one, other)
    if alike >= most // 2:  # They begin at, or within, the first different word.
        start = max(one.rfind(" ", 0, alike) + 1, alike - most // 2)
        one, other = (f"…{text[start:]}" for text in (one, other))
        alike -= start - 1
    shared = _shared(one[alike:][::-1], other[alike:][::-1])
    blank = one.find(" ", len(one) - shared)
    if blank > 0 and len(one) - blank < min(len(one), len(other)) - 1:  # They end with the last different word.
        end = len(one) - blank
        one, other = (f"{text[:-end]} …" for text in (one, other))
    return _cut(one, most), _cut(other, most)


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
