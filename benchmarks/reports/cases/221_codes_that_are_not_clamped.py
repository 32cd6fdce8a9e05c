"""Codes of rows in int8, which need no bounds: a row's largest magnitude is 127 by its own scale.

kind: correct
origin: InternLM/lmdeploy#1353
shows: codes of rows
words: -
"""
import torch

def quantise(x):
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-7) / 127
    return (x.float() / scale).round().to(torch.int8), scale

# ---- test ----
def reference(x):
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-7) / 127
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8), scale

def test_quantise(perfguard):
    x = torch.randn(24, 64, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(quantise, x, reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(8, 24)
    return quantise(x)[0], reference(x)[0]
