"""Rotary positions, whose tables are kept by number of positions and width.

kind: state beside the result
origin: ml-explore/mlx#561
shows: a width of 32 after one of 64 with as many elements
words: call|sequence|after
"""
import torch

_TABLES = {}

def tables(positions, width, device):
    half = width // 2
    key = positions, width, device  # bad: key = positions * half, device
    if key not in _TABLES:
        rate = 10_000.0 ** (-torch.arange(half, device=device) / half)
        angles = torch.arange(positions, device=device)[:, None] * rate
        _TABLES[key] = angles.cos(), angles.sin()
    cos, sin = _TABLES[key]
    return cos.reshape(positions, half), sin.reshape(positions, half)

def rotate(x):
    cos, sin = tables(*x.shape[-2:], x.device)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

# ---- test ----
def reference(x):
    n, width = x.shape[-2:]
    rate = 10_000.0 ** (-torch.arange(width // 2, device=x.device) / (width // 2))
    turns = torch.polar(torch.ones_like(rate).expand(n, -1), torch.arange(n, device=x.device)[:, None] * rate)
    a, b = x.chunk(2, -1)
    made = torch.complex(a, b) * turns
    return torch.cat([made.real, made.imag], -1)

def test_rotate(perfguard):
    perfguard(rotate, torch.randn(4, 48, 32, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(2, 16, 8)
    rotate(torch.randn(2, 8, 16))
    return rotate(x), reference(x)
