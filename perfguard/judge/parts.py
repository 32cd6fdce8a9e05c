"""Judges metrics with a value for each part, for example the registers of every kernel.

A worse part is CHANGED, whatever the other parts. Added or removed parts are no fault: they are NEW and need recording.
That none is left is CHANGED, unless less is better.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfguard.model.records import Better, Parts, Reading, Verdict, Word
from perfguard.model.units import Unit, format_change, format_value, significant

Part = int | float | str


def judge_parts(reading: Reading, value: Parts, stored: Parts, drift: Sequence[str] = ()) -> Verdict:
    """Judge the parts of a reading against its stored parts.

    A number counts as changed as in `judge_exact`; text if it differs. For metrics where less is better, text names an
    error: a part that gains one is worse, and a part that loses one is better.

    Args:
        drift: the versions that differ from the baseline's, as text; empty under the same toolchain.
    """
    worse = [name for name, part in value.items() if _is_worse(reading, stored.get(name), part)]
    better = [name for name, part in stored.items() if _is_better(reading, part, value.get(name))]
    other = [name for name in (*value, *stored) if (name in value) != (name in stored) and name not in better]
    told = worse or list(dict.fromkeys(other)) or better
    reason = describe_parts(reading, value, stored, told or None)
    if not reading.gated:
        word, reason = Word.PASS, f"not gated: {reason}" if reason else ""
    elif not told:
        word, reason = Word.PASS, f"within its tolerance: {reason}" if reason else ""
    elif reading.drifts and drift:
        word, reason = Word.DRIFT, f"{reason}\nanother toolchain: {', '.join(drift)}"
    elif worse or (stored and reading.tells_of_nothing):
        word = Word.CHANGED
    else:
        word = Word.NEW if other else Word.FASTER
    return Verdict(word, reading.metric, reason, before=stored, after=value, unit=reading.unit)


def describe_parts(reading: Reading, value: Parts, stored: Parts, names: Sequence[str] | None = None) -> str:
    """`metric a 1 -> 2 (+100.0 %), + b 3, - c`, for the parts in `names` or all that differ; empty if none does."""
    told = []
    for name in dict.fromkeys((*value, *stored)) if names is None else names:
        before, after = stored.get(name), value.get(name)
        if _number(before) == _number(after):
            continue
        if after is None:
            told.append(f"- {name}")
        elif before is None:
            wrong = isinstance(after, str) and reading.better is Better.LOWER
            told.append(f"{'' if wrong else '+ '}{name} {_text(reading, after)}")
        else:
            change = _change(before, after)
            told.append(f"{name} {_text(reading, before)} -> {_text(reading, after)}{change}")
    return f"{reading.metric} {', '.join(told)}" if told else ""


def _text(reading: Reading, part: Part) -> str:
    return f"{part} B" if reading.unit is Unit.BYTES and part == 0 else format_value(part, reading.unit)


def _change(before: Part, after: Part) -> str:
    if isinstance(before, str) or isinstance(after, str) or before <= 0 or after <= 0:
        return ""
    return f" ({format_change(after / before)})"


def _number(part: Part | None) -> Part | None:
    return significant(part) if isinstance(part, float) and not part.is_integer() else part


def _is_worse(reading: Reading, before: Part | None, after: Part | None) -> bool:
    if isinstance(after, str):
        return before != after and (before is not None or reading.better is Better.LOWER)
    if before is None or after is None or isinstance(before, str):
        return False
    if reading.better is Better.SAME:
        return _moved(reading, before, after)
    return _moved(reading, before, after) and (after > before) is (reading.better is Better.LOWER)


def _is_better(reading: Reading, before: Part, after: Part | None) -> bool:
    if isinstance(before, str):
        return after is None and reading.better is Better.LOWER
    if after is None or isinstance(after, str) or reading.better is Better.SAME:
        return False
    return _moved(reading, before, after) and (after < before) is (reading.better is Better.LOWER)


def _moved(reading: Reading, before: int | float, after: int | float) -> bool:
    before, after = (significant(part) if isinstance(part, float) else part for part in (before, after))
    size = abs(after - before)
    return size > reading.tolerance * abs(before) and size > reading.floor
