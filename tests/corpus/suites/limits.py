"""Our grouped matmul as chips that are not here would run it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from kernels.fp8.shapes import Split
from kernels.grouped import grouped_mm, reference


@pytest.mark.usefixtures("interpreter")
def test_product(perfguard: Any) -> None:
    """Widths that a tile of 128 columns fits."""
    a = torch.randn(8, 32, device=perfguard.device, dtype=torch.bfloat16)
    b = torch.randn(1, 32, 128, device=perfguard.device, dtype=torch.bfloat16)
    offs = Split("one", (8,)).offs(perfguard.device)
    perfguard(partial(grouped_mm, impl="triton"), a, b, offs, reference=reference.grouped_mm, timed=False)
