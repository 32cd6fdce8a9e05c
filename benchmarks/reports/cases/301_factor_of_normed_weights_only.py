"""The best experts of each token; weights may sum to one, and are scaled by a factor.

kind: two options at once
origin: sgl-project/sglang-jax#1282
shows: a factor of 2.5 for weights that are not normed
words: renormalize|factor|options?
"""
import torch

def route(logits, k, renormalize=True, factor=1.0):
    scores = logits.float().sigmoid()
    best = scores.topk(k, -1)
    weights = best.values
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
        # bad: weights = weights * factor
    weights = weights * factor  # bad:
    return weights, best.indices

# ---- test ----
def reference(logits, k, renormalize=True, factor=1.0):
    best = logits.float().sigmoid().topk(k, -1)
    weights = best.values / best.values.sum(-1, keepdim=True) if renormalize else best.values
    return factor * weights, best.indices

def test_route(perfguard):
    logits = torch.randn(24, 32, device=perfguard.device)
    perfguard(route, logits, 4, kwargs={"factor": 2.5}, reference=reference)

# ---- shows ----
def shows():
    logits = torch.randn(4, 8)
    return tuple(fn(logits, 2, renormalize=False, factor=2.5)[0] for fn in (route, reference))
