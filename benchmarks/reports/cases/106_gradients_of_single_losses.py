"""A linear layer fused with its cross entropy; gradients are made in the forward pass.

kind: text options
origin: linkedin/Liger-Kernel#1298
shows: gradients with reduction="none"
words: reduction|none|gradient
"""
import torch

class LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, target, reduction):
        logits = x @ weight.T
        loss = torch.nn.functional.cross_entropy(logits, target, reduction="none")
        grad = logits.softmax(-1)
        grad[torch.arange(len(x), device=x.device), target] -= 1
        if reduction == "mean":
            grad = grad / len(x)
        ctx.save_for_backward(x, weight, grad)
        return {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]

    @staticmethod
    def backward(ctx, g):
        x, weight, grad = ctx.saved_tensors
        grad = grad * g.reshape(-1, 1)  # bad: grad = grad * g.flatten()[0]
        return grad @ weight, grad.T @ x, None, None

def linear_cross_entropy(x, weight, target, reduction="mean"):
    return LinearCrossEntropy.apply(x, weight, target, reduction)

# ---- test ----
def reference(x, weight, target, reduction="mean"):
    return torch.nn.functional.cross_entropy(x @ weight.T, target, reduction=reduction)

def test_linear_cross_entropy(perfguard):
    x = torch.randn(32, 48, device=perfguard.device, requires_grad=True)
    weight = torch.randn(80, 48, device=perfguard.device, requires_grad=True)
    target = torch.randint(80, (32,), device=perfguard.device)
    perfguard(linear_cross_entropy, x, weight, target, reference=reference)

# ---- shows ----
def shows():
    x, weight, g = torch.randn(8, 16, requires_grad=True), torch.randn(20, 16), torch.rand(8)
    target = torch.randint(20, (8,))
    losses = (fn(x, weight, target, reduction="none") for fn in (linear_cross_entropy, reference))
    return tuple(torch.autograd.grad(each, x, g)[0] for each in losses)
