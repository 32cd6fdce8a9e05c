"""Total variation distance of two distributions, with a backward pass of its own.

kind: large finite inputs
origin: linkedin/Liger-Kernel#1373
shows: the gradient where the distributions agree
words: grad
"""
import torch

class Distance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, q):
        ctx.save_for_backward(p, q)
        return 0.5 * (p - q).abs().sum()

    @staticmethod
    def backward(ctx, g):
        p, q = ctx.saved_tensors
        sign = torch.sign(p - q)  # bad: sign = torch.where(p > q, 1.0, -1.0).to(p.dtype)
        return 0.5 * g * sign, -0.5 * g * sign

distance = Distance.apply

# ---- test ----
def reference(p, q):
    return 0.5 * (p - q).abs().sum()

def test_distance(perfguard):
    p, q = torch.randn(2, 16, 40, device=perfguard.device).softmax(-1).unbind(0)
    perfguard(distance, p.requires_grad_(), q.requires_grad_(), reference=reference)

# ---- shows ----
def shows():
    p = torch.randn(16, 40).softmax(-1).requires_grad_()
    return [torch.autograd.grad(fn(p, p.detach()), p)[0] for fn in (distance, reference)]
