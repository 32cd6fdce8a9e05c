"""Our grouped matmul as chips that are not here would run it; here it runs as a loop over the groups."""

from __future__ import annotations

from typing import Any

import torch

from kernels.fp8.shapes import Split
from kernels.grouped import grouped_mm, reference


def test_product(perfguard: Any) -> None:
    split = Split("equal", (64, 64))
    a = torch.randn(split.rows, 128, device=perfguard.device, dtype=torch.bfloat16)
    b = torch.randn(split.groups, 128, 256, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(grouped_mm, a, b, split.offs(perfguard.device), reference=reference.grouped_mm, timed=False)
