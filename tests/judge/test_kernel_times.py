"""Which kernels of observed tests have a time in question, and what is said of it without process pairs."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from perfguard.judge.case_verdicts import judge_case
from perfguard.judge.lane import Lane
from perfguard.judge.screen import moved_kernels
from perfguard.judge.update_plan import plan
from perfguard.model.limits import KERNEL_TIME_LIMITS
from perfguard.model.records import (
    Baseline,
    BaseTree,
    Better,
    Case,
    CaseBaseline,
    CaseResult,
    Entry,
    Hardware,
    Provenance,
    Reading,
    Toolchain,
    Value,
    Verdict,
    Word,
)
from perfguard.model.records.baseline import UNSTABLE
from perfguard.model.units import Unit

TIME = "kernel_time_us"
CASE = Case("ops", "norm", "test", "test_ops.py::test_norm")
HARDWARE = Hardware("here", "nvidia", "Here", "sm_90")
STORED: dict[str, Entry] = {
    "grids": {"rows": "1 x (4,)", "columns": "2 x (2,)"},
    "kernel_launches": {"rows": 1, "columns": 2, "columns/2": 1},
    TIME: {"rows": 41.0, "columns": 9.0},
}


def lane(stored: dict[str, Entry] | None = None, base: BaseTree | None = None) -> Lane:
    baseline = Baseline("here", "ops", cases={"norm/test": CaseBaseline(STORED | (stored or {}), "body 1")})
    return Lane(HARDWARE, Toolchain(), [baseline], base or BaseTree(commit="c0ffee"))


def result(inputs: str = "body 1", **moved: dict[str, str | int]) -> CaseResult:
    """The test as it is stored, but for the values in `moved`."""

    def reading(metric: str, stored: Entry) -> Reading:
        value: Value = {**stored, **moved.get(metric, {})} if isinstance(stored, dict) else {}
        return Reading(metric, Unit.TEXT, value, Better.SAME, gated=False, covers=[TIME])

    return CaseResult(CASE, inputs, readings=[reading(*each) for each in STORED.items() if each[0] != TIME])


def of_times(verdicts: list[Verdict]) -> dict[str, tuple[Word, str]]:
    return {each.metric: (each.word, each.reason) for each in verdicts if each.metric.startswith(f"{TIME}[")}


@pytest.mark.parametrize(
    ("moved", "kernels"),
    [
        ({}, {}),
        ({"grids": {"rows": "1 x (8,)"}}, {"rows": "grids"}),
        ({"kernel_launches": {"columns": 3}}, {"columns": "kernel_launches"}),
        ({"kernel_launches": {"columns/2": 2}}, {"columns": "kernel_launches"}),  # its second specialisation
        ({"grids": {"new": "1 x (8,)"}}, {"new": "grids"}),
    ],
)
def test_a_kernel_is_in_question_if_its_launches_moved(
    moved: dict[str, dict[str, str | int]], kernels: dict[str, str]
) -> None:
    assert moved_kernels(result(**moved), lane()) == kernels
    found = of_times(judge_case(result(**moved), lane()))
    assert found == {
        f"{TIME}[{kernel}]": (Word.SUSPECT, f"to be paired: {why} moved") for kernel, why in kernels.items()
    }


def test_what_is_no_fact_asks_for_no_time() -> None:
    """An edited test, facts that vary from process to process, a test that is not recorded, a tree without changes."""
    other = result(grids={"rows": "1 x (8,)"})
    assert moved_kernels(replace(other, inputs="body 2"), lane()) == {}
    assert moved_kernels(other, lane({"grids": "unstable"})) == {}
    assert moved_kernels(other, dataclasses.replace(lane(), files=())) == {}
    assert of_times(judge_case(other, lane(base=BaseTree("c0ffee", equal=True)))) == {}
    without_times = CaseResult(CASE, "body 1", readings=[Reading("launches", Unit.COUNT, 7)])  # as on a CPU
    assert of_times(judge_case(without_times, lane())) == {}


def test_without_a_base_it_says_why() -> None:
    found = judge_case(result(grids={"rows": "1 x (8,)"}), lane(base=BaseTree(problem="not in a git checkout")))
    assert of_times(found) == {f"{TIME}[rows]": (Word.UNRESOLVED, "UNPAIRED: not in a git checkout")}


def test_the_stored_times_are_shown_and_no_run_has_to_read_them() -> None:
    found = judge_case(result(), lane())
    (shown,) = [each for each in found if each.metric == TIME]
    assert (shown.word, shown.before) == (Word.PASS, STORED[TIME])
    assert Word.UNRESOLVED not in {each.word for each in found}


@pytest.mark.parametrize(("us", "category"), [(80.0, "slower"), (44.0, "changed"), (30.0, "faster")])
def test_new_launches_are_written_with_its_times(us: float, category: str) -> None:
    """Nothing gated moved, and yet the record would ask for pairs for ever. Slower ones ask for a reason."""
    measured = result(grids={"rows": "1 x (8,)"})
    times = KERNEL_TIME_LIMITS.reading(TIME, Unit.MICROSECONDS, {"rows": us, "columns": 9.2})
    measured = replace(measured, readings=[*measured.readings, times])
    judged = replace(measured, verdicts=judge_case(measured, lane()))
    changes = plan(lane(), [judged], {}, [], Provenance())
    assert {(each.metric, each.category, each.needs_reason) for each in changes} == {
        ("grids", category, False),
        (TIME, category, category == "slower"),
    }


def test_launches_that_differ_between_processes_are_stored_as_no_fact() -> None:
    """A kernel would be in question in every run otherwise."""
    measured, other = result(grids={"rows": "1 x (5,)"}), result(grids={"rows": "1 x (6,)"})
    judged = replace(measured, verdicts=judge_case(measured, lane()))
    (change,) = plan(lane(), [judged], {("ops", "norm/test"): [measured, other]}, [], Provenance())
    assert (change.metric, change.after) == ("grids", UNSTABLE)


def test_times_of_unchanged_kernels_are_not_written_anew() -> None:
    times = KERNEL_TIME_LIMITS.reading(TIME, Unit.MICROSECONDS, {"rows": 80.0})
    measured = replace(result(), readings=[*result().readings, times])
    judged = replace(measured, verdicts=judge_case(measured, lane()))
    assert plan(lane(), [judged], {}, [], Provenance()) == []
