"""A linear layer fused with its cross entropy, gradients made in the forward pass.

kind: modes of a call
origin: linkedin/Liger-Kernel#305
shows: hidden states in bfloat16 beside a weight in float32
words: dtype|bfloat16
"""
import torch
import torch.nn.functional as F

from perfguard import ids

class LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, labels):
        w = weight.to(x.dtype)  # bad: w = weight
        logits = (x @ w.T).float()
        top = logits.logsumexp(-1, keepdim=True)
        loss = (top - logits.gather(1, labels[:, None])).mean()
        grad = (logits - top).exp()
        grad = grad.scatter_add(1, labels[:, None], -torch.ones_like(top)).div_(len(x)).to(x.dtype)
        ctx.save_for_backward(grad @ w, (grad.T @ x).to(weight.dtype))
        return loss.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        to_x, to_weight = ctx.saved_tensors
        return to_x * g, to_weight * g, None

linear_loss = LinearLoss.apply

# ---- test ----
def reference(x, w, labels):
    return F.cross_entropy(x @ w.to(x.dtype).T, labels)

def test_linear_loss(perfguard):
    x = torch.randn(24, 32, device=perfguard.device, requires_grad=True)
    w = torch.randn(50, 32, device=perfguard.device, requires_grad=True)
    labels = torch.randint(50, (24,), device=perfguard.device)
    perfguard(linear_loss, x, w, ids(labels, 50), reference=reference)

# ---- shows ----
def shows():
    x, w, labels = torch.randn(24, 32).bfloat16(), torch.randn(50, 32), torch.randint(50, (24,))
    return (linear_loss(x, w, labels) / reference(x, w, labels)).float().round(decimals=1), torch.ones(())
