"""Causal attention with a backward pass of its own; the last query sees the last key.

kind: equal sizes
origin: xlite-dev/ffpa-attn#300
shows: gradients of 16 queries beside 48 keys
words: gradient|argument|equal sizes|cut
"""
import torch

def hidden(q, k):
    ahead = k.shape[-2] - q.shape[-2]
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(ahead + 1)

class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden(q, k), -torch.inf)
        lse = scores.logsumexp(-1, keepdim=True)
        lse = lse.masked_fill(lse == -torch.inf, 0)
        out = (scores - lse).exp() @ v
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, lse = ctx.saved_tensors
        scale = q.shape[-1] ** -0.5
        unseen = hidden(q, k)  # bad: unseen = torch.ones_like(hidden(q, k)).triu(1)
        p = (q @ k.mT * scale - lse).exp().masked_fill(unseen, 0)
        ds = p * (g @ v.mT - (g * out).sum(-1, keepdim=True)) * scale
        return ds @ k, ds.mT @ q, p.mT @ g

def attend(q, k, v):
    return Attend.apply(q, k, v)

# ---- test ----
def reference(q, k, v):
    ahead = k.shape[-2] - q.shape[-2]
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(ahead)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)

def test_attend(perfguard):
    q, k, v = (torch.randn(2, 2, 48, 16, device=perfguard.device, requires_grad=True) for _ in range(3))
    perfguard(attend, q, k, v, reference=reference)

# ---- shows ----
def shows():
    q, k, v = torch.randn(1, 4, 8), torch.randn(1, 12, 8, requires_grad=True), torch.randn(1, 12, 8)
    return tuple(torch.autograd.grad(fn(q, k, v).square().sum(), k)[0] for fn in (attend, reference))
