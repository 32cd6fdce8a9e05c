"""RMS norm of rows into a buffer that is kept by shape, since an allocation takes as long as the kernel.

kind: aliases
origin: pytorch/helion#2536
shows: a result after another call
words: call|result|overwr|alias|buffer
"""
import torch
import triton
import triton.language as tl

_KEPT = {}

@triton.jit
def _norm(x, out, width, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * width + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, v * tl.rsqrt(tl.sum(v * v) / width + eps), mask=at < width)

def rms_norm(x, eps=1e-6):
    x = x.contiguous()
    out = torch.empty_like(x)  # bad: out = _KEPT.setdefault((x.shape, x.dtype, x.device), torch.empty_like(x))
    if x.numel():
        width = x.shape[-1]
        _norm[(x.numel() // width,)](x, out, width, eps, BLOCK=triton.next_power_of_2(width))
    return out

# ---- test ----
def test_rms_norm(perfguard):
    x = torch.randn(24, 96, device=perfguard.device)
    perfguard(rms_norm, x, reference=lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6))

# ---- shows ----
def shows():
    x, other = torch.randn(4, 16), torch.randn(4, 16)
    got = rms_norm(x)
    rms_norm(other)
    return got, torch.nn.functional.rms_norm(x, (16,), eps=1e-6)
