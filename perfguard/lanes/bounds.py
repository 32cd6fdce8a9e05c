"""Which values a case of a stranger's report may hold. msgspec has checked the types; here sizes and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from perfguard.errors import LaneError
from perfguard.records import CaseResult, Reading, Value, Verdict

MOST_CHARACTERS = 16_384  # of any text in a report
_MOST_ITEMS = 10_000  # of a list: kernel names of one call, blocks of a time
_MOST_READINGS = 200
_MOST = 2.0**63
_LEAST_US, _MOST_US = 1e-4, 1e12  # a tenth of a nanosecond is less than a device's cycle


def check_result(result: CaseResult) -> None:
    """Whether what a case says can be a measurement.

    Raises:
        LaneError: names the value; the case is then "invalid".
    """
    for name in ("suite", "name"):
        if not getattr(result.case, name):
            raise LaneError(f"invalid value: an empty {name}")
    for what, count in (("readings", len(result.readings)), ("verdicts", len(result.verdicts))):
        if count > _MOST_READINGS:
            raise LaneError(f"invalid value: {count} {what}, {_MOST_READINGS} at most")
    metrics = [reading.metric for reading in result.readings]
    if len(set(metrics)) != len(metrics):
        raise LaneError("invalid value: a metric twice in one case")
    for text in _texts(result):
        if len(text) > MOST_CHARACTERS:
            raise LaneError(f"invalid value: a text of {len(text):,} characters, {MOST_CHARACTERS:,} at most")
    for reading in result.readings:
        _check_reading(reading)
    for accuracy in result.accuracy:
        for what, number in (("rmse", accuracy.rmse), ("limit", accuracy.limit), ("sqnr_db", accuracy.sqnr_db)):
            _check_number(what, number, -_MOST, _MOST)
    through = result.throughput
    if through is not None:
        for what in ("bytes_per_second", "flop_per_second", "copy_fraction"):
            _check_number(what, getattr(through, what), 0.0, 1e21)
    _check_number("seconds", result.seconds, 0.0, 1e9)


def _check_reading(reading: Reading) -> None:
    name = reading.metric
    if not name:
        raise LaneError("invalid value: a reading without a metric")
    lists = (("value", reading.value), ("blocks", reading.blocks), ("covers", reading.covers))
    for what, items in lists:
        if isinstance(items, list | dict) and len(items) > _MOST_ITEMS:
            raise LaneError(f"invalid value: {name}: {len(items):,} items of {what}, {_MOST_ITEMS:,} at most")
    value = reading.value
    if isinstance(value, bool) or (reading.timed and not isinstance(value, int | float)):
        raise LaneError(f"invalid value: {name}: no number")
    for number in _numbers(value):
        _check_number(name, number, -_MOST, _MOST)
    if reading.timed:
        for microseconds in (*_numbers(value), *reading.blocks):
            if not _LEAST_US <= microseconds < _MOST_US:
                raise LaneError(f"invalid value: {name}: {microseconds:g} is no time in µs")
    for what in ("spread", "promise", "floor", "tolerance", "rival"):
        _check_number(f"{what} of {name}", getattr(reading, what), 0.0, _MOST)
    _check_number(f"rank of {name}", reading.rank, -1e6, 1e6)
    _check_number(f"rejected_blocks of {name}", reading.rejected_blocks, 0, 1e6)


def _numbers(value: Value) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict):
        yield from (part for part in value.values() if not isinstance(part, str))


def _check_number(what: str, number: float | None, least: float, most: float) -> None:
    if number is not None and not (math.isfinite(number) and least <= number <= most):
        raise LaneError(f"invalid value: {what} is {number:g}")


def _texts(result: CaseResult) -> Iterator[str]:
    case = result.case
    yield from (case.suite, case.name, case.nodeid, result.inputs, *result.notes)
    for reading in result.readings:
        yield from (reading.metric, reading.timer or "", reading.note, reading.details, *reading.covers)
        if isinstance(reading.value, str):
            yield reading.value
        elif isinstance(reading.value, list | dict):
            yield from reading.value
        if isinstance(reading.value, dict):
            yield from (part for part in reading.value.values() if isinstance(part, str))
        yield reading.target
    for accuracy in result.accuracy:
        yield from (accuracy.output, accuracy.dtype, accuracy.worst_group, accuracy.got, accuracy.want)
        yield accuracy.problem
    for verdict in result.verdicts:
        yield from _texts_of(verdict)


def _texts_of(verdict: Verdict) -> Iterator[str]:
    yield from (verdict.metric, verdict.reason, verdict.suite, verdict.case)
