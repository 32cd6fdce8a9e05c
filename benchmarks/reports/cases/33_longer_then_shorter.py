"""Rotary angles whose base grows with inputs that are longer than 64 tokens.

kind: state beside the result
origin: huggingface/transformers#25308
shows: 48 tokens after 128
words: second call|sequence|after a
"""
import torch
from torch import nn

class DynamicRotary(nn.Module):
    def __init__(self, dim, most=64):
        super().__init__()
        self.dim, self.most, self._n, self._cos = dim, most, 0, None

    def forward(self, x):
        n = len(x)
        if n != self._n:  # bad: if n > self._n:
            base = 10_000.0 * max(n / self.most, 1.0) ** 2
            rate = base ** -(torch.arange(self.dim, device=x.device) / self.dim)
            self._n, self._cos = n, torch.outer(torch.arange(n, device=x.device), rate).cos()
        return x * self._cos[:n].to(x.dtype)

# ---- test ----
def reference(x):
    n, dim = x.shape
    base = 10_000.0 * max(n / 64, 1.0) ** 2
    rate = base ** -(torch.arange(dim, device=x.device) / dim)
    return x * torch.outer(torch.arange(n, device=x.device), rate).cos().to(x.dtype)

def test_dynamic_rotary(perfguard):
    perfguard(DynamicRotary(32).to(perfguard.device), torch.randn(48, 32, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    rotary, x = DynamicRotary(32), torch.randn(48, 32)
    rotary(torch.randn(128, 32))
    return rotary(x), reference(x)
