"""A linear layer with SiLU, which keeps nothing for a backward pass that will not come.

kind: modes of a call
origin: NVIDIA/TransformerEngine#72
shows: the gradient of the input in eval()
words: eval|gradient
"""
import torch
from torch import nn

class SiluLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in) * n_in**-0.5)

    def forward(self, x):
        keep = torch.is_grad_enabled()  # bad: keep = self.training
        with torch.set_grad_enabled(keep):
            return nn.functional.silu(x @ self.weight.T)

# ---- test ----
class Eager(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.weight = nn.Parameter(other.weight.detach().clone())

    def forward(self, x):
        return nn.functional.silu(nn.functional.linear(x, self.weight))

def test_silu_linear(perfguard):
    layer = SiluLinear(48, 32).to(perfguard.device)
    x = torch.randn(16, 48, device=perfguard.device, requires_grad=True)
    perfguard(layer, x, reference=Eager(layer))

# ---- shows ----
def shows():
    layer, x = SiluLinear(8, 4).eval(), torch.randn(3, 8, requires_grad=True)
    return layer(x).requires_grad, True
