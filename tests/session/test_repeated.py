"""`python -m benchmarks.repeated`: what counts as a difference between two runs."""

from __future__ import annotations

from typing import Any

from benchmarks.repeated import differences, facts
from perfguard.model.records import Case, CaseResult, Reading, Verdict, Word
from perfguard.model.units import Unit


def result(**fields: Any) -> CaseResult:
    copies = Reading("copies", Unit.COUNT, fields.pop("copies", 2))
    time = Reading("device_time_us", Unit.MICROSECONDS, fields.pop("us", 50.0), timer="wall")
    case = Case("suite", "double[64]", "forward", "tests/test_suite.py::test_double[64]")
    return CaseResult(case, readings=[copies, time], **fields)


def test_readings_inputs_and_verdicts_count_and_times_do_not() -> None:
    first = facts([result(inputs="float32[64]")])
    assert differences(first, facts([result(inputs="float32[64]", us=70.0, seconds=3.0)])) == []
    assert differences(first, facts([result(inputs="float32[65]", copies=3)])) == [
        "suite double[64]/forward inputs: 'float32[64]' -> 'float32[65]'",
        "suite double[64]/forward copies: 2 -> 3",
    ]
    (told,) = differences(first, facts([result(inputs="float32[64]", verdicts=[Verdict(Word.CHANGED, "copies")])]))
    assert told.startswith("suite double[64]/forward verdicts: [] -> [")
    assert len(differences(first, {})) == len(first)
