"""Cross entropy that keeps the probabilities for its backward pass.

kind: modes of a call
origin: unslothai/unsloth#5002
shows: a second backward pass over one graph
words: second backward|backward twice|retain|backward again
"""
import torch
import torch.nn.functional as F

from perfguard import ids

class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        top = logits.logsumexp(-1, keepdim=True)
        ctx.p, ctx.labels = (logits - top).exp(), labels  # kernels write past autograd's count of versions
        return (top - logits.gather(1, labels[:, None])).squeeze(1)

    @staticmethod
    def backward(ctx, g):
        p, labels = ctx.p, ctx.labels
        p = p.clone()  # bad:
        p.scatter_add_(1, labels[:, None], -torch.ones_like(p[:, :1]))
        return p.mul_(g[:, None]), None

cross_entropy = CrossEntropy.apply

# ---- test ----
def reference(x, labels):
    return F.cross_entropy(x, labels, reduction="none")

def test_cross_entropy(perfguard):
    x = torch.randn(24, 50, device=perfguard.device, requires_grad=True)
    labels = torch.randint(50, (24,), device=perfguard.device)
    perfguard(cross_entropy, x, ids(labels, 50), reference=reference)

# ---- shows ----
def shows():
    x, labels, out = torch.randn(24, 50, requires_grad=True), torch.randint(50, (24,)), []
    for fn in (cross_entropy, reference):
        loss = fn(x, labels).sum()
        torch.autograd.grad(loss, x, retain_graph=True)
        out += torch.autograd.grad(loss, x)
    return out
