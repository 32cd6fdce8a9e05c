"""What a failure says of the pattern of a wrong result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perfguard.check.correctness import check
from perfguard.check.numerics.hints import looks_like
from perfguard.model.call import Call

X = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))


def with_columns(columns: slice) -> torch.Tensor:
    made = X.clone()
    made[:, columns] += 1
    return made


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (X.roll(1, 0), "looks shifted down by 1 row"),
        (X.roll(-2, 0), "looks shifted up by 2 rows"),
        (X.roll(1, 1), "looks shifted right by 1 column"),
        (X.roll(-1, 1), "looks shifted left by 1 column"),
        (X.t().clone(), "looks transposed"),
        (X.flip(0), "looks as if its rows were reversed"),
        (with_columns(slice(28, 32)), "wrong are columns 28 to 31 of 32, and the others right"),
        (with_columns(slice(3, None, 4)), "wrong are each 4th of 32 columns, from 3 on, and the others right"),
        (with_columns(slice(7, 8)), "wrong are column 7 of 32, and the others right"),
        (X + 1, ""),
        (torch.zeros_like(X), ""),
        (torch.full_like(X, torch.nan), ""),
    ],
)
def test_patterns(wrong: torch.Tensor, words: str) -> None:
    assert looks_like(wrong, X, limit=1e-6) == words


def test_rows_and_no_pattern() -> None:
    wrong = X.clone()
    wrong[5:9] *= -1
    assert looks_like(wrong, X, limit=1e-6) == "wrong are rows 5 to 8 of 32, and the others right"
    spread = X.clone()
    spread[torch.arange(32), torch.randperm(32, generator=torch.Generator().manual_seed(1))] += 1
    assert looks_like(spread, X, limit=1e-6) == ""


def test_one_block_of_rows_is_a_pattern_however_large_and_what_happened_there_is_told() -> None:
    scaled, shifted = X.clone(), X.clone()
    scaled[4:28] *= 1.5
    shifted[8:16] = X[8:16].roll(1, 0)
    assert looks_like(scaled, X, limit=1e-6) == "wrong are rows 4 to 27 of 32, and the others right"
    part = "wrong are rows 8 to 15 of 32, and the others right; there it looks shifted down by 1 row"
    assert looks_like(shifted, X, limit=1e-6) == part


def test_a_vector_is_a_column() -> None:
    vector = X[0]
    late = torch.cat([vector[:30], 2 * vector[30:]])
    assert looks_like(vector.roll(1), vector, limit=1e-6) == "looks shifted down by 1 row"
    assert looks_like(late, vector, limit=1e-6) == "wrong are rows 30 to 31 of 32, and the others right"
    assert looks_like(vector + torch.randn(32), vector, limit=1e-6) == ""


@pytest.mark.parametrize("shape", [(0, 4), (4,), (1, 1), (2, 2)])
def test_small_and_empty_ones_have_no_pattern(shape: tuple[int, ...]) -> None:
    assert looks_like(torch.ones(shape), torch.zeros(shape), 1e-6) == ""


def found(fn: Callable[[torch.Tensor], torch.Tensor], groups: tuple[int, ...] | None = None) -> str:
    (problem,) = [accuracy.problem for accuracy in check(Call(fn, (X,), lambda x: 2 * x, groups=groups)).forward]
    return problem


def of_one_group(x: torch.Tensor) -> torch.Tensor:
    y = 2 * x
    y[8:30] *= 1.5
    return y


def fourth_columns(x: torch.Tensor) -> torch.Tensor:
    y = 2 * x
    y[:, 3::4] = 0
    return y


def test_a_failure_says_it() -> None:
    assert found(lambda x: 2 * x.roll(1, 0)).endswith("; looks shifted down by 1 row")
    assert "looks scaled by 1.02" in found(lambda x: 2.04 * x)
    assert found(fourth_columns).endswith("; wrong are each 4th of 32 columns, from 3 on, and the others right")
    one = found(of_one_group, groups=(8, 30, 32))
    assert " looks scaled by 1.5; wrong are rows 8 to 29 of 32, and the others right; in group 1 of 3 (22 rows)" in one
    assert "looks" not in found(lambda x: x.sin())
