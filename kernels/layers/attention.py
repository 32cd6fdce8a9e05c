"""Causal self-attention with grouped queries (Llama, Qwen3), and with latent keys and values (DeepSeek).

Matmuls and softmax are torch's. Follows torchtitan's `Attention` (models/llama3, models/deepseek_v3): the same names
and shapes of weights. Latent: DeepSeek-V2 (arXiv 2405.04434, 2.1).

Shape suffixes: B sequences, S positions, D model width, H heads, N columns of a head, R columns that are turned,
P = R / 2, L latent width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.layers.config import BlockConfig, LatentAttention
from kernels.layers.rope import rotate


class Attention(nn.Module):
    """x (B, S, D), rope (S, P, 2) -> (B, S, D); a group of query heads shares one head of keys and values."""

    def __init__(
        self, config: BlockConfig, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.width = config.width
        kv_heads = config.kv_heads or config.heads
        self.shares = kv_heads != config.heads
        self.wq = linear(config.dim, config.heads * self.width, device, dtype)
        self.wk = linear(config.dim, kv_heads * self.width, device, dtype)
        self.wv = linear(config.dim, kv_heads * self.width, device, dtype)
        self.wo = linear(config.heads * self.width, config.dim, device, dtype)

    def forward(self, x_BSD: Tensor, rope_SP2: Tensor) -> Tensor:
        q, k, v = (weight(x_BSD).unflatten(-1, (-1, self.width)) for weight in (self.wq, self.wk, self.wv))
        out_BSHN = attend(rotate(q, rope_SP2), rotate(k, rope_SP2), v, shares=self.shares)
        out_BSD: Tensor = self.wo(out_BSHN.flatten(-2))
        return out_BSD


class MultiHeadLatentAttention(nn.Module):
    """x (B, S, D), rope (S, P, 2) -> (B, S, D); keys and values of all heads come from L columns a token."""

    def __init__(
        self,
        config: BlockConfig,
        latent: LatentAttention,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.latent, self.heads = latent, config.heads
        self.wq = linear(config.dim, config.heads * (latent.nope + latent.rope), device, dtype)
        self.wkv_a = linear(config.dim, latent.kv_lora + latent.rope, device, dtype)
        self.kv_norm = nn.RMSNorm(latent.kv_lora, eps=config.eps, device=device, dtype=dtype)
        self.wkv_b = linear(latent.kv_lora, config.heads * (latent.nope + latent.v), device, dtype)
        self.wo = linear(config.heads * latent.v, config.dim, device, dtype)

    def forward(self, x_BSD: Tensor, rope_SP2: Tensor) -> Tensor:
        latent = self.latent
        q_BSHN = self.wq(x_BSD).unflatten(-1, (self.heads, -1))
        q_nope, q_rope = q_BSHN.split([latent.nope, latent.rope], dim=-1)
        kv_BSL, k_rope = self.wkv_a(x_BSD).split([latent.kv_lora, latent.rope], dim=-1)
        kv_BSHN = self.wkv_b(self.kv_norm(kv_BSL)).unflatten(-1, (self.heads, -1))
        k_nope, v = kv_BSHN.split([latent.nope, latent.v], dim=-1)
        k_rope = rotate(k_rope.unsqueeze(2), rope_SP2).expand(-1, -1, self.heads, -1)  # one for all heads
        q = torch.cat([q_nope, rotate(q_rope, rope_SP2)], dim=-1)
        out_BSHN = attend(q, torch.cat([k_nope, k_rope], dim=-1), v)
        out_BSD: Tensor = self.wo(out_BSHN.flatten(-2))
        return out_BSD


def attend(q_BSHN: Tensor, k_BSHN: Tensor, v_BSHN: Tensor, *, shares: bool = False) -> Tensor:
    """Causal softmax attention, scaled by √N of the queries, (B, S, H, N of the values). `shares`: fewer heads of keys
    and values than of queries."""
    q, k, v = (each.transpose(1, 2) for each in (q_BSHN, k_BSHN, v_BSHN))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shares).transpose(1, 2)


def linear(inside: int, outside: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Linear:
    return nn.Linear(inside, outside, bias=False, device=device, dtype=dtype)
