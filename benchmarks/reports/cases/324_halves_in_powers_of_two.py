"""Attention in two halves of the keys, each with a sum of its own, put together by powers of two.

kind: correct
origin: SHI-Labs/NATTEN#299
shows: attention over an odd number of keys
words: -
"""
import math

import torch

def part(q, k, v):
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 * math.log2(math.e))
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp2(scores - top)
    total = weights.sum(-1, keepdim=True)
    return weights @ v / total, top + total.log2()

def attend(q, k, v):
    half = (k.shape[-2] + 1) // 2
    if half == k.shape[-2]:
        return part(q, k, v)[0]
    (a, at), (b, bt) = part(q, k[..., :half, :], v[..., :half, :]), part(q, k[..., half:, :], v[..., half:, :])
    share = 1 / (1 + torch.exp2(bt - at))
    return a * share + b * (1 - share)

# ---- test ----
def reference(q, k, v):
    return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v

def test_attend(perfguard):
    q = torch.randn(2, 24, 16, device=perfguard.device)
    k, v = torch.randn(2, 2, 50, 16, device=perfguard.device)
    perfguard(attend, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(1, 4, 8), torch.randn(1, 7, 8), torch.randn(1, 7, 8)
    return attend(q, k, v), reference(q, k, v)
