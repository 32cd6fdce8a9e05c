"""Attention with fewer heads of keys than of queries; neighbouring queries share a head.

kind: equal sizes
origin: HazyResearch/HipKittens#22
shows: 8 heads of queries and 2 of keys
words: heads?|dim 0|argument [0-9].*(cut|grown)|sizes?
"""
import torch

def attention(q, k, v):
    heads, shared = len(q), len(k)
    each = heads // shared
    own = torch.arange(heads, device=q.device) // each  # bad: own = torch.arange(heads, device=q.device) // shared
    weights = (q @ k[own].transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1)
    return weights @ v[own]

# ---- test ----
def reference(q, k, v):
    k, v = (t.repeat_interleave(len(q) // len(k), 0) for t in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)

def test_attention(perfguard):
    q = torch.randn(16, 20, 32, device=perfguard.device)
    k, v = (torch.randn(4, 20, 32, device=perfguard.device) for _ in range(2))
    perfguard(attention, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(8, 5, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    return attention(q, k, v), reference(q, k, v)
