"""A linear function that keeps what its backward pass needs.

kind: cost on hard inputs
origin: pytorch/pytorch#42371
shows: the bytes that are kept if the weight is frozen
words: frozen|saved|kept
"""
import torch

class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        keep = ctx.needs_input_grad[1]  # bad: keep = True
        ctx.save_for_backward(x if keep else None, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.T @ x if ctx.needs_input_grad[1] else None

linear = Linear.apply

# ---- test ----
def test_linear(perfguard):
    x = torch.randn(64, 32, device=perfguard.device, requires_grad=True)
    w = torch.randn(48, 32, device=perfguard.device, requires_grad=True)
    perfguard(linear, x, w, reference=torch.nn.functional.linear)

# ---- shows ----
def shows():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()), lambda t: t):
        linear(torch.randn(64, 32, requires_grad=True), torch.randn(48, 32))
    return sum(kept), 48 * 32
