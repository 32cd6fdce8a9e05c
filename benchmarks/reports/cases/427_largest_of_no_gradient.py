"""Gradients clipped by their common norm, with the norm.

kind: sizes of zero
origin: meta-pytorch/torchrec#3891
shows: a gradient without elements
words: 0|empty|zero|dim
"""
import math

import torch

def clip(*grads, limit=1.0, norm=2.0):
    if norm == math.inf:
        full = [g for g in grads if g.numel()]  # bad: full = grads
        total = torch.stack([g.abs().amax() for g in full]).amax() if full else grads[0].new_zeros(())
    else:
        total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g, norm) for g in grads]), norm)
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    return total, *(g * factor for g in grads)

# ---- test ----
def reference(*grads, limit=1.0, norm=2.0):
    flat = torch.cat([g.flatten() for g in grads]).abs()
    total = torch.cat([flat, flat.new_zeros(1)]).amax() if norm == math.inf else flat.pow(norm).sum() ** (1 / norm)
    return total, *(g * torch.clamp(limit / (total + 1e-6), max=1.0) for g in grads)

def test_clip(perfguard):
    grads = [torch.randn(shape, device=perfguard.device) for shape in ((24, 40), (24,), (12, 24))]
    perfguard(clip, *grads, kwargs={"norm": math.inf}, reference=reference)

# ---- shows ----
def shows():
    grads = torch.randn(3, 4), torch.randn(0, 5)
    return tuple(fn(*grads, norm=math.inf)[1] for fn in (clip, reference))
