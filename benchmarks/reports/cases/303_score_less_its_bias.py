"""Experts chosen by a sigmoid and a bias, weighted by the sigmoid alone.

kind: large finite inputs
origin: flashinfer-ai/flashinfer#3875
shows: scores of 1e-7 beside biases of 12
words: argument [01]|times|shifted|large
"""
import torch

def route(logits, bias, k):
    scores = logits.float().sigmoid()
    best = (scores + bias).topk(k, -1)
    weights = scores.gather(-1, best.indices)  # bad: weights = best.values - bias[best.indices]
    return weights / (weights.sum(-1, keepdim=True) + 1e-20), best.indices

# ---- test ----
def reference(logits, bias, k):
    scores = torch.sigmoid(logits.float())
    ids = (scores + bias).topk(k, -1).indices
    weights = scores.gather(-1, ids)
    return weights / (weights.sum(-1, keepdim=True) + 1e-20), ids

def test_route(perfguard):
    logits = torch.randn(24, 32, device=perfguard.device)
    perfguard(route, logits, torch.randn(32, device=perfguard.device) * 0.1, 4, reference=reference)

# ---- shows ----
def shows():
    logits, bias = torch.randn(3, 8) - 16, torch.full((8,), 12.0)
    return tuple(fn(logits, bias, 8)[0].sort(-1).values for fn in (route, reference))
