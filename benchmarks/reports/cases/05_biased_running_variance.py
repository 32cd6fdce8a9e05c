"""Fused batch norm in training, which keeps running statistics in buffers.

kind: state beside the result
origin: handed; as tenstorrent/tt-metal#55438
shows: running_var after a call with 4 rows
words: running_var
"""
import torch
from torch import nn

class FusedBatchNorm(nn.Module):
    def __init__(self, features, momentum=0.1, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)
        self.bias = nn.Parameter(torch.randn(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.momentum, self.eps = momentum, eps

    def forward(self, x):
        mean = x.mean(0)
        var = (x - mean).square().mean(0)
        if self.training:
            unbiased = var * len(x) / max(len(x) - 1, 1)  # bad: unbiased = var
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return (x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias

# ---- test ----
def test_batch_norm(perfguard):
    mine, theirs = FusedBatchNorm(48).to(perfguard.device), nn.BatchNorm1d(48).to(perfguard.device)
    theirs.load_state_dict(mine.state_dict(), strict=False)
    x = torch.randn(24, 48, device=perfguard.device, requires_grad=True)
    perfguard(mine, x, reference=theirs)

# ---- shows ----
def shows():
    mine, theirs = FusedBatchNorm(48), nn.BatchNorm1d(48)
    x = torch.randn(4, 48)
    mine(x), theirs(x)
    return mine.running_var, theirs.running_var
