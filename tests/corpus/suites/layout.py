"""A block on 256 ranks, in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.layers import BlockConfig, Transformer
from kernels.moe import MoEConfig
from kernels.parallel.model import parallelize


@pytest.mark.perfguard(layout=256)
def test_layout(perfguard: Any) -> None:
    """Four ranks have the same expert."""
    mesh = perfguard.mesh(efsdp=4, ep=64)
    moe = MoEConfig(dim=64, hidden=32, experts=64, top_k=2, balanced=True)
    config = BlockConfig(dim=64, heads=4, moe=moe)
    whole, model = (Transformer([config], 256, positions=64, dtype=torch.bfloat16) for _ in range(2))
    parallelize(model, mesh)
    perfguard(model, torch.zeros(1, 64, dtype=torch.int64), reference=whole)
