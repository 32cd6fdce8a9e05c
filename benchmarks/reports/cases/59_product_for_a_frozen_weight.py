"""A linear function with products of its own in the backward pass.

kind: cost on hard inputs
origin: pytorch/ao#4471
shows: products for a frozen weight
words: frozen|aten.(mm|matmul)|operators|flop
"""
import torch

from benchmarks.reports.seen import operators

class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        needed = ctx.needs_input_grad[1]  # bad: needed = True
        return g @ w, g.T @ x if needed else None

linear = Linear.apply

# ---- test ----
def test_linear(perfguard):
    x = torch.randn(16, 32, device=perfguard.device, requires_grad=True)
    w = torch.randn(48, 32, device=perfguard.device, requires_grad=True)
    perfguard(linear, x, w, reference=torch.nn.functional.linear)

# ---- shows ----
def shows():
    x, w = torch.randn(16, 32, requires_grad=True), torch.randn(48, 32)
    return operators(lambda: torch.autograd.grad(linear(x, w).sum(), x), "aten.mm"), 2
