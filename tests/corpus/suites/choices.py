"""silu(g) * u in every configuration of its table, and on inputs that are slices of wider ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.operators import reference, silu_mul


@pytest.mark.usefixtures("interpreter")
def test_configurations(perfguard: Any) -> None:
    """1,100 elements: one tile of 1,024 columns and a part, or many small ones."""
    g, u = (torch.randn(11, 100, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    choices = [{"candidate": 0}, {"candidate": 1}]
    perfguard(silu_mul, g, u, reference=reference.silu_mul, configurations=choices, timed=False)


@pytest.mark.usefixtures("interpreter")
def test_slices(perfguard: Any) -> None:
    """Halves of one projection, as a fused one is split: rows are contiguous, the whole is not."""
    both = torch.randn(6, 64, device=perfguard.device, dtype=torch.bfloat16)
    g, u = (part.requires_grad_() for part in both.detach().tensor_split(2, dim=1))
    perfguard(silu_mul, g, u, reference=reference.silu_mul, timed=False)
