"""Compares exact metrics by the limits of the reading, and explains other verdicts by them.

A metric has one value, or one for each part, for example the registers of every kernel. A single value is a part
without a name. The worst part decides. No metric is known by name: each reading declares what it explains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from perfguard.judge.across_ranks import by_rank, lists_of
from perfguard.model.records import BY_TOOLCHAIN, Across, Better, Conditions, Provenance, Reading, Value, Verdict, Word
from perfguard.model.records.code import CODE
from perfguard.model.units import as_recorded, format_change, format_list_change, format_move, format_value, rounded

Part = int | float | str | list[str]

_STRIDES = re.compile(r"(?<= strides )\(([\d,]*)\)")
_MOST = 80  # The most characters of each of two values in a reason.
_URGENCY = (Word.CHANGED, Word.NEW, Word.BETTER)


def judge_exact(reading: Reading, stored: Value, drift: Sequence[str] = ()) -> Verdict:
    """Judge an exact reading against its stored value.

    A number counts as changed if it differs by more than `reading.tolerance` (relative) and by more than
    `reading.floor`; text and lists if they are not equal. Worse is CHANGED, better is BETTER. An added or removed part
    is no fault: it is NEW and needs recording. A metric that lost all parts is CHANGED, unless less is better.

    Args:
        drift: the versions that differ from the baseline's; empty under the same toolchain.
    """
    before, after = _both(reading, stored)
    word_by_part = _words(reading, stored)
    word = _most_urgent(word_by_part)
    reason = _describe(reading, before, after, [name for name, each in word_by_part.items() if each is word])
    drifted = f"\n{BY_TOOLCHAIN}{', '.join(drift)}" if reading.drifts and drift else ""
    if not reading.gated:
        word, reason = Word.PASS, f"not gated: {reason}{drifted}" if reason else ""
    elif word is Word.PASS:
        why = "the reference does not declare them" if reading.binding_strides is not None else "within its tolerance"
        reason = f"{why}: {reason}" if reason else ""
    elif drifted:
        word, reason = Word.DRIFT, f"{reason}{drifted}"
    ratio, limit = _ratio(reading, stored), _limit(reading, stored)
    return Verdict(word, reading.metric, reason, stored, reading.value, reading.unit, ratio, limit=limit)


def word_by(reading: Reading, stored: Value) -> Word:
    """CHANGED, NEW, BETTER or PASS by the difference from a stored value, gated or not."""
    return _most_urgent(_words(reading, stored))


def _words(reading: Reading, stored: Value) -> dict[str, Word]:
    """Part -> its verdict."""
    before, after = _both(reading, stored)
    if stored and reading.is_empty:
        return dict.fromkeys(before, Word.CHANGED)
    return {name: _word(reading, before.get(name), after.get(name)) for name in _names(before, after)}


def _most_urgent(words: Mapping[str, Word]) -> Word:
    return next((word for word in _URGENCY if word in words.values()), Word.PASS)


def describe_difference(reading: Reading, stored: Value) -> str:
    """`name 1 -> 2 (+100.0 %)`, `name + added - removed`, for parts `name a 1 -> 2 (+100.0 %), + b 3, - c`; empty if
    both are equal."""
    before, after = _both(reading, stored)
    return _describe(reading, before, after, _names(before, after))


def _both(reading: Reading, stored: Value) -> tuple[Mapping[str, Part], Mapping[str, Part]]:
    """The parts of the stored value and of the reading, for the same ranks."""
    before, after = by_rank(stored, reading.value) if reading.across is Across.EACH else (stored, reading.value)
    return _parts(before), _parts(after)


def _parts(value: Value) -> Mapping[str, Part]:
    return value if isinstance(value, dict) else {"": value}


def _names(before: Mapping[str, Part], after: Mapping[str, Part]) -> Sequence[str]:
    return list(dict.fromkeys((*after, *before)))


def _word(reading: Reading, before: Part | None, after: Part | None) -> Word:
    """CHANGED if a part is worse, BETTER if it is better, NEW if it was added or removed, otherwise PASS.

    If less is better, a text names an error: a part that gains one is worse, and a part that loses one is better.
    """
    lower = reading.better is Better.LOWER
    if isinstance(before, int | float) and isinstance(after, int | float):
        if not _moved(reading, before, after):
            return Word.PASS
        worse = reading.better is Better.SAME or (after > before) is lower
        return Word.CHANGED if worse else Word.BETTER
    if before == after or _moved_strides(reading, before, after):
        return Word.PASS
    if lower and isinstance(after, str):
        return Word.CHANGED
    if lower and isinstance(before, str):
        return Word.BETTER
    return Word.NEW if before is None or after is None else Word.CHANGED


def _moved_strides(reading: Reading, before: Part | None, after: Part | None) -> list[str]:
    """`(1,48) -> (48,1)` for each tensor of a text whose strides differ; empty if more than strides differs, or if the
    recorded strides are those that the reference declares."""
    if reading.binding_strides is None or not isinstance(before, str) or not isinstance(after, str):
        return []
    then, now = _STRIDES.findall(before), _STRIDES.findall(after)
    if _STRIDES.sub("", before) != _STRIDES.sub("", after):
        return []
    moved = [(old, new) for old, new in zip(then, now, strict=True) if old != new]
    kept = zip(then, now, reading.binding_strides, strict=False)
    if any(old != new and old == declared for old, new, declared in kept):
        return []
    return [f"({old}) -> ({new})" for old, new in dict.fromkeys(moved)]


def _moved(reading: Reading, before: int | float, after: int | float) -> bool:
    before, after = rounded(before), rounded(after)
    size = abs(after - before)
    return size > reading.tolerance * abs(before) and size > reading.floor


# -- words -------------------------------------------------------------------------------------------------------------


def _describe(reading: Reading, before: Mapping[str, Part], after: Mapping[str, Part], names: Sequence[str]) -> str:
    parts = ", ".join(filter(None, (_difference(reading, name, before.get(name), after.get(name)) for name in names)))
    return f"{reading.metric} {parts}" if parts else ""


def _difference(reading: Reading, name: str, before: Part | None, after: Part | None) -> str:
    if as_recorded(before) == as_recorded(after):
        return ""
    if after is None:
        return f"- {name}"
    name = reading.lines.get(name, name)
    if moved := _moved_strides(reading, before, after):
        return f"{name} strides {', '.join(moved)}".lstrip()
    if before is None:
        error = isinstance(after, str) and reading.better is Better.LOWER
        return f"{'' if error else '+ '}{name} {format_value(after, reading.unit)}"
    if isinstance(before, list) and isinstance(after, list):
        return format_list_change(before, after, 2 * _MOST)
    if reading.across is Across.EACH and (of_rank := lists_of(before, after)) is not None:
        return f"{name} {format_list_change(*of_rank, 2 * _MOST)}"
    change = ""
    if isinstance(before, int | float) and isinstance(after, int | float) and before > 0 and after > 0:
        change = f" ({format_change(after / before)})"
    return f"{name} {format_move(before, after, reading.unit, _MOST)}{change}".lstrip()


# -- numbers of one value ----------------------------------------------------------------------------------------------


def _ratio(reading: Reading, stored: Value) -> float | None:
    """The change of a number as a ratio, above 1 for the worse; None if it is undefined."""
    if not isinstance(stored, int | float) or not isinstance(reading.value, int | float):
        return None
    before, after = rounded(stored), rounded(reading.value)
    if before == after:
        return 1.0
    if min(before, after) < 0:
        return None
    worse, better = (before, after) if reading.better is Better.HIGHER else (after, before)
    if reading.better is Better.SAME and worse < better:
        worse, better = better, worse
    return worse / better if better > 0 else None


def _limit(reading: Reading, stored: Value) -> float | None:
    """The smallest relative change that counts; None for text, and for a stored 0."""
    if not isinstance(stored, int | float) or not isinstance(reading.value, int | float) or stored == 0:
        return None
    return max(reading.tolerance, reading.floor / abs(stored))


# -- causes ------------------------------------------------------------------------------------------------------------

_SLIGHT = 0.0005  # Smaller changes are shown as 0.0 %.
CLOCK_SHIFT = 0.02  # Smaller clock differences are usual between two sessions under load.


def because(metric: str, readings: Sequence[Reading], before: Mapping[str, Value]) -> str:
    """Why the time `metric` changed: `because: spills 0 -> 12, launches 1 -> 2 (+100.0 %), kernels + copy`.

    Args:
        readings: all current readings of the case.
        before: the earlier values of the exact metrics, as far as they are known.
    """
    timed = {reading.metric for reading in readings if reading.timed}
    known = [reading for reading in readings if not reading.timed and reading.metric in before]
    causes = [reading for reading in known if not _is_hash(reading) and reading.details not in timed - {metric}]
    diffs = [(each, text) for each in _in_order(causes) if (text := describe_difference(each, before[each.metric]))]
    # A peak that moved by the bytes of a workspace explains less than the workspace does.
    diffs = [(reading, text) for reading, text in diffs if not _is_slight(reading, before[reading.metric])] or diffs
    moved: dict[str, list[str]] = {}  # This maps a change to its targets.
    for reading, text in diffs:
        moved.setdefault(text.removeprefix(f"{reading.target}."), []).append(reading.target)
    if moved:
        texts = [
            f"{text} on {' '.join(on)}" if len(on) > 1 else f"{on[0]}.{text}".lstrip(".") for text, on in moved.items()
        ]
        return f"because: {', '.join(texts)}"
    codes = [reading.value != before[reading.metric] for reading in known if metric in reading.covers]
    return "no exact metric moved, but the code on the device did" if any(codes) else "no exact metric moved"


def _is_slight(reading: Reading, stored: Value) -> bool:
    """Whether a number moved by too little to be shown."""
    ratio = _ratio(reading, stored)
    return ratio is not None and abs(ratio - 1) < _SLIGHT


def _is_hash(reading: Reading) -> bool:
    """Whether the reading is a hash of the code that ran, which explains nothing."""
    return reading.metric == CODE or (bool(reading.covers) and isinstance(reading.value, str))


def spelled_out(metric: str, readings: Sequence[Reading], before: Mapping[str, Value]) -> str:
    """The changes of the readings that detail the exact `metric`; empty if there are none."""
    details = [reading for reading in readings if reading.details == metric and reading.metric in before]
    return ", ".join(filter(None, (describe_difference(reading, before[reading.metric]) for reading in details)))


def machine_change(before: Provenance, now: Conditions | None) -> str:
    """`clocks 1980 -> 1755 MHz, throttled: thermal`: evidence for the machine as the cause; empty without any.

    Args:
        before: the provenance of the baseline.
        now: the state of the device while it was timed.
    """
    if now is None:
        return ""
    evidence = []
    old, new = before.clock_mhz, now.clock_mhz
    if old and new and abs(new / old - 1) > CLOCK_SHIFT:
        evidence.append(f"clocks {old} -> {new} MHz")
    if now.throttle_reasons and (evidence or not old):  # Power capping is normal for tensor-core work.
        evidence.append(f"throttled: {', '.join(now.throttle_reasons)}")
    if now.other_processes:
        evidence.append(f"{now.other_processes} other process{'es' * (now.other_processes > 1)} on the device")
    return ", ".join(evidence)


def _in_order(readings: Sequence[Reading]) -> list[Reading]:
    """The readings in the order of `rank`, each after the metric that it details."""
    position = {reading.metric: (reading.rank, index) for index, reading in enumerate(readings)}
    return sorted(readings, key=lambda each: (position.get(each.details, position[each.metric]), bool(each.details)))
