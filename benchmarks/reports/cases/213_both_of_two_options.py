"""RMS norm of one or two branches, whose rows may be scaled before.

kind: options that are None
origin: state-spaces/mamba#1023
shows: the gradient of a second branch with scales of rows
words: other|scale|rowscale|argument 1
"""
import torch

class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, other, scale):
        total = x if other is None else x + other
        total = total if scale is None else total * scale[:, None]
        r = total.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(total * r, r, scale)
        ctx.two = other is not None
        return total * r

    @staticmethod
    def backward(ctx, g):
        y, r, scale = ctx.saved_tensors
        grad = r * (g - y * (g * y).mean(-1, keepdim=True))
        first = grad if scale is None else grad * scale[:, None]
        second = first if ctx.two else None  # bad: second = grad if ctx.two else None
        return first, second, None

def norm(x, other=None, scale=None):
    return Norm.apply(x, other, scale)

# ---- test ----
def reference(x, other=None, scale=None):
    total = x if other is None else x + other
    total = total if scale is None else total * scale[:, None]
    return torch.nn.functional.rms_norm(total, x.shape[-1:], eps=1e-6)

def test_two_branches(perfguard):
    x, other = (torch.randn(24, 32, device=perfguard.device, requires_grad=True) for _ in range(2))
    perfguard(norm, x, other, reference=reference)

def test_scaled_rows(perfguard):
    x = torch.randn(24, 32, device=perfguard.device, requires_grad=True)
    scale = torch.rand(24, device=perfguard.device) + 0.5
    perfguard(norm, x, kwargs={"scale": scale}, reference=reference)

# ---- shows ----
def shows():
    x, other, g = torch.randn(3, 8), torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    scale = torch.rand(3) + 0.5
    return tuple(torch.autograd.grad(fn(x, other, scale), other, g)[0] for fn in (norm, reference))
