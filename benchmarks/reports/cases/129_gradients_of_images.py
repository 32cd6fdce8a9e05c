"""Norm of each channel of a sample, for inputs of three dimensions and more.

kind: numbers of dimensions
origin: linkedin/Liger-Kernel#1376
shows: the gradient of an input of four dimensions
words: dimension
"""
import torch

class InstanceNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        flat = x.flatten(2)
        off = flat - flat.mean(-1, keepdim=True)
        r = off.square().mean(-1, keepdim=True).add(eps).rsqrt()
        ctx.save_for_backward(off * r, r)
        return (off * r).view_as(x)

    @staticmethod
    def backward(ctx, g):
        y, r = ctx.saved_tensors
        flat = g.flatten(2)
        n = flat.shape[-1]  # bad: n = g.shape[-1]
        grad = r * (flat - flat.sum(-1, keepdim=True) / n - y * (flat * y).sum(-1, keepdim=True) / n)
        return grad.view_as(g), None

def instance_norm(x, eps=1e-5):
    return InstanceNorm.apply(x, eps)

# ---- test ----
def reference(x, eps=1e-5):
    return torch.nn.functional.instance_norm(x, eps=eps)

def test_instance_norm(perfguard):
    x = torch.randn(4, 16, 100, device=perfguard.device, requires_grad=True)
    perfguard(instance_norm, x, reference=reference)

# ---- shows ----
def shows():
    x, g = torch.randn(2, 3, 4, 5, requires_grad=True), torch.randn(2, 3, 4, 5)
    return tuple(torch.autograd.grad(fn(x), x, g)[0] for fn in (instance_norm, reference))
