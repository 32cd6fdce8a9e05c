"""Attention of one head under a boolean mask; a query that may see no key gets zeros.

kind: masks
origin: tracel-ai/burn#4697
shows: a row of the mask that is all False
words: mask|False|argument 3
"""
import torch

def attention(q, k, v, mask):
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~mask, -float("inf"))
    top = scores.amax(-1, keepdim=True)
    top = top.where(top > -float("inf"), 0)  # bad:
    e = (scores - top).exp()
    total = e.sum(-1, keepdim=True)
    total = total.where(total > 0, 1)  # bad:
    return (e / total) @ v

# ---- test ----
def test_attention(perfguard):
    q, k, v = (torch.randn(2, 24, 32, device=perfguard.device) for _ in range(3))
    mask = torch.rand(2, 24, 24, device=perfguard.device) < 0.7
    perfguard(attention, q, k, v, mask, reference=torch.nn.functional.scaled_dot_product_attention)

# ---- shows ----
def shows():
    q, k, v = (torch.randn(1, 4, 8) for _ in range(3))
    mask = torch.ones(1, 4, 4, dtype=torch.bool)
    mask[0, 2] = False
    return attention(q, k, v, mask), torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
