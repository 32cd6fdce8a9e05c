"""Two branches through SiLU at once; one that no loss uses gets a gradient of zeros, where torch has none.

kind: correct
origin: pytorch/pytorch#58511
shows: the results
words: -
"""
import torch

class Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * a.sigmoid(), b * b.sigmoid()

    @staticmethod
    def backward(ctx, *gs):
        gates = [(x, x.sigmoid()) for x in ctx.saved_tensors]
        return tuple(g * gate * (1 + x * (1 - gate)) for g, (x, gate) in zip(gs, gates, strict=True))

def branches(a, b):
    return Branches.apply(a, b)

# ---- test ----
def reference(a, b):
    return torch.nn.functional.silu(a), torch.nn.functional.silu(b)

def test_branches(perfguard):
    a, b = (torch.randn(24, width, device=perfguard.device, requires_grad=True) for width in (40, 56))
    perfguard(branches, a, b, reference=reference)

# ---- shows ----
def shows():
    a, b = torch.randn(2, 3, 5)
    return branches(a, b)[1], reference(a, b)[1]
