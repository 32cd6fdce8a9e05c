"""Heads of keys spread over the heads of queries in turn, with the sum over them as its gradient.

kind: equal sizes
origin: XunhaoLai/native-sparse-attention-triton#27
shows: the gradient of 2 heads of keys under 8 heads
words: dim 0|heads|gradient
"""
import torch

class Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx, k, heads):
        ctx.shape = k.shape
        return k[torch.arange(heads, device=k.device) % len(k)]

    @staticmethod
    def backward(ctx, g):
        own, groups = ctx.shape[0], len(g) // ctx.shape[0]
        at = torch.arange(len(g), device=g.device) % own  # bad: at = torch.arange(len(g), device=g.device) % groups
        return g.new_zeros(max(own, groups), *ctx.shape[1:]).index_add_(0, at, g)[:own], None

def spread(k, heads):
    return Spread.apply(k, heads)

# ---- test ----
def reference(k, heads):
    return k.repeat(heads // len(k), 1, 1)

def test_spread(perfguard):
    k = torch.randn(4, 24, 16, device=perfguard.device, requires_grad=True)
    perfguard(spread, k, 16, reference=reference)

# ---- shows ----
def shows():
    k, g = torch.randn(2, 3, 4, requires_grad=True), torch.randn(8, 3, 4)
    return tuple(torch.autograd.grad(fn(k, 8), k, g)[0] for fn in (spread, reference))
