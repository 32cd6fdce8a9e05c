"""The two figures that derived inputs stand for: correct operators of others accused, planted bugs missed."""

from __future__ import annotations

import pytest

from perfguard.check.correctness import check
from perfguard.check.hard_inputs.search import LEAST_SECONDS, run_hard
from perfguard.model.call import Call
from tests.check.hard_inputs.buggy import BUGGY
from tests.check.hard_inputs.foreign import FOREIGN

SEEDS = range(20)
ROOM = 5  # a processor that others use, too, takes longer for the same inputs


def test_there_are_enough_of_both() -> None:
    assert len(FOREIGN) >= 40
    assert len(BUGGY) >= 10


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("name", FOREIGN)
def test_a_correct_operator_of_others_is_not_accused(name: str) -> None:
    fn, reference, inputs = FOREIGN[name]
    for seed in range(3):
        call = Call(fn, inputs(seed), reference, seed=seed)
        assert check(call).wrong == []
        found = run_hard(call, LEAST_SECONDS, rotation=seed)
        assert found.problem == ""
        assert found.ran > 0


@pytest.mark.parametrize("name", BUGGY)
def test_a_planted_bug_that_given_inputs_do_not_show_is_found_whatever_the_seed(name: str) -> None:
    fresh, reference, inputs = BUGGY[name]
    missed = []
    for seed in SEEDS:
        call = Call(fresh(), inputs(seed), reference, seed=seed)
        if seed == 0:
            assert check(call).wrong == []
        if not run_hard(call, ROOM * LEAST_SECONDS).problem:
            missed.append(seed)
    assert missed == []
