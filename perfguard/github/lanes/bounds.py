"""Limits of the values in an untrusted report's case: sizes and numbers. msgspec has checked the types before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from perfguard.model.errors import LaneError
from perfguard.model.records import CaseResult, PairedCase, PairedTime, PairReading, Reading, Value, Verdict
from perfguard.store.baseline_parser import CASE_FIELDS

MOST_CHARACTERS = 16_384  # of any text in a report
_MOST_ITEMS = 10_000  # of a list: kernel names of one call, blocks of a time
_MOST_READINGS = 200
_MOST = 2.0**63
_LEAST_US, _MOST_US = 1e-4, 1e12  # 0.1 ns is shorter than a device's cycle
_MOST_PAIRS = 50  # of one time
_LAST_PAIR = 200  # highest number of a pair: judging again costs one look per number
_MOST_CHANGE = math.log(1e6)
_LEAST_MHZ, _MOST_MHZ = 1.0, 1e5


def check_result(result: CaseResult) -> None:
    """Check that the values of a case can be measurements.

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
    named = next((metric for metric in metrics if metric in CASE_FIELDS), None)
    if named is not None:
        raise LaneError(f"invalid value: a metric called {named!r}; {named!r} names a field of a baseline")
    if len(set(metrics)) != len(metrics):
        raise LaneError("invalid value: a metric twice in one case")
    _check_texts(_texts(result))
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


def check_paired(case: PairedCase) -> None:
    """Check that the process pairs of a case can be measurements.

    Raises:
        LaneError: names the value; pairs then judge no time of the case.
    """
    if not case.suite or not case.key:
        raise LaneError("invalid value: an empty name")
    if case.base is not None:
        check_result(case.base)
        if (case.base.case.suite, case.base.case.key) != (case.suite, case.key):
            raise LaneError("invalid value: another case at the base")
    if len(case.times) > _MOST_READINGS:
        raise LaneError(f"invalid value: {len(case.times)} times, {_MOST_READINGS} at most")
    metrics = [time.metric for time in case.times]
    if len(set(metrics)) != len(metrics) or not all(metrics):
        raise LaneError("invalid value: a time twice in one case, or one without a metric")
    shown = [text for time in case.times for text in (time.metric, time.timer, time.problem)]
    _check_texts([case.suite, case.key, case.problem, *shown])
    for time in case.times:
        _check_time(time)


def _check_time(time: PairedTime) -> None:
    if len(time.readings) > _MOST_PAIRS:
        raise LaneError(f"invalid value: {time.metric}: {len(time.readings)} process pairs, {_MOST_PAIRS} at most")
    numbers = [reading.pair for reading in time.readings]
    if numbers != sorted(set(numbers)) or any(number > _LAST_PAIR for number in numbers):
        raise LaneError(f"invalid value: {time.metric}: its process pairs are not numbered upwards to {_LAST_PAIR}")
    for reading in time.readings:
        _check_pair(time.metric, reading)


def _check_pair(metric: str, reading: PairReading) -> None:
    for what in ("change", "control"):
        _check_number(f"{what} of {metric}", getattr(reading, what), -_MOST_CHANGE, _MOST_CHANGE)
    for microseconds in (reading.base_us, reading.work_us):
        _check_microseconds(metric, microseconds)
    for what in ("base_mhz", "work_mhz"):
        _check_number(f"{what} of {metric}", getattr(reading, what), _LEAST_MHZ, _MOST_MHZ)


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
    for number in _numbers(value):  # counts, bytes and times are never negative
        _check_number(name, number, 0.0, _MOST)
    if reading.timed:
        for microseconds in (*_numbers(value), *reading.blocks):
            _check_microseconds(name, microseconds)
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


def _check_microseconds(metric: str, value: float) -> None:
    if not _LEAST_US <= value < _MOST_US:
        raise LaneError(f"invalid value: {metric}: {value:g} is no time in µs")


def _check_texts(texts: Iterable[str]) -> None:
    for text in texts:
        if len(text) > MOST_CHARACTERS:
            raise LaneError(f"invalid value: a text of {len(text):,} characters, {MOST_CHARACTERS:,} at most")


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
