"""Attention under a boolean mask; a query without keys gets zeros, where its reference has NaN.

kind: correct
origin: tracel-ai/cubecl#1070
shows: queries that have keys
words: -
"""
import torch

def attention(q, k, v, mask):
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~mask, -float("inf"))
    return scores.softmax(-1).where(mask.any(-1, keepdim=True), 0) @ v

# ---- test ----
def reference(q, k, v, mask):
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~mask, -float("inf")).softmax(-1) @ v

def test_attention(perfguard):
    q, k, v = (torch.randn(2, 24, 32, device=perfguard.device) for _ in range(3))
    mask = torch.rand(2, 24, 24, device=perfguard.device) < 0.7
    perfguard(attention, q, k, v, mask, reference=reference)

# ---- shows ----
def shows():
    q, k, v = (torch.randn(1, 4, 8) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    return attention(q, k, v, mask), reference(q, k, v, mask)
