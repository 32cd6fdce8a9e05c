"""Logits but the k highest of each row become -inf; of equal ones the last stay.

kind: correct
origin: flashinfer-ai/flashinfer#3774
shows: logits without equal ones
words: -
"""
import torch

def keep_best(logits, k):
    best = logits.flip(-1).sort(stable=True, dim=-1, descending=True).indices[:, :k]
    keep = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, logits.shape[-1] - 1 - best, True)
    return logits.where(keep, -float("inf"))

# ---- test ----
def reference(logits, k):
    best = logits.topk(k, -1)
    return torch.full_like(logits, -float("inf")).scatter(-1, best.indices, best.values)

def test_keep_best(perfguard):
    perfguard(keep_best, torch.randn(8, 200, device=perfguard.device), 10, reference=reference)

# ---- shows ----
def shows():
    logits = torch.randn(4, 40)
    return keep_best(logits, 3), reference(logits, 3)
