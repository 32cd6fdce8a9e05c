"""SwiGLU with a backward pass of its own.

kind: aliases
origin: linkedin/Liger-Kernel#254
shows: an input after the backward pass
words: argument [01]|modif|writ|wrote|changed
"""
import torch

class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.nn.functional.silu(a) * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        gate = a.sigmoid()
        of_a, of_b = g * b * gate * (1 + a * (1 - gate)), g * a * gate
        return of_a, of_b  # bad: return a.data.copy_(of_a), b.data.copy_(of_b)

def swiglu(a, b):
    return SwiGLU.apply(a, b)

# ---- test ----
def test_swiglu(perfguard):
    a, b = (torch.randn(24, 40, device=perfguard.device, requires_grad=True) for _ in range(2))
    perfguard(swiglu, a, b, reference=lambda a, b: a * a.sigmoid() * b)

# ---- shows ----
def shows():
    a = torch.randn(3, 5, requires_grad=True)
    before = a.detach().clone()
    swiglu(a, torch.randn(3, 5)).sum().backward()
    return a.detach(), before
