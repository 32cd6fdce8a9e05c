"""Ends of groups and the ids of their rows, marked together: one follows the other, and a kernel may use either."""

from __future__ import annotations

import pytest
import torch

import perfguard
from perfguard.check.hard_inputs import derived
from perfguard.check.hard_inputs.code import Code
from perfguard.check.hard_inputs.plan import planned
from perfguard.check.hard_inputs.search import run_hard
from perfguard.check.hard_inputs.sizes import kept_by
from perfguard.model.call import HARD_KINDS, Call, Hard
from perfguard.model.errors import UsageError

SECONDS = 60.0
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(*, rows: int = 40, behind: int | None = -1) -> Inputs:
    """x, bias, ends and ids: groups of 8, 0, 16 and 8 rows, and rows of nobody unless `behind` is None."""
    generator = torch.Generator().manual_seed(5)
    ends = torch.tensor([8, 8, 24, 32])
    rows = 32 if behind is None else rows
    ids = torch.searchsorted(ends, torch.arange(rows), right=True)
    if behind is not None:
        ids[32:] = behind
    x, bias = torch.randn(rows, 8, generator=generator), torch.randn(4, 8, generator=generator)
    return x, bias, perfguard.offsets(ends, rows, ids=ids), ids


def by_ids(x: torch.Tensor, bias: torch.Tensor, ends: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Zeros in the rows of nobody."""
    return torch.where((ids >= 0)[:, None], x + bias[ids.clamp(min=0)], 0.0)


def by_ends(x: torch.Tensor, bias: torch.Tensor, ends: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    start = 0
    for group, end in enumerate(ends.tolist()):
        out[start:end] = x[start:end] + bias[group]
        start = end
    return out


def stopped_by_an_empty_group(
    x: torch.Tensor, bias: torch.Tensor, ends: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """Stops at the second empty group: the given ones have one."""
    out, start, empty = torch.zeros_like(x), 0, 0
    for group, end in enumerate(ends.tolist()):
        empty += end == start
        if empty > 1:
            break
        out[start:end] = x[start:end] + bias[group]
        start = end
    return out


def adds_to_nobody(x: torch.Tensor, bias: torch.Tensor, ends: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Takes eight rows behind the last end, at most, for nobody's."""
    out = by_ends(x, bias, ends, ids)
    out[int(ends[-1]) + 8 :] = x[int(ends[-1]) + 8 :]
    return out


def test_kernels_that_use_one_or_the_other_agree() -> None:
    found = run_hard(Call(by_ends, inputs(), by_ids), SECONDS)
    assert found.problem == ""
    assert found.ran["integers"] >= 5
    assert found.ran["sizes"] >= 5


def test_without_the_pair_kernels_that_are_right_would_differ() -> None:
    x, bias, ends, ids = inputs()
    alone = (x, bias, perfguard.offsets(ends.clone(), len(x)), ids.clone())
    asked = Hard(without=[each for each in HARD_KINDS if each != "integers"], reason="-")
    assert run_hard(Call(by_ends, alone, by_ids, hard=asked), SECONDS).problem


@pytest.mark.parametrize("wrong", [stopped_by_an_empty_group, adds_to_nobody])
def test_faults_of_other_groups_are_found(wrong: object) -> None:
    assert torch.equal(wrong(*inputs()), by_ids(*inputs()))  # type: ignore[operator]  # the given ones do not show it
    problem = run_hard(Call(wrong, inputs(), by_ids), SECONDS).problem  # type: ignore[arg-type]
    assert "rows of groups that end at" in problem


def test_rows_behind_are_of_the_last_group_where_nothing_tells() -> None:
    ids = inputs(behind=None)[3]
    assert derived(ids, "rows of groups that end at 0 8 8 24 and 3 behind").tolist() == [1] * 8 + [3] * 24
    call = Call(by_ends, inputs(behind=None), by_ids)
    texts = [
        text
        for derivation in planned(call, 0, kept_by(call), Code())["integers"]
        for part in derivation.parts
        if (text := part.steps.get(3))
    ]
    assert texts
    assert all(text.endswith("and 3 behind") for text in texts if text.startswith("rows"))


def test_the_id_of_nobody_may_be_given_by_a_mark() -> None:
    x, bias, ends, ids = inputs(behind=None)
    perfguard.ids(ids, 4, ignored=-1)
    call = Call(by_ends, (x, bias, perfguard.offsets(ends, len(x), ids=ids), ids), by_ids)
    assert run_hard(call, SECONDS).problem == ""


def test_ids_that_do_not_agree_are_an_error() -> None:
    ends, ids = torch.tensor([2, 4]), torch.tensor([0, 1, 1, 1])
    with pytest.raises(UsageError, match="row 1 is of group 0 by the ends and of 1 by its id; give ids that agree"):
        perfguard.offsets(ends, ids=ids)
    with pytest.raises(UsageError, match="the group of each row"):
        perfguard.offsets(ends, ids=torch.tensor([0, 0]))
    with pytest.raises(UsageError, match="is float32; give a tensor of integers"):
        perfguard.offsets(ends, ids=torch.ones(4))
