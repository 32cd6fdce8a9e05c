"""The screen: a changed case needs no process pair if its time lies within its record (docs/judging.md).

A record comes from one board on one day. It can pass a time on the same board if the run's unchanged cases show that
the machine has not changed since. It never fails a time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from perfguard.judge.lane import Lane, same_board, timer_class
from perfguard.judge.same_code import covered
from perfguard.judge.statistics import MIN_SESSIONS, Prior, least_effect, moderate, remember
from perfguard.model.records import CaseResult, Reading, TimedEntry

LEAST_CONTROLS = 15  # unchanged cases; fewer show too little about board and day
MOST_REJECTED = 3  # a session with this many rejected blocks is not compared
COARSE = 0.05  # from this θ on, board and day do not matter: they change times by less
_MISSED = 0.02  # share of cases slower by 2θ that the record may pass


@dataclass(frozen=True)
class Controls:
    """Deviation of one timer class's unchanged cases from their records in this run.

    Attributes:
        shift: the median of ln(now / record).
        scale: their spread around it, relative to the noise of their records, at least 1.
    """

    cases: int = 0
    shift: float = 0.0
    scale: float = 1.0


NO_CONTROLS: Mapping[str, Controls] = {}  # timer class -> …


def learn_controls(results: Sequence[CaseResult], lane: Lane) -> dict[str, Controls]:
    """Timer class -> deviation of its unchanged cases that were timed on the board of their records."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        for name, deviation, error in _deviations(result, lane):
            found[name].append((deviation, error))
    controls = {}
    for name, cases in found.items():
        shift = median(deviation for deviation, _ in cases)
        scale = 1.4826 * median(abs(deviation - shift) / error for deviation, error in cases)
        controls[name] = Controls(len(cases), shift, max(1.0, scale))
    return controls


def _deviations(result: CaseResult, lane: Lane) -> Iterator[tuple[str, float, float]]:
    """Timer class, ln(now / record) and its standard error of every unchanged time."""
    suite, key = result.case.suite, result.case.key
    for metric in covered(result, lane):
        reading = result.reading(metric)
        entry = lane.timed[suite, key, metric]
        if reading is None or not _comparable(reading, entry) or not same_board(lane.provenance(suite, key), result):
            continue
        history, name = remember(entry.sessions), timer_class(entry.timer)
        noise = moderate(history, lane.prior(name))
        yield name, math.log(_value(reading)) - history.centre, noise.against_record


def within_record(reading: Reading, entry: TimedEntry, prior: Prior, controls: Controls, *, on_its_board: bool) -> str:
    """Why the record cannot pass the time, so that a process pair must decide; empty if it passes.

    The record passes a time if it excludes a slowdown (or speed-up) of 2θ, at 2 %, with the machine's own shift added.
    """
    if not _comparable(reading, entry):
        return f"{len(entry.sessions)} sessions stored, {MIN_SESSIONS} are needed"
    history = remember(entry.sessions)
    theta = least_effect(reading.promise, reading.floor, math.exp(history.centre))
    effect = math.log(_value(reading)) - history.centre
    noise = moderate(history, prior)
    error = noise.against_record
    if theta < COARSE:
        if not on_its_board:
            return "another board than the record's, or nobody knows which"
        if controls.cases < LEAST_CONTROLS:
            return f"{controls.cases} unchanged cases timed beside it, {LEAST_CONTROLS} are needed"
        if abs(controls.shift) > theta / 2:
            return "the machine is not as it was when it was recorded"
        effect, error = abs(effect) + abs(controls.shift), error * controls.scale
    return "" if abs(effect) + noise.quantile(_MISSED) * error < 2 * theta else "outside its record"


def _comparable(reading: Reading, entry: TimedEntry) -> bool:
    read = reading.timer == entry.timer and reading.rejected_blocks < MOST_REJECTED and 0 < _value(reading) < math.inf
    return read and len(entry.sessions) >= MIN_SESSIONS


def _value(reading: Reading) -> float:
    return float(reading.value) if isinstance(reading.value, int | float) else 0.0
