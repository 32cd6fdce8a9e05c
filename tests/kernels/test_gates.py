"""silu_mul and clamped_swiglu: accuracy against float64, extremes, the gradient at the limit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kernels.operators import clamped_swiglu, reference, silu_mul
from tests.kernels.operators import DTYPES, gradients
from tests.kernels.paths import KernelPath

# In the interpreter NumPy warns of what is meant here: overflow of exp, inf * 0.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", [silu_mul, clamped_swiglu])
def test_error_against_float64(function: Any, dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """At most 1e-2 in 16 bits, and at most twice the error of eager as people write it, in the working dtype."""
    x = torch.randn(61, 74) * 3
    inputs = (x[:, 0::2], x[:, 1::2]) if function is silu_mul else (x,)
    inputs = tuple(one.to(dtype).to(kernel_path.device).requires_grad_() for one in inputs)
    options = () if function is silu_mul else (1.702, 7.0)

    def eager(*given: Any) -> torch.Tensor:
        if function is silu_mul:
            return torch.nn.functional.silu(given[0]) * given[1]
        gate, up = given[0][:, 0::2].clamp(max=7.0), given[0][:, 1::2].clamp(-7.0, 7.0)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)

    wide = tuple(one.detach().double().requires_grad_() for one in inputs)
    upstream = torch.randn(61, 37).to(inputs[0])
    truth = gradients(eager, (*wide, *options), upstream.double())
    ours, theirs = (gradients(one, (*inputs, *options), upstream) for one in (function, eager))
    for got, other, right in zip(ours, theirs, truth, strict=True):
        error, allowed = ((one - right).square().mean().sqrt().item() for one in (got, other))
        assert error <= 2 * allowed
        if dtype != torch.float32:
            assert error <= 1e-2 * right.square().mean().sqrt().item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_silu_of_extremes(dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """Where exp overflows, and NaN and infinities, as in the reference, gradients included."""
    values = [0.0, -0.0, 88.0, -88.0, 104.0, -104.0, 3e4, -3e4, torch.inf, -torch.inf, torch.nan]
    g = torch.tensor(values).to(dtype).to(kernel_path.device).requires_grad_()
    u = torch.full_like(g, 2.0).requires_grad_()
    upstream = torch.ones_like(g)
    got, expected = (gradients(function, (g, u), upstream) for function in (silu_mul, reference.silu_mul))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-2, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_at_the_limit(dtype: torch.dtype, kernel_path: KernelPath) -> None:
    """Exactly 0 beyond the limit, whatever comes in; at the limit it passes. The gate has no lower limit."""
    limit = torch.tensor(7.0, dtype=dtype)
    above, below = torch.nextafter(limit, limit * 2), torch.nextafter(limit, limit * 0)
    edge = torch.stack((below, limit, above, limit * 3, -below, -limit, -above, -limit * 1.25))
    one = torch.ones_like(edge)
    gate_moves, up_moves = torch.stack((edge, one), 1).flatten(), torch.stack((one, edge), 1).flatten()
    gu = torch.stack((gate_moves, up_moves)).to(kernel_path.device).requires_grad_()
    _, gradient = gradients(clamped_swiglu, (gu, 1.702, 7.0), torch.full((2, 8), 1e3).to(gu))
    passes_gate, passes_up = gradient[0, 0::2] != 0, gradient[1, 1::2] != 0
    assert passes_gate.tolist() == [True, True, False, False, True, True, True, True]
    assert passes_up.tolist() == [True, True, False, False, True, True, False, False]


def test_nothing_that_is_not_finite_becomes_finite(kernel_path: KernelPath) -> None:
    """A clamp makes a limit of infinity, but NaN stays NaN, in the output and in the gradients."""
    gu = torch.tensor([[torch.nan, 1.0, 1.0, torch.nan, torch.inf, 1.0, 1.0, -torch.inf]]).to(kernel_path.device)
    out, gradient = gradients(clamped_swiglu, (gu.requires_grad_(), 1.702, 7.0))
    assert out.isnan().tolist() == [[True, True, False, False]]
    assert gradient.isnan().tolist() == [[True, True, True, False, False, False, False, False]]


def test_no_limit(kernel_path: KernelPath) -> None:
    gu = (torch.randn(5, 12) * 30).to(kernel_path.device).requires_grad_()
    got, expected = (
        gradients(function, (gu, 1.0, float("inf"))) for function in (clamped_swiglu, reference.clamped_swiglu)
    )
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_more_than_two_dimensions(kernel_path: KernelPath) -> None:
    """Also where the outer ones do not collapse, and a scalar."""
    g, u = torch.randn(2, 3, 4, 5), torch.randn(4, 3, 2, 5).transpose(0, 2)
    for one, other in ((g, u), (g.permute(1, 0, 3, 2), u.permute(1, 0, 3, 2)), (g[0, 0, 0, 0], u[0, 0, 0, 0])):
        arguments = tuple(value.to(kernel_path.device).requires_grad_() for value in (one.detach(), other.detach()))
        upstream = torch.randn(one.shape).to(kernel_path.device)
        expected = gradients(reference.silu_mul, arguments, upstream)
        for got, wanted in zip(gradients(silu_mul, arguments, upstream), expected, strict=True):
            torch.testing.assert_close(got, wanted)


X = torch.zeros(4, 8)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (silu_mul, (X.double(), X), "g: is torch.float64; may be torch.bfloat16, "),
        (silu_mul, (X, X[:3]), "u: has shape (3, 8); may have (4, 8), as g has"),
        (silu_mul, (X, X.half()), "u: is torch.float16; may be torch.float32, as g is"),
        (silu_mul, (X, X.to("meta")), "u: is on meta; may be on cpu, where g is"),
        (clamped_swiglu, (X[:, 1:],), "gu: has 7 columns; may have an even number"),
        (clamped_swiglu, (X[0],), "gu: has 1 dimensions, shape (8,); may have 2"),
        (clamped_swiglu, (X, 1.0, 0.0), "limit: is 0.0; may be above 0"),
        (clamped_swiglu, (X, 1.0, float("nan")), "limit: is nan; may be above 0"),
        (clamped_swiglu, (X, float("inf")), "alpha: is inf; may be a finite number"),
    ],
)
def test_wrong_arguments_are_named(function: Any, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        function(*arguments)
