"""Cross entropy with soft targets, with a backward pass of its own.

kind: values
origin: NVIDIA-NeMo/Automodel#2428
shows: the gradient for targets that sum to 1/2
words: gradient|values|times
"""
import torch

class SoftCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        lse = logits.logsumexp(-1, keepdim=True)
        total = target.sum(-1, keepdim=True)
        ctx.save_for_backward(logits, target, lse, total)
        return (total * lse - (target * logits).sum(-1, keepdim=True)).mean()

    @staticmethod
    def backward(ctx, g):
        logits, target, lse, total = ctx.saved_tensors
        p = (logits - lse).exp()
        grad = total * p - target  # bad: grad = p - target
        return g * grad / len(logits), None

soft_cross_entropy = SoftCrossEntropy.apply

# ---- test ----
def reference(logits, target):
    return torch.nn.functional.cross_entropy(logits, target)

def test_soft_cross_entropy(perfguard):
    logits = torch.randn(32, 100, device=perfguard.device, requires_grad=True)
    target = torch.randn(32, 100, device=perfguard.device).softmax(-1)
    perfguard(soft_cross_entropy, logits, target, reference=reference)

# ---- shows ----
def shows():
    x, t = torch.randn(8, 50, requires_grad=True), torch.randn(8, 50).softmax(-1) / 2
    return tuple(torch.autograd.grad(fn(x, t), x)[0] for fn in (soft_cross_entropy, reference))
