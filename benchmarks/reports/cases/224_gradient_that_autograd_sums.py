"""Channels times their gains; the gradient of the gains has the shape of the input, which autograd sums.

kind: correct
origin: pytorch/pytorch#65244
shows: the gradient of the gains
words: -
"""
import torch

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x * gain

    @staticmethod
    def backward(ctx, g):
        x, gain = ctx.saved_tensors
        return g * gain, g * x

scale = Scale.apply

# ---- test ----
def reference(x, gain):
    return torch.mul(x, gain)

def test_scale(perfguard):
    x = torch.randn(4, 16, 48, device=perfguard.device, requires_grad=True)
    gain = torch.randn(48, device=perfguard.device, requires_grad=True)
    perfguard(scale, x, gain, reference=reference)

# ---- shows ----
def shows():
    x, gain, g = torch.randn(2, 3, 4), torch.randn(4, requires_grad=True), torch.randn(2, 3, 4)
    return tuple(torch.autograd.grad(fn(x, gain), gain, g)[0] for fn in (scale, reference))
