"""Tests the screen: which unchanged and slower cases the record passes. It never fails a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from perfguard.judge.lane import Lane, same_board, timer_class
from perfguard.judge.screen import Controls, learn_controls, within_record
from perfguard.model.records import (
    Baseline,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
)
from perfguard.model.units import Unit, significant
from perfguard.selfcheck.sample import CaseId, Session, primary, value_of

_SAME_CODE = "same_code"  # an exact reading that equals its record, which makes the case a control


def screen(
    stored: Sequence[Session],
    judged: Session,
    changed: Sequence[CaseId],
    slowdowns: Sequence[float],
    hardware: Hardware,
) -> dict[tuple[CaseId, float], str]:
    """Why the record cannot pass a changed case with this slowdown; empty if it does.

    The record is the baseline made from the `stored` sessions. The unchanged cases of `judged` are the controls.
    """
    lane = Lane(hardware, Toolchain(), _record(stored, judged, hardware.slug))
    controls = learn_controls([_time_alone(judged[case]) for case in judged if case not in changed], lane)
    return {
        (case, slowdown): _why_not(judged[case], slowdown, lane, controls) for case in changed for slowdown in slowdowns
    }


def _why_not(result: CaseResult, slowdown: float, lane: Lane, controls: Mapping[str, Controls]) -> str:
    suite, key, reading = result.case.suite, result.case.key, primary(result)
    assert reading is not None
    entry = lane.timed[suite, key, reading.metric]
    kind = timer_class(entry.timer)
    slower = msgspec.structs.replace(reading, value=value_of(reading) * (1 + slowdown))
    on_its_board = same_board(lane.provenance(suite, key), result)
    return within_record(slower, entry, lane.prior(kind), controls.get(kind, Controls()), on_its_board=on_its_board)


def _record(stored: Sequence[Session], cases: Iterable[CaseId], slug: str) -> dict[str, Baseline]:
    files: dict[str, dict[str, CaseBaseline]] = {}
    for case in cases:
        results = [session[case] for session in stored]
        read = [reading for result in results if (reading := primary(result)) is not None]
        boards = {result.conditions.board for result in results if result.conditions is not None}
        where = Provenance(board=boards.pop() if len(boards) == 1 else None)
        time = TimedEntry([significant(value_of(reading)) for reading in read], read[-1].timer or "")
        entries: dict[str, Entry] = {read[-1].metric: time, _SAME_CODE: 1}
        files.setdefault(case[0], {})[case[1]] = CaseBaseline(entries, results[-1].inputs, provenance=where)
    return {suite: Baseline(slug, suite, cases=cases) for suite, cases in files.items()}


def _time_alone(result: CaseResult) -> CaseResult:
    """The case with only its judged time and a reading that covers it as unchanged."""
    reading = primary(result)
    assert reading is not None
    return msgspec.structs.replace(
        result, readings=[reading, Reading(_SAME_CODE, Unit.COUNT, 1, covers=[reading.metric])]
    )
