"""One result from those of several ranks: equal facts, the greatest, each rank's own, and disagreements."""

from __future__ import annotations

import msgspec
import pytest

from perfguard.judge.across_ranks import merge_ranks, ranks_of, with_ranks
from perfguard.judge.exact import describe_difference, judge_exact
from perfguard.model.records import Accuracy, Across, Better, Case, CaseResult, Doubt, Reading, Value, Verdict, Word
from perfguard.model.units import Unit

CASE = Case("suite", "sum", "forward", "test_suite.py::test_sum")


def result(value: Value, across: Across = Across.EACH, unit: Unit = Unit.COUNT, **others: object) -> CaseResult:
    return CaseResult(CASE, readings=[Reading("metric", unit, value, across=across)], **others)  # type: ignore[arg-type]


def only(*results: CaseResult) -> CaseResult:
    (merged,) = merge_ranks([[each] for each in results])
    return merged


@pytest.mark.parametrize(
    ("which", "ranks", "said"),
    [([1], 4, "rank 1 of 4"), ([3, 1], 4, "ranks 1, 3 of 4"), ([0, 1], 2, "all 2 ranks"), ([0], 1, "the one rank")],
)
def test_ranks_are_named(which: list[int], ranks: int, said: str) -> None:
    assert ranks_of(which, ranks) == said


def test_a_problem_of_several_ranks_is_said_once() -> None:
    problems = [["output: is wrong"], [], ["output: is wrong", "outputs: two"]]
    assert with_ranks(problems) == [
        "output: is wrong (on ranks 0, 2 of 3)",
        "outputs: two (on rank 2 of 3)",
    ]


def test_a_doubt_of_several_ranks_is_said_once() -> None:
    doubt = Doubt("candidate=1", "configuration 1 (candidate=1): output: is wrong", "output")
    merged = only(result(1, doubts=[doubt]), result(1), result(1, doubts=[doubt]))
    assert merged.doubts == [msgspec.structs.replace(doubt, problem=f"{doubt.problem} (on ranks 0, 2 of 3)")]
    assert merged.readings


@pytest.mark.parametrize("across", Across)
def test_equal_readings_are_one(across: Across) -> None:
    merged = only(result(7, across), result(7, across))
    assert merged.readings == result(7, across).readings
    assert merged.verdicts == []


def test_what_must_be_equal_and_is_not_is_wrong() -> None:
    merged = only(*(result(["all_reduce"] * count, Across.EQUAL) for count in (1, 2, 1)))
    assert merged.readings == []
    (verdict,) = merged.verdicts
    assert (verdict.word, verdict.metric) == (Word.WRONG, "metric")
    assert verdict.reason == (
        "ranks disagree: ['all_reduce'] on ranks 0, 2 of 3; ['all_reduce', 'all_reduce'] on rank 1 of 3"
    )


def test_memory_is_that_of_the_rank_with_the_most() -> None:
    merged = only(result(1024, Across.MOST, Unit.BYTES), result(4096, Across.MOST, Unit.BYTES))
    (reading,) = merged.readings
    assert reading.value == 4096
    assert reading.note == "metric: the greatest is rank 1's, of 1 KiB, 4 KiB"


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ((3, 5), {"rank 0": 3, "rank 1": 5}),
        ((["a", "b"], ["a"]), {"rank 0": "a; b", "rank 1": "a"}),
        (({"sent": 8}, {"sent": 4, "received": 2}), {"rank 0: sent": 8, "rank 1: sent": 4, "rank 1: received": 2}),
    ],
)
def test_other_readings_are_kept_for_each_rank(values: tuple[Value, Value], parts: Value) -> None:
    (reading,) = only(*map(result, values)).readings
    assert reading.value == parts


@pytest.mark.parametrize(
    ("stored", "now", "word"),
    [
        ({"rank 0: rows": 9, "rank 1: rows": 7}, {"rows": 0}, Word.CHANGED),  # lost on both, which now agree
        ({"rows": 8}, {"rank 0: rows": 8, "rank 1: rows": 0}, Word.CHANGED),
        ({"rank 0": 9, "rank 1": 8}, 9, Word.BETTER),
        (["a", "b"], {"rank 0": "a; b", "rank 1": "a"}, Word.CHANGED),
    ],
)
def test_ranks_that_agree_are_compared_with_ranks_that_did_not(stored: Value, now: Value, word: Word) -> None:
    reading = Reading("overlap", Unit.COUNT, now, better=Better.HIGHER, across=Across.EACH)
    assert judge_exact(reading, stored).word is word


@pytest.mark.parametrize("stored", [["a", "b"], {"rank 0": "a; b", "rank 1": "a; b"}])
def test_of_a_long_list_of_one_rank_only_the_difference_is_told(stored: Value) -> None:
    """Ranks of a block launch hundreds of kernels each."""
    now: Value = {"rank 0": "a; b", "rank 1": "a; spin; b"}
    reading = Reading("kernels", Unit.TEXT, now, better=Better.SAME, across=Across.EACH)
    assert describe_difference(reading, stored) == "kernels rank 1 + spin"


def test_a_reading_of_some_ranks_alone_is_wrong() -> None:
    (verdict,) = only(result(1), CaseResult(CASE)).verdicts
    assert verdict.reason == "ranks disagree: read on rank 0 of 2 only"


def test_a_case_of_some_ranks_alone_is_wrong() -> None:
    (merged,) = merge_ranks([[], [result(1)]])
    assert merged.word is Word.WRONG
    assert merged.readings == []
    assert "guarded on rank 1 of 2 only" in merged.verdicts[0].reason


def test_a_wrong_rank_makes_the_case_wrong_and_shows_its_accuracy() -> None:
    right = result(1, accuracy=[Accuracy("output", "float32", error_ratio=1.5)])
    wrong = CaseResult(
        CASE,
        accuracy=[Accuracy("output", "float32", error_ratio=0.5, problem="output: is wrong")],
        verdicts=[Verdict(Word.WRONG, "output", "output: is wrong")],
    )
    merged = only(right, wrong)
    assert merged.readings == []
    assert [verdict.reason for verdict in merged.verdicts] == ["output: is wrong (on rank 1 of 2)"]
    assert merged.accuracy == wrong.accuracy


def test_ranks_with_other_inputs_say_so() -> None:
    merged = only(result(1, inputs="float32[4]"), result(1, inputs="float32[6]"), result(1, inputs="float32[4]"))
    assert merged.inputs == "float32[4] on ranks 0, 2 of 3; float32[6] on rank 1 of 3"
