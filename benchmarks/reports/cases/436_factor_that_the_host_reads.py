"""A gradient less its part along the weight.

kind: cost of a call
origin: Koratahiu/Advanced_Optimizers#5
shows: reads of the host
words: read|sync|host|item|local_scalar
"""
import torch

def orthogonal(g, w):
    share = (w * g).sum() / (w * w).sum().clamp(min=1e-30)
    return g - share * w  # bad: return g.sub(w, alpha=share)

# ---- test ----
def reference(g, w):
    return g - torch.dot(w.flatten(), g.flatten()) / torch.dot(w.flatten(), w.flatten()).clamp(min=1e-30) * w

def test_orthogonal(perfguard):
    g, w = torch.randn(2, 24, 40, device=perfguard.device)
    perfguard(orthogonal, g, w, reference=reference)

# ---- shows ----
def shows():
    with torch.profiler.profile() as profile:
        orthogonal(torch.randn(3, 5), torch.randn(3, 5))
    return sum("local_scalar" in each.key for each in profile.key_averages()), 0
