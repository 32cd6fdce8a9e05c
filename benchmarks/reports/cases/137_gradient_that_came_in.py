"""Softmax of scaled scores, with a backward pass that needs no memory of its own.

kind: state beside the result
origin: NVIDIA/apex#1430
shows: the incoming gradient after the backward pass
words: gradient|modif|wrote|written|incoming
"""
import torch

class ScaledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        p = (x * scale).softmax(-1)
        ctx.save_for_backward(p)
        ctx.scale = scale
        return p

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        grad = g.clone()  # bad: grad = g
        grad.mul_(p)
        return grad.sub_(p * grad.sum(-1, keepdim=True)).mul_(ctx.scale), None

scaled_softmax = ScaledSoftmax.apply

# ---- test ----
def test_scaled_softmax(perfguard):
    x = torch.randn(4, 20, 20, device=perfguard.device, requires_grad=True)
    perfguard(scaled_softmax, x, 0.3, reference=lambda x, scale: (x * scale).softmax(-1))

# ---- shows ----
def shows():
    x, g = torch.randn(4, 8, requires_grad=True), torch.ones(4, 8)
    scaled_softmax(x, 1.0).backward(g)
    return g, torch.ones(4, 8)
