"""Codes and scales that are nearer to the truth than the reference's, whose values were rounded before its cast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perfguard.check.correctness import check
from perfguard.check.hard_inputs.search import run_hard
from perfguard.check.numerics.fp8_values import spread
from perfguard.model.call import Call, Tolerance

F8 = torch.float8_e4m3fn
Pair = tuple[torch.Tensor, torch.Tensor]


def inputs(seed: int = 0) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(32, 128, generator=generator), torch.randn(128, generator=generator)
    return x.bfloat16(), w.bfloat16()


def quantised(v: torch.Tensor, divisor: float = 448.0) -> Pair:
    scale = v.abs().amax(-1, keepdim=True).clamp(min=1e-10) / divisor
    return (v / scale).clamp(-448, 448).to(F8), scale


def product(x: torch.Tensor, w: torch.Tensor) -> Pair:
    """In bfloat16 before the cast."""
    return quantised((torch.tanh(x) * w).float())


def fused(x: torch.Tensor, w: torch.Tensor) -> Pair:
    return quantised(torch.tanh(x.float()) * w.float())


def rounded_elsewhere(x: torch.Tensor, w: torch.Tensor) -> Pair:
    return quantised((torch.tanh(x.float()) * w.float()).bfloat16().float())


def by_inverse(x: torch.Tensor, w: torch.Tensor) -> Pair:
    """The scales that values are multiplied by."""
    codes, scale = fused(x, w)
    return codes, 1 / scale


def product_by_inverse(x: torch.Tensor, w: torch.Tensor) -> Pair:
    codes, scale = product(x, w)
    return codes, 1 / scale


def towards_zero(x: torch.Tensor, w: torch.Tensor) -> Pair:
    v = torch.tanh(x.float()) * w.float()
    scale = v.abs().amax(-1, keepdim=True) / 448
    codes = (v / scale).to(F8)
    over = codes.float().abs() > (v / scale).abs()
    return (codes.view(torch.uint8) - over.to(torch.uint8)).view(F8), scale


def another_divisor(x: torch.Tensor, w: torch.Tensor) -> Pair:
    return quantised(torch.tanh(x.float()) * w.float(), 440.0)


def scales_of_other_rows(x: torch.Tensor, w: torch.Tensor) -> Pair:
    codes, scale = fused(x, w)
    return codes, scale.roll(1, 0)


def one_wrong_code(x: torch.Tensor, w: torch.Tensor) -> Pair:
    codes, scale = fused(x, w)
    codes.view(torch.uint8)[3, 5] ^= 8
    return codes, scale


def last_column_lost(x: torch.Tensor, w: torch.Tensor) -> Pair:
    v = torch.tanh(x.float()) * w.float()
    v[:, -1] = 0
    return quantised(v)


@pytest.mark.parametrize(
    ("candidate", "reference"), [(fused, product), (rounded_elsewhere, product), (by_inverse, product_by_inverse)]
)
def test_kernels_nearer_to_the_truth_than_the_reference(
    candidate: Callable[..., Pair], reference: Callable[..., Pair]
) -> None:
    for seed in range(3):
        call = Call(candidate, inputs(seed), reference)
        assert check(call).wrong == []
    assert run_hard(call, 20.0).problem == ""


@pytest.mark.parametrize(
    "candidate", [towards_zero, another_divisor, scales_of_other_rows, one_wrong_code, last_column_lost]
)
def test_faults_beside_such_a_reference_and_the_ways_out(candidate: Callable[..., Pair]) -> None:
    wrong = check(Call(candidate, inputs(), product)).wrong
    assert wrong
    assert all("give one that keeps float32 up to it" in problem for problem in wrong)
    assert all("Tolerance(k=…" in problem for problem in wrong)


def test_a_reference_that_rounds_nothing_before_its_cast_decides() -> None:
    assert check(Call(rounded_elsewhere, inputs(), fused)).wrong
    assert check(Call(fused, inputs(), fused)).wrong == []


def test_a_tolerance_sets_the_multiple() -> None:
    wide = Tolerance(k=2.5, reason="rounds towards zero")
    assert check(Call(towards_zero, inputs(), product, tolerance=wide)).wrong == []


@pytest.mark.parametrize(
    ("scales", "codes", "values"),
    [
        ((2,), (2, 3), [[0, 0, 0], [1, 1, 1]]),
        ((2, 1), (2, 2), [[0, 0], [1, 1]]),
        ((2, 2), (2, 4), [[0, 0, 1, 1], [2, 2, 3, 3]]),
        ((1,), (2, 2), [[0, 0], [0, 0]]),
        ((2, 3), (2, 4), None),
        ((3,), (2, 4), None),
    ],
)
def test_scales_belong_to_rows_and_blocks(scales: tuple[int, ...], codes: tuple[int, ...], values: object) -> None:
    given = torch.arange(torch.Size(scales).numel(), dtype=torch.float32).view(scales)
    found = spread(given, codes)
    assert (None if found is None else found.tolist()) == values


def to_int8(x: torch.Tensor) -> torch.Tensor:
    return (x * 16).round().clamp(-128, 127).to(torch.int8)


def test_what_a_cast_makes_of_nan_is_compared_nowhere() -> None:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    x[2, 3] = float("nan")

    def other_nan(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.isnan(), 77, to_int8(x.nan_to_num()))

    def infinity_is_zero(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x.isinf(), 0, to_int8(x))

    assert check(Call(other_nan, (x,), to_int8)).wrong == []
    x[4, 4] = float("inf")  # clamped to 127 before the cast
    assert "1 of 128" in check(Call(infinity_is_zero, (x,), to_int8)).wrong[0]


def test_what_an_integer_cannot_hold_is_compared_nowhere() -> None:
    x = torch.tensor([[1.0, 300.0, -2.0, -1e9]])

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.int8)

    def saturating(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-128, 127).to(torch.int8)

    assert check(Call(saturating, (x,), cast)).wrong == []
    assert check(Call(lambda x: saturating(x) + 1, (x,), cast)).wrong
