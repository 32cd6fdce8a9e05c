"""RMS norm with its backward pass; several narrow rows share one program.

kind: thresholds
origin: BobMcDear/attorch#17
shows: 300 rows of 32
words: dim [01]|rows|columns|sizes?|gradient
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _forward(x, out, rstd, rows, cols, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    at = row[:, None] * cols + col[None, :]
    v = tl.load(x + at, mask=inside, other=0.0)
    r = tl.rsqrt(tl.sum(v * v, 1) / cols + eps)
    tl.store(out + at, v * r[:, None], mask=inside)
    tl.store(rstd + row, r, mask=row < rows)

@triton.jit
def _backward(g, x, rstd, grad, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, COLS)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    at = row[:, None] * cols + col[None, :]
    dy = tl.load(g + at, mask=inside, other=0.0)
    v = tl.load(x + at, mask=inside, other=0.0)
    r = tl.load(rstd + row, mask=row < rows, other=0.0)
    inner = tl.sum(dy * v, 1) * r * r / cols
    share = v * inner[:, None]  # bad: share = v * inner
    tl.store(grad + at, r[:, None] * (dy - share), mask=inside)

def _blocks(rows, cols):
    block = triton.next_power_of_2(cols)
    return (block if cols <= 32 and rows >= 256 else 1), block

class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        x = x.contiguous()
        rows, cols = x.shape
        out, rstd = torch.empty_like(x), torch.empty(rows, device=x.device)
        many, block = _blocks(rows, cols)
        _forward[(triton.cdiv(rows, many),)](x, out, rstd, rows, cols, eps, ROWS=many, COLS=block)
        ctx.save_for_backward(x, rstd)
        return out

    @staticmethod
    def backward(ctx, g):
        x, rstd = ctx.saved_tensors
        rows, cols = x.shape
        g, grad = g.contiguous(), torch.empty_like(x)
        many, block = _blocks(rows, cols)
        _backward[(triton.cdiv(rows, many),)](g, x, rstd, grad, rows, cols, ROWS=many, COLS=block)
        return grad, None

def rms_norm(x, eps=1e-6):
    return RMSNorm.apply(x, eps)

# ---- test ----
def reference(x, eps=1e-6):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=eps)

def test_rms_norm(perfguard):
    x = torch.randn(64, 128, device=perfguard.device, requires_grad=True)
    perfguard(rms_norm, x, reference=reference)

# ---- shows ----
def shows():
    x, g = torch.randn(300, 32, requires_grad=True), torch.randn(300, 32)
    return tuple(torch.autograd.grad(fn(x), x, g)[0] for fn in (rms_norm, reference))
