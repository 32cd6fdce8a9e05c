"""Inputs less the mean of their batch; a running mean is kept for evaluation.

kind: modes of a call
origin: facebookresearch/fairscale#1035
shows: the running mean after a call under no_grad
words: mean|buffer
"""
import torch
from torch import nn

class Centre(nn.Module):
    def __init__(self, features, momentum=0.1):
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.momentum = momentum

    def forward(self, x):
        if self.training:  # bad: if self.training and torch.is_grad_enabled():
            with torch.no_grad():
                self.mean.lerp_(x.mean(0).to(self.mean.dtype), self.momentum)
        return x - (x.mean(0) if self.training else self.mean)

# ---- test ----
class Eager(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))

    def forward(self, x):
        if not self.training:
            return x - self.mean
        self.mean.copy_(0.9 * self.mean + 0.1 * x.detach().mean(0))
        return x - x.mean(0, keepdim=True)

def test_centre(perfguard):
    x = torch.randn(24, 48, device=perfguard.device, requires_grad=True)
    perfguard(Centre(48).to(perfguard.device), x, reference=Eager(48).to(perfguard.device))

# ---- shows ----
def shows():
    mine, theirs, x = Centre(4), Eager(4), torch.randn(6, 4)
    with torch.no_grad():
        mine(x), theirs(x)
    return mine.mean, theirs.mean
