"""Marked integers: groups of every size, indices that repeat or meet nobody; unmarked ones keep their values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import perfguard
from perfguard.check.hard_inputs import mark_of
from perfguard.check.hard_inputs.derivation import derived_tensor
from perfguard.check.hard_inputs.integers import integers_of
from perfguard.check.hard_inputs.search import HardResult, run_hard
from perfguard.check.hard_inputs.sizes import Sizes
from perfguard.model.call import Call
from perfguard.model.errors import UsageError

SECONDS = 60.0
ENDS = torch.tensor([8, 24, 40, 64], dtype=torch.int32)


def rows(count: int, columns: int = 8) -> torch.Tensor:
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(3))


def found(fn: Any, *args: Any, reference: Any, **options: Any) -> HardResult:
    return run_hard(Call(fn, args, reference, **options), SECONDS)


def of_rows(ends: torch.Tensor) -> torch.Tensor:
    """Marked ends of groups of 64 rows, some of which may be nobody's."""
    return perfguard.offsets(ends.clone(), 64)


def maxima(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """(M, K), (G,) -> (G, K): the largest of each group's rows; 0 where it has none."""
    starts = [0, *ends.tolist()[:-1]]
    groups = zip(starts, ends.tolist(), strict=True)
    return torch.stack([x[a:b].amax(0) if b > a else torch.zeros_like(x[0]) for a, b in groups])


def maxima_of_filled(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Takes the first row of each group for granted."""
    starts = [0, *ends.tolist()[:-1]]
    return torch.stack([x[a : max(b, a + 1)].amax(0) for a, b in zip(starts, ends.tolist(), strict=True)])


def added(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(16, x.shape[1]).index_add(0, to, x)


def added_by_table(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """Has room for 32 rows of one place."""
    return torch.stack([x[to == place][:32].sum(0) for place in range(16)])


def sums(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.stack([part.sum(0) for part in x[: int(ends[-1])].tensor_split(ends.tolist()[:-1])])


def sums_of_even(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Drops an odd row."""
    return sums(x, ends) if len(x) % 2 == 0 else sums(x[:-1], ends.clamp(max=len(x) - 1))


def cleared(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.where((torch.arange(len(x)) < ends[-1])[:, None], x, 0)


def multiplied(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """What is in rows of nobody may be NaN."""
    return x * (torch.arange(len(x)) < ends[-1])[:, None]


def mean_of_all_but_one(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Takes the number of ignored targets for granted."""
    return F.cross_entropy(x, target, reduction="sum") / (len(target) - 1)


TO, ODD = torch.arange(80) % 16, torch.tensor([8, 23, 40, 64])
TARGETS = torch.tensor([3, -100, 0, 7, 5])


@pytest.mark.parametrize(
    ("wrong", "right", "x", "marked", "without", "words"),
    [
        (maxima_of_filled, maxima, rows(64), perfguard.offsets(ENDS.clone()), [],
         "argument 1 (groups before 3 empty and ends 64 from there)"),
        (maxima_of_filled, maxima, rows(64), of_rows(ENDS), [], "argument 1 ("),
        (added_by_table, added, rows(80), perfguard.ids(TO.clone(), 16), [], "argument 1 ("),
        (sums_of_even, sums, rows(64), of_rows(ODD), [], "dim 0 cut to"),
        (multiplied, cleared, rows(64), of_rows(ENDS), [], "NaN"),
        (mean_of_all_but_one, F.cross_entropy, rows(5), perfguard.ids(TARGETS, 8, ignored=-100), ["sizes"],
         "argument 1 ("),
    ],
)  # fmt: skip
def test_what_other_integers_show(
    wrong: Any, right: Any, x: torch.Tensor, marked: torch.Tensor, without: list[str], words: str
) -> None:
    hard = perfguard.Hard(without=without, reason="-")
    assert words in found(wrong, x, marked, reference=right, hard=hard).problem
    assert found(right, x, marked, reference=right, hard=hard).problem == ""


def test_integers_that_mean_nothing_keep_their_values_and_groups_mark_their_ends() -> None:
    ends = ENDS.clone()
    sizes = perfguard.Hard(without=["sizes"], reason="a vector that grows repeats its last element")
    assert found(added_by_table, rows(80), TO.clone(), reference=added, hard=sizes).problem == ""
    assert "groups before" in found(maxima_of_filled, rows(64), ends, reference=maxima, groups=ends).problem


def test_what_is_derived_stays_within_the_mark() -> None:
    marked = perfguard.ids(torch.arange(200) % 7, 7)
    for text in integers_of(marked, mark_of(marked)):  # type: ignore[arg-type]
        made = derived_tensor(marked, text)
        assert made.shape == marked.shape
        assert 0 <= int(made.min()) <= int(made.max()) < 7
    for limit in (None, 96):
        ends = perfguard.offsets(ENDS.clone(), limit)
        for text in integers_of(ends, mark_of(ends)):  # type: ignore[arg-type]
            made = derived_tensor(ends, text)
            assert made.tolist() == sorted(made.tolist())
            assert all(end % 8 == 0 for end in made.tolist())  # as all given ends are
            assert int(made[-1]) == 64 if limit is None else int(made[-1]) <= limit


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: perfguard.ids(torch.tensor([1.0]), 4), "is float32"),
        (lambda: perfguard.ids(torch.tensor([1, 4]), 4), "outside 0 to 3"),
        (lambda: perfguard.ids(torch.tensor([1]), -1), "at least 0"),
        (lambda: perfguard.offsets(torch.tensor([3, 1])), "running ends"),
        (lambda: perfguard.offsets(torch.tensor([3, 9]), 8), "running ends"),
    ],
)
def test_a_mark_that_does_not_hold_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


def test_targets_that_stand_for_none_stay_and_more_become_so() -> None:
    target = torch.tensor([3, -100, 0, 7])
    with pytest.raises(UsageError, match="ignored="):
        perfguard.ids(target, 8)
    marked = perfguard.ids(target, 8, ignored=-100)
    mark = mark_of(marked)
    assert mark is not None
    assert {"all -100", "7 replaced by -100"} <= set(integers_of(marked, mark))
    assert derived_tensor(target, "7 replaced by -100").tolist() == [3, -100, 0, -100]
    assert derived_tensor(target, "all -100").tolist() == [-100] * 4


@pytest.mark.parametrize(
    ("tensor", "target", "followed"),
    [
        (perfguard.ids(torch.tensor([0, 63, 5]), 64), 31, "modulo 31"),
        (perfguard.offsets(ENDS.clone(), 64), 31, "ends at most 24"),  # a multiple of what all ends are multiples of
        (perfguard.ids(torch.tensor([0, 9]), 10), 31, ""),  # of places that are as many
        (perfguard.offsets(ENDS.clone()), 31, None),  # whose last one has to be the rows
        (perfguard.ids(torch.tensor([0, 63, 5]), 64), 129, "modulo 129"),
        (perfguard.offsets(ENDS.clone(), 64), 129, "ends at most 129"),
        (perfguard.offsets(ENDS.clone()), 129, None),
        (perfguard.offsets(ENDS.clone()), 128, "ends at most 128, last end 128"),
    ],
)
def test_marked_integers_follow_another_size(tensor: torch.Tensor, target: int, followed: str | None) -> None:
    part = Sizes([rows(64), tensor], []).resize(64, target)
    assert (None if part is None else part.steps.get(1, "")) == followed
    if followed:
        made = derived_tensor(tensor, followed)
        limit = mark_of(tensor).limit  # type: ignore[union-attr]
        assert int(made.max()) <= target
        assert mark_of(made) == replace(mark_of(tensor), limit=int(followed.split()[-1]) if limit else 0)


@pytest.mark.parametrize(("target", "ends"), [(3, [8, 24, 64]), (6, [16, 16, 32, 32, 48, 64])])
def test_fewer_groups_have_all_rows_and_of_more_every_second_is_empty(target: int, ends: list[int]) -> None:
    part = Sizes([rows(64), torch.ones(4, 8), perfguard.offsets(ENDS.clone())], []).resize(4, target)
    assert part is not None
    assert derived_tensor(perfguard.offsets(ENDS.clone()), part.steps[2]).tolist() == ends


@pytest.mark.parametrize(
    ("marked", "apart"),
    [
        (torch.tensor([3, 5]), True),
        (perfguard.ids(torch.tensor([3, 5]), 8), True),
        (perfguard.ids(torch.tensor([3, 5]), 64), False),  # rows or columns
        (perfguard.offsets(ENDS.clone()), False),
        (perfguard.offsets(ENDS.clone(), 64), False),
    ],
)
def test_rows_and_columns_that_are_as_many_are_cut_apart(marked: torch.Tensor, apart: bool) -> None:
    found = [part.steps for part in Sizes([rows(64, 64), marked], [64]).apart()]
    assert found == [{0: f"dim {dim} cut to {to}"} for to in (63, 32) for dim in (0, 1) if apart]


@pytest.mark.parametrize(
    ("integers", "target", "valid"),
    [
        ([3, 40], 31, False),  # an index past the cut
        ([3, 30], 31, True),
        ([3, 40], 129, True),
        ([8, 24, 64], 129, False),  # ends of groups of these rows
        ([24, 40], 129, False),  # lengths of groups
    ],
)
def test_unmarked_integers_still_mean_the_same(integers: list[int], target: int, valid: bool) -> None:
    assert (Sizes([rows(64), torch.tensor(integers)], []).resize(64, target) is not None) is valid


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.to(torch.float16).to(grad.dtype) * 2


def test_a_backward_pass_through_float16_is_found() -> None:
    """Of gradients with as few bits as bfloat16 has, only those beyond its range show it."""
    x = rows(8).to(torch.bfloat16).requires_grad_()
    problem = found(Doubled.apply, x, reference=lambda x: x * 2).problem
    assert "incoming gradients (times 2^17)" in problem
    half = rows(8).to(torch.float16).requires_grad_()
    result = found(Doubled.apply, half, reference=lambda x: x * 2)
    assert not result.problem
    assert result.left_out["incoming gradients overflow"] >= 1
