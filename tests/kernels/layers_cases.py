"""Small blocks of every kind, and models of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from kernels.layers import BlockConfig
from kernels.layers.config import LatentAttention
from kernels.moe import MoEConfig

_LATENT = LatentAttention(kv_lora=16, nope=8, rope=4, v=8)

# Experts run one by one, which makes a graph of so many copies of an expert.
LOOP = BlockConfig(dim=32, heads=4, moe=MoEConfig(dim=32, hidden=48, experts=2, top_k=1))

CONFIGS: dict[str, BlockConfig] = {
    "dense": BlockConfig(dim=32, heads=4, kv_heads=2, hidden=48),  # grouped queries
    "dense-latent": BlockConfig(dim=32, heads=4, latent=_LATENT, hidden=48),
    "moe": BlockConfig(
        dim=32, heads=4, kv_heads=2, moe=MoEConfig(dim=32, hidden=48, experts=4, top_k=2, shared=1, normalise=True)
    ),
    "moe-clamped-latent": BlockConfig(
        dim=32, heads=4, latent=_LATENT, moe=MoEConfig(dim=32, hidden=48, experts=4, top_k=2, clamped=True)
    ),
}


class _Model(nn.Module):
    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, *rest)
        return x


def model_of(blocks: Sequence[nn.Module]) -> nn.Module:
    """A model that is nothing but `blocks`, called one after the other."""
    return _Model(blocks)
