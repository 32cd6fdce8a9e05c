"""A function that is right in half of its digits, but outside the rule, is told the tolerance that admits it."""

from __future__ import annotations

import re

import pytest
import torch

from perfguard.check.numerics.rule import compare
from perfguard.model.call import Tolerance

NAMED = re.compile(r"; if it is to be as loose: Tolerance\((k|phi)=([\d.e+]+), reason='…'\)")


def judged(dtype: torch.dtype, loose: float, *, exact: bool = False, rows: int = 8, of: slice = slice(None)):  # type: ignore[no-untyped-def]
    """A candidate off by about `loose` roundings of `dtype` in the rows `of`; eager is off by one, or by none."""
    generator = torch.Generator().manual_seed(3)
    oracle = torch.randn(rows, 256, generator=generator, dtype=torch.float64)
    eager = oracle.to(dtype)
    if exact:
        oracle = eager.double()
    noise = torch.randn(rows, 256, generator=generator, dtype=torch.float64) * loose * torch.finfo(dtype).eps / 2
    candidate = oracle.clone()
    candidate[of] *= 1 + noise[of]

    def by(tolerance: Tolerance | None = None):  # type: ignore[no-untyped-def]
        return compare(candidate.to(dtype), eager, oracle, name="output", tolerance=tolerance)

    return by


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("of", [slice(None), slice(2, 3)], ids=["all rows", "one row"])
@pytest.mark.parametrize(
    ("dtype", "loose"), [(torch.float32, 24), (torch.float32, 3000), (torch.float16, 16), (torch.bfloat16, 6)]
)
def test_the_tolerance_that_is_named_admits_it(dtype: torch.dtype, loose: float, exact: bool, of: slice) -> None:
    by = judged(dtype, loose, exact=exact, of=of)
    problem = by().problem
    found = NAMED.search(problem)
    assert found, problem
    name, value = found[1], float(found[2])
    assert by(Tolerance(**{name: value}, reason="as the original")).problem == ""
    assert by(Tolerance(**{name: 0.8 * value}, reason="as the original")).problem != ""


@pytest.mark.parametrize(
    ("dtype", "loose", "rows"),
    [(torch.float32, 1e5, slice(None)), (torch.bfloat16, 60, slice(None)), (torch.float32, 1e7, slice(2, 3))],
)
def test_what_is_wrong_is_told_no_tolerance(dtype: torch.dtype, loose: float, rows: slice) -> None:
    problem = judged(dtype, loose, of=rows)().problem
    assert problem
    assert "Tolerance" not in problem


def test_what_is_not_finite_is_told_no_tolerance() -> None:
    oracle = torch.ones(4, 64, dtype=torch.float64)
    candidate = oracle.float()
    candidate[0, 0] = torch.nan
    problem = compare(candidate, oracle.float(), oracle, name="output").problem
    assert "NaN or Inf" in problem
    assert "Tolerance" not in problem
