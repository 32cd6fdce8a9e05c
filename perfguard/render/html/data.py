"""The data of the page's script: every case as plain values, with formatted quantities."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from perfguard.model.records import URGENCY, Accuracy, CaseResult, Entry, Reading, ReadingId, TimedEntry, Verdict, Word
from perfguard.model.records.baseline import entries_of
from perfguard.model.records.change import show, show_apart
from perfguard.model.records.code import CODE
from perfguard.model.units import Unit, format_bandwidth, format_change, format_flops, format_percent, format_value
from perfguard.render.escaping import clean, is_plain
from perfguard.render.findings import Cause, Finding
from perfguard.render.overview import LaneView, Overview
from perfguard.render.words import (
    CommandPrefix,
    command_prefix,
    compare_command,
    limit_text,
    moved,
    reproduce_command,
    short,
    why,
)

MOST_REASON = 2000  # The most characters of a reason or note.
MOST_OF_A_VALUE = 1000


def cases(overview: Overview) -> list[dict[str, Any]]:
    """One record for each case and lane, in the order of the lanes. `urgency` sorts by verdict, worst first."""
    made = []
    causes = {case: cause for cause in reversed(overview.causes) for case in cause.cases}
    for index, lane in enumerate(overview.lanes):
        own = command_prefix(lane.report) if lane.report else CommandPrefix()
        pairs = _pairs(lane)
        for result, word in lane.cases:
            case = result.case
            accepted = lane.covered[case]
            times = _times(lane, result, pairs)
            made.append(
                {
                    "lane": index,
                    "suite": clean(case.suite),
                    "name": clean(case.key, 400),
                    "word": f"{word.value}, accepted" if accepted else word.value,
                    "tone": tone(word),
                    "urgency": URGENCY[word],
                    "inputs": clean(result.inputs, 1000),
                    "cause": _cause(causes.get((lane.name, case))),
                    "commands": _commands(result, own),
                    "times": times,
                    "ratio": _worst_ratio(result, times),
                    "verdicts": [
                        _verdict(Finding(lane.name, result, verdict, accepted=verdict in accepted))
                        for verdict in sorted(result.verdicts, key=result.sort_key)
                    ],
                    "share": result.throughput.copy_fraction if result.throughput else None,
                    "roofline": _roofline(result),
                    "records": records(lane, result),
                    "numerics": [_numerics(accuracy, result) for accuracy in result.accuracy],
                    "notes": [clean(note, MOST_REASON) for note in result.all_notes],
                }
            )
    return made


def _cause(cause: Cause | None) -> str:
    return "" if cause is None else clean(": ".join(filter(None, (cause.title, cause.change))), 400)


def _commands(result: CaseResult, by: CommandPrefix) -> list[list[str]]:
    """[label, command] of each command for a case."""
    nodeid = result.case.nodeid
    if not is_plain(nodeid):  # A shell would not run it as written.
        return []
    commands = [["reproduce", reproduce_command(nodeid, by)]]
    if result.is_timed and result.word is Word.SLOWER:
        commands.append(["compare with the merge base", compare_command(nodeid, by)])
    return commands


def tone(word: Word) -> str:
    """The style of a verdict."""
    if word.fails:
        return "bad"
    if word.unguarded:
        return "open"
    return "good" if word is Word.FASTER else "calm"


def _pairs(lane: LaneView) -> dict[ReadingId, list[list[float]]]:
    """Time -> µs of the base, of its second checkout (the control) and of the working tree, for each process pair."""
    return {
        ReadingId(*case.id, time.metric): [
            [pair.base_us, pair.base_us * math.exp(pair.control), pair.work_us] for pair in time.readings
        ]
        for pairing in (lane.report.pairings if lane.report else [])
        for case in pairing.cases
        for time in case.times
    }


def _times(lane: LaneView, result: CaseResult, pairs: dict[ReadingId, list[list[float]]]) -> list[dict[str, Any]]:
    stored = entries_of(lane.baselines, *result.id)
    verdicts = {verdict.metric: verdict for verdict in result.verdicts}
    shown = []
    for reading in sorted(result.readings, key=lambda each: not each.gated):  # The row shows the first.
        if reading.timed and isinstance(reading.value, int | float):
            entry = stored.get(reading.metric)
            sessions = entry.sessions if isinstance(entry, TimedEntry) and entry.timer == reading.timer else []
            verdict = verdicts.get(reading.metric)
            time = _time(reading, verdict, sessions)
            shown.append(time | _paired(pairs.get(ReadingId(*result.id, reading.metric), []), verdict))
            shown += levels(lane, result, reading, time)
    return shown


def _roofline(result: CaseResult) -> list[list[Any]]:
    """Text and share of each rate, beside its ceiling if this session measured one, then the share that is left."""
    through = result.throughput
    if through is None:
        return []
    rows: list[list[Any]] = []
    for rate, share, form, ceiling in (
        (through.bytes_per_second, through.copy_fraction, format_bandwidth, "copy"),
        (through.flop_per_second, through.matmul_fraction, format_flops, f"{clean(through.matmul)} matmul"),
    ):
        beside = f" of {form(rate / share)}, which a {ceiling} reached in this run" if rate and share else ""
        rows += [[f"{form(rate)}{beside}", share]] if rate else []
    if best := max((share for _, share in rows if share), default=0.0):
        taken, left = (format_percent(part, 0) for part in (best, max(0.0, 1 - best)))
        rows.append([f"At the nearer ceiling it would take {taken} of its time: {left} is left", None])
    return rows


def _time(reading: Reading, verdict: Verdict | None, sessions: list[float]) -> dict[str, Any]:
    """A timed reading and its stored sessions. Times within the band, centre ± limit, do not fail.

    Blocks are shown only with the run's own reading: a value from process pairs has other blocks."""
    assert isinstance(reading.value, int | float)
    before = verdict.before if verdict and isinstance(verdict.before, int | float) else None
    limit = verdict.limit if verdict else None
    band = [before / (1 + limit), before * (1 + limit)] if before and limit else None
    now = verdict.after if verdict and isinstance(verdict.after, int | float) else reading.value
    own = now == reading.value
    source = "this run" if own else "process pairs"
    blocks = reading.blocks if own else []
    values = [now, *blocks, *sessions, *(band or [])]
    return {
        "metric": clean(reading.metric),
        "timer": clean(reading.timer or ""),
        "now": now,
        "text": format_value(now, reading.unit),
        "before": None if before is None else format_value(before, reading.unit),
        "centre": before,
        "sessions": sessions,
        "blocks": blocks,
        "source": source,
        "caption": f"{clean(reading.metric)}: {len(sessions)} stored sessions, {source}{', its blocks' * bool(blocks)}",
        "band": band,
        "low": format_value(min(values), reading.unit),
        "high": format_value(max(values), reading.unit),
        "tone": tone(verdict.word) if verdict else "calm",
    }


