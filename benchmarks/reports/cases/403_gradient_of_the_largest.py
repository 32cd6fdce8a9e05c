"""Rows of a table by bags of indices, summed, averaged, or the largest of each column.

kind: text options
origin: flagos-ai/FlagGems#5220
shows: the gradient with mode="max"
words: mode|max|gradient
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _bag(weight, indices, offsets, out, where, width, MODE: tl.constexpr, WIDTH: tl.constexpr):
    bag, lane = tl.program_id(0), tl.arange(0, WIDTH)
    inside = lane < width
    begin, end = tl.load(offsets + bag), tl.load(offsets + bag + 1)
    made = tl.full((WIDTH,), float("-inf") if MODE == "max" else 0.0, dtype=tl.float32)
    best = tl.full((WIDTH,), -1, dtype=tl.int64)
    for at in range(begin, end):
        row = tl.load(indices + at)
        value = tl.load(weight + row * width + lane, mask=inside, other=0.0).to(tl.float32)
        if MODE == "max":
            higher = value > made
            made, best = tl.where(higher, value, made), tl.where(higher, row, best)
        else:
            made += value
    if MODE == "max":
        made = tl.where(best < 0, 0.0, made)
        tl.store(where + bag * width + lane, best, mask=inside)
    if MODE == "mean":
        made /= tl.maximum(end - begin, 1)
    tl.store(out + bag * width + lane, made, mask=inside)

class Bags(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, indices, offsets, mode):
        weight, indices = weight.contiguous(), indices.contiguous()
        bags, width = len(offsets), weight.shape[1]
        bounds = torch.cat([offsets, offsets.new_tensor([len(indices)])])
        out, where = weight.new_zeros(bags, width), indices.new_full((bags, width), -1)
        if out.numel():
            _bag[(bags,)](
                weight, indices, bounds, out, where, width, MODE=mode, WIDTH=triton.next_power_of_2(width)
            )
        ctx.save_for_backward(indices, bounds, where)
        ctx.mode, ctx.rows = mode, len(weight)
        return out

    @staticmethod
    def backward(ctx, g):
        indices, bounds, where = ctx.saved_tensors
        grad = g.new_zeros(ctx.rows, g.shape[1])
        if ctx.mode == "max":  # bad: if ctx.mode == "largest":
            grad.scatter_add_(0, where.clamp(min=0), g.masked_fill(where < 0, 0))
            return grad, None, None, None
        counts = bounds.diff()
        if ctx.mode != "sum":
            g = g / counts.clamp(min=1)[:, None]
        return grad.index_add_(0, indices, g.repeat_interleave(counts, 0)), None, None, None

def bags(weight, indices, offsets, mode="mean"):
    return Bags.apply(weight, indices, offsets, mode)

# ---- test ----
def reference(weight, indices, offsets, mode="mean"):
    return torch.nn.functional.embedding_bag(indices, weight, offsets, mode=mode)

def test_bags(perfguard):
    weight = torch.randn(50, 24, device=perfguard.device, requires_grad=True)
    indices = torch.randint(50, (40,), device=perfguard.device)
    offsets = torch.tensor([0, 7, 19, 30], device=perfguard.device)
    perfguard(bags, weight, indices, offsets, reference=reference)

# ---- shows ----
def shows():
    weight = torch.randn(5, 3, requires_grad=True)
    given = torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([0, 3]), "max"
    return tuple(torch.autograd.grad(fn(weight, *given).square().sum(), weight)[0] for fn in (bags, reference))
