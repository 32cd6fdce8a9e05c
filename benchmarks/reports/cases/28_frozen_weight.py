"""A linear layer whose weight gradient is added to a float32 buffer of its own in the backward pass.

kind: modes of a call
origin: handed; as modelscope/ms-swift#9790
shows: a frozen weight
words: frozen|requires_grad|no gradient
"""
import torch
from torch import nn

class Accumulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        into = torch.zeros(weight.shape, dtype=x.dtype, device=x.device) if weight.requires_grad else None
        grad = into.add_(g.T @ x) if into is not None else None  # bad: grad = into.add_(g.T @ x)
        return g @ weight, grad

class LoraLinear(nn.Module):
    def __init__(self, width, rank=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) * width**-0.5)
        self.a = nn.Parameter(torch.randn(rank, width) * width**-0.5)
        self.b = nn.Parameter(torch.randn(width, rank) * rank**-0.5)

    def forward(self, x):
        return Accumulated.apply(x, self.weight) + x @ self.a.T @ self.b.T

# ---- test ----
class Eager(nn.Module):
    def __init__(self, other):
        super().__init__()
        for name, p in other.named_parameters():
            self.register_parameter(name, nn.Parameter(p.detach().clone()))

    def forward(self, x):
        return x @ self.weight.T + x @ self.a.T @ self.b.T

def test_lora(perfguard):
    layer = LoraLinear(32).to(perfguard.device)
    x = torch.randn(16, 32, device=perfguard.device, requires_grad=True)
    perfguard(layer, x, reference=Eager(layer))

# ---- shows ----
def shows():
    layer, x = LoraLinear(32), torch.randn(16, 32, requires_grad=True)
    layer.weight.requires_grad_(False)
    return [torch.autograd.grad(each(x).sum(), x)[0] for each in (layer, Eager(layer))]
