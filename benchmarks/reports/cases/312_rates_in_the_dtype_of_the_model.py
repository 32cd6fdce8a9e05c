"""Rotary positions as a part of a model, which is cast to bfloat16 as a whole.

kind: dtypes
origin: NVIDIA-NeMo/Automodel#2549
shows: a model in bfloat16
words: bfloat16|float16|cast
"""
import torch
from torch import nn

class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, self.gain = width, nn.Parameter(torch.ones(width))
        self.register_buffer("rate", self.made(None), persistent=False)

    def made(self, device):
        return 10_000.0 ** (-torch.arange(0, self.width, 2, device=device) / self.width)

    def forward(self, x):
        rate = self.made(x.device)  # bad: rate = self.rate.float()
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * rate
        a, b = (x * self.gain).chunk(2, -1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

# ---- test ----
class Reference(Rotary):
    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[-2], device=x.device).float(), self.made(x.device))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = (x * self.gain).chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

def test_rotary(perfguard):
    rotary, reference = (made(32).to(perfguard.device) for made in (Rotary, Reference))
    perfguard(rotary, torch.randn(4, 200, 32, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    x = torch.randn(200, 32, dtype=torch.bfloat16)
    return tuple(made(32).to(torch.bfloat16)(x).float() for made in (Rotary, Reference))
