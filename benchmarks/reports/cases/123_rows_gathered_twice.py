"""Rows by index, with a kernel for the backward pass.

kind: sizes and integers
origin: PaddlePaddle/Paddle#17705
shows: an index that comes twice
words: argument 1|ids?|equal|repeat|integers|gradient
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _scatter(g, index, grad, width, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    to = grad + tl.load(index + row) * width + at
    v = tl.load(g + row * width + at, mask=at < width)
    tl.atomic_add(to, v, mask=at < width)  # bad: tl.store(to, v, mask=at < width)

class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index.contiguous())
        ctx.shape = x.shape
        return x[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        g, grad = g.contiguous(), torch.zeros(ctx.shape, device=g.device, dtype=g.dtype)
        if len(index):
            _scatter[(len(index),)](g, index, grad, g.shape[1], BLOCK=triton.next_power_of_2(g.shape[1]))
        return grad, None

gather = Gather.apply

# ---- test ----
def test_gather(perfguard):
    from perfguard import ids

    x = torch.randn(64, 24, device=perfguard.device, requires_grad=True)
    index = torch.randperm(64, device=perfguard.device)[:32]
    perfguard(gather, x, ids(index, 64), reference=lambda x, index: x.index_select(0, index))

# ---- shows ----
def shows():
    x, index, g = torch.randn(8, 4, requires_grad=True), torch.tensor([1, 1, 3]), torch.randn(3, 4)
    return torch.autograd.grad(gather(x, index), x, g)[0], torch.autograd.grad(x[index], x, g)[0]
