"""The data of the page's script: every case as plain values, with formatted quantities."""

from __future__ import annotations

from typing import Any

from perfguard.model.records import URGENCY, Accuracy, CaseResult, Reading, TimedEntry, Verdict, Word
from perfguard.model.records.baseline import entries_of
from perfguard.model.units import format_value
from perfguard.render.escaping import clean, is_plain
from perfguard.render.findings import Finding
from perfguard.render.overview import LaneView, Overview
from perfguard.render.words import CommandPrefix, command_prefix, limit_text, rates, reproduce_command, why

MOST_REASON = 2000  # The most characters of a reason or note.
MOST_OF_A_VALUE = 1000


def cases(overview: Overview) -> list[dict[str, Any]]:
    """One record for each case and lane, in the order of the lanes. `urgency` sorts by verdict, worst first."""
    records = []
    for index, lane in enumerate(overview.lanes):
        own = command_prefix(lane.report) if lane.report else CommandPrefix()
        for result, word in lane.cases:
            case = result.case
            accepted = lane.covered[case]
            times = _times(lane, result)
            records.append(
                {
                    "lane": index,
                    "suite": clean(case.suite),
                    "name": clean(case.key, 400),
                    "word": f"{word.value}, accepted" if accepted else word.value,
                    "tone": tone(word),
                    "urgency": URGENCY[word],
                    "inputs": clean(result.inputs, 1000),
                    "command": reproduce_command(case.nodeid, own) if is_plain(case.nodeid) else "",
                    "times": times,
                    "ratio": _worst_ratio(result, times),
                    "verdicts": [
                        _verdict(Finding(lane.name, result, verdict, accepted=verdict in accepted))
                        for verdict in sorted(result.verdicts, key=result.sort_key)
                    ],
                    "share": result.throughput.copy_fraction if result.throughput else None,
                    "rates": ", ".join(rates(result, copy=True)),
                    "numerics": [*map(_numerics, result.accuracy)],
                    "notes": [clean(note, MOST_REASON) for note in result.all_notes],
                }
            )
    return records


def tone(word: Word) -> str:
    """The style of a verdict."""
    if word.fails:
        return "bad"
    if word.unguarded:
        return "open"
    return "good" if word is Word.FASTER else "calm"


def _times(lane: LaneView, result: CaseResult) -> list[dict[str, Any]]:
    stored = entries_of(lane.baselines, *result.id)
    verdicts = {verdict.metric: verdict for verdict in result.verdicts}
    shown = []
    for reading in sorted(result.readings, key=lambda each: not each.gated):  # The row shows the first.
        if reading.timed and isinstance(reading.value, int | float):
            entry = stored.get(reading.metric)
            sessions = entry.sessions if isinstance(entry, TimedEntry) and entry.timer == reading.timer else []
            shown.append(_time(reading, verdicts.get(reading.metric), sessions))
    return shown


def _time(reading: Reading, verdict: Verdict | None, sessions: list[float]) -> dict[str, Any]:
    """A timed reading and its stored sessions. Times within the band, centre ± limit, do not fail.

    Blocks are shown only with the run's own reading: a value from process pairs has other blocks."""
    assert isinstance(reading.value, int | float)
    before = verdict.before if verdict and isinstance(verdict.before, int | float) else None
    limit = verdict.limit if verdict else None
    band = [before / (1 + limit), before * (1 + limit)] if before and limit else None
    now = verdict.after if verdict and isinstance(verdict.after, int | float) else reading.value
    own = now == reading.value
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
        "source": "this run" if own else "process pairs",
        "band": band,
        "low": format_value(min(values), reading.unit),
        "high": format_value(max(values), reading.unit),
        "tone": tone(verdict.word) if verdict else "calm",
    }


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


def _numerics(accuracy: Accuracy) -> list[str]:
    quantities = [
        (accuracy.sqnr_db, "SQNR {:.1f} dB"),
        (accuracy.error_ratio, "{:.3g} of eager's error"),
        (accuracy.rmse, "RMSE {:.3g}"),
        (accuracy.limit, "limit {:.3g}"),
    ]
    texts = ["" if value is None else text.format(value) for value, text in quantities]
    return [clean(cell, MOST_REASON) for cell in (accuracy.output, accuracy.dtype, *texts, accuracy.problem)]