def _paired(pairs: list[list[float]], verdict: Verdict | None) -> dict[str, Any]:
    """The process pairs of a time, with the texts of their range and of the change."""
    values = [value for pair in pairs for value in pair]
    if not values or verdict is None:
        return {"pairs": []}
    low, high = (format_value(of(values), Unit.MICROSECONDS) for of in (min, max))
    return {"pairs": pairs, "pairs_low": low, "pairs_high": high, "pairs_change": moved(verdict)}


def _worst_ratio(result: CaseResult, times: list[dict[str, Any]]) -> float | None:
    """The ratio by which the table sorts: that of the first time, otherwise the largest of the gated metrics."""
    metric = times[0]["metric"] if times else None
    ratios = [(each.metric, each.ratio) for each in result.verdicts if each.ratio and _is_gated(result, each)]
    own = [ratio for name, ratio in ratios if name == metric]
    return own[0] if own else max((ratio for _, ratio in ratios), default=None)


def _is_gated(result: CaseResult, verdict: Verdict) -> bool:
    reading = result.reading(verdict.metric)
    return reading is None or reading.gated


def _verdict(row: Finding) -> dict[str, Any]:
    verdict = row.verdict
    before, now = row.values(MOST_OF_A_VALUE)
    return {
        "word": row.word,
        "tone": tone(verdict.word),
        "metric": clean(verdict.metric),
        "before": clean(before, MOST_OF_A_VALUE),
        "after": clean(now, MOST_OF_A_VALUE),
        "change": row.change,
        "limit": limit_text(verdict) if verdict.limit is not None else "",
        "reason": clean(why(verdict), MOST_REASON),
    }


def _numerics(accuracy: Accuracy, result: CaseResult) -> list[str]:
    """The cells of one output's line, without a problem that a verdict states already."""
    problem = accuracy.problem if all(accuracy.problem not in each.reason for each in result.verdicts) else ""
    quantities = [
        (accuracy.sqnr_db, "SQNR {:.1f} dB"),
        (accuracy.error_ratio, "{:.3g} of eager's error"),
        (accuracy.rmse, "RMSE {:.3g}"),
        (accuracy.limit, "limit {:.3g}"),
    ]
    texts = ["" if value is None else text.format(value) for value, text in quantities]
    return [clean(cell, MOST_REASON) for cell in (accuracy.output, accuracy.dtype, *texts, problem)]


# -- the history of a case ---------------------------------------------------------------------------------------------


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
