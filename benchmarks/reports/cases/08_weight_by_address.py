"""A linear layer whose weight is quantised once per version and kept.

kind: state beside the result
origin: handed; as AMD-AGI/Primus#983
shows: an optimiser's step between two calls
words: second call|in place|step
"""
import torch
from torch import nn

def quantise(w):
    scale = w.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (w / scale).round() * scale

class QuantLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * n_in**-0.5)
        self._key, self._kept = None, None

    def forward(self, x):
        version = self.weight._version  # bad: version = self.weight.shape
        key = (self.weight.data_ptr(), version, self.weight.dtype)
        if self._key != key:
            self._key, self._kept = key, quantise(self.weight.detach())
        return x @ self._kept.T

# ---- test ----
class Eager(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.weight = nn.Parameter(other.weight.detach().clone())

    def forward(self, x):
        return x @ quantise(self.weight).detach().T

def test_quant_linear(perfguard):
    layer = QuantLinear(64, 48).to(perfguard.device)
    x = torch.randn(16, 64, device=perfguard.device, requires_grad=True)
    perfguard(layer, x, reference=Eager(layer))

# ---- shows ----
def shows():
    layer, x = QuantLinear(64, 48), torch.randn(16, 64)
    layer(x)
    with torch.no_grad():
        layer.weight.mul_(0.5)
    return layer(x), Eager(layer)(x)
