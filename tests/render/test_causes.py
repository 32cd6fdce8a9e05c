"""Findings of observed tests, grouped: one change of a kernel shows in many tests, and is told once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfguard.model.records import Better, Case, CaseResult, Reading, Value, Verdict, Word
from perfguard.model.units import Unit
from perfguard.render.causes import by_cause

KERNEL = "_rms_norm_backward"


def result(name: str, *moves: tuple[Reading, Value, Word]) -> CaseResult:
    """A test with readings, their values before, and their verdicts."""
    verdicts = [Verdict(word, each.metric, "", before, each.value, each.unit) for each, before, word in moves]
    readings = [each for each, _, _ in moves]
    return CaseResult(Case("ops", name, "test", f"test_ops.py::test_{name}"), readings=readings, verdicts=verdicts)


def of_kernel(metric: str, value: int, *, gated: bool = True, better: Better = Better.LOWER) -> Reading:
    return Reading(f"sm_90.{metric}", Unit.COUNT, {KERNEL: value, "other": 8}, better, gated=gated, target="sm_90")


def findings(*results: CaseResult) -> list[tuple[CaseResult, Verdict]]:
    moved = (Word.CHANGED, Word.BETTER)
    return [(each, verdict) for each in results for verdict in each.verdicts if verdict.word in moved]


def test_a_kernel_is_told_once_with_what_explains_it() -> None:
    """Fourteen tests, one finding: spills fail, registers explain."""
    tests = [
        result(
            f"norm[{number}]",
            (of_kernel("registers", 96, gated=False), {KERNEL: 64, "other": 8}, Word.PASS),
            (of_kernel("spills", 12), {KERNEL: 0, "other": 8}, Word.CHANGED),
        )
        for number in range(14)
    ]
    ((told, verdict),) = by_cause(findings(*tests))
    assert told.case.name == f"{KERNEL}, in 14 tests such as norm[0]"
    assert told.case.nodeid == "test_ops.py::test_norm[0]"
    assert (verdict.word, verdict.metric, verdict.before, verdict.after) == (Word.CHANGED, "spills on sm_90", 0, 12)
    assert verdict.reason.splitlines() == [
        "spills on sm_90 0 -> 12",
        "registers on sm_90 64 -> 96 (+50.0 %)",
        "tests: norm[0], norm[1], norm[2], norm[3], norm[4] and 9 more",
    ]


@pytest.mark.parametrize(
    ("better", "value", "word", "ratio"),
    [
        (Better.LOWER, 6, Word.BETTER, 0.5),
        (Better.LOWER, 24, Word.CHANGED, 2.0),
        (Better.HIGHER, 24, Word.BETTER, 0.5),
        (Better.HIGHER, 6, Word.CHANGED, 2.0),
    ],
)
def test_a_ratio_above_one_is_worse_in_either_direction(better: Better, value: int, word: Word, ratio: float) -> None:
    """A better kernel is told as well; its direction is the metric's."""
    moved = result("a", (of_kernel("warps", value, better=better), {KERNEL: 12, "other": 8}, word))
    ((told, verdict),) = by_cause(findings(moved))
    assert told.case.name == f"{KERNEL}, in a"
    assert (verdict.word, verdict.ratio) == (word, ratio)


def test_operators_without_a_line_are_named_and_no_other_place_is() -> None:
    """One sort more, in a test with copies that are as they were: the finding names the sort, and no copy."""
    names = Reading("operator_names", Unit.COUNT, {"aten.sort": 2, "aten.add": 3}, gated=False, details="operators")
    copies = Reading("copies", Unit.COUNT, 1, note="copies: aten.clone at a.py:7 in f")
    operators = Reading("operators", Unit.COUNT, 5)
    moved = result(
        "one", (operators, 4, Word.CHANGED), (names, {"aten.sort": 1, "aten.add": 3}, Word.PASS), (copies, 1, Word.PASS)
    )
    ((told, verdict),) = by_cause(findings(moved))
    assert verdict.reason.splitlines() == ["operators 4 -> 5 (+25.0 %)", "more of aten.sort"]
    assert told.all_notes == []


def test_what_names_no_cause_goes_with_one_of_its_test_and_is_never_lost() -> None:
    """A copy has a line; the operators that rose with it have none. Alone they stand under their own name."""
    copies = Reading("copies", Unit.COUNT, 1)
    places = Reading(
        "copy_places", Unit.COUNT, {"aten.clone at a.py in f": 1}, Better.SAME, gated=False, details="copies",
        lines={"aten.clone at a.py in f": "aten.clone at a.py:7 in f"},
    )  # fmt: skip

    def operators(now: int) -> Reading:
        return Reading("operators", Unit.COUNT, now)

    one = result("one", (operators(4), 3, Word.CHANGED), (copies, 0, Word.CHANGED), (places, {}, Word.PASS))
    two = result("two", (operators(9), 7, Word.CHANGED), (copies, 0, Word.CHANGED), (places, {}, Word.PASS))
    three = result("three", (operators(6), 5, Word.CHANGED))
    told = {each.case.name: verdict for each, verdict in by_cause(findings(one, two, three))}
    assert list(told) == ["a.py:7 in f, in 2 tests such as one", "operators, in three"]
    assert told["a.py:7 in f, in 2 tests such as one"].reason.splitlines() == [
        "copies 0 -> 1", "operators +1 to +2", "tests: one, two",
    ]  # fmt: skip
    assert told["operators, in three"].reason == "operators 5 -> 6 (+20.0 %)"


def test_times_of_a_kernel_are_told_test_by_test_and_beside_what_else_moved() -> None:
    """The worst test first, with what the pairs found; what was recorded stands beside the kernel's other findings."""

    def timed(name: str, before: float, after: float, word: Word, spills: int) -> CaseResult:
        made = result(
            name, (of_kernel("spills", spills), {KERNEL: 0, "other": 8}, Word.CHANGED if spills else Word.PASS)
        )
        why = f"{after / before - 1:+.1%} in 3 process pairs; because: spills 0 -> 12"
        metric = f"kernel_time_us[{KERNEL}]"
        pair = Verdict(word, metric, why, before, after, Unit.MICROSECONDS, after / before, (1.3, 1.4))
        shown = Verdict(Word.PASS, "kernel_time_us", "", {KERNEL: before, "other": 3.0}, unit=Unit.MICROSECONDS)
        return replace(made, verdicts=[*made.verdicts, shown, pair])

    tests = [
        timed("small", 41.0, 55.0, Word.SLOWER, 12),
        timed("large", 400.0, 800.0, Word.SLOWER, 12),
        timed("same", 7.0, 7.0, Word.PASS, 12),
    ]
    found = [(each, verdict) for each in tests for verdict in each.verdicts if verdict.word is not Word.PASS]
    told = {verdict.word: (each.case, verdict) for each, verdict in by_cause(found)}
    case, verdict = told[Word.SLOWER]
    assert (case.name, case.nodeid) == (f"{KERNEL}, in 2 tests such as large", "test_ops.py::test_large")
    assert (verdict.metric, verdict.before, verdict.after, verdict.ratio) == ("kernel_time_us", 400.0, 800.0, 2.0)
    assert verdict.interval == (1.3, 1.4)
    assert verdict.reason.splitlines() == [
        "kernel_time_us 400 µs -> 800 µs",
        "large: 400 µs -> 800 µs, +100.0% in 3 process pairs",
        "small: 41 µs -> 55 µs, +34.1% in 3 process pairs",
        "because: spills 0 -> 12",
    ]
    assert "kernel_time_us 7 µs to 400 µs when it was recorded" in told[Word.CHANGED][1].reason.splitlines()
