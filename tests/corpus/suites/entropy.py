"""Fused cross entropy: a loss that is scaled, random logits, and targets that the model is nearly certain of."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.operators import cross_entropy, reference
from perfguard import Tolerance

VOCABULARY = 64
# Interpreted rows take long, so there are few.
PATHS = [
    ("eager", None, 40),
    ("eager", 0.9, 40),
    ("eager", 0.999, 40),
    ("interpreter", None, 6),
    ("interpreter", 0.9, 6),
]
TWO_ROUNDINGS = Tolerance(phi=2.0, reason="the gradient is stored before the incoming one is applied")


def gradients(of: Any, logits: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """The loss's gradient, and of that the entries of the targets: one of a row, so that no mean shows them."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(of(leaf, target), leaf)
    return {"gradient": gradient, "target entries": gradient.gather(1, target[:, None])}


@pytest.fixture(autouse=True)
def on_path(request: pytest.FixtureRequest, path: str) -> None:
    if path == "interpreter":
        request.getfixturevalue("interpreter")


@pytest.mark.parametrize("path", ["eager"])
def test_scaled(perfguard: Any) -> None:
    """An incoming gradient that is not 1 is applied in place to the gradient that was saved."""
    logits = torch.randn(40, VOCABULARY, device=perfguard.device, dtype=torch.bfloat16)
    target = torch.randint(VOCABULARY, (40,), device=perfguard.device)
    perfguard(
        lambda logits, target: gradients(lambda *given: 3 * cross_entropy(*given), logits, target)["gradient"],
        logits,
        target,
        reference=lambda logits, target: gradients(lambda *given: 3 * reference.cross_entropy(*given), logits, target)[
            "gradient"
        ],
        tolerance=TWO_ROUNDINGS,
        timed=False,
    )


@pytest.mark.parametrize(("path", "probability", "rows"), PATHS, ids=lambda value: str(value or "random"))
def test_gradient(perfguard: Any, probability: float | None, rows: int) -> None:
    logits = torch.randn(rows, VOCABULARY, device=perfguard.device)
    target = torch.randint(VOCABULARY, (rows,), device=perfguard.device)
    if probability is not None:
        rest = logits.scatter(1, target[:, None], -torch.inf).logsumexp(1, keepdim=True)
        logits = logits.scatter(1, target[:, None], rest + math.log(probability / (1 - probability)))
    perfguard(
        lambda logits, target: gradients(cross_entropy, logits, target),
        logits.to(torch.bfloat16),
        target,
        reference=lambda logits, target: gradients(reference.cross_entropy, logits, target),
        timed=False,
    )
