"""A linear layer whose weight gradient is added to a float32 buffer, batch after batch.

kind: state beside the result
origin: AMD-AGI/Primus#1046
shows: the buffer after two batches
words: call|buffer|total
"""
import torch
from torch import nn

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, layer):
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return x @ weight.T

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        made = (g.transpose(-1, -2) @ x).float()
        made = made.sum(0) if made.ndim > 2 else made
        ctx.layer.total += made  # bad: if not ctx.layer.added: ctx.layer.total += made
        ctx.layer.added = True
        return g @ weight, None, None

class Linear(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, width) / width**0.5)
        self.register_buffer("total", torch.zeros(out, width))
        self.added = False

    def forward(self, x):
        return Product.apply(x, self.weight, self)

# ---- test ----
class Reference(Linear):
    def forward(self, x):
        out = torch.nn.functional.linear(x, self.weight.detach())
        if out.requires_grad:
            x = x.detach()
            out.register_hook(lambda g: (self.total.add_(torch.einsum("...o,...i->oi", g, x)), None)[1])
        return out

def test_linear(perfguard):
    layer, reference = (made(32, 16).to(perfguard.device) for made in (Linear, Reference))
    reference.load_state_dict(layer.state_dict())
    perfguard(layer, torch.randn(24, 32, device=perfguard.device, requires_grad=True), reference=reference)

# ---- shows ----
def shows():
    layer, x = Linear(4, 3), torch.randn(2, 5, 4, requires_grad=True)
    for part in x:
        layer(part).sum().backward()
    return layer.total, x.detach().sum((0, 1)).expand(3, 4)
