"""The history of a case for the page: its level by commit as dots, and a line for each record of it."""

from __future__ import annotations

from statistics import median
from typing import Any

from perfguard.model.records import CaseResult, Entry, Reading, TimedEntry
from perfguard.model.records.change import show, show_apart
from perfguard.model.records.code import CODE
from perfguard.model.units import Unit, format_change, format_value
from perfguard.render.escaping import clean
from perfguard.render.overview import LaneView
from perfguard.render.words import short

_US = Unit.MICROSECONDS
_MOST_CHARACTERS = 1000  # Of a cell.


def levels(lane: LaneView, result: CaseResult, reading: Reading, time: dict[str, Any]) -> list[dict[str, Any]]:
    """The levels of a time by commit beside its anchor; empty without two that one timer read.

    Args:
        time: the plot of the reading, whose form the result has.
    """
    history = lane.history.get(result.case.suite, {}).get(result.case.key, [])
    recorded = [record.entries.get(reading.metric) for record in history]
    entries = [each for each in recorded if isinstance(each, TimedEntry) and each.timer == reading.timer]
    if len(entries) < 2:
        return []
    values = [median(each.sessions) for each in entries]
    anchor = entries[-1].anchor or values[-1]
    low, high = (format_value(of([*values, anchor, time["now"]]), _US) for of in (min, max))
    caption = f"{time['metric']}: level at {len(entries)} commits, then {time['source']}; line: anchor"
    plot = {"caption": caption, "sessions": values, "blocks": [], "band": None, "centre": anchor, "pairs": []}
    return [time | plot | {"low": low, "high": high}]


def records(lane: LaneView, result: CaseResult) -> list[list[str]]:
    """Commit, date, what changed, anchors and reason of each record of a case, newest first."""
    units = {reading.metric: reading.unit for reading in result.readings}
    known: dict[str, Entry] = {}
    rows: list[list[str]] = []
    for record in lane.history.get(result.case.suite, {}).get(result.case.key, []):
        entries, origin = record.entries, record.provenance
        shown = {name: now for name, now in entries.items() if rows or isinstance(now, TimedEntry)}
        moves = [_move(name, known.get(name), now, units.get(name, Unit.COUNT)) for name, now in shown.items()]
        anchors = {name: entry.anchor for name, entry in entries.items() if isinstance(entry, TimedEntry)}
        lines = [f"{name} {format_value(us, _US)}" for name, us in anchors.items() if us]
        cells = (short(origin.commit or ""), origin.recorded or "", "; ".join(moves), "; ".join(lines), origin.reason)
        rows.append([clean(cell, _MOST_CHARACTERS) for cell in cells])
        known |= entries
    return rows[::-1]


def _move(metric: str, before: Entry | None, now: Entry, unit: Unit) -> str:
    """`device_time_us 61.2 µs -> 64.9 µs (+6.0 %)`; of new metrics and fingerprints only the name."""
    timed = isinstance(now, TimedEntry)
    if before is None or metric == CODE:
        return f"{metric} {show(now, _US)}" if timed else metric
    moved = f"{metric} {' -> '.join(show_apart(before, now, _US if timed else unit))}"
    if not isinstance(now, TimedEntry) or not isinstance(before, TimedEntry):
        return moved
    change = format_change(median(now.sessions) / median(before.sessions))
    return f"{moved} ({change if before.timer == now.timer else 'another timer'})"
