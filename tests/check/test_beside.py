"""What runs beside a given call, over several runs. A budget of next to nothing leaves one turn to each kind of a cheap
call, whatever the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from perfguard import Hard
from perfguard.check.all_configs import Other, check_given
from perfguard.check.hard_inputs.search import HardResult, run_hard, wrong_of
from perfguard.check.turns import Reached
from perfguard.model.call import CONFIGURATIONS, HARD_KINDS, Call
from tests.check.hard_inputs.test_hard_inputs import OverwrittenCache, plain
from tests.check.test_all_configs import beside

ONE_EACH = 1e-9
EVERYTHING = 60.0
SIZES = Hard(without=[kind for kind in HARD_KINDS if kind != "sizes"], reason="-")


def doubled(x: torch.Tensor, factor: int = 2) -> torch.Tensor:
    return x * float(factor)


CALL = Call(doubled, (plain(8, 16),), lambda x: x * 2.0)


def test_every_kind_and_a_configuration_has_one() -> None:
    call = replace(CALL, configurations=[{"factor": 2}, {"factor": 2}])
    found = beside(call, EVERYTHING)
    kinds = {"values", "non-finite", "layouts", "sizes", "sequences", "modes", "dtypes", "unmentioned", CONFIGURATIONS}
    assert {*found.ran} - {"fakes"} == kinds  # other tests of this process may have made operators
    assert found.waiting == {}
    one_each = run_hard(call, ONE_EACH, others=_others(call))
    assert one_each.ran.total() + one_each.left_out.total() == len(kinds | {*one_each.ran})
    assert {kind: number + 1 for kind, number in one_each.waiting.items()} == {
        kind: number for kind, number in _numbers(call).items() if number > 1
    }
    slow = run_hard(call, ONE_EACH, others=_others(call), check_seconds=1.0)
    assert slow.ran.total() + slow.left_out.total() == 1


def _others(call: Call) -> Sequence[Other]:
    return check_given(call).others


def _numbers(call: Call) -> dict[str, int]:
    """How many of each kind there are."""
    first = run_hard(call, ONE_EACH, others=_others(call), check_seconds=1.0)
    assert first.reached is not None
    ((tried, _),) = [each for each in first.reached.done.items() if each[1]]
    return {kind: first.waiting.get(kind, 0) + (kind == tried) for kind in first.reached.done}


def test_the_next_run_goes_on_in_the_order_that_the_first_began_with() -> None:
    first = run_hard(CALL, ONE_EACH, rotation=5)
    assert first.reached is not None
    assert set(first.reached.done.values()) == {1}
    second = run_hard(CALL, ONE_EACH, rotation=5, reached=first.reached)
    done = dict.fromkeys(first.reached.done, 2)
    assert second.reached == Reached(first.reached.plan, done, code=first.reached.code)
    third = run_hard(CALL, EVERYTHING, rotation=5, reached=second.reached).reached
    assert third is not None
    assert all(number > 2 for number in third.done.values())


def test_a_kind_is_new_for_each_code_and_for_each_option() -> None:
    """Functions that differ in nothing but a constant that they are given are other code; other sizes are not."""

    def first(call: Call, hard: Hard | None = None) -> str:
        reached = run_hard(replace(call, hard=hard or call.hard), ONE_EACH).reached
        assert reached is not None
        return reached.code

    calls = [
        CALL,
        replace(CALL, fn=partial(doubled, factor=3)),
        replace(CALL, args=(plain(8, 16).double(),)),
        replace(CALL, fn=lambda x: x * 2.0),
    ]
    assert len({first(call, SIZES) for call in calls}) == len(calls)
    assert first(replace(CALL, args=(plain(8, 20),)), SIZES) == first(CALL, SIZES)
    code = first(CALL, SIZES)
    asked: list[str] = []

    def tried(name: str) -> set[str]:
        asked.append(name)
        return set()

    run_hard(CALL, ONE_EACH, tried=tried)
    assert asked == [code]


def test_another_plan_starts_anew() -> None:
    first = run_hard(CALL, ONE_EACH)
    assert first.reached is not None
    wider = replace(CALL, args=(plain(8, 20),))
    narrower = replace(CALL, hard=SIZES)
    more = replace(CALL, configurations=[{"factor": 2}])
    assert run_hard(CALL, ONE_EACH, rotation=1, reached=first.reached).reached != first.reached  # another order
    for call in (wider, narrower, more):
        found = run_hard(call, ONE_EACH, reached=first.reached, others=_others(call))
        assert found.reached is not None
        assert found.reached.plan != first.reached.plan
        assert set(found.reached.done.values()) <= {0, 1}


def _wrong_where(*faults: Callable[[torch.Tensor], bool]) -> Call:
    return replace(CALL, fn=lambda x: x * (3.0 if any(fault(x) for fault in faults) else 2.0))


def _one_column(x: torch.Tensor) -> bool:
    return x.shape[1] == 1


def _one_row(x: torch.Tensor) -> bool:
    return x.shape[0] == 1


def _said(found: HardResult) -> set[str]:
    return {doubt.name for doubt in found.doubts}


COLUMN, ROW = "hard input, argument 0 (dim 1 cut to 1)", "hard input, argument 0 (dim 0 cut to 1)"


def test_a_fault_is_found_again_until_it_is_mended_and_hides_no_other_one() -> None:
    call = replace(_wrong_where(_one_column, _one_row), hard=SIZES)
    first = run_hard(call, EVERYTHING)
    assert first.reached is not None
    assert len(_said(first)) == 1
    second = run_hard(call, EVERYTHING, reached=first.reached)
    assert _said(second) == {COLUMN, ROW}  # the first one, and what it hid
    again = run_hard(call, ONE_EACH, reached=second.reached)
    assert _said(again) == {COLUMN, ROW}
    mended = run_hard(replace(_wrong_where(_one_row), hard=SIZES), ONE_EACH, reached=again.reached)
    assert _said(mended) == {ROW}
    assert mended.reached is not None
    assert len(mended.reached.failed) == 1


def test_what_only_the_given_inputs_show_afterwards_is_found_again_by_the_same_ones() -> None:
    def call() -> Call:
        made = Call(OverwrittenCache(), (plain(8, 64),), lambda x: x / x.square().sum(), hard=SIZES)
        made.fn(*made.args)
        return made

    before = run_hard(replace(call(), fn=lambda x: x / x.square().sum()), ONE_EACH).reached
    assert before is not None
    found = run_hard(call(), EVERYTHING, reached=before)
    assert found.problem.startswith("the given inputs, once more after ")
    assert found.reached == before


def test_all_configurations_take_no_time_of_the_derived_inputs() -> None:
    call = replace(CALL, configurations=[{"factor": factor} for factor in (2, 3, 2, 3)], every=True)
    found = run_hard(call, ONE_EACH, others=_others(call))
    assert found.ran[CONFIGURATIONS] == 4
    assert len(found.doubts) == 2
    assert CONFIGURATIONS not in found.waiting
    assert {*found.waiting} >= {"values", "non-finite", "sizes"}


def test_a_call_that_is_only_checked_names_what_is_wrong_beside_it_alone_if_it_is_right() -> None:
    call = replace(CALL, configurations=[{"factor": 3}], hard=None)
    (other,) = wrong_of(call, EVERYTHING)
    assert other.startswith("configuration 0 (factor=3): ")
    assert wrong_of(call, 0) == []
    (given,) = wrong_of(replace(call, reference=lambda x: x * 3.0), EVERYTHING)
    assert given.startswith("output: RMSE ")
