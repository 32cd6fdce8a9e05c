"""Rotary positions, whose angles are made as they are needed.

kind: dtypes
origin: EleutherAI/gpt-neox#1003
shows: bfloat16, 600 tokens
words: dim 0|tokens|grown|bfloat16
"""
import torch

def rotate(x, base=10000.0):
    half = x.shape[-1] // 2
    at = torch.arange(len(x), device=x.device)  # bad: at = torch.arange(len(x), device=x.device, dtype=x.dtype)
    rates = base ** -(torch.arange(half, device=x.device) / half)
    angles = (at.float()[:, None] * rates)[:, None]
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half].float(), x[..., half:].float()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

# ---- test ----
def reference(x, base=10000.0):
    half = x.shape[-1] // 2
    rates = base ** -(torch.arange(half, device=x.device) / half)
    angles = torch.arange(len(x), device=x.device)[:, None, None] * rates
    turned = torch.complex(*x.float().chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)

def test_rotate(perfguard):
    x = torch.randn(48, 4, 32, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(rotate, x, reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(600, 1, 8).bfloat16()
    return rotate(x).float(), reference(x).float()
