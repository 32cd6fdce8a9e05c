"""Quantisation to 4 bits by groups, with a zero point that a code can express.

kind: values
origin: keras-team/keras#23636
shows: a group of positive values
words: values|shifted|equal|rows?
"""
import torch

def quantise(x, group=32):
    rows = x.float().unflatten(-1, (-1, group))
    low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
    low, high = low.clamp(max=0), high.clamp(min=0)  # bad:
    scale = ((high - low) / 15).clamp(min=1e-8)
    zero = (-low / scale).round().clamp(0, 15)
    codes = (rows / scale + zero).round().clamp(0, 15)
    return ((codes - zero) * scale).flatten(-2).to(x.dtype)

# ---- test ----
def reference(x, group=32):
    rows = x.float().reshape(*x.shape[:-1], -1, group)
    low = torch.minimum(rows.min(-1, keepdim=True).values, torch.zeros((), device=x.device))
    high = torch.maximum(rows.max(-1, keepdim=True).values, torch.zeros((), device=x.device))
    scale = ((high - low) / 15).clamp(min=1e-8)
    zero = (-low / scale).round().clamp(0, 15)
    return (((rows / scale + zero).round().clamp(0, 15) - zero) * scale).reshape(x.shape).to(x.dtype)

def test_quantise(perfguard):
    perfguard(quantise, torch.randn(24, 128, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.rand(4, 64) + 0.5
    return quantise(x), reference(x)
