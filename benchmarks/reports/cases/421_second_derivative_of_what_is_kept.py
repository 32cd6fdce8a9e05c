"""SiLU with a backward pass of its own, which differentiates by torch's own operators.

kind: second derivatives
origin: pytorch/pytorch#58509
shows: the gradient of a gradient
words: second|double|derivative|gradient of
"""
import torch

class SiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = x.sigmoid()
        ctx.save_for_backward(x)
        # bad: ctx.gate = gate
        return x * gate

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()  # bad: gate = ctx.gate
        return g * gate * (1 + x * (1 - gate))

def silu(x):
    return SiLU.apply(x)

# ---- test ----
def test_silu(perfguard):
    x = torch.randn(24, 40, device=perfguard.device, requires_grad=True)
    perfguard(silu, x, reference=torch.nn.functional.silu)

# ---- shows ----
def shows():
    x = torch.randn(3, 5, requires_grad=True)

    def second(fn):
        (first,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    return second(silu), second(torch.nn.functional.silu)
