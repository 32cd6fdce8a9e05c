"""Logits but the k highest of each row become -inf, before sampling.

kind: values
origin: vllm-project/vllm#50979
shows: four equal logits, of which two may stay
words: equal|tie|values
"""
import torch

def keep_best(logits, k):
    best = logits.topk(k, -1)
    out = torch.full_like(logits, -float("inf")).scatter(-1, best.indices, best.values)
    # bad: out = logits.masked_fill(logits < best.values[:, -1:], -float("inf"))
    return out

# ---- test ----
def reference(logits, k):
    order = logits.argsort(-1, descending=True)
    places = torch.arange(logits.shape[-1], device=logits.device)
    rank = torch.empty_like(order).scatter_(-1, order, places.expand_as(order))
    return logits.where(rank < k, -float("inf"))

def test_keep_best(perfguard):
    logits = torch.randn(8, 200, device=perfguard.device)
    perfguard(keep_best, logits, 10, reference=reference)

# ---- shows ----
def shows():
    return keep_best(torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]]), 2).isfinite().sum(), torch.tensor(2)
