"""Dropout of what a hash of the place and a seed decides, so that a backward pass keeps no mask.

kind: scalars at neutral defaults
origin: NeuraLegion/shainet#106
shows: a probability of 1
words: p=|options?|number
"""
import torch

def kept(x, p, seed):
    at = torch.arange(x.numel(), device=x.device).view(x.shape)
    mixed = ((at + seed * 7919) * 2654435761 % 2**32) ^ ((at + seed) * 40503 % 2**16)
    return mixed.double() / 2**32 >= p

def dropout(x, p=0.1, seed=1):
    scale = 1 / (1 - p) if p < 1 else 1.0  # bad: scale = torch.tensor(1.0 - p).reciprocal().item()
    return torch.where(kept(x, p, seed), x, 0 * x) * scale

# ---- test ----
def reference(x, p=0.1, seed=1):
    share = 1 - p
    return x * kept(x, p, seed) / share if share else torch.zeros_like(x) * x

def test_dropout(perfguard):
    x = torch.randn(24, 40, device=perfguard.device, requires_grad=True)
    perfguard(dropout, x, kwargs={"p": 0.25, "seed": 5}, reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(3, 8)
    return dropout(x, 1.0), reference(x, 1.0)
