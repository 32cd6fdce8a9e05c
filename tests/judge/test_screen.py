"""The record acquits on its own board, on a day like its own; everything else is left to process pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane
from perfguard.judge.screen import LEAST_CONTROLS, Controls, learn_controls, within_record
from perfguard.judge.statistics import Prior
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Case,
    CaseBaseline,
    CaseResult,
    Conditions,
    Hardware,
    Provenance,
    Reading,
    TimedEntry,
    Toolchain,
    Word,
)
from perfguard.model.units import Unit

QUIET = [100.0, 100.2, 99.9, 100.1, 100.0, 99.8, 100.1, 99.9]
ENTRY = TimedEntry(QUIET, "clock")
SPAN = Reading("span", Unit.MICROSECONDS, 100.1, timer="clock")
CODE = Reading("code", Unit.TEXT, "same", covers=["span"])
PRIOR = Prior(8.0, 0.0015)
AGREEING = Controls(LEAST_CONTROLS, 0.0, 1.0)
HARDWARE = Hardware(slug="here", vendor="fake", name="Here", architecture="x1")


def screened(
    reading: Reading = SPAN, entry: TimedEntry = ENTRY, controls: Controls = AGREEING, here: bool = True
) -> str:
    return within_record(reading, entry, PRIOR, controls, on_its_board=here)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (100.1, ""),
        (101.4, ""),  # 2 % are excluded
        (98.6, ""),
        (101.7, "outside its record"),  # 2 % are not
        (98.2, "outside its record"),  # a change for the better is no less in question
        (130.0, "outside its record"),
    ],
)
def test_a_time_within_its_record_needs_no_pair(value: float, why: str) -> None:
    assert screened(msgspec.structs.replace(SPAN, value=value)) == why


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"here": False}, "another board than the record's, or nobody knows which"),
        ({"controls": Controls(14, 0.0, 1.0)}, "14 unchanged cases timed beside it, 15 are needed"),
        ({"controls": Controls(20, 0.006, 1.0)}, "the machine is not as it was when it was recorded"),
        ({"controls": Controls(20, -0.006, 1.0)}, "the machine is not as it was when it was recorded"),
        ({"controls": Controls(20, 0.004, 1.0)}, ""),
        ({"controls": Controls(20, 0.0, 6.0)}, "outside its record"),  # unchanged cases scatter more than their records
        ({"entry": TimedEntry(QUIET[:4], "clock")}, "4 sessions stored, 5 are needed"),
        ({"reading": msgspec.structs.replace(SPAN, rejected_blocks=3)}, "8 sessions stored, 5 are needed"),
    ],
)
def test_a_record_acquits_where_its_world_is_known(fields: dict[str, Any], why: str) -> None:
    assert screened(**fields) == why


def test_what_moves_the_machine_counts_against_the_case() -> None:
    """A machine that is faster by 0.4 % hides no slowdown of a case, and one that is slower excuses none."""
    slow = msgspec.structs.replace(SPAN, value=101.3)
    assert screened(slow) == ""
    for shift in (0.004, -0.004):
        assert screened(slow, controls=Controls(20, shift, 1.0)) == "outside its record"


def test_a_coarse_time_needs_neither_board_nor_controls() -> None:
    coarse = msgspec.structs.replace(SPAN, promise=0.5, value=110.0)
    assert screened(coarse, controls=Controls(), here=False) == ""
    assert screened(msgspec.structs.replace(coarse, value=140.0), controls=Controls(), here=False)


def run(controls: Sequence[float], board: str | None = "a") -> tuple[list[CaseResult], Lane]:
    """Unchanged cases that take `controls` times what they took, all recorded on board a."""
    cases = {f"f{at}/forward": CaseBaseline({"span": ENTRY, "code": "same"}, "x") for at in range(len(controls))}
    cases["new/forward"] = CaseBaseline({"span": ENTRY, "code": "other"}, "x")
    results = [
        CaseResult(
            Case("area", f"f{at}", "forward"),
            "x",
            readings=[msgspec.structs.replace(SPAN, value=100 * factor), CODE],
            conditions=Conditions(board=board),
        )
        for at, factor in enumerate(controls)
    ]
    changed = CaseResult(Case("area", "new", "forward"), "x", readings=[SPAN, CODE], conditions=Conditions(board=board))
    baseline = Baseline("here", "area", Provenance(board="a"), cases)
    return [*results, changed], Lane(HARDWARE, Toolchain(), {"area": baseline}, base=BaseTree(commit="c" * 40))


def test_controls_are_the_unchanged_cases_on_the_board_of_their_records() -> None:
    results, lane = run([1.004] * 10 + [1.002] * 6)
    found = learn_controls(results, lane)["clock"]
    assert (found.cases, found.scale) == (16, 1.0)
    assert found.shift == pytest.approx(0.004, abs=1e-4)
    assert learn_controls(*run([1.0] * 16, board="b")) == {}
    assert learn_controls(*run([1.0] * 16, board=None)) == {}  # nobody knows which
    wide, lane = run([1.0, 1.03, 0.97, 1.02, 0.98] * 3)
    assert learn_controls(wide, lane)["clock"].scale > 5


@pytest.mark.parametrize(
    ("controls", "board", "word"),
    [
        ([1.0] * 15, "a", Word.PASS),
        ([1.0] * 14, "a", Word.SUSPECT),
        ([1.0] * 15, "b", Word.SUSPECT),
        ([1.02] * 15, "a", Word.SUSPECT),
    ],
)
def test_a_changed_case_beside_its_controls(controls: list[float], board: str, word: Word) -> None:
    results, lane = run(controls, board)
    verdicts = judge_case(results[-1], lane, learn_controls(results, lane))
    assert next(each.word for each in verdicts if each.metric == "span") is word
    assert judge_case(results[0], lane)[0].word is Word.UNCHANGED
