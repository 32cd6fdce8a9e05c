"""A linear layer with int8 codes of its weight, made once for all micro-batches of a step.

kind: state beside the result
origin: NVIDIA/TransformerEngine#1047
shows: the second call with the same weight
words: second call|later ones|same weight|buffer scale
"""
import torch
from torch import nn

class MicroBatchLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * n_in**-0.5)
        self.register_buffer("scale", torch.ones(()), persistent=False)
        self._codes, self._version = None, None

    def forward(self, x):
        if self._version != (self.weight.data_ptr(), self.weight._version):
            weight = self.weight.detach()
            self.scale = weight.abs().amax() / 127
            self._codes = (weight / self.scale).round()
            self._version = self.weight.data_ptr(), self.weight._version
        out = x @ (self._codes * self.scale).T
        # bad: self.scale = x.detach().abs().amax() / 127
        return out

# ---- test ----
def test_micro_batch_linear(perfguard):
    layer = MicroBatchLinear(64, 32).to(perfguard.device)

    def reference(x):
        weight = layer.weight.detach().to(x.dtype)
        scale = weight.abs().amax() / 127
        return x @ ((weight / scale).round() * scale).T

    perfguard(layer, torch.randn(16, 64, device=perfguard.device), reference=reference)

# ---- shows ----
def shows():
    layer, x = MicroBatchLinear(64, 32), torch.randn(16, 64)
    first = layer(x)
    return layer(x), first
