"""A fused projection that flattens the batch before it saves its input.

kind: layouts
origin: verl-project/verl#7235
shows: the gradient of a transposed input
words: transposed|stride|layout
"""
import torch

class Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        flat = x.reshape(-1, x.shape[-1])
        ctx.shape = x.shape
        ctx.save_for_backward(flat, w)
        return (flat @ w.T).view(*x.shape[:-1], len(w))

    @staticmethod
    def backward(ctx, g):
        flat, w = ctx.saved_tensors
        g = g.reshape(-1, g.shape[-1])
        needs = ctx.needs_input_grad[0]  # bad: needs = flat.requires_grad
        return (g @ w).view(ctx.shape) if needs else None, g.T @ flat

project = Projection.apply

# ---- test ----
def test_project(perfguard):
    x = torch.randn(4, 12, 32, device=perfguard.device, requires_grad=True)
    w = torch.randn(24, 32, device=perfguard.device, requires_grad=True)
    perfguard(project, x, w, reference=lambda x, w: x @ w.T)

# ---- shows ----
def shows():
    x, w = torch.randn(12, 4, 32).transpose(0, 1).requires_grad_(), torch.randn(24, 32, requires_grad=True)
    return [torch.autograd.grad(out.sum(), x)[0] for out in (project(x, w), x @ w.T)]
