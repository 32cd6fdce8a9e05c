"""An MoE layer, eager and compiled, against the reference."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernels.moe import MoE, MoEConfig, reference

CONFIG = MoEConfig(dim=32, hidden=48, experts=4, top_k=2, balanced=True)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_layer(perfguard: Any, mode: str) -> None:
    layer = MoE(CONFIG, device=perfguard.device, dtype=torch.bfloat16).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    if mode == "compiled":
        layer.compile(backend="inductor" if perfguard.device.type != "cpu" else "aot_eager", fullgraph=True)
    x = torch.randn(32, CONFIG.dim, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(layer, x, reference=functools.partial(reference.moe, layer), timed=False)
