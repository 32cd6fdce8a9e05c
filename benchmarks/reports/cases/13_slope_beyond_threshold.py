"""Softplus, forward and backward in kernels.

kind: large finite inputs
origin: handed; as tenstorrent/tt-metal#56397
shows: the gradient beyond 20
words: grad
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _fwd(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    s = tl.where(v > 20.0, v, tl.log(1.0 + tl.exp(v)))
    tl.store(out + at, s, mask=at < n)

@triton.jit
def _bwd(x, g, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    up = tl.load(g + at, mask=at < n, other=0.0).to(tl.float32)
    far = 1.0  # bad: far = 0.0
    slope = tl.where(v > 20.0, far, 1.0 / (1.0 + tl.exp(-v)))
    tl.store(out + at, up * slope, mask=at < n)

class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            _fwd[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            _bwd[(triton.cdiv(x.numel(), 256),)](x, g, out, x.numel(), BLOCK=256)
        return out

softplus = Softplus.apply

# ---- test ----
def test_softplus(perfguard):
    x = torch.randn(16, 40, device=perfguard.device, requires_grad=True)
    perfguard(softplus, x, reference=torch.nn.functional.softplus)

# ---- shows ----
def shows():
    x = torch.randn(16, 40).mul_(40).requires_grad_()
    return [torch.autograd.grad(fn(x).sum(), x)[0] for fn in (softplus, torch.nn.functional.softplus)]
