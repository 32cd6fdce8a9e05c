"""Codes by way of int32, which sends NaN elsewhere than a cast to int8 does.

kind: correct
origin: pytorch/pytorch#180159
shows: codes of finite values
words: -
"""
import torch

def codes(x):
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / scale).round().to(torch.int32).clamp(-127, 127).to(torch.int8), scale

# ---- test ----
def reference(x):
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale

def test_codes(perfguard):
    perfguard(codes, torch.randn(16, 40, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(16, 40)
    return codes(x)[0], reference(x)[0]
