"""Logits below the least one of the nucleus become -inf, by value and not by rank.

kind: correct
origin: AI-Hypercomputer/maxtext#950
shows: logits, of which no two are equal
words: -
"""
import torch

def nucleus(logits, share):
    ordered = logits.sort(-1, descending=True).values
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    count = (before < share).sum(-1, keepdim=True)
    least = ordered.gather(-1, (count - 1).clamp(min=0))
    return torch.where(logits < least, -torch.inf, logits)

# ---- test ----
def reference(logits, share):
    ordered, order = logits.sort(-1, descending=True)
    probs = ordered.softmax(-1)
    removed = probs.cumsum(-1) - probs >= share
    return logits.masked_fill(removed.scatter(-1, order, removed), -torch.inf)

def test_nucleus(perfguard):
    from perfguard import Hard

    logits = torch.randn(8, 60, device=perfguard.device) * 2
    hard = Hard(without=["non-finite"], reason="logits that are NaN have no order")
    perfguard(nucleus, logits, 0.8, reference=reference, hard=hard)

# ---- shows ----
def shows():
    logits = torch.randn(4, 30)
    return nucleus(logits, 0.7), reference(logits, 0.7)
