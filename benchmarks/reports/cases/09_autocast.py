"""A linear layer with a low-rank branch, which keeps its factors in the dtype of the computation.

kind: modes of a call
origin: handed; as shawntan/scattermoe#17
shows: the dtype of the result under autocast
words: autocast
"""
import torch
from torch import nn

class LowRank(nn.Module):
    def __init__(self, width, rank=8):
        super().__init__()
        self.base = nn.Parameter(torch.randn(width, width) * width**-0.5, requires_grad=False)
        self.a = nn.Parameter(torch.randn(rank, width) * width**-0.5)
        self.b = nn.Parameter(torch.randn(width, rank) * rank**-0.5)

    def forward(self, x):
        kind = x.dtype
        if torch.is_autocast_enabled(x.device.type):  # bad:
            kind = torch.get_autocast_dtype(x.device.type)  # bad:
        x = x.to(kind)
        out = x @ self.base.to(kind).T
        return out.addmm_(x @ self.a.to(kind).T, self.b.to(kind).T)

# ---- test ----
def test_low_rank(perfguard):
    layer = LowRank(48).to(perfguard.device)
    x = torch.randn(16, 48, device=perfguard.device, requires_grad=True)

    def reference(x):
        base, a, b = (each.to(x.dtype) for each in (layer.base, layer.a, layer.b))
        return x @ base.T + x @ a.T @ b.T

    perfguard(layer, x, reference=reference)

# ---- shows ----
def shows():
    with torch.autocast("cpu", torch.bfloat16):
        return LowRank(48)(torch.randn(16, 48)).dtype, torch.bfloat16
