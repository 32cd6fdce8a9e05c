"""Rotary embedding whose angles are kept by length and offset.

kind: state beside the result
origin: lucidrains/rotary-embedding-torch#11
shows: the same length at another offset, later
words: offset|second call
"""
import torch
from torch import nn

class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("rate", 10_000.0 ** -(torch.arange(0, dim, 2) / dim), persistent=False)
        self._kept = {}

    def angles(self, n, offset, like):
        key = (n, offset, like.dtype, like.device)  # bad: key = (n, like.dtype, like.device)
        if key not in self._kept:
            place = torch.arange(offset, offset + n, device=like.device, dtype=like.dtype)
            self._kept[key] = torch.outer(place, self.rate.to(like.dtype))
        return self._kept[key]

    def forward(self, x, offset=0):
        angle = self.angles(len(x), offset, x)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

# ---- test ----
def reference(x, offset=0):
    rate = 10_000.0 ** -(torch.arange(0, x.shape[1], 2, device=x.device, dtype=x.dtype) / x.shape[1])
    angle = torch.arange(offset, offset + len(x), device=x.device, dtype=x.dtype)[:, None] * rate
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)

def test_rotary(perfguard):
    x = torch.randn(48, 32, device=perfguard.device)
    perfguard(Rotary(32).to(perfguard.device), x, reference=reference, kwargs={"offset": 0})

# ---- shows ----
def shows():
    rotary, x = Rotary(32), torch.randn(48, 32)
    rotary(x)
    return rotary(x, 7), reference(x, 7)
