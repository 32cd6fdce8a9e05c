"""An MoE layer: eight experts, two a token, bf16, forward and backward. On a CPU in torch operators."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernels.moe import MoE, MoEConfig, reference

CONFIG = MoEConfig(dim=64, hidden=48, experts=8, top_k=2, shared=1, normalise=True, balanced=True)


@pytest.mark.parametrize("tokens", [32, 64])
def test_layer(perfguard: Any, tokens: int) -> None:
    """Balanced: eight rows an expert or more."""
    layer = MoE(CONFIG, device=perfguard.device, dtype=torch.bfloat16).eval()
    x = torch.randn(tokens, CONFIG.dim, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    perfguard(layer, x, reference=functools.partial(reference.moe, layer), timed=False)
