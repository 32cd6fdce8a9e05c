"""Layers and blocks under torch.compile. A CPU runs what was traced as it is."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels import moe
from kernels.layers import BlockConfig, apply_compile, build_block, reference, rope_table
from kernels.moe import MoE, MoEConfig

# What the compiler does by itself while it traces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

BACKEND = "inductor" if torch.cuda.is_available() else "eager"
DENSE = BlockConfig(dim=32, heads=4, kv_heads=2, hidden=48)
CONFIG = MoEConfig(dim=32, hidden=48, experts=4, top_k=2, normalise=True)


class Model(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)


def built(perfguard: Any, layer: nn.Module) -> nn.Module:
    """Without gradients: what the compiler traces of the forward pass is enough, and a CPU is slow at it."""
    return layer.eval().requires_grad_(perfguard.device.type != "cpu")


def test_moe(perfguard: Any) -> None:
    """Compiled as a user does, where breaks are allowed; walked to another token count."""
    layer = built(perfguard, MoE(CONFIG, device=perfguard.device, dtype=torch.bfloat16))
    layer.compile(backend=BACKEND)
    x, more = (torch.randn(tokens, 32, device=perfguard.device, dtype=torch.bfloat16) for tokens in (24, 27))
    truth = functools.partial(moe.reference.moe, layer)
    perfguard(layer, x, reference=truth, walk=[(more,)], timed=x.device.type != "cpu")


def guard(perfguard: Any, block: Any, run: Any) -> None:
    """Eager's error is the block's own, uncompiled; the oracle is the reference in float64."""
    x = torch.randn(2, 12, DENSE.dim, device=perfguard.device, dtype=torch.bfloat16)
    rope = rope_table(12, DENSE.rotated, device=perfguard.device)

    def truth(x: Tensor, rope: Tensor) -> Tensor:
        return reference.block(block, x, rope) if x.dtype == torch.float64 else type(block).forward(block, x, rope)

    perfguard(run, x, rope, reference=truth, timed=x.device.type != "cpu")


def test_applied(perfguard: Any) -> None:
    """Compiled as torchtitan does: in place, whole."""
    block = built(perfguard, build_block(DENSE, device=perfguard.device, dtype=torch.bfloat16))
    apply_compile(Model([block]), backend=BACKEND)
    guard(perfguard, block, block)


def test_checkpointed(perfguard: Any) -> None:
    """Counted again in the backward pass."""
    block = built(perfguard, build_block(DENSE, device=perfguard.device, dtype=torch.bfloat16))

    def step(x: Tensor, rope: Tensor) -> Any:
        return block(x, rope)

    @torch.compile(backend=BACKEND)
    def run(x: Tensor, rope: Tensor) -> Any:
        return checkpoint(step, x, rope, use_reentrant=False)

    guard(perfguard, block, run)
