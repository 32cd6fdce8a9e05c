"""Rows of a table by token, with a backward pass of its own; the row of padding gets no gradient.

kind: thresholds
origin: pytorch/pytorch#28716
shows: 800 tokens
words: dim 0|sizes?|gradient|tokens
"""
import torch

class Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tokens, table, padding):
        ctx.save_for_backward(tokens)
        ctx.shape, ctx.padding = table.shape, padding
        return table[tokens]

    @staticmethod
    def backward(ctx, g):
        (tokens,) = ctx.saved_tensors
        grad = g.new_zeros(ctx.shape)
        if len(tokens) <= 768:
            grad.index_add_(0, tokens, g.where((tokens != ctx.padding)[:, None], 0))
        else:  # sorted first: equal tokens then lie in one run
            order = tokens.argsort()
            order = order[tokens[order] != ctx.padding]  # bad:
            grad.index_add_(0, tokens[order], g[order])
        return None, grad, None

def embedding(tokens, table, padding):
    return Embedding.apply(tokens, table, padding)

# ---- test ----
def test_embedding(perfguard):
    tokens = torch.randint(50, (96,), device=perfguard.device)
    table = torch.randn(50, 16, device=perfguard.device, requires_grad=True)
    perfguard(embedding, tokens, table, 0, reference=torch.nn.functional.embedding)

# ---- shows ----
def shows():
    tokens, table, g = torch.randint(5, (800,)), torch.randn(5, 4, requires_grad=True), torch.randn(800, 4)
    return tuple(
        torch.autograd.grad(fn(tokens, table, 0), table, g)[0] for fn in (embedding, torch.nn.functional.embedding)
    )
