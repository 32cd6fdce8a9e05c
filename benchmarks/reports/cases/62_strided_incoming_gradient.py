"""Each row times a gain, with a kernel for the backward pass.

kind: layouts
origin: unslothai/unsloth#10617
shows: an incoming gradient that is a slice
words: gradient|slice|stride
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _times(x, w, out, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0)
    tl.store(out + row * cols + at, v * tl.load(w + at, mask=at < cols, other=0.0), mask=at < cols)

def times(x, w):
    out = x.new_empty(x.shape)
    if x.numel():
        _times[(len(x),)](x, w, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

class Gain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        w = w.contiguous()
        ctx.save_for_backward(w)
        return times(x.contiguous(), w)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()  # bad: g = g.reshape(g.shape)
        return times(g, *ctx.saved_tensors), None

gain = Gain.apply

# ---- test ----
def test_gain(perfguard):
    x = torch.randn(24, 40, device=perfguard.device, requires_grad=True)
    perfguard(gain, x, torch.randn(40, device=perfguard.device), reference=lambda x, w: x * w)

# ---- shows ----
def shows():
    x, w, g = torch.randn(24, 40, requires_grad=True), torch.randn(40), torch.randn(24, 80)[:, ::2]
    return torch.autograd.grad(gain(x, w), x, g)[0], g * w
