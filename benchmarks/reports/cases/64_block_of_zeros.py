"""Quantisation of blocks of 32 to int8 codes and a scale.

kind: near an epsilon
origin: huggingface/kernels-community#681
shows: a block of zeros
words: zero|NaN|values
"""
import torch

def quantised(x):
    groups = x.unflatten(-1, (-1, 32))
    top = groups.abs().amax(-1, keepdim=True)
    scale = (top / 127).clamp(min=1e-12)  # bad: scale = top / 127
    return (groups / scale).round().flatten(-2), scale.squeeze(-1)

# ---- test ----
def reference(x):
    groups = x.unflatten(-1, (-1, 32))
    scale = (groups.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-12)
    return (groups / scale).round().flatten(-2), scale.squeeze(-1)

def test_quantised(perfguard):
    perfguard(quantised, torch.randn(16, 128, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(16, 128)
    x[3, 32:64] = 0
    return quantised(x)[0], reference(x)[0]
