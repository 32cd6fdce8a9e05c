"""Probabilities of the k likeliest tokens, summing to one; of equal ones at the end all stay.

kind: correct
origin: sgl-project/sglang#33539
shows: probabilities, of which some are equal
words: -
"""
import torch

def best(p, k):
    least = p.topk(k, -1).values[:, -1:]
    kept = p.where(p >= least, 0)
    return kept / kept.sum(-1, keepdim=True)

# ---- test ----
def reference(p, k):
    least = p.sort(-1, descending=True).values[:, k - 1, None]
    kept = torch.where(p < least, 0.0, p)
    return kept / kept.sum(-1, keepdim=True)

def test_best(perfguard):
    from perfguard import Hard

    p = torch.randn(8, 200, device=perfguard.device).softmax(-1)
    hard = Hard(without=["non-finite"], reason="a probability that is NaN is not kept")
    perfguard(best, p, 10, reference=reference, hard=hard)

# ---- shows ----
def shows():
    p = torch.tensor([[0.4, 0.2, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]])
    return best(p, 2), reference(p, 2)
