"""Transformer blocks, dense and MoE, and how a model of them is compiled block by block."""

from kernels.layers import reference
from kernels.layers.attention import Attention, MultiHeadLatentAttention
from kernels.layers.block import Block, DenseBlock, MoEBlock, Transformer, build_block
from kernels.layers.compile import apply_compile
from kernels.layers.config import BlockConfig
from kernels.layers.rope import rope_table, rotate

__all__ = [
    "Attention",
    "Block",
    "BlockConfig",
    "DenseBlock",
    "MoEBlock",
    "MultiHeadLatentAttention",
    "Transformer",
    "apply_compile",
    "build_block",
    "reference",
    "rope_table",
    "rotate",
]
