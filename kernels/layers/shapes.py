"""Blocks of the models in `kernels.moe.shapes`, and the shapes that are guarded: records as in `kernels.fp8.shapes`.

Shape suffixes: B sequences, S positions, D model width, P pairs of columns that positions turn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.fp8.shapes import Device
from kernels.layers.block import Block, MoEBlock, build_block
from kernels.layers.config import BlockConfig, LatentAttention
from kernels.layers.rope import rope_table
from kernels.moe.shapes import MODELS, Routing, set_load

Kind = Literal["dense", "moe"]

# Query heads, and heads of keys and values; with latent attention all heads have their own.
_HEADS: dict[str, tuple[int, int | None]] = {
    "dsv3-debug": (16, None),
    "dsv3-debug-groups": (16, None),
    "deepseek-16b": (16, None),
    "deepseek-236b": (128, None),
    "deepseek-v3": (128, None),
    "qwen3-debug": (16, 8),
    "qwen3-30b-a3b": (32, 4),
    "qwen3-235b-a22b": (64, 4),
    "gpt-oss-debug": (64, 8),
    "gpt-oss-20b": (64, 8),
    "gpt-oss-120b": (64, 8),
    "llama4-debug": (16, 16),
    "llama4-16e": (40, 8),
    "llama4-128e": (40, 8),
}
# The width of a dense block's SwiGLU in models that have such blocks.
_DENSE = {
    "dsv3-debug": 1024,
    "dsv3-debug-groups": 1024,
    "deepseek-16b": 10944,
    "deepseek-236b": 12288,
    "deepseek-v3": 18432,
}
# Of families whose heads are not dim / heads wide, as their published configurations have it.
_HEAD_DIMS = {"qwen3": 128, "gpt-oss": 64}


def block_config(model: str, kind: Kind) -> BlockConfig:
    """The dense or the MoE block of a model. Where the model has dense blocks without a width of their own (llama4) or
    none (Qwen3), a dense one has the active width of its experts: the same flop for each token."""
    moe = MODELS[model]
    heads, kv_heads = _HEADS[model]
    return BlockConfig(
        dim=moe.dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=next((width for family, width in _HEAD_DIMS.items() if model.startswith(family)), None),
        latent=LatentAttention() if kv_heads is None else None,
        hidden=_DENSE.get(model, moe.hidden * (moe.top_k + moe.shared)),
        moe=None if kind == "dense" else moe,
    )


@dataclass(frozen=True)
class BlockShape:
    """One block on so many sequences of so many tokens.

    Attributes:
        routing: as in `kernels.moe.shapes.LayerShape`.
    """

    model: str
    kind: Kind
    sequences: int
    positions: int
    routing: Routing = "balanced"

    @property
    def config(self) -> BlockConfig:
        config = block_config(self.model, self.kind)
        if config.moe is None:
            return config
        return replace(config, moe=replace(config.moe, balanced=self.routing == "balanced"))

    def block(self, device: Device, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Block:
        """`options` are those of every `Block`."""
        block = build_block(self.config, device=device, dtype=dtype, **options)
        if self.routing == "hot" and isinstance(block, MoEBlock):
            set_load(block.moe, "hot")
        return block

    def inputs(self, device: Device, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
        """x (B, S, D) and rope (S, P, 2) float32."""
        config = self.config
        x_BSD = torch.randn(self.sequences, self.positions, config.dim, device=device, dtype=dtype)
        return x_BSD, rope_table(self.positions, config.rotated, device=device)

    def __str__(self) -> str:
        routing = f"-{self.routing}" if self.kind == "moe" else ""
        return f"{self.model}-{self.kind}-b{self.sequences}-s{self.positions}{routing}"


# Timed on a GPU: one dense and one MoE block of each family, at the tokens of the contract.
BLOCKS = (
    BlockShape("llama4-16e", "dense", 2, 8192),  # grouped queries, wide
    BlockShape("deepseek-16b", "dense", 2, 4096),  # latent attention, the first layer's wide feed-forward
    BlockShape("deepseek-16b", "moe", 2, 4096),  # shared experts
    BlockShape("deepseek-16b", "moe", 2, 4096, "hot"),  # 6 experts hold all, 58 are empty
    BlockShape("qwen3-30b-a3b", "moe", 2, 4096),  # many small experts, 8 query heads share keys
    BlockShape("gpt-oss-20b", "moe", 1, 4096),  # biases, clamped, a width that is no multiple of 128
)
