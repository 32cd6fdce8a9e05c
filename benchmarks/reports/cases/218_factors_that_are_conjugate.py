"""Pairs of channels turned by complex factors, whose parts are read as they lie.

kind: layouts
origin: pytorch/pytorch#59946
shows: factors that are a conjugate view
words: conj|view|layout
"""
import torch

def turn(x, factors):
    factors = factors.resolve_conj()  # bad:
    cos, sin = (part[:, None] for part in torch.view_as_real(factors).unbind(-1))
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

# ---- test ----
def reference(x, factors):
    pairs = torch.complex(x[..., ::2].contiguous(), x[..., 1::2].contiguous())
    turned = pairs * factors[:, None]
    return torch.stack([turned.real, turned.imag], -1).flatten(-2)

def test_turn(perfguard):
    x = torch.randn(24, 4, 32, device=perfguard.device)
    angles = torch.rand(24, 16, device=perfguard.device) * 6
    perfguard(turn, x, torch.polar(torch.ones_like(angles), angles), reference=reference)

# ---- shows ----
def shows():
    x, angles = torch.randn(3, 2, 8), torch.rand(3, 4)
    factors = torch.polar(torch.ones(3, 4), angles).conj()
    return turn(x, factors), reference(x, factors)
