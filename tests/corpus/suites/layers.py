"""Blocks under torch.compile, walked over token counts and expert loads. A CPU runs what was traced as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kernels.layers import BlockConfig, MoEBlock, apply_compile, build_block, reference, rope_table
from kernels.layers.shapes import set_load
from kernels.moe import MoEConfig

# What the compiler does by itself while it traces.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

BACKEND = "inductor" if torch.cuda.is_available() else "eager"
DENSE = BlockConfig(dim=32, heads=4, kv_heads=2, hidden=48)
MOE = BlockConfig(
    dim=32, heads=4, kv_heads=2, moe=MoEConfig(dim=32, hidden=48, experts=4, top_k=2, shared=1, normalise=True)
)


class Model(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)


def inputs(device: torch.device, config: BlockConfig, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    x = torch.randn(*size, config.dim, device=device, dtype=torch.bfloat16)
    return x, rope_table(size[1], config.rotated, device=device)


def walk(block: Any, device: torch.device) -> list[Any]:
    """Another load, and another token count."""

    def prepare() -> tuple[Tensor, Tensor]:
        if isinstance(block, MoEBlock):
            set_load(block, "hot")
        return inputs(device, block.config, (3, 9))

    return [prepare]


def guard(perfguard: Any, block: Any, run: Any, config: BlockConfig, *, steps: bool = True) -> None:
    """Eager's error is the block's own, uncompiled; the oracle is the reference in float64."""
    x, rope = inputs(perfguard.device, config, (2, 12))

    def truth(x: Tensor, rope: Tensor) -> Tensor:
        return reference.block(block, x, rope) if x.dtype == torch.float64 else type(block).forward(block, x, rope)

    walked = walk(block, perfguard.device) if steps else []
    perfguard(run, x, rope, reference=truth, walk=walked, timed=x.device.type != "cpu")


def built(perfguard: Any, config: BlockConfig) -> Any:
    """Without gradients: what the compiler traces of the forward pass is enough, and a CPU is slow at it."""
    block = build_block(config, device=perfguard.device, dtype=torch.bfloat16).eval()
    return block.requires_grad_(perfguard.device.type != "cpu")


def test_block(perfguard: Any) -> None:
    """Compiled as a user does, where breaks are allowed."""
    block = built(perfguard, MOE)
    block.compile(backend=BACKEND)
    guard(perfguard, block, block, MOE)


def test_applied(perfguard: Any) -> None:
    """Compiled as torchtitan does: in place, whole."""
    block = built(perfguard, DENSE)
    apply_compile(Model([block]), backend=BACKEND)
    guard(perfguard, block, block, DENSE)


def test_checkpointed(perfguard: Any) -> None:
    """Counted again in the backward pass."""
    block = built(perfguard, DENSE)

    def step(x: Tensor, rope: Tensor) -> Any:
        return block(x, rope)

    @torch.compile(backend=BACKEND)
    def run(x: Tensor, rope: Tensor) -> Any:
        return checkpoint(step, x, rope, use_reentrant=False)

    guard(perfguard, block, run, DENSE, steps=False)
