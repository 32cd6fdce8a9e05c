"""Experts and combine of an MoE layer: several, and one alone, whose rows are the tokens themselves."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernels.moe import MoE, MoEConfig, reference


@pytest.mark.parametrize("experts", [1, 4])
def test_experts(perfguard: Any, experts: int) -> None:
    """On a GPU so many tokens and choices that another order of a sum shows in some element."""
    small = perfguard.device.type == "cpu"
    dim, tokens, top_k = (32, 32, 2) if small else (256, 4096, 3)
    config = MoEConfig(dim=dim, hidden=48, experts=experts, top_k=min(top_k, experts), balanced=True)
    layer = MoE(config, device=perfguard.device, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    x = torch.randn(tokens, dim, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    perfguard(layer, x, reference=functools.partial(reference.moe, layer), timed=False)
