"""silu(g) * u: sizes below, at and above a tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.operators import silu_mul


@pytest.mark.parametrize("shape", [(8, 128), (3, 1400)], ids=["whole", "ragged"])
@pytest.mark.usefixtures("interpreter")
def test_gate(perfguard: Any, shape: tuple[int, int]) -> None:
    """1,024 and 4,200 elements: whole tiles of 1,024 columns, and a last tile that is not."""
    g, u = (torch.randn(shape, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    perfguard(
        silu_mul, g, u, reference=lambda g, u: torch.nn.functional.silu(g) * u, timed=perfguard.device.type != "cpu"
    )
