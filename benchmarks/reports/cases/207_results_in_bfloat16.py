"""Rows less their mean, over their standard deviation.

kind: dtypes
origin: meta-pytorch/tritonbench#1209
shows: the result of float32
words: dtype|float32
"""
import torch
import triton
import triton.language as tl

@triton.jit
def _standard(x, out, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * cols + at, mask=at < cols, other=0.0).to(tl.float32)
    off = tl.where(at < cols, v - tl.sum(v, 0) / cols, 0.0)
    spread = tl.sqrt(tl.sum(off * off, 0) / cols + 1e-5)
    tl.store(out + row * cols + at, off / spread, mask=at < cols)

def standard(x):
    x = x.contiguous()
    out = torch.empty_like(x)  # bad: out = torch.empty_like(x, dtype=torch.bfloat16)
    if x.numel():
        _standard[(len(x),)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out

# ---- test ----
def test_standard(perfguard):
    x = torch.randn(32, 96, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(standard, x, reference=lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))

# ---- shows ----
def shows():
    x = torch.randn(4, 24)
    return standard(x).float(), torch.nn.functional.layer_norm(x, (24,))
