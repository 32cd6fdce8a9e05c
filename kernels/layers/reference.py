"""A block in plain torch operators, differentiated by autograd: the eager truth, in float64 the oracle.

Takes the weights from a `Block` and runs in x's own dtype. Shares nothing with the block but its configuration and the
reference of the MoE layer: attention is a masked softmax, positions are complex numbers.

Shape suffixes: B sequences, S positions, D model width, H heads, N columns of a head, P pairs that are turned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernels.layers.attention import Attention, MultiHeadLatentAttention
from kernels.layers.block import Block, DenseBlock, MoEBlock
from kernels.moe import reference as moe_reference
from kernels.moe.precision import wide

_SCORES = 2**28  # held at a time: 2 GiB in float64


def block(block: Block, x_BSD: Tensor, rope_SP2: Tensor) -> Tensor:
    """What `block(x, rope)` returns, (B, S, D)."""
    y_BSD, attention = _norm(block.attention_norm, x_BSD), block.attention
    if isinstance(attention, MultiHeadLatentAttention):
        h_BSD = x_BSD + _latent(attention, y_BSD, rope_SP2)
    else:
        h_BSD = x_BSD + _grouped(attention, y_BSD, rope_SP2)
    y_TD = _norm(block.feed_forward_norm, h_BSD).flatten(0, 1)
    if isinstance(block, MoEBlock):
        return h_BSD + moe_reference.moe(block.moe, y_TD).view_as(h_BSD)
    assert isinstance(block, DenseBlock)
    dense = block.feed_forward
    return h_BSD + moe_reference.swiglu(y_TD, dense.w1, dense.w2, dense.w3).view_as(h_BSD)


def _grouped(attention: Attention, x: Tensor, rope: Tensor) -> Tensor:
    q, k, v = (
        _apply(weight, x).unflatten(-1, (-1, attention.width)) for weight in (attention.wq, attention.wk, attention.wv)
    )
    group = q.shape[2] // k.shape[2]
    k, v = (each.repeat_interleave(group, dim=2) for each in (_turn(k, rope), v))
    return _apply(attention.wo, _softmax_attention(_turn(q, rope), k, v).flatten(-2))


def _latent(attention: MultiHeadLatentAttention, x: Tensor, rope: Tensor) -> Tensor:
    latent, heads = attention.latent, attention.heads
    q = _apply(attention.wq, x).unflatten(-1, (heads, -1))
    q = torch.cat([q[..., : latent.nope], _turn(q[..., latent.nope :], rope)], dim=-1)
    kv = _apply(attention.wkv_a, x)
    k_rope = _turn(kv[..., latent.kv_lora :].unsqueeze(2), rope).expand(*x.shape[:2], heads, latent.rope)
    kv = _apply(attention.wkv_b, _norm(attention.kv_norm, kv[..., : latent.kv_lora])).unflatten(-1, (heads, -1))
    k = torch.cat([kv[..., : latent.nope], k_rope], dim=-1)
    return _apply(attention.wo, _softmax_attention(q, k, kv[..., latent.nope :]).flatten(-2))


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """So many heads at a time as `_SCORES` allows, their weights made once more for the backward pass: in float64 those
    of 40 heads at 8192 positions take 40 GiB, several times over."""
    sequences, positions, heads, _ = q.shape
    share = max(1, _SCORES // (sequences * positions * positions))
    if share >= heads:
        return _attend(q, k, v)
    parts = zip(*(each.split(share, dim=2) for each in (q, k, v)), strict=True)
    return torch.cat([checkpoint(_attend, *part, use_reentrant=False) for part in parts], dim=2)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores_BHSS = torch.einsum("bshn,bthn->bhst", q, k) / math.sqrt(q.shape[-1])
    later = torch.ones(scores_BHSS.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights_BHSS = scores_BHSS.masked_fill(later, -torch.inf).softmax(dim=-1)
    return torch.einsum("bhst,bthn->bshn", weights_BHSS, v)


def _turn(x_BSHR: Tensor, rope_SP2: Tensor) -> Tensor:
    dtype = wide(x_BSHR.dtype)
    turns_SP = torch.view_as_complex(rope_SP2.to(dtype).contiguous()).unsqueeze(1)
    pairs = torch.view_as_complex(x_BSHR.to(dtype).unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns_SP).flatten(-2).to(x_BSHR.dtype)


def _norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    assert norm.eps is not None
    wide_x = x.to(wide(x.dtype))
    scaled = wide_x * torch.rsqrt(wide_x.square().mean(dim=-1, keepdim=True) + norm.eps)
    return (scaled * norm.weight.to(wide_x.dtype)).to(x.dtype)


def _apply(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, linear.weight.to(x.dtype))
