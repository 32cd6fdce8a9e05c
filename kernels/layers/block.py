"""A transformer block, dense or MoE, and a model of them.

    h = x + attention(norm(x)),   out = h + feed_forward(norm(h))

Follows torchtitan's `TransformerBlock` and `Transformer` (models/llama3, models/deepseek_v3).

Shape suffixes: B sequences, S positions, D model width, P pairs of columns that positions turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernels.layers.attention import Attention, MultiHeadLatentAttention
from kernels.layers.config import BlockConfig
from kernels.layers.rope import rope_table
from kernels.moe import MoE, MoEConfig, SharedExperts
from kernels.moe.experts import draw_normal
from kernels.moe.precision import WideBuffers

_STD = 0.02


class Block(nn.Module):
    """x (B, S, D), rope (S, P, 2) of `rope.rope_table` -> (B, S, D) in x's dtype: what both kinds share.

    Each kind has a forward of its own, because compiled code is kept, and limited in number, for each function.
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        precision: str = "bf16",
        loop: bool = False,
        layer: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Attention, and the feed-forward of the kind.

        Args:
            precision: "bf16" or "fp8", of the feed-forward's matmuls, shared experts included.
            loop: experts one by one, a dense feed-forward as one of them: in x's own dtype.
            layer: its number in the model, by which weights are drawn.
        """
        super().__init__()
        self.config = config
        self.attention_norm, self.feed_forward_norm = (
            nn.RMSNorm(config.dim, eps=config.eps, device=device, dtype=dtype) for _ in range(2)
        )
        self.attention = (
            Attention(config, device=device, dtype=dtype)
            if config.latent is None
            else MultiHeadLatentAttention(config, config.latent, device=device, dtype=dtype)
        )
        if config.moe is None:
            self.loop = loop
            # A dense SwiGLU is one shared expert: the same function, and the same switch to fp8.
            only = MoEConfig(dim=config.dim, hidden=config.hidden, experts=1, top_k=1, shared=1)
            self.feed_forward = SharedExperts(only, precision=precision, device=device, dtype=dtype)
        else:
            self.moe = MoE(
                config.moe, precision=precision, shared_precision=precision, loop=loop, device=device, dtype=dtype
            )
        self.init_weights(layer)

    @torch.no_grad()
    def init_weights(self, layer: int = 0) -> None:
        """N(0, 0.02²), cut at 3 σ; w2, w3 and wo with σ 0.02 / √(2 (layer + 1)); norms 1."""
        deep = _STD / math.sqrt(2 * (layer + 1))
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                std = deep if name.endswith(("w2", "w3", "wo.weight")) else _STD
                draw_normal(parameter, std)

    def attend(self, x_BSD: Tensor, rope_SP2: Tensor) -> Tensor:
        """x + attention(norm(x))."""
        h_BSD: Tensor = x_BSD + self.attention(self.attention_norm(x_BSD), rope_SP2)
        return h_BSD


class DenseBlock(Block):
    """A block with a dense SwiGLU, `feed_forward`."""

    def forward(self, x_BSD: Tensor, rope_SP2: Tensor) -> Tensor:
        h_BSD = self.attend(x_BSD, rope_SP2)
        y_TD = self.feed_forward_norm(h_BSD).flatten(0, 1)
        return h_BSD + self.feed_forward(y_TD, loop=self.loop).view_as(h_BSD)


class MoEBlock(Block):
    """A block with an MoE layer on its B · S tokens, `moe`."""

    @torch.no_grad()
    def init_weights(self, layer: int = 0) -> None:
        """As every block's; the MoE layer's by its own rule."""
        super().init_weights(layer)
        self.moe.init_weights(layer)

    def forward(self, x_BSD: Tensor, rope_SP2: Tensor) -> Tensor:
        h_BSD = self.attend(x_BSD, rope_SP2)
        return h_BSD + self.moe(self.feed_forward_norm(h_BSD).flatten(0, 1)).view_as(h_BSD)


def build_block(config: BlockConfig, **options: Any) -> Block:
    """The block that `config` describes; `options` are those of every `Block`."""
    return DenseBlock(config, **options) if config.moe is None else MoEBlock(config, **options)


class Transformer(WideBuffers):
    """token ids (B, S) int64 -> logits (B, S, vocabulary): embedding, `layers`, norm, head.

    `rope` stays float32 where the model is cast to less.
    """

    rope: Tensor

    def __init__(
        self,
        configs: Sequence[BlockConfig],
        vocab: int,
        *,
        positions: int,
        precision: str = "bf16",
        loop: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """One block for each of `configs`, all of one width; sequences of up to `positions` tokens."""
        super().__init__()
        widths = {(config.dim, config.rotated) for config in configs}
        if len(widths) != 1:
            raise ValueError(
                f"configs: have {len(widths)} widths of model and rotated head; give one block or more, all alike"
            )
        ((dim, rotated),) = widths
        self.embedding = nn.Embedding(vocab, dim, device=device, dtype=dtype)
        blocks = [
            build_block(config, precision=precision, loop=loop, layer=number, device=device, dtype=dtype)
            for number, config in enumerate(configs)
        ]
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(dim, eps=configs[0].eps, device=device, dtype=dtype)
        self.head = nn.Linear(dim, vocab, bias=False, device=device, dtype=dtype)
        self.register_buffer("rope", rope_table(positions, rotated, device=device), persistent=False)

    def forward(self, ids_BS: Tensor) -> Tensor:
        if ids_BS.shape[1] > self.rope.shape[0]:
            raise ValueError(
                f"ids: are {ids_BS.shape[1]} long; may be {self.rope.shape[0]} at most, the model's `positions`"
            )
        x_BSD = self.embedding(ids_BS)
        rope_SP2 = self.rope[: ids_BS.shape[1]]
        for layer in self.layers:
            x_BSD = layer(x_BSD, rope_SP2)
        logits: Tensor = self.head(self.norm(x_BSD))
        return logits
