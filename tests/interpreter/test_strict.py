"""Strict runs: what a kernel relies on though nothing promises it is found, with its line, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from perfguard.check.all_configs import check_given
from perfguard.check.hard_inputs.search import HardResult, run_hard
from perfguard.interpreter.entry import interpreting
from perfguard.interpreter.running import bounded, counted
from perfguard.model.call import HARD_KINDS, Call, Hard
from tests.interpreter import racing
from tests.interpreter.racing import BAD, GOOD, Example
from tests.interpreter.table import PAGE

STRICT = ("masked lanes", "program order")
OTHERS = [kind for kind in HARD_KINDS if kind not in STRICT]


def strictly_run(example: Example, seed: int = 0) -> HardResult:
    """Of a call that is right when it runs as ever."""
    torch.manual_seed(seed)
    call = Call(example.fn, example.inputs(), example.reference, hard=Hard(without=OTHERS, reason="not of this test"))
    with interpreting():
        given = check_given(call)
        assert not given.checked.wrong
        return run_hard(call, 60.0, kept=given.kept, others=given.others, check_seconds=given.seconds)


@pytest.mark.parametrize("name", BAD)
def test_what_is_relied_on_is_found_with_its_line(name: str) -> None:
    found = strictly_run(BAD[name])
    lines = Path(racing.__file__).read_text(encoding="utf-8").splitlines()
    named = {f"racing.py:{number}" for number, line in enumerate(lines, 1) if BAD[name].line in line}
    assert any(each in found.problem for each in named), found.problem


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 5))])
@pytest.mark.parametrize("name", GOOD)
def test_a_good_kernel_is_quiet(name: str, seed: int) -> None:
    found = strictly_run(GOOD[name], seed)
    assert found.problem == ""
    assert found.ran.total() + found.left_out.total() > 0 or "float" in name


def test_a_program_that_waits_for_an_earlier_one_is_left_out() -> None:
    found = strictly_run(GOOD["waits for the one before"])
    assert found.problem == ""
    assert [reason for reason in found.left_out if "waits for a program" in reason]


def test_a_read_behind_the_end_is_found_with_its_line_though_its_value_is_not_used() -> None:
    sizes = Hard(without=[kind for kind in HARD_KINDS if kind != "sizes"], reason="not of this test")
    open_, closed = (
        Call(partial(racing.weighted_by, kernel), (torch.randn(32), torch.rand(32)), torch.mul, hard=sizes)
        for kernel in (racing.weighted_open, racing.weighted)
    )
    with interpreting():
        assert check_given(open_).checked.wrong == []
        lines = Path(racing.__file__).read_text(encoding="utf-8").splitlines()
        number = next(at for at, line in enumerate(lines, 1) if "are read, and not used" in line)
        assert f"racing.py:{number} reaches outside of the tensors that weighted_open" in run_hard(open_, 60.0).problem
        assert run_hard(closed, 60.0).problem == ""


def summed(limit: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Sums of rows that are wrong if there are more rows than the limit."""

    def sums(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(x))
        racing.sum_open[(len(x),)](x.contiguous(), out, x.shape[1], B=2 ** (x.shape[1] - 1).bit_length())
        return out + 1 if len(x) > limit else out

    return sums


@pytest.mark.parametrize(("limit", "most"), [(300, 20_000), (20_000, 1_000)])
def test_a_row_for_each_of_many_programs_is_left_out_before_they_run(limit: int, most: int) -> None:
    thresholds = Hard(without=[kind for kind in HARD_KINDS if kind != "thresholds"], reason="not of this test")
    call = Call(summed(limit), (torch.randn(8, 50),), lambda x: x.sum(1), hard=thresholds)
    with interpreting(), counted() as work:
        assert check_given(call).checked.wrong == []
        found = run_hard(call, 60.0)
    assert ("dim 0 grown to 301" in found.problem) == (limit == 300)
    assert ("sum_open: interpreting it takes too long" in found.left_out) == (limit == 20_000)
    assert 0 < work["sum_open", "programs"] < most


def test_a_launch_on_derived_inputs_may_take_a_few_times_as_long_as_the_given_ones() -> None:
    x = torch.ones(4_200, 1)  # This many programs are too many if the given inputs have few.
    with interpreting():
        with bounded(lambda _: None), pytest.raises(Exception, match="takes too long"):
            summed(4_200)(x)
        summed(4_200)(x)
        with bounded(lambda _: None):
            assert summed(4_200)(x).sum() == 4_200


def test_there_are_as_many_as_are_promised() -> None:
    """Kernels of others are run where they are installed: `benchmarks/foreign/strict.py`."""
    others = json.loads((PAGE.parent / "foreign.json").read_bytes())
    quiet = {name for names in others["quiet"].values() for name in names}
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    lacking = sum("does not run" in str(problems) for problems in others["problems"].values())
    assert f"{others['functions'] - lacking} of {others['functions']} run" in page
    assert f"{len(quiet)} are quiet in strict runs with {others['seeds']} seeds" in page
    assert len(BAD) >= 10
    assert len(GOOD) + len(quiet) >= 40
