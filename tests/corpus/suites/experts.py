"""Experts and combine of an MoE layer: several, and one alone, whose rows are the tokens themselves."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernels.moe import MoE, MoEConfig, reference


def layer_of(experts: int, top_k: int, device: torch.device) -> MoE:
    config = MoEConfig(dim=32, hidden=48, experts=experts, top_k=top_k, balanced=True)
    layer = MoE(config, device=device, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    return layer


@pytest.mark.parametrize("experts", [1, 4])
def test_experts(perfguard: Any, experts: int) -> None:
    layer = layer_of(experts, min(2, experts), perfguard.device)
    x = torch.randn(32, 32, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    perfguard(layer, x, reference=functools.partial(reference.moe, layer), timed=False)
