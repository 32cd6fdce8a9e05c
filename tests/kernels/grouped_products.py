"""Grouped products to try, and how they are judged: the project's rule against a float64 oracle.

Shape suffixes: R rows allocated, K inner width, N outer width, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.fp8.shapes import Split
from kernels.grouped import reference
from perfguard.check.numerics.rule import compare

Layout = Callable[[torch.Tensor], torch.Tensor]
Tensors = tuple[torch.Tensor, ...]


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


@dataclass(frozen=True)
class Product:
    """Operands of one form and the output's gradient. Rows past the last group hold NaN, in the gradient too."""

    form: str
    a: torch.Tensor
    b: torch.Tensor
    offs: torch.Tensor
    grad: torch.Tensor

    @staticmethod
    def draw(  # noqa: PLR0913  # each is what some test varies alone
        form: str,
        split: Split,
        inner: int,
        outer: int,
        device: torch.device | str,
        *,
        dtype: torch.dtype = torch.bfloat16,
        a_layout: Layout = _as_it_is,
        b_layout: Layout = _as_it_is,
        grad_layout: Layout = _as_it_is,
    ) -> Product:
        used, rows, experts = sum(split.sizes), split.rows, split.groups
        if form == "rows":
            a, b, grad = torch.randn(rows, inner), torch.randn(experts, inner, outer), torch.randn(rows, outer)
            a[used:] = torch.nan
            grad[used:] = torch.nan
        else:
            a, b, grad = torch.randn(inner, rows), torch.randn(rows, outer), torch.randn(experts, inner, outer)
            a[:, used:] = torch.nan
            b[used:] = torch.nan
        a, b, grad = (x.to(device, dtype) for x in (a, b, grad))
        return Product(form, a_layout(a), b_layout(b), split.offs(device), grad_layout(grad))

    @property
    def rows(self) -> int:
        return self.a.shape[0] if self.form == "rows" else self.b.shape[0]

    def run(self, function: Callable[..., torch.Tensor], dtype: torch.dtype | None = None, **options: Any) -> Tensors:
        """(output, gradient of a, gradient of b); operands may be widened first, and then lie as they like."""
        a, b, grad = (x.detach() if dtype is None else x.detach().to(dtype) for x in (self.a, self.b, self.grad))
        a, b = a.requires_grad_(), b.requires_grad_()
        output = function(a, b, self.offs, **options)
        return output.detach(), *torch.autograd.grad(output, (a, b), grad)


NAMES = ("output", "gradient of a", "gradient of b")


def assert_right(product: Product, function: Callable[..., torch.Tensor], because: str, **options: Any) -> Tensors:
    """Output and both gradients within the rule; what no group owns is zero. Returns them."""
    got = product.run(function, **options)
    eager = product.run(reference.grouped_mm)
    oracle = product.run(reference.grouped_mm, torch.float64)
    for name, one, other, truth in zip(NAMES, got, eager, oracle, strict=True):
        problem = compare(one, other, truth, name=name, gradient_of=None if name == "output" else "argument").problem
        assert not problem, f"{because}: {problem}"
    assert_zero_where_nobody_is(product, got, because)
    return got


def assert_zero_where_nobody_is(product: Product, results: Sequence[torch.Tensor], because: str) -> None:
    output, grad_a, grad_b = results
    ends = product.offs.tolist()
    last = ends[-1] if ends else 0
    empty = [group for group, end in enumerate(ends) if end == (ends[group - 1] if group else 0)]
    if product.form == "rows":
        parts = {"output past the end": output[last:], "gradient of a past the end": grad_a[last:]}
        parts["gradient of empty groups"] = grad_b[empty]
    else:
        parts = {"gradient of a past the end": grad_a[:, last:], "gradient of b past the end": grad_b[last:]}
        parts["output of empty groups"] = output[empty]
    for name, part in parts.items():
        assert not part.count_nonzero(), f"{because}: {name} is not zero"
