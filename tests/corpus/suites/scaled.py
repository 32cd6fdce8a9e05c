"""The fp8 grouped matmul, forward and backward, against its rounded operands; on a CPU its products are emulated."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels import fp8
from kernels.fp8.shapes import Split
from perfguard import Tolerance

# Outputs are one rounding from the truth, and so is the reference's.
PLAIN = Tolerance(k=3, reason="sums of fp8 products in another order, then one rounding")


@pytest.mark.parametrize("split", [Split("equal", (16, 16, 16, 16)), Split("ragged", (5, 0, 9, 3), unused=2)], ids=str)
def test_product(perfguard: Any, split: Split) -> None:
    a = torch.randn(split.rows, 48, device=perfguard.device, dtype=torch.bfloat16)
    # Experts of very different size: what is wrong with the last one's scale is nothing to the whole.
    sizes = 2.0 ** (-6 * torch.arange(split.groups, device=perfguard.device))
    b = (torch.randn(split.groups, 48, 32, device=perfguard.device) * sizes[:, None, None]).to(torch.bfloat16)
    offs = split.offs(perfguard.device)
    perfguard(
        fp8.grouped_mm,
        a.requires_grad_(),
        b.requires_grad_(),
        offs,
        reference=fp8.reference.grouped_mm,
        tolerance=PLAIN,
        groups=offs,
        timed=False,
    )
