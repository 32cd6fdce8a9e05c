"""Causal attention whose scores fall with the distance, by a slope for each head.

kind: multiples
origin: ml-explore/mlx#3071
shows: 6 heads
words: dim 0|heads?
"""
import math
import torch

def slopes(heads):
    near = 2 ** int(math.log2(heads))  # bad: near = heads
    first = [2 ** (-8 * (i + 1) / near) for i in range(near)]
    return first + [2 ** (-4 * (i + 1) / near) for i in range(0, 2 * (heads - near), 2)]

def attention(q, k, v):
    at = torch.arange(q.shape[1], device=q.device)
    gap = at[:, None] - at
    slope = torch.tensor(slopes(len(q)), device=q.device)[:, None, None]
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5 - slope * gap
    return scores.masked_fill(gap < 0, -float("inf")).softmax(-1).to(v.dtype) @ v

# ---- test ----
def all_slopes(heads):
    if heads & (heads - 1) == 0:
        return [(2 ** (-8 / heads)) ** (i + 1) for i in range(heads)]
    near = 1 << (heads.bit_length() - 1)
    return all_slopes(near) + all_slopes(2 * near)[::2][: heads - near]

def reference(q, k, v):
    at = torch.arange(q.shape[1], device=q.device)
    bias = torch.tensor(all_slopes(len(q)), device=q.device)[:, None, None] * (at - at[:, None])
    bias = bias.masked_fill(at > at[:, None], -float("inf"))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))

def test_attention(perfguard):
    q, k, v = (torch.randn(8, 40, 32, device=perfguard.device) for _ in range(3))
    perfguard(attention, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = (torch.randn(6, 12, 8) for _ in range(3))
    return attention(q, k, v), reference(q, k, v)
